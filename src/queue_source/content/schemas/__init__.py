"""Schemas that nobody declared: inferred from samples, kept in versions, widened when new columns come."""
