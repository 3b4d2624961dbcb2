"""The `cuesqueue` command, one file a group."""
