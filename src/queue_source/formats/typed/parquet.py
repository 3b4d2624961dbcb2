"""Parquet: row groups to Arrow, only the declared columns, checked before anybody sees them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.new_columns import Tree
from queue_source.formats.pieces import neighbours
from queue_source.formats.typed.calendars import in_gregorian
from queue_source.formats.typed.limits import AT_ONCE, Limits
from queue_source.formats.typed.parquet_bytes import Stored, Whole
from queue_source.formats.typed.parquet_footer import Footer, RowGroup, read_footer
from queue_source.formats.typed.parquet_pages import Chunk, Leaf, fetch, leaves, longest_of_short
from queue_source.formats.typed.tables import Chosen, ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.formats.types import fields_of, inner_types, is_text, special_struct
from queue_source.options.file_format import FormatOptions
from queue_source.options.time_zones import parse_time_zone
from queue_source.storage.files import ObjectFile

READ_AT_ONCE = 64 << 20
"""Bytes (as the footer says) of the columns of row groups that are fetched in one go."""
SMALL = 1 << 20
"""Bytes of the largest object that is fetched as a whole, in one request, also where not all of it is needed."""
_END = 64 << 10  # bytes that have the footer of most objects
_ROWS = 65_536
_FEW = 1_024  # rows of a batch below which it is worth finding out how long texts really are
_YEAR_1, _YEAR_10000 = -62_135_769_600_000_000 - 3 * 86_400_000_000, 253_402_300_800_000_000 + 86_400_000_000
"""Microseconds since 1970; a calendar and a zone make a few days of difference."""


class Parquet(ColumnarFormat):
    name = "parquet"
    specials = ("VARIANT",)

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return opened(pa.PythonFile(file, "r")).schema_arrow

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The rows of the row groups that begin in the part."""
        file, limits = source.file, Limits(source.size, options.max_expansion)
        with damage_is_bad(file, "Parquet"):
            whole = Whole(file) if file.size() <= SMALL else None
            end = footer_end(whole or file)
            reader = opened(pa.BufferReader(end))
            footer = read_footer(footer_at(end))
            layout = _layout(reader, footer, schema, options)
            chosen, columns, times = Chosen(layout.matches, layout.rescued, file.uri), layout.columns, layout.times
            groups = dict(enumerate(footer.groups))
            if part != Part():
                last = sys.maxsize if part.end is None else part.end
                groups = {n: group for n, group in groups.items() if part.start <= _first_byte(group) < last}
            limits.check_rows(sum(group.rows for group in groups.values()))
            sized = [(n, _claimed(group, columns) if len(groups) > 1 else 0) for n, group in groups.items()]
        for some in neighbours(sized, READ_AT_ONCE):
            for batch in _batches(file, whole, reader, {n: groups[n] for n in some}, chosen.names, columns, limits):
                table = pa.Table.from_batches([batch])
                if times.are_unusual:
                    with damage_is_bad(file, "Parquet"):
                        table = times.in_gregorian(table)
                yield limits.counted(conformed(table, schema, chosen, options))
                del batch, table  # before the next is decoded, which may be as large


@dataclass(frozen=True, slots=True)
class _Layout:
    """What is read of a file with such columns and metadata."""

    footer: Footer
    declared: pa.Schema
    options: FormatOptions
    matches: dict[str, str]
    rescued: Tree
    columns: Sequence[Leaf]
    times: _Times

    def is_of(self, footer: Footer, declared: pa.Schema, options: FormatOptions) -> bool:
        return (
            options is self.options
            and footer.schema == self.footer.schema
            and footer.rest == self.footer.rest
            and declared.equals(self.declared, check_metadata=True)
        )


_last: _Layout | None = None
"""That of the last file: of thousands of small ones all may have the same."""


def _layout(reader: pq.ParquetFile, footer: Footer, schema: pa.Schema, options: FormatOptions) -> _Layout:
    """Raises BadObject("wrong-columns"), and NewColumns where the options want to know of them."""
    global _last
    if _last is not None and _last.is_of(footer, schema, options):
        return _last
    written = reader.schema_arrow
    found = written
    if any(map(_is_empty, written.types)):  # pyarrow leaves out a group without any values
        found = pa.schema([field for field in written if not _is_empty(field.type)])
    chosen = choose(schema, found, options, "")
    for name, there in chosen.matches.items():
        if pt.is_nested(schema.field(name).type):
            _check_variant(schema.field(name).type, written.field(there).type, name)
    columns = leaves(reader.schema, chosen.names)
    times = _Times(reader.metadata.metadata or {}, columns)
    ends = footer._replace(groups=[])
    _last = _Layout(ends, schema, options, chosen.matches, chosen.rescued, columns, times)
    return _last


