"""Exactly once inside `foreachBatch`: a user's own transaction, and the rows that it rejects."""
