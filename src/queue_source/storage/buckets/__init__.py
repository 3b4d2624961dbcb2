"""Many objects of one bucket at once: listed, deleted, moved; a module for each kind of store."""
