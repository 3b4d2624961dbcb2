"""The executor's part of a batch: from the ranges of a partition to Arrow batches."""
