"""Parquet: row groups to Arrow, only the declared columns, checked before anybody sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.formats.base import OpenObject, Part
from queue_source.formats.pieces import neighbours
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.options.file_format import FormatOptions
from queue_source.storage.files import ObjectFile

READ_AT_ONCE = 64 << 20
"""Bytes (decoded) of row groups that are read in one go; a larger group is read in batches."""
_ROWS = 65_536
_BUFFER = 1 << 20


class Parquet(ColumnarFormat):
    name = "parquet"

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return pq.ParquetFile(pa.PythonFile(file, "r")).schema_arrow

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The rows of the row groups that begin in the part."""
        file = source.file
        with damage_is_bad(file, "Parquet"):
            reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=True, page_checksum_verification=True)
            chosen = choose(schema, reader.schema_arrow, options, file.uri)
            groups = list(range(reader.num_row_groups))
            if part != Part():
                last = sys.maxsize if part.end is None else part.end
                groups = [n for n in groups if part.start <= _first_byte(reader.metadata.row_group(n)) < last]
            sized = [(n, reader.metadata.row_group(n).total_byte_size) for n in groups]
        for some in neighbours(sized, READ_AT_ONCE):
            for table in _tables(file, reader, some, chosen.names):
                yield conformed(table, schema, chosen, options)


def _first_byte(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins. A writer that leaves offsets out (0) gives all its groups to the first part."""
    if group.num_columns == 0:
        return 0
    column = group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _tables(file: ObjectFile, reader: pq.ParquetFile, groups: Sequence[int], wanted: list[str]) -> Iterator[pa.Table]:
    # no threads: Spark runs one worker a core; a group is only its declared columns
    if len(groups) > 1 or reader.metadata.row_group(groups[0]).total_byte_size <= READ_AT_ONCE:
        with damage_is_bad(file, "Parquet"):
            table = reader.read_row_groups(groups, columns=wanted, use_threads=False)
            table.validate(full=True)  # a damaged page may decode into offsets out of bounds, or into no UTF-8
        yield table
        return
    with damage_is_bad(file, "Parquet"):
        # a reader of its own, which holds pages and not the group
        unbuffered = pq.ParquetFile(
            pa.PythonFile(file, "r"), pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
        )
        batches = unbuffered.iter_batches(_ROWS, row_groups=groups, columns=wanted, use_threads=False)
    while True:
        with damage_is_bad(file, "Parquet"):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        yield pa.Table.from_batches([batch])


PARQUET = Parquet()
