"""A case read by our reader: whole, in parts, the slow way, beside neighbours; and rows that can be compared."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import MAX_REPORTED, BadRecords, Part, check_schema
from queue_source.formats.metadata import ObjectMetadata
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text import blocks, csv, json, records
from queue_source.read import combined
from queue_source.read.combined import may_be_joined, parsed_messages, read_together
from queue_source.read.objects import ExpectedObject, read_object
from queue_source.storage.open_files import InMemory, ObjectFile
from shard_store.model import Payload
from support.oracle.cases import Case, Scheme

Cell = str
Row = tuple[Cell, ...]


class Broken(AssertionError):
    """A relation does not hold. `kind` is the same for what has the same cause, as far as that can be told."""

    def __init__(self, relation: str, case: Any, kind: str, detail: str) -> None:
        super().__init__(f"{relation}: {kind}\n{detail}")
        self.relation, self.case, self.kind, self.detail = relation, case, kind, detail


@dataclass(frozen=True)
class Found:
    """What a reader made of an object: rows, bad records by (offset, reason), or why it is bad as a whole."""

    rows: tuple[Row, ...] = ()
    bad: tuple[tuple[int, str], ...] = ()
    failure: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.failure}: {self.detail}" if self.failure else "\n".join(map(repr, self.rows)) or "no rows"

    @property
    def answer(self) -> tuple[tuple[Row, ...], tuple[int, ...], str]:
        """What has to be the same wherever the same is read: reasons are words."""
        return self.rows, tuple(offset for offset, _ in self.bad), self.failure


def number(value: float) -> str:
    """-0.0 is not 0.0, and NaN is NaN."""
    return "nan" if value != value else value.hex() if value else str(struct.pack(">d", value)[0] >> 7)


def cells(array: pa.Array | pa.ChunkedArray) -> list[Cell]:
    """The values as text which is the same for the same value of a type alone; times are numbers, which know no end."""
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        return [cell for chunk in array.chunks for cell in cells(chunk)]
    if pt.is_struct(kind):
        parts = [cells(part) for part in array.flatten()]
        return [
            "null" if not valid.as_py() else f"{{{', '.join(part[at] for part in parts)}}}"
            for at, valid in enumerate(array.is_valid())
        ]
    if pt.is_map(kind):
        keys, items = cells(array.keys), cells(array.items)
        pairs = [f"{key}: {item}" for key, item in zip(keys, items, strict=True)]
        return _ranges(array, pairs, "{}", sorted)  # a map has no order: Spark's reader of Avro hashes its keys
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _ranges(array, cells(array.values), "[]")
    if pt.is_temporal(kind):
        array = array.cast(pa.int32() if pt.is_date32(kind) else pa.int64())
    if pt.is_string(kind) or pt.is_large_string(kind):  # of Spark it may hold what is no text
        texts = [None if value is None else value.decode("utf-8", "backslashreplace") for value in binary(array)]
        return ["null" if text is None else repr(text) for text in texts]
    shown = number if pt.is_floating(kind) else repr
    return ["null" if value is None else shown(value) for value in array.to_pylist()]


def binary(array: pa.Array) -> list[bytes | None]:
    values: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return values


def _ranges(
    array: pa.Array, inner: list[Cell], brackets: str, ordered: Callable[[list[Cell]], list[Cell]] = list
) -> list[Cell]:
    offsets = array.offsets.to_pylist()
    return [
        f"{brackets[0]}{', '.join(ordered(inner[offsets[at] : offsets[at + 1]]))}{brackets[1]}"
        if valid.as_py()
        else "null"
        for at, valid in enumerate(array.is_valid())
    ]


def rows_of(batches: Sequence[pa.RecordBatch | pa.Table]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for batch in batches:
        rows += zip(*map(cells, batch.columns), strict=True) if batch.num_columns else [()] * batch.num_rows
    return tuple(rows)


def read(case: Case, part: Part | None = None) -> Found:
    """Read the object, or a part of it."""
    options, schema, data = case.parsed, case.schema, case.bytes
    problems = BadRecords(options.mode)
    uri = f"file:///{case.name}"
    try:
        batches = list(
            read_object(
                uri, schema, options, problems, part=part, opener=lambda: nullcontext(ObjectFile(uri, InMemory(data)))
            )
        )
    except BadObject as error:
        return Found(failure=error.cause, detail=error.detail)
    except NewColumns as error:
        return Found(failure="new columns", detail=str(error))
    except Exception as error:
        raise Broken(
            "reads-or-is-bad", case, f"{case.file_format}: raises {type(error).__name__}", repr(error)
        ) from error
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True), (batch.schema, schema)
    return Found(rows_of(batches), tuple((bad.offset, bad.reason) for bad in problems.reported))


def refused(case: Case) -> str:
    """Why the query would not start; "" where it would."""
    try:
        check_schema(case.schema, case.parsed)
    except OptionError as error:
        return str(error)
    return ""


def read_in_parts(case: Case, cuts: Sequence[int]) -> Found:
    """Read all parts between the cuts, in order, as so many tasks do."""
    bounds = [0, *cuts, None]
    rows: list[Row] = []
    bad: list[tuple[int, str]] = []
    for start, end in pairwise(bounds):
        found = read(case, Part(start or 0, end))
        if found.failure:
            return found
        rows += found.rows
        bad += found.bad
    return Found(tuple(rows), tuple(bad[:MAX_REPORTED]))  # a whole object reports no more


@contextmanager
def slow() -> Iterator[None]:
    """Every record is read by itself, in Python."""

    def read_block(reader: records.RecordReader, block: blocks.Block) -> Iterator[pa.Table]:
        return reader.read_slowly(block)

    with ExitStack() as stack:
        for module in (csv, json, records):
            stack.enter_context(mock.patch.object(module, "read_block", read_block))
        stack.enter_context(mock.patch.object(json.JsonReader, "_read_items_quickly", return_value=None))
        yield


@contextmanager
def small_blocks(size: int) -> Iterator[None]:
    """Blocks of so many bytes, and pieces of them, so that an object of a few lines has many."""
    with ExitStack() as stack:
        for module, name in (
            (blocks, "BLOCK_SIZE"), (csv, "BLOCK_SIZE"), (json, "BLOCK_SIZE"), (records, "SMALLEST_PIECE"), (json,
            "_SMALL"),
            (blocks, "_NEXT_PIECE"),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, size))
        yield


def read_slowly(case: Case) -> Found:
    with slow():
        return read(case)


def read_beside(case: Case) -> list[Found]:
    """Read the object and those beside it as a task reads small objects: together as far as they are usual."""
    contents = [case.bytes, *case.beside]
    cases = [Case(case.file_format, case.ddl, case.options, content) for content in contents]
    if not may_be_joined(case.schema, case.parsed):
        return [read(one) for one in cases]
    openers = [
        lambda uri=f"file:///{one.name}", data=data: nullcontext(ObjectFile(uri, InMemory(data)))
        for one, data in zip(cases, contents, strict=True)
    ]
    read_rows: list[Row] = []
    for some in read_together([ExpectedObject() for _ in cases], openers, case.schema, case.parsed):
        if isinstance(some, pa.Table):
            read_rows += rows_of(some.to_batches())
        else:
            found = read(cases[some])
            read_rows += found.rows
    return [Found(tuple(read_rows))]


def read_messages(case: Case) -> Found:
    """Read the object and those beside it as the bodies of messages: several together, however few they are."""
    bodies = [case.bytes, *case.beside]
    messages = [(Payload(body, str(place)), ObjectMetadata()) for place, body in enumerate(bodies)]
    bad: list[tuple[int, str]] = []
    with mock.patch.object(combined, "_ALONE", 1):
        batches = parsed_messages(
            messages,
            case.schema,
            case.parsed,
            lambda place, problems, error: bad.append((place, error.cause if error else f"{problems.count} bad")),
        )
        rows = rows_of(list(batches))
    return Found(rows, tuple(sorted(bad)))


def difference(case: Scheme, one: Found, other: Found) -> tuple[str, str]:
    """What kind of difference there is between two readings ("" for none), and the first of it."""
    if one.answer == other.answer:
        return "", ""
    shown = f"{one}\n  or\n{other}"
    if one.failure != other.failure:
        return f"{case.file_format}: {one.failure or 'read'} or {other.failure or 'read'}", shown
    if len(one.rows) != len(other.rows):
        return f"{case.file_format}: other rows", shown
    for these, those in zip(one.rows, other.rows, strict=True):
        for field, this, that in zip(case.schema, these, those, strict=True):
            if this != that:
                how = "null" if "null" in (this, that) else "other"
                return f"{case.file_format}: {general(field.type)}, {how} value", f"{field.name}: {this} or {that}"
    return f"{case.file_format}: other bad records", f"{one.bad}\n  or\n{other.bad}"


def general(kind: pa.DataType) -> str:
    """The name of a type without its parameters."""
    if pt.is_decimal(kind):
        return "decimal"
    if pt.is_nested(kind):
        return "nested"
    return str(kind)
