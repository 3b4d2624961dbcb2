"""Reads the facts about a Parquet file from its footer: counts, bounds, sizes and places. Reads no page.

pyarrow's accessors of row groups are not called: they end the process on an impossible footer, and do not tell whether
a bound is exact. Bounds are bytes, as they are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.typed.parquet import opened
from queue_source.formats.typed.tables import damage_is_bad
from queue_source.sinks.iceberg.registering.thrift import BINARY, FALSE, I32, I64, LIST, STRUCT, TRUE, Walk
from queue_source.storage.files import ObjectFile
from queue_source.storage.memory import BoundedMemory, usual_limit

_END = 64 << 10  # bytes at the end that include the footer of most objects
_NUMBERS = frozenset({"BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"})
"""Physical types whose order was never in doubt: that of bytes was signed in old files."""


class Bounds(NamedTuple):
    """No value is below `lower` or above `upper`. `exact`: both are values; None: the writer does not tell."""

    lower: bytes
    upper: bytes
    exact: bool | None


class Chunk(NamedTuple):
    """A column in one row group, by the footer. `nulls` and `bounds` are None where it has none."""

    place: int
    stored: int
    values: int
    nulls: int | None
    bounds: Bounds | None


class Column(NamedTuple):
    """A column of values. `chunks`: one for each row group that has rows. `levels`: how many lists it is within."""

    path: str
    physical: str
    may_be_null: bool
    levels: int
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Described:
    """A file as its footer describes it. `schema` is pyarrow's schema of its columns; it keeps their field ids.

    `size` and `etag` are those of the open object. `starts` are the places of the row groups.
    """

    schema: pa.Schema
    columns: list[Column]
    rows: int
    size: int
    etag: str | None
    starts: list[int]
    said: dict[bytes, bytes] = field(default_factory=dict)


def describe(file: ObjectFile) -> Described:
    """Read the footer.

    Raises BadObject (`corrupt-object`, `encrypted-object`, `too-large-for-memory`) and the store's errors.
    """
    size = file.size()
    with damage_is_bad(file, "Parquet"):
        if size < 12:
            raise ValueError(f"it has {size} bytes")
        end = _end(file, size)
    with BoundedMemory(usual_limit()), damage_is_bad(file, "Parquet"):
        if end[-4:] == b"PARE":
            raise _encrypted(file)
        reader = opened(pa.BufferReader(end))
        written = end[-8 - int.from_bytes(end[-8:-4], "little") : -8]
        footer = _read(written)
        if footer.encrypted:
            raise _encrypted(file)
        columns = [
            Column(c.path, c.physical_type, c.max_definition_level > 0, c.max_repetition_level, [])
            for c in map(reader.schema.column, range(len(reader.schema)))
        ]
        groups = [group for group in footer.groups if group.rows]
        if sum(group.rows for group in groups) != footer.rows or any(group.rows < 0 for group in groups):
            raise ValueError("its row groups have other rows than the file")
        limit = size - 8 - len(written)
        for group in groups:
            if len(group.chunks) != len(columns):
                raise ValueError("a row group has other columns than the file")
            for number, (column, chunk) in enumerate(zip(columns, group.chunks, strict=True)):
                column.chunks.append(_chunk(column, chunk, group.rows, limit, footer.is_ordered(number)))
        starts = sorted(min(chunk.start for chunk in group.chunks) for group in groups if group.chunks)
        return Described(reader.schema_arrow, columns, footer.rows, size, file.etag(), starts, footer.said)


def _end(file: ObjectFile, size: int) -> bytes:
    """Read the end of an object, from its footer on, or from before it."""
    end = _read_range(file, max(size - _END, 0), size)
    start = size - 8 - int.from_bytes(end[-8:-4], "little")
    return end if start >= size - len(end) or start < 0 else _read_range(file, start, size)


def _read_range(file: ObjectFile, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def _encrypted(file: ObjectFile) -> BadObject:
    return BadObject("encrypted-object", f"{file.uri!r} is encrypted by its writer, and nobody here has its keys")


class _Written:
    """A column of a row group, with the fields of the footer."""

    __slots__ = ("elsewhere", "exact", "numbers", "texts")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, bytes] = {}
        self.exact: dict[int, bool] = {}
        self.elsewhere = False

    @property
    def start(self) -> int:
        data, dictionary = self.numbers.get(9, -1), self.numbers.get(11, 0)
        return dictionary if 0 < dictionary < data else data


class _Group(NamedTuple):
    rows: int
    chunks: list[_Written]


@dataclass(slots=True)
class _Footer:
    rows: int = 0
    groups: list[_Group] = field(default_factory=list)
    said: dict[bytes, bytes] = field(default_factory=dict)
    orders: list[bool] = field(default_factory=list)
    encrypted: bool = False

    def is_ordered(self, column: int) -> bool:
        """Tell whether the bounds of the column's bytes follow the order of its type."""
        return column < len(self.orders) and self.orders[column]


