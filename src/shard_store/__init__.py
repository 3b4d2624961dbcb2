"""SQL-backed shard table: progress, ownership, publishing. Knows nothing of Spark, queues or object storage."""
