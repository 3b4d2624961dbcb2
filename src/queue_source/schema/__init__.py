"""Schemas that are not declared: inferred from samples, kept in a location, widened when objects have more columns."""
