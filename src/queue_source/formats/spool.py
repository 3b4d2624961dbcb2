"""All rows of an object or none: they are held back until its end is known to be good.

A worker holds a bounded part in memory; what is more goes to a file of its own on local disk, gone when it was read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa

HELD_BYTES = 64 << 20
"""Bytes of rows that are held in memory."""


def all_or_nothing(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, once the last of them is there; what `batches` raises is raised before the first."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
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
