"""Databases: connections, dialects, tables and migrations."""
