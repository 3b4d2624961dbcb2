"""Parquet: row groups to Arrow, only the declared columns, checked before they are returned."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.common.times import parse_time_zone
from queue_source.errors import BadObject
from queue_source.formats.base import OpenObject, Part, neighbours
from queue_source.formats.typed import (
    Batches,
    Chosen,
    ColumnarFormat,
    Limits,
    choose,
    conformed,
    damage_is_bad,
)
from queue_source.formats.types import fields_of, gregorian_days, gregorian_micros, parts_of, with_parts
from queue_source.options.content import FormatOptions
from queue_source.storage.open_files import AT_LEAST, ObjectFile, ObjectVersion

IN_MEMORY = 64 << 20
"""Bytes (as the footer says) of row groups that are fetched in one go; columns of a larger one are read in pieces."""
SMALL = 1 << 20
"""Bytes of the largest object that is fetched as a whole, in one request, also where not all of it is needed."""
_PIECE = 1 << 20
_YEAR_1, _YEAR_10000 = -62_135_769_600_000_000 - 3 * 86_400_000_000, 253_402_300_800_000_000 + 86_400_000_000
"""Microseconds since 1970; a calendar and a zone make a few days of difference."""


class Parquet(ColumnarFormat):
    name = "parquet"
    specials = ("VARIANT",)

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        reader = opened(pa.PythonFile(file, "r"))
        return _as_spark_names_it(reader, reader.schema_arrow)

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """Read the rows of the row groups that begin in the part."""
        file, limits, batches = source.file, Limits(source.size, options.max_expansion), Batches()
        with damage_is_bad(file, "Parquet"):
            size = file.size()
            file.at_least = AT_LEAST
            native = pa.BufferReader(file.read_range(0, size)) if size <= SMALL else pa.PythonFile(file, "r")
            reader = opened(native)
            written = reader.schema_arrow  # once: each time it is made anew
            filled = _as_spark_names_it(reader, written)
            if any(map(_is_empty, written.types)):  # pyarrow leaves out a group without any values
                filled = pa.schema([field for field in filled if not _is_empty(field.type)])
            chosen = choose(schema, filled, options, file.uri)
            for name in chosen.names:
                if any(map(pt.is_interval, _leaves(filled.field(name).type))):
                    raise ValueError(f"column {name!r} is INTERVAL, which is not read")
            times = _Times(reader, written, chosen.names)
            groups = _groups(reader.metadata, size * options.max_expansion)
            if part != Part():
                places = _places(reader, size)
                last = sys.maxsize if part.end is None else part.end
                groups = {n: sizes for n, sizes in groups.items() if part.start <= places[n] < last}
            limits.check_rows(sum(rows for rows, _ in groups.values()))
            if size > SMALL and any(claimed > IN_MEMORY for _, claimed in groups.values()):
                piece = max(IN_MEMORY // 8 // max(len(chosen.names), 1), _PIECE)
                reader = opened(native, metadata=reader.metadata, buffer_size=piece)
        decode = _Decoder(file, reader, chosen, schema, options, times)
        # within other columns pyarrow has no way to go on with the dictionary of the next group
        most = 1 if any(_has_inner_dictionary(written.field(name).type) for name in chosen.names) else sys.maxsize
        for some in neighbours([(n, claimed) for n, (_, claimed) in groups.items()], IN_MEMORY, most):
            rows = missing_rows = sum(groups[n][0] for n in some)
            row_size = sum(groups[n][1] for n in some) // max(rows, 1)
            for table in batches.of(partial(decode.tables, some, rows), rows, row_size):
                missing_rows -= table.num_rows
                yield limits.counted(table)
                del table  # before the next is decoded, which may be as large
            if missing_rows:
                raise BadObject("corrupt-object", f"not readable as Parquet: {missing_rows} of the rows are not there")


@dataclass(frozen=True, slots=True)
class _Decoder:
    """An open file, and the columns that are read of it."""

    file: ObjectFile
    reader: pq.ParquetFile
    chosen: Chosen
    schema: pa.Schema
    options: FormatOptions
    times: _Times

    def tables(self, groups: Sequence[int], rows: int, size: int) -> Iterator[pa.Table]:
        """Decode some groups, which have so many rows in all, in batches of some size."""
        names, numbers = self.chosen.names, list(groups)
        with damage_is_bad(self.file, "Parquet"):
            batches: Iterator[pa.RecordBatch]
            if names and rows <= size:  # takes less than batches
                table = self.reader.read_row_groups(numbers, columns=names, use_threads=False)
                batches = iter(table.to_batches())
                del table
            else:
                batches = self.reader.iter_batches(size, row_groups=numbers, columns=names, use_threads=False)
        while True:
            with damage_is_bad(self.file, "Parquet"):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # a damaged page may decode into offsets out of bounds, or into no UTF-8
                table = pa.Table.from_batches([batch])
                del batch
                if self.times.are_unusual:
                    table = self.times.in_gregorian(table)
            table = conformed(table, self.schema, self.chosen, self.options)
            yield table
            del table


def _groups(metadata: pq.FileMetaData, most: int) -> dict[int, tuple[int, int]]:
    """Return the row groups, each with its rows and its declared bytes. Raises ValueError.

    The facts about their columns are not read: pyarrow ends the process where these are impossible.
    """
    groups = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        groups[number] = group.num_rows, min(max(group.total_byte_size, 0), most)
    rows = [rows for rows, _ in groups.values()]
    if sum(rows) != metadata.num_rows or min(rows, default=0) < 0:
        raise ValueError("its row groups have other rows than the file")
    return groups


def _is_empty(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind)) and all(_is_empty(field.type) for field in fields_of(kind))


def _has_inner_dictionary(kind: pa.DataType) -> bool:
    return bool(pt.is_nested(kind)) and any(map(pt.is_dictionary, _leaves(kind)))


def opened(native: pa.NativeFile, **more: Any) -> pq.ParquetFile:
    # INT96 as microseconds: as nanoseconds it would end in 2262, and Spark has no more digits either
    return pq.ParquetFile(native, page_checksum_verification=True, coerce_int96_timestamp_unit="us", **more)


def _places(reader: pq.ParquetFile, size: int) -> list[int]:
    """Find where each row group begins: where pyarrow wants to read its first column, or 0 where it reads nothing."""
    probe = ObjectFile("", _NoContent(size))
    first_column = opened(pa.PythonFile(probe, "r"), metadata=reader.metadata).reader
    places = []
    for number in range(reader.metadata.num_row_groups):
        probe.seek(0)
        with suppress(_Asked):
            first_column.read_row_group(number, column_indices=[0], use_threads=False)
        places.append(probe.tell())
    return places


_LOCAL = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
_INTERVAL = pa.month_day_nano_interval()
"""What Java's writer marks so that pyarrow takes each value for null."""


