"""Helpers of the tests of readers: write bytes, read them back through `read_object`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, Part
from queue_source.options import ReaderOptions
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.read.partitions import PlanStore
from shard_store.store import open_store

UTC_MICROS = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000


def plan_store(options: ReaderOptions) -> PlanStore:
    """The store as tasks reach it; it is made here, where the reader's start does that."""
    with open_store(options.store.reveal()) as store:
        return PlanStore.of(options.store, store)


def load_object(uri: str, schema: pa.Schema, options: FormatOptions, **more: Any) -> list[pa.RecordBatch]:
    """Every batch of a whole object, in which no record is bad."""
    problems = BadRecords(options.mode)
    batches = list(read_object(uri, schema, options, problems, **more))
    assert problems.count == 0
    return batches


@dataclass
class Found:
    """What a reader made of some bytes."""

    rows: list[dict[str, Any]]
    problems: BadRecords

    @property
    def offsets(self) -> list[int]:
        """Where the bad records begin."""
        return [bad.offset for bad in self.problems.reported]

    @property
    def reasons(self) -> str:
        return "\n".join(bad.reason for bad in self.problems.reported)


def read_with_problems(
    data: bytes, schema: pa.Schema, options: FormatOptions, name: str = "object", part: Part | None = None
) -> Found:
    """The rows and bad records of an object of these bytes; every batch has exactly the schema."""
    problems = BadRecords(options.mode)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        batches = list(read_object(f"file://{path}", schema, options, problems, part=part))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert batch.num_rows > 0
    return Found([row for batch in batches for row in batch.to_pylist()], problems)


def read_bytes(data: bytes, schema: pa.Schema, options: FormatOptions, name: str = "object") -> list[dict[str, Any]]:
    """The rows of an object of these bytes, in which no record is bad."""
    found = read_with_problems(data, schema, options, name)
    assert found.problems.count == 0, found.reasons
    return found.rows


def read_column(data: bytes, kind: pa.DataType, options: FormatOptions) -> list[Any]:
    """The values of the only column `a`."""
    return [row["a"] for row in read_bytes(data, pa.schema([("a", kind)]), options)]


def refused(data: bytes, schema: pa.Schema, options: FormatOptions, name: str = "object") -> BadObject:
    """The BadObject that reading these bytes raises, when the first bad record is to end it."""
    with pytest.raises(BadObject) as caught:
        read_with_problems(data, schema, replace(options, mode="FAILFAST"), name)
    return caught.value


def moments_around(*seconds: int) -> list[int]:
    """Microseconds since 1970 shortly before and after those seconds, with fractions of less and more than 1 ms."""
    fractions = (0, 1, 999, 1_000, 250_000, 500_000, 999_999)
    return sorted({(second + n) * SECOND + micros for second in seconds for n in range(-3, 3) for micros in fractions})
