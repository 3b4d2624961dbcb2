"""What people and commands ask of the store and do to it, beside the queries that run."""
