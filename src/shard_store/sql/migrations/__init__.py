"""Alembic's environment for the store's tables; `versions/` has a file for each revision, oldest first."""
