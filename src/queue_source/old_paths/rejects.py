"""`queue_source.rejects` of 0.1.0; import `cuesqueue` instead."""

from queue_source.foreach_batch.rejects import reject_rows

__all__ = ["reject_rows"]
