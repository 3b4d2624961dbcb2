"""Batches of a size that is worth its way to Spark: each costs the JVM some 0.2 ms, however few rows are in it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

LEAST_ROWS = 8_192
"""Rows from which on a batch goes by itself."""
LEAST_BYTES = 4 << 20
"""Bytes from which on it does."""


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, small batches put together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= LEAST_ROWS and not held:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= LEAST_ROWS or size >= LEAST_BYTES:
            yield from _one(held)
            held, rows, size = [], 0, 0
    yield from _one(held)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
