"""Executor side: from an object to Arrow batches, one file a format."""