def _is_empty(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind)) and all(_is_empty(field.type) for field in fields_of(kind))


def _check_variant(declared: pa.DataType, written: pa.DataType, name: str) -> None:
    """Refuse a VARIANT whose values are in columns of their own: without these columns, fields would be missing."""
    if isinstance(written, pa.BaseExtensionType):
        written = written.storage_type
    if special_struct(declared) == "VARIANT":
        if pt.is_struct(written) and written.get_field_index("typed_value") >= 0:
            raise BadObject(
                "wrong-columns",
                f"column {name!r} is a shredded VARIANT, which is not read; write the object with "
                "spark.sql.variant.writeShredding.enabled=false",
            )
    elif pt.is_struct(declared) and pt.is_struct(written):
        for field in fields_of(declared):
            if written.get_field_index(field.name) >= 0:
                _check_variant(field.type, written.field(field.name).type, name)
    else:
        for inner, there in zip(inner_types(declared), inner_types(written), strict=False):
            _check_variant(inner, there, name)


def footer_end(file: ObjectFile | Whole) -> bytes:
    """The end of an object, from its footer on, or from before it."""
    size = file.size()
    if isinstance(file, Whole):
        return file.at(0, size)
    end = _read(file, max(size - _END, 0), size)
    start = size - 8 - int.from_bytes(end[-8:-4], "little")
    return end if start >= size - len(end) or start < 0 else _read(file, start, size)


