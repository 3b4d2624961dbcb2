"""Real Spark for tests: drivers, queries, and what they read and write."""
