"""Listings of objects beside what the store knows: what is new, what became of each, and certificates of it."""