def _read(file: ObjectFile, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def footer_at(end: bytes) -> bytes:
    """The footer at the end of an object that pyarrow has found to have one."""
    return end[-8 - int.from_bytes(end[-8:-4], "little") : -8]


def opened(native: pa.NativeFile, **more: Any) -> pq.ParquetFile:
    # INT96 as microseconds: as nanoseconds it would end in 2262, and Spark has no more digits either
    return pq.ParquetFile(native, page_checksum_verification=True, coerce_int96_timestamp_unit="us", **more)


def _first_byte(group: RowGroup) -> int:
    """Where a row group begins. A writer that leaves offsets out (0) gives all its groups to the first part."""
    if not len(group):
        return 0
    column = group.column(0)
    return column.dictionary_page or column.data_page


def _claimed(group: RowGroup, columns: Sequence[Leaf]) -> int:
    return sum(group.column(leaf.number).decoded for leaf in columns)


def _batches(
    file: ObjectFile,
    whole: Whole | None,
    reader: pq.ParquetFile,
    groups: Mapping[int, RowGroup],
    wanted: list[str],
    columns: Sequence[Leaf],
    limits: Limits,
) -> Iterator[pa.RecordBatch]:
    """The rows of some groups."""
    with damage_is_bad(file, "Parquet"):
        stored, chunks = fetch(whole or file, groups, columns, limits)
    try:
        with damage_is_bad(file, "Parquet"):
            rows = _rows(chunks)
            if rows < _FEW and any(chunk.rows > rows for chunk in chunks) and _measure_texts(stored, reader, chunks):
                rows = _rows(chunks)
            if whole is None:
                reader = opened(stored.native(), metadata=reader.metadata, buffer_size=stored.buffer_size)
            # no threads: Spark runs one worker a core
            if wanted and sum(group.rows for group in groups.values()) <= rows:  # takes less than batches
                table = reader.read_row_groups(list(groups), columns=wanted, use_threads=False)
                batches = iter(table.to_batches())
            else:
                batches = reader.iter_batches(rows, row_groups=list(groups), columns=wanted, use_threads=False)
        while True:
            with damage_is_bad(file, "Parquet"):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # a damaged page may decode into offsets out of bounds, or into no UTF-8
            yield batch
            del batch
            if rows < _FEW:  # of large values, which would else be there twice
                pa.default_memory_pool().release_unused()
    finally:
        stored.release()


def _rows(chunks: Sequence[Chunk]) -> int:
    """Rows of a batch that fits into memory, whatever is in the pages."""
    simple: dict[int, int] = {}  # bytes of a row in all groups of so many rows
    others = []
    for chunk in chunks:
        if chunk.repeated or chunk.pages:
            others.append(chunk)
        else:
            simple[chunk.rows] = simple.get(chunk.rows, 0) + chunk.worst(1)
    rows = _ROWS
    while rows > 1:
        worst = sum(min(rows, count) * size for count, size in simple.items())
        if worst + sum(chunk.worst(rows) for chunk in others) <= AT_ONCE:
            return rows
        rows //= 4
    return 1


class _Times:
    """What is unusual about the dates and moments in some columns of a file, by what the file says of itself."""

    def __init__(self, said: Mapping[bytes, bytes], columns: Sequence[Leaf]) -> None:
        physical = {leaf.path.split(".")[0]: leaf.physical for leaf in columns}
        self._int96 = {name for name, kind in physical.items() if kind == "INT96"}
        self._said = said
        version = self._said.get(b"org.apache.spark.version")
        self._old_dates = self._old_int96 = False
        if version is not None:
            self._old_dates = _release(version) < (3, 0) or b"org.apache.spark.legacyDateTime" in self._said
            self._old_int96 = _release(version) < (3, 1) or b"org.apache.spark.legacyINT96" in self._said

    @property
    def are_unusual(self) -> bool:
        return bool(self._int96) or self._old_dates

    def in_gregorian(self, table: pa.Table) -> pa.Table:
        """A table of a file that may say that it counts by the calendar of before 1582. Raises ValueError."""
        for name in table.column_names:
            if name in self._int96 and pt.is_timestamp(table.column(name).type):
                _check_years(table.column(name), name)
        if not self._old_dates and not self._old_int96:
            return table
        zone = parse_time_zone(self._said.get(b"org.apache.spark.timeZone", b"UTC").decode())
        for place, name in enumerate(table.column_names):
            if self._old_int96 if name in self._int96 else self._old_dates:
                chunks = [in_gregorian(chunk, zone) for chunk in table.column(place).chunks]
                if chunks:
                    table = table.set_column(place, name, pa.chunked_array(chunks))
        return table


def _check_years(column: pa.ChunkedArray, name: str) -> None:
    """Refuse years of INT96 that are none: as microseconds they may be any number."""
    bounds = pc.min_max(column.cast(pa.timestamp("us")).cast(pa.int64())).as_py()
    if bounds["min"] is not None and not _YEAR_1 <= bounds["min"] <= bounds["max"] < _YEAR_10000:
        raise ValueError(f"column {name!r} has an INT96 beyond the years 1 to 9999")


def _release(version: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(rb"\d+", version)[:2])


def _measure_texts(stored: Stored, reader: pq.ParquetFile, chunks: Sequence[Chunk]) -> bool:
    """Find how long the texts in dictionaries are, of which each may be in every row. Returns whether any are known."""
    known = False
    rest: dict[int, dict[str, Chunk]] = {}
    for chunk in chunks:
        if chunk.entries and chunk.longest * len(chunks) * _FEW * 2 > AT_ONCE:  # all the others have room together
            if (found := longest_of_short(stored, chunk)) is not None:
                chunk.longest, chunk.entries, known = found, 0, True
            else:
                rest.setdefault(chunk.group, {})[chunk.path] = chunk
    for group, paths in rest.items():
        more = {"metadata": reader.metadata, "read_dictionary": list(paths), "buffer_size": stored.buffer_size}
        file = opened(stored.native(), **more)
        for batch in itertools.islice(
            file.iter_batches(1, row_groups=[group], columns=list(paths), use_threads=False), 1
        ):
            for path, chunk in paths.items():
                found = _dictionary(batch, path)
                if found is not None and len(found) == chunk.entries:
                    lengths = pc.binary_length(found.view(pa.binary()) if is_text(found.type) else found)
                    chunk.longest, known = pc.max(lengths).as_py(), True
    return known


def _dictionary(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """The dictionary of the texts at a path; None where it is not seen in the first row."""
    parts = path.split(".")
    top = next((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in batch.schema.names), 0)
    if not top:
        return None
    array, below = batch.column(".".join(parts[:top])), parts[top:]
    while not pt.is_dictionary(array.type):
        if pt.is_struct(array.type):
            name = below.pop(0) if below else ""
            if array.type.get_field_index(name) < 0:
                return None
            array = array.field(name)
        elif pt.is_map(array.type):
            array, below = (array.keys if below[-1:] == ["key"] else array.items), below[2:]
        elif pt.is_list(array.type):
            array, below = array.values, below[2:]
        else:
            return None
    return array.dictionary


PARQUET = Parquet()
