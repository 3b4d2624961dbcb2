"""The Spark source, sink and commands of cuesqueue. Users import the package `cuesqueue`."""
