"""Objects read as one task of a batch reads them: with good objects beside them, verdicts, and all that it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from queue_source.options import in_zone, parse_reader_options
from queue_source.read.partitions import PlanStore, whole_pieces
from queue_source.read.task import Work, read_pieces
from queue_source.schema.columns import parse_columns
from shard_store.model import (
    BEGINNING,
    Content,
    ErrorRecord,
    PlanIdentity,
    PublishToken,
    Range,
    end_at,
    shard_key,
)
from support.oracle.rows import Row, rows_of
from support.sessions import LEAST

_IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)
_PLACE = "_metadata STRUCT<file_path: STRING>"


class _NoStore:
    """What a task asks of its store beside errors, which go another way: counts of retries, and other objects."""

    @contextmanager
    def open(self) -> Iterator[_NoStore]:
        yield self

    kept = open

    def count_object_retries(self, pipeline: str, retries: int) -> None:
        """Nothing is counted."""

    def known_objects(self, identity: PlanIdentity) -> tuple[list[str], list[str]]:
        return [], []


@dataclass(frozen=True)
class Announced:
    """An object as a message announces it."""

    uri: str
    size: int | None = None
    etag: str | None = None


@dataclass
class Read:
    """What a task made of its objects: the rows of each, and what it reports of each."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    bad_records: dict[str, int] = field(default_factory=dict)


def read_task(objects: Sequence[Announced], file_format: str, ddl: str, options: Mapping[str, str]) -> Read:
    """Read them. Raises whatever fails the task."""
    parsed = parse_reader_options({**LEAST, "fileFormat": file_format, **options})
    ranges = []
    for one in objects:
        content = Content(one.uri, one.uri, one.size, one.etag, queue="q", message_id="m")
        ranges.append(Range(shard_key("files", one.uri), content, BEGINNING, end_at(one.size or 0)))
    how = in_zone(parsed.content, "Europe/Berlin")
    work = Work(_IDENTITY, whole_pieces(ranges), how, cast("PlanStore", _NoStore()), max_attempts=2)
    read = Read({one.uri: [] for one in objects})
    schema = parse_columns(f"{ddl}, {_PLACE}")

    def report(records: Sequence[ErrorRecord]) -> None:
        for record in records:
            uri = record.subject
            if record.scope == "object":
                read.verdicts[uri], read.details[uri] = record.cause, record.detail or ""
            else:
                read.bad_records[uri] = read.bad_records.get(uri, 0) + 1

    for batch in read_pieces(work, schema, report):
        places = batch.column(batch.num_columns - 1).field(0).to_pylist()
        data = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=pa.schema(list(schema)[:-1]))
        for uri, row in zip(places, rows_of([data]), strict=True):
            read.rows[uri].append(row)
    return read
