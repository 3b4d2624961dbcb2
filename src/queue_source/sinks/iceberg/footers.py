"""The footer of a Parquet file, by a small reader of Thrift that no damaged footer ends.

pyarrow's own accessors of row groups, which PyIceberg uses, end the process on an impossible footer.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.types import DecimalType, NestedField, PrimitiveType

from queue_source.errors import BadObject, OptionError
from queue_source.formats.parquet import opened
from queue_source.formats.typed import damage_is_bad, read_varint, without_zigzag
from queue_source.sinks.iceberg.schemas import children_of, iceberg_schema
from queue_source.storage.memory import BoundedMemory, usual_limit
from queue_source.storage.open_files import ObjectFile

_DEPTH = 64  # of values within values, as Thrift itself
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class Thrift:
    """Values of Thrift's compact protocol. Its methods raise ValueError, IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the values of a struct by their field numbers, structs in it likewise."""
        values: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else without_zigzag(self._varint())
            kind = head & 0x0F
            values[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("the footer has no end of structs")
        if kind in (_I16, _I32, _I64):
            return without_zigzag(self._varint())
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._count(head >> 4 if head < 0xF0 else self._varint())
            return [self._value(head & 0x0F, depth + 1) for _ in range(size)]
        if kind == _MAP:
            size = self._count(self._varint())
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(size)]
        if kind in (_TRUE, _FALSE, _BYTE):  # of lists: fields that are true or false have no further bytes
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise ValueError("the footer has a type that there is not")

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        value, self._place = read_varint(self._data, self._place)
        return value & ((1 << 64) - 1)  # ten bytes of seven bits are more: pyarrow drops the rest

    def _count(self, size: int) -> int:
        if size > len(self._data):
            raise ValueError("the footer has more values than bytes")
        return size

    def _bytes(self, size: int) -> bytes:
        start, self._place = self._place, self._place + size
        if self._place > len(self._data):
            raise ValueError("the footer ends within a text")
        return self._data[start : self._place]


_END = 64 << 10  # bytes at the end that include the footer of most objects
_NUMBERS = frozenset({"BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"})
"""Physical types whose order was never in doubt: that of bytes was signed in old files."""


