"""A queue in a table (SQLAlchemy). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.sql.queue import SqlQueue

__all__ = ["SqlQueue"]
