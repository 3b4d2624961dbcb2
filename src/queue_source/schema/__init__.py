"""Schemas that nobody declared: found in samples, kept in a location, widened when objects outgrow them."""
