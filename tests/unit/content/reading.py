"""Helpers of the tests of readers: write bytes, read them back through `load_object`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from queue_source.content.formats import FormatOptions
from queue_source.content.objects import load_object
from queue_source.errors import BadObject

UTC_MICROS = pa.timestamp("us", tz="UTC")


def read_bytes(data: bytes, schema: pa.Schema, options: FormatOptions, name: str = "object") -> list[dict[str, Any]]:
    """The rows of an object of these bytes; every batch has exactly the schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        batches = load_object(f"file://{path}", schema, options)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert batch.num_rows > 0
    return [row for batch in batches for row in batch.to_pylist()]


def read_column(data: bytes, kind: pa.DataType, options: FormatOptions) -> list[Any]:
    """The values of the only column `a`."""
    return [row["a"] for row in read_bytes(data, pa.schema([("a", kind)]), options)]


def refused(data: bytes, schema: pa.Schema, options: FormatOptions, name: str = "object") -> BadObject:
    """The BadObject that reading these bytes raises."""
    with pytest.raises(BadObject) as caught:
        read_bytes(data, schema, options, name)
    return caught.value
