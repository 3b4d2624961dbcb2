"""The executor's side of a task: from the ranges of a partition to Arrow batches."""
