"""What a reader holds: a record for each message, the shards that are ready, taken or planned, and leases."""