class _NoContent(ObjectVersion):
    def read_range(self, start: int, end: int) -> bytes:
        raise _Asked


class _Asked(Exception):
    """Says that what has no content was asked for it."""


class _Times:
    """The unusual dates and moments in some columns of a file, by the file's own marks."""

    def __init__(self, reader: pq.ParquetFile, written: pa.Schema, names: Sequence[str]) -> None:
        self._int96: set[str] = set()
        if any(_may_be_other(written.field(name).type) for name in names):
            kinds = _stored(reader)
            self._int96 = {f.name for f in written if "INT96" in [next(kinds, "") for _ in _leaves(f.type)]}
        self._said: Mapping[bytes, bytes] = reader.metadata.metadata or {}
        version = self._said.get(b"org.apache.spark.version")
        self._old_dates = self._old_int96 = False
        if version is not None:
            self._old_dates = _release(version) < (3, 0) or b"org.apache.spark.legacyDateTime" in self._said
            self._old_int96 = _release(version) < (3, 1) or b"org.apache.spark.legacyINT96" in self._said

    @property
    def are_unusual(self) -> bool:
        return bool(self._int96) or self._old_dates

    def in_gregorian(self, table: pa.Table) -> pa.Table:
        """Convert a table whose file may count by the calendar of before 1582. Raises ValueError."""
        for name in table.column_names:
            # as microseconds an impossible year may be any number
            if name in self._int96 and any(map(_is_beyond, table.column(name).chunks)):
                raise ValueError(f"column {name!r} has an INT96 beyond the years 1 to 9999")
        if not self._old_dates and not self._old_int96:
            return table
        zone = parse_time_zone(self._said.get(b"org.apache.spark.timeZone", b"UTC").decode())
        for place, name in enumerate(table.column_names):
            is_int96 = name in self._int96
            if self._old_int96 if is_int96 else self._old_dates:
                chunks = [_in_gregorian(chunk, zone, is_int96) for chunk in table.column(place).chunks]
                if chunks:
                    table = table.set_column(place, name, pa.chunked_array(chunks))
        return table


