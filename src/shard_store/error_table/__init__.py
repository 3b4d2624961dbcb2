"""The error table: what could not be processed, and what becomes of it."""
