"""Real servers for the tests, from PyPI packages: loopback only, own port and folder, ended by their own pid."""
