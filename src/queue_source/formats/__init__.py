"""File formats: from an opened object and a range of it to Arrow batches."""