class Statistics(NamedTuple):
    """What the footer says of a column of values, over all row groups; None where one of them does not say it.

    `lower` and `upper` are both known or both None. Dates and times are numbers, as Iceberg counts them.
    """

    stored: int
    values: int
    nulls: int | None
    lower: Any
    upper: Any

    @property
    def is_all_null(self) -> bool:
        return self.nulls == self.values


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself.

    Attributes:
        fields: Its columns in types of Iceberg. Their ids, and those of their parts, are numbers of ours.
        ids: Number -> field id in the file; empty where it has none.
        statistics: By the numbers of columns of values.
        starts: Where its row groups begin.
        said: Its key-value metadata.
    """

    fields: tuple[NestedField, ...]
    ids: Mapping[int, int]
    statistics: Mapping[int, Statistics]
    rows: int
    size: int
    starts: list[int]
    said: Mapping[bytes, bytes]


def wrong(problem: str) -> BadObject:
    return BadObject("wrong-columns", problem)


def leaves(fields: Sequence[NestedField]) -> Iterator[NestedField]:
    """Yield the columns of values, in the order of the file."""
    for field in fields:
        parts = children_of(field.field_type)
        yield from leaves(parts) if parts else (field,)


def read_footer(file: ObjectFile) -> Footer:
    """Read the footer.

    Raises BadObject (`corrupt-object`, `archive`, `encrypted-object`, `wrong-columns`, `too-large-for-memory`) and the
    store's errors.
    """
    size = file.size()
    with damage_is_bad(file, "Parquet"):
        if size < 12:
            raise ValueError(f"it has {size} bytes")
        end = file.read_range(max(size - _END, 0), size)
        start = size - 8 - int.from_bytes(end[-8:-4], "little")
        if 0 <= start < size - len(end):
            end = file.read_range(start, size)
    encrypted = BadObject("encrypted-object", f"{file.uri!r} is encrypted by its writer, and nobody here has its keys")
    with BoundedMemory(usual_limit()), damage_is_bad(file, "Parquet"):
        if end[-4:] == b"PARE":
            raise encrypted
        reader = opened(pa.BufferReader(end))
        said = Thrift(end[start - size : -8]).struct()
        if 8 in said or any(chunk.keys() & {8, 9} for group in said[4] for chunk in group[1]):
            raise encrypted
        columns = [reader.schema.column(number) for number in range(len(reader.schema))]
        fields, ids = _columns(reader.schema_arrow, columns)
        statistics = _statistics(said, columns, list(leaves(fields)), start)
        starts = sorted(min(_start(chunk[3]) for chunk in group[1]) for group in said[4] if group[3] and group[1])
        pairs = {pair[1]: pair.get(2, b"") for pair in said.get(5, [])}
        return Footer(fields, ids, statistics, said[3], size, starts, pairs)


def _columns(schema: pa.Schema, columns: Sequence[pq.ColumnSchema]) -> tuple[tuple[NestedField, ...], dict[int, int]]:
    """Return the columns, and their field ids. Raises BadObject for what some reader takes for something else."""
    for column in columns:
        kind, stored = str(column.logical_type), column.physical_type
        is_text = kind.startswith("Decimal") and stored == "BYTE_ARRAY"
        if stored == "INT96" or is_text or ("timeUnit=" in kind and "timeUnit=microseconds" not in kind):
            raise wrong(f"column {column.path!r} is stored as {stored} ({kind}), which readers take differently")
    numbers, ids = itertools.count(1), dict[int, int]()

    def identify(field: pa.Field) -> tuple[int, bool]:
        number = next(numbers)
        if (said := (field.metadata or {}).get(b"PARQUET:field_id")) is not None:
            ids[number] = int(said)
        return number, not field.nullable

    try:
        fields = iceberg_schema(schema, identify).fields
    except OptionError as error:
        raise wrong(error.problem.partition(";")[0]) from error
    _check_names(fields)
    if ids and len(ids) < next(numbers) - 1:
        raise wrong("some of its columns have field ids, and others have none: readers differ in what they make of it")
    return fields, ids


def _check_names(fields: Sequence[NestedField]) -> None:
    if len({field.name for field in fields}) < len(fields):
        raise wrong("it has two columns of one name")
    for field in fields:
        _check_names(children_of(field.field_type))


def _statistics(
    said: Mapping[int, Any], columns: Sequence[pq.ColumnSchema], fields: Sequence[NestedField], limit: int
) -> dict[int, Statistics]:
    """Return the statistics by the ids of the fields. Raises an error where they are impossible."""
    groups = [group for group in said[4] if group[3]]
    if sum(group[3] for group in groups) != said[3] or any(group[3] < 0 for group in groups):
        raise ValueError("its row groups have other rows than the file")
    if len(fields) != len(columns) or any(len(group[1]) != len(columns) for group in groups):
        raise ValueError("its columns are not those of its schema")
    orders, statistics = said.get(7, []), {}
    for number, (column, field) in enumerate(zip(columns, fields, strict=True)):
        chunks = [group[1][number] for group in groups]
        for group, chunk in zip(groups, chunks, strict=True):
            start, stored, values = _start(chunk[3]), chunk[3][7], chunk[3][5]
            if 1 in chunk:
                raise ValueError(f"column {column.path!r} is in another file")
            if start < 4 or stored < 0 or start + stored > limit:
                raise ValueError(f"column {column.path!r} lies beyond the end of the object")
            if values < 0 or (not column.max_repetition_level and values != group[3]):
                raise ValueError(f"column {column.path!r} has {values} values for {group[3]} rows")
        is_ordered = number < len(orders) and 1 in orders[number]
        kind = field.field_type
        assert isinstance(kind, PrimitiveType)
        statistics[field.field_id] = _statistics_of([chunk[3] for chunk in chunks], column, kind, is_ordered)
    return statistics


def _start(chunk: Mapping[int, Any]) -> int:
    data, dictionary = chunk[9], chunk.get(11, 0)
    return int(dictionary if 0 < dictionary < data else data)


def _statistics_of(
    chunks: Sequence[Mapping[int, Any]], column: pq.ColumnSchema, kind: PrimitiveType, is_ordered: bool
) -> Statistics:
    nulls, bounds = 0, list[tuple[Any, Any] | None]()
    for chunk in chunks:
        said = chunk.get(12, {})
        count = said.get(3, -1) if column.max_definition_level else 0
        nulls = nulls + count if nulls >= 0 and 0 <= count <= chunk[5] else -1
        if count != chunk[5]:
            bounds.append(_bounds(said, column.physical_type, kind, is_ordered))
    lower = upper = None
    if bounds and None not in bounds:
        lowers, uppers = zip(*filter(None, bounds), strict=True)
        lower, upper = min(lowers), max(uppers)
    if isinstance(lower, float):  # the sign of zero is undefined in bounds
        lower, upper = lower or -0.0, upper or 0.0
    values = sum(chunk[5] for chunk in chunks)
    return Statistics(sum(chunk[7] for chunk in chunks), values, None if nulls < 0 else nulls, lower, upper)


def _bounds(said: Mapping[int, Any], stored: str, kind: PrimitiveType, is_ordered: bool) -> tuple[Any, Any] | None:
    """Return the bounds of a row group; None for unknown or impossible ones: NaN, half a character, too many digits.

    The older fields had no order for bytes, and a new order has to be declared. Numbers are as in Iceberg's manifests.
    """
    low, high = 6, 5
    if not {5, 6} <= said.keys() or not (is_ordered or stored in _NUMBERS):
        low, high = 2, 1
        if not {1, 2} <= said.keys() or stored not in _NUMBERS:
            return None
    step = -1 if isinstance(kind, DecimalType) and stored in _NUMBERS else 1
    try:
        values: list[Any] = [from_bytes(kind, said[field][::step]) for field in (low, high)]
        if isinstance(kind, DecimalType) and any(len(v.as_tuple().digits) > kind.precision for v in values):
            return None
        return (values[0], values[1]) if values[0] <= values[1] else None
    except (ValueError, ArithmeticError, struct.error):
        return None
