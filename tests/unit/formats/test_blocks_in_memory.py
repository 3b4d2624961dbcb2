"""Of an object's text a worker holds a block, and what becomes of it, once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.formats.base import BadRecords
from queue_source.formats.text import blocks
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object

BLOCK = 4 << 20
TEXT = b"x" * 90
RECORDS = {"csv": b"%d," + TEXT, "json": b'{"n": %d, "s": "' + TEXT + b'"}', "text": b"%d" + TEXT}
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
AT_MOST = {"csv": 2.2, "json": 2.2, "text": 4.4}
"""In blocks. Two: the end of one is joined to the next. Rows of text are made by numpy, which Python counts too."""


@pytest.mark.parametrize("file_format", RECORDS)
def test_no_block_is_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", BLOCK)
    path = tmp_path / "object"
    rows = 4 * BLOCK // len(TEXT)
    path.write_bytes(b"\n".join(RECORDS[file_format] % row for row in range(rows)))
    schema = pa.schema([("value", pa.string())]) if file_format == "text" else SCHEMA
    read = read_object(path.as_uri(), schema, FormatOptions(file_format), BadRecords("PERMISSIVE"))
    count = next(read).num_rows  # what is imported at the first time does not count
    tracemalloc.start()
    try:
        for batch in read:
            count += batch.num_rows
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == rows
    assert peak < AT_MOST[file_format] * BLOCK
