"""Parquet: row groups to Arrow, only the declared columns, checked before anybody sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.formats.base import FormatOptions
from queue_source.formats.typed.tables import choose, conformed, damage_is_bad
from queue_source.storage.files import ObjectFile

READ_AT_ONCE = 64 << 20
"""Bytes (decoded) of row groups that are read in one go; a larger group is read in batches."""
_ROWS = 65_536
_BUFFER = 1 << 20


def read_parquet(
    file: ObjectFile, schema: pa.Schema, options: FormatOptions, start: int = 0, end: int | None = None
) -> Iterator[pa.Table]:
    """The rows of the row groups that begin at byte `start` or later, and before `end`, in exactly `schema`.

    Raises BadObject (`wrong-columns`, `corrupt-object`), and ObjectStoreError when the store fails in the middle.
    """
    with damage_is_bad(file, "Parquet"):
        reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=True, page_checksum_verification=True)
        chosen = choose(schema, reader.schema_arrow, options, file.uri)
        groups = list(range(reader.num_row_groups))
        if start or end is not None:
            last = sys.maxsize if end is None else end
            groups = [group for group in groups if start <= _first_byte(reader.metadata.row_group(group)) < last]
        sizes = [reader.metadata.row_group(group).total_byte_size for group in groups]
    for together in _by_size(groups, sizes):
        for table in _tables(file, reader, together, chosen.names):
            yield conformed(table, schema, chosen, options)


def _first_byte(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins. A writer that leaves offsets out (0) gives all its groups to the first part."""
    if group.num_columns == 0:
        return 0
    column = group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _by_size(groups: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Groups that are small enough together; one that is too large for it, alone."""
    together: list[int] = []
    total = 0
    for group, size in zip(groups, sizes, strict=True):
        if together and total + size > READ_AT_ONCE:
            yield together
            together, total = [], 0
        together.append(group)
        total += size
    if together:
        yield together


def _tables(file: ObjectFile, reader: pq.ParquetFile, groups: list[int], wanted: list[str]) -> Iterator[pa.Table]:
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
