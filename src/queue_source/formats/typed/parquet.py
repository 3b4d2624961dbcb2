"""Parquet: row groups to Arrow, only the declared columns, checked before anybody sees them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.pieces import neighbours
from queue_source.formats.typed.calendars import in_gregorian
from queue_source.formats.typed.limits import AT_ONCE, Limits
from queue_source.formats.typed.parquet_pages import Chunk, Fetched, fetch, leaves, longest_of_short
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.formats.types import fields_of, inner_types, is_text, special_struct
from queue_source.options.file_format import FormatOptions
from queue_source.options.time_zones import parse_time_zone
from queue_source.storage.files import ObjectFile

READ_AT_ONCE = 64 << 20
"""Bytes (as the footer says) of the columns of row groups that are fetched in one go."""
_ROWS = 65_536
_FEW = 1_024  # rows of a batch below which it is worth finding out how long texts really are
_BUFFER = 1 << 20
_YEAR_1, _YEAR_10000 = -62_135_769_600_000_000 - 3 * 86_400_000_000, 253_402_300_800_000_000 + 86_400_000_000
"""Microseconds since 1970; a calendar and a zone make a few days of difference."""


class Parquet(ColumnarFormat):
    name = "parquet"
    specials = ("VARIANT",)

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return _opened(file).schema_arrow

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The rows of the row groups that begin in the part."""
        file, limits = source.file, Limits(source.size, options.max_expansion)
        with damage_is_bad(file, "Parquet"):
            reader = _opened(file)
            # pyarrow leaves out a group without any values
            found = pa.schema([field for field in reader.schema_arrow if not _is_empty(field.type)])
            chosen = choose(schema, found, options, file.uri)
            for name, there in chosen.matches.items():
                _check_variant(schema.field(name).type, reader.schema_arrow.field(there).type, name)
            groups = list(range(reader.num_row_groups))
            if part != Part():
                last = sys.maxsize if part.end is None else part.end
                groups = [n for n in groups if part.start <= _first_byte(reader.metadata.row_group(n)) < last]
            limits.check_rows(sum(reader.metadata.row_group(n).num_rows for n in groups))
            columns = leaves(reader, chosen.names)
            sized = [(n, _claimed(reader.metadata.row_group(n), columns)) for n in groups]
        for some in neighbours(sized, READ_AT_ONCE):
            for batch in _batches(file, reader, some, chosen.names, columns, limits):
                table = pa.Table.from_batches([batch])
                with damage_is_bad(file, "Parquet"):
                    table = _in_gregorian(table, reader)
                yield limits.counted(conformed(table, schema, chosen, options))
                del batch, table  # before the next is decoded, which may be as large


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


def _opened(file: Any, **more: Any) -> pq.ParquetFile:
    # INT96 as microseconds: as nanoseconds it would end in 2262, and Spark has no more digits either
    return pq.ParquetFile(
        pa.PythonFile(file, "r"), page_checksum_verification=True, coerce_int96_timestamp_unit="us", **more
    )


def _first_byte(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins. A writer that leaves offsets out (0) gives all its groups to the first part."""
    if group.num_columns == 0:
        return 0
    column = group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _claimed(group: pq.RowGroupMetaData, columns: Sequence[int]) -> int:
    return sum(group.column(n).total_uncompressed_size for n in columns)


def _batches(
    file: ObjectFile,
    reader: pq.ParquetFile,
    groups: Sequence[int],
    wanted: list[str],
    columns: Sequence[int],
    limits: Limits,
) -> Iterator[pa.RecordBatch]:
    """The rows of some groups."""
    with damage_is_bad(file, "Parquet"):
        fetched, chunks = fetch(file, reader, groups, columns, limits)
    try:
        with damage_is_bad(file, "Parquet"):
            rows = _rows(chunks)
            if rows < _FEW and any(chunk.rows > rows for chunk in chunks) and _measure_texts(fetched, reader, chunks):
                rows = _rows(chunks)
            measured = _opened(fetched, metadata=reader.metadata, buffer_size=_BUFFER)
            # no threads: Spark runs one worker a core
            batches = measured.iter_batches(rows, row_groups=list(groups), columns=wanted, use_threads=False)
        while True:
            with damage_is_bad(file, "Parquet"):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # a damaged page may decode into offsets out of bounds, or into no UTF-8
            yield batch
            del batch
    finally:
        fetched.release()


def _rows(chunks: Sequence[Chunk]) -> int:
    """Rows of a batch that fits into memory, whatever is in the pages."""
    rows = _ROWS
    while rows > 1 and sum(chunk.worst(rows) for chunk in chunks) > AT_ONCE:
        rows = max(rows // 4, 1)
    return rows


def _in_gregorian(table: pa.Table, reader: pq.ParquetFile) -> pa.Table:
    """The dates and moments of a file that says that it counts them by the calendar of before 1582."""
    physical = {
        column.path.split(".")[0]: column.physical_type
        for column in map(reader.schema.column, range(len(reader.schema)))
    }
    for name in table.column_names:
        if physical.get(name) == "INT96" and pt.is_timestamp(table.column(name).type):
            _check_years(table.column(name), name)
    said = reader.metadata.metadata or {}
    version = said.get(b"org.apache.spark.version")
    if version is None:
        return table
    dates = _release(version) < (3, 0) or b"org.apache.spark.legacyDateTime" in said
    int96 = _release(version) < (3, 1) or b"org.apache.spark.legacyINT96" in said
    if not dates and not int96:
        return table
    zone = parse_time_zone(said.get(b"org.apache.spark.timeZone", b"UTC").decode())
    for place, name in enumerate(table.column_names):
        if int96 if physical.get(name) == "INT96" else dates:
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


def _measure_texts(fetched: Fetched, reader: pq.ParquetFile, chunks: Sequence[Chunk]) -> bool:
    """Find how long the texts in dictionaries are, of which each may be in every row. Returns whether any are known."""
    known = False
    for chunk in chunks:
        if chunk.entries and (found := longest_of_short(fetched, chunk)) is not None:
            chunk.longest, chunk.entries, known = found, 0, True
    for group in {chunk.group for chunk in chunks}:
        paths = {chunk.path: chunk for chunk in chunks if chunk.group == group and chunk.entries}
        if not paths:
            continue
        file = _opened(fetched, metadata=reader.metadata, read_dictionary=list(paths), buffer_size=_BUFFER)
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
