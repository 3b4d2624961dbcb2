"""Batches for Spark: held back until they are known to be good, and of a size that is worth sending."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa

HELD_BYTES = 64 << 20
"""Bytes of rows that are held in memory until their object's end is known to be good."""
MIN_ROWS = 8_192
"""Rows from which on a batch goes by itself: each costs the JVM some 0.2 ms, however few rows are in it."""
MIN_BYTES = 4 << 20
"""Bytes from which on it does."""
_SMALL = 64 << 10


def all_or_nothing(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches once the last of them is read; an error of `batches` is raised before the first.

    More than `HELD_BYTES` goes to a temporary file on local disk.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += _size(batch)
        if size > HELD_BYTES:
            break
    else:
        yield from held
        return
    with tempfile.TemporaryFile(prefix="cuesqueue-held-") as file:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(pa.PythonFile(file, "w"), schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.seek(0)
        yield from held
        held.clear()
        with pa.ipc.open_stream(pa.PythonFile(file, "r")) as reader:
            yield from reader


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, with small batches joined."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= MIN_ROWS and not held:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size += _size(batch)
        if rows >= MIN_ROWS or size >= MIN_BYTES:
            yield from _join(held)
            held, rows, size = [], 0, 0
    yield from _join(held)


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch.

    Those of a small one are the bytes of its buffers, which is 20 times as fast: its table may be small too.
    """
    buffers: int = batch.get_total_buffer_size()
    return buffers if buffers < _SMALL else batch.nbytes


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
