"""Modules by the names of 0.1.0 (`queue_source.delivery`), which its documentation names."""
