"""Shards, the sources that they are of, and who may publish them."""