_NULLS = 100  # added to the numbers of a column's fields, for those of its statistics


def _read(data: bytes) -> _Footer:
    walk, footer = Walk(data), _Footer()
    for number, kind in walk.fields():
        if (number, kind) == (3, I64):
            footer.rows = walk.number()
        elif (number, kind) == (4, LIST):
            footer.groups = [_group(walk, footer) for _ in range(walk.length(STRUCT))]
        elif (number, kind) == (5, LIST):
            for _ in range(walk.length(STRUCT)):
                pair = {inner: _text(walk, kind) for inner, kind in walk.fields()}
                footer.said[pair.get(1, b"")] = pair.get(2, b"")
        elif (number, kind) == (7, LIST):
            footer.orders = [_is_ordered(walk) for _ in range(walk.length(STRUCT))]
        else:
            footer.encrypted |= number == 8
            walk.skip(kind)
    return footer


def _text(walk: Walk, kind: int) -> bytes:
    if kind != BINARY:
        walk.skip(kind)
        return b""
    return walk.text()


def _is_ordered(walk: Walk) -> bool:
    ordered = False
    for number, kind in walk.fields():
        ordered |= number == 1
        walk.skip(kind)
    return ordered


def _group(walk: Walk, footer: _Footer) -> _Group:
    rows, chunks = 0, list[_Written]()
    for number, kind in walk.fields():
        if (number, kind) == (1, LIST):
            chunks = [_column(walk, footer) for _ in range(walk.length(STRUCT))]
        elif (number, kind) == (3, I64):
            rows = walk.number()
        else:
            walk.skip(kind)
    return _Group(rows, chunks)


def _column(walk: Walk, footer: _Footer) -> _Written:
    written = _Written()
    for number, kind in walk.fields():
        if (number, kind) == (3, STRUCT):
            for inner, of in walk.fields():
                if of in (I32, I64):
                    written.numbers[inner] = walk.number()
                elif (inner, of) == (12, STRUCT):
                    _statistics(walk, written)
                else:
                    walk.skip(of)
        else:
            footer.encrypted |= number in (8, 9)
            written.elsewhere |= number == 1
            walk.skip(kind)
    return written


def _statistics(walk: Walk, written: _Written) -> None:
    for number, kind in walk.fields():
        if kind == BINARY:
            written.texts[number] = walk.text()
        elif kind in (TRUE, FALSE):
            written.exact[number] = kind == TRUE
        elif (number, kind) == (3, I64):
            written.numbers[_NULLS] = walk.number()
        else:
            walk.skip(kind)


def _chunk(column: Column, written: _Written, rows: int, limit: int, ordered: bool) -> Chunk:
    """Build the facts of a column, where they are possible. Raises ValueError."""
    start, stored, values = written.start, written.numbers.get(7, -1), written.numbers.get(5, -1)
    if written.elsewhere:
        raise ValueError(f"column {column.path!r} is in another file")
    if start < 4 or stored < 0 or start + stored > limit:
        raise ValueError(f"column {column.path!r} lies beyond the end of the object")
    if values < 0 or (not column.levels and values != rows):
        raise ValueError(f"column {column.path!r} has {values} values for {rows} rows")
    nulls = written.numbers.get(_NULLS)
    if nulls is not None and not 0 <= nulls <= values:
        nulls = None
    if not column.may_be_null:
        nulls = 0
    return Chunk(start, stored, values, nulls, _bounds(column, written, ordered))


def _bounds(column: Column, written: _Written, ordered: bool) -> Bounds | None:
    """Return the bounds in the present fields of the footer.

    The older fields had no order for bytes, and a new order has to be declared.
    """
    number = column.physical in _NUMBERS
    if {5, 6} <= written.texts.keys() and (ordered or number):
        said = [written.exact[field] for field in (7, 8) if field in written.exact]
        return Bounds(written.texts[6], written.texts[5], None if not said else all(said) and len(said) == 2)
    if {1, 2} <= written.texts.keys() and number:
        return Bounds(written.texts[2], written.texts[1], None)
    return None
