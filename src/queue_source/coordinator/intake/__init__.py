"""The way in: messages are received and opened, objects are listed, and each shard is routed by its owner."""