def _is_beyond(array: pa.Array) -> bool:
    """Tell whether a moment in an array, at any depth, is of another year than 1 to 9999."""
    if not pt.is_timestamp(array.type):
        return any(map(_is_beyond, parts_of(array)))
    bounds = pc.min_max(array.cast(pa.timestamp("us")).cast(pa.int64())).as_py()
    return bounds["min"] is not None and not _YEAR_1 <= bounds["min"] <= bounds["max"] < _YEAR_10000


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of the columns of Parquet that a type takes."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(kind.storage_type)
    elif pt.is_nested(kind):
        for at in range(kind.num_fields):
            yield from _leaves(kind.field(at).type)
    else:
        yield kind


def _in_gregorian(array: pa.Array, zone: str, is_int96: bool) -> pa.Array:
    """Convert all dates and instants in an array, at any depth: Spark writes local times as they are.

    As INT96 pyarrow has instants without a zone.
    """
    kind = array.type
    if pt.is_date32(kind):
        return gregorian_days(array.view(pa.int32())).view(kind)
    if pt.is_timestamp(kind):
        if kind.tz is None and not is_int96:
            return array
        micros = array.cast(pa.timestamp("us", tz=kind.tz)).view(pa.int64())
        return gregorian_micros(micros, zone).cast(pa.timestamp("us", tz=kind.tz))
    parts = parts_of(array)
    return with_parts(array, [_in_gregorian(part, zone, is_int96) for part in parts]) if parts else array


def _release(version: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(rb"\d+", version)[:2])


def _stored(reader: pq.ParquetFile) -> Iterator[str]:
    """Yield how each column of Parquet is stored, or that it is an ENUM, in the order of the leaves of its types."""
    for column in (reader.schema.column(at) for at in range(len(reader.schema))):
        yield "ENUM" if column.logical_type.type == "ENUM" else column.physical_type


def _as_spark_names_it(reader: pq.ParquetFile, written: pa.Schema) -> pa.Schema:
    """Return the columns with the types that pyarrow hides: the texts of ENUM are bytes for it.

    Each INT96 is an instant, which it is for Spark, who writes most of them.
    """
    if not any(map(_may_be_other, written.types)):
        return written
    kinds = _stored(reader)
    return pa.schema([field.with_type(_as_stored(field.type, kinds)) for field in written])


def _as_stored(kind: pa.DataType, kinds: Iterator[str]) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType) or not pt.is_nested(kind):
        stored = [next(kinds, "") for _ in _leaves(kind)]
        if stored == ["INT96"] and pt.is_timestamp(kind):
            return pa.timestamp(kind.unit, tz="UTC")
        if stored == ["FIXED_LEN_BYTE_ARRAY"] and pt.is_null(kind):
            return _INTERVAL
        return pa.string() if stored == ["ENUM"] else kind
    fields = [kind.field(at) for at in range(kind.num_fields)]
    if pt.is_map(kind):  # of which pyarrow has one field, for its entries
        entries = _as_stored(fields[0].type, kinds)
        return pa.map_(entries.field(0).type, entries.field(1).type)
    fields = [field.with_type(_as_stored(field.type, kinds)) for field in fields]
    return pa.struct(fields) if pt.is_struct(kind) else pa.list_(*fields)


def _may_be_other(kind: pa.DataType) -> bool:
    return any(pt.is_binary(leaf) or pt.is_null(leaf) or leaf in _LOCAL for leaf in _leaves(kind))


PARQUET = Parquet()
