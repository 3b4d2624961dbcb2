"""A whole reader, and often a sink, in one process over real objects, a simulated queue and SQLite; without Spark."""
