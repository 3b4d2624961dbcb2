"""Writes the rows of one task to Parquet files of an Iceberg table, with the manifest entry of each.

Runs in executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from queue_source.errors import CuesqueueError
from queue_source.sinks.iceberg.partitions import Partitioner
from queue_source.sinks.splits import make_durable

BUFFERED_BYTES = 128 * 1024 * 1024
"""Rows of one task that wait to become row groups, over all its partitions."""

OPEN_FILES = 16
"""More files than this do not wait for further rows: each holds buffers of its own."""


def write_files(batches: Iterable[pa.RecordBatch], metadata: TableMetadata, io: FileIO, prefix: str) -> list[DataFile]:
    """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
    writer = _TableWriter(metadata, io, prefix)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    finally:
        writer.abandon()


class _TableWriter:
    """Buffers rows by partition, and writes the largest buffer out when all together are large."""

    def __init__(self, metadata: TableMetadata, io: FileIO, prefix: str) -> None:
        self._metadata, self._io, self._prefix = metadata, io, prefix
        self._schema = schema_to_pyarrow(metadata.schema())
        self._partitioner = Partitioner(metadata.spec(), metadata.schema())
        self._locations = load_location_provider(metadata.location, metadata.properties)
        self._file_size = _property(
            metadata, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
        self._buffers: dict[tuple[Any, ...], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[Any, ...], int] = {}
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for values, rows in self._partitioner.split(conform(batch, self._schema)):
            self._buffers.setdefault(values, []).append(rows)
            self._sizes[values] = self._sizes.get(values, 0) + rows.nbytes
        while sum(self._sizes.values()) >= BUFFERED_BYTES:
            values = max(self._sizes, key=self._sizes.__getitem__)
            self._write_out(values)
            if len(self._open) > OPEN_FILES or self._open[values].size >= self._file_size:
                self._finish_file(values)

    def finish(self) -> list[DataFile]:
        for values in [*self._sizes]:
            self._write_out(values)
            self._finish_file(values)
        for values in [*self._open]:
            self._finish_file(values)
        return self._done

    def abandon(self) -> None:
        """Close open files after a failure: no commit will name them. Does nothing after `finish`."""
        for file in self._open.values():
            with suppress(Exception):  # another error is being raised already
                file.stream.close()
        self._open.clear()

    def _write_out(self, values: tuple[Any, ...]) -> None:
        del self._sizes[values]
        rows = pa.Table.from_batches(self._buffers.pop(values), self._schema)
        file = self._open.get(values)
        if file is None:
            key = self._partitioner.key(values)
            name = f"{self._prefix}-{uuid.uuid4().hex}.parquet"
            location = self._locations.new_data_location(name, key)
            file = self._open[values] = _OpenFile(self._io, location, key, self._schema, self._metadata)
        file.write(rows)

    def _finish_file(self, values: tuple[Any, ...]) -> None:
        self._done.append(self._open[values].finish())
        del self._open[values]


class _OpenFile:
    """A Parquet file that is being written. The table's properties say how."""

    def __init__(
        self, io: FileIO, location: str, key: PartitionKey | None, schema: pa.Schema, metadata: TableMetadata
    ) -> None:
        properties = metadata.properties
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT)
        self._location, self._key, self._metadata = location, key, metadata
        self._rows_per_group = _property(
            metadata, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )
        self.stream = io.new_output(location).create(overwrite=True)  # its name is new: no check whether it exists
        self._writer = pq.ParquetWriter(
            cast(IO[Any], self.stream),
            schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=_property(metadata, TableProperties.PARQUET_COMPRESSION_LEVEL, None),
            store_decimal_as_integer=True,  # as Iceberg's specification asks for
        )

    @property
    def size(self) -> int:
        return int(cast(pa.NativeFile, self.stream).tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=self._rows_per_group)

    def finish(self) -> DataFile:
        """Close the file for good, and return its manifest entry."""
        self._writer.close()
        size = self.size
        self.stream.close()
        sync_local([self._location])
        schema = self._metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            self._writer.writer.metadata,
            compute_statistics_plan(schema, self._metadata.properties),
            parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._location,
            file_format=FileFormat.PARQUET,
            partition=self._key.partition if self._key else Record(),
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of a table, matched by name, also inside structs; missing ones are null."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        if column.null_count and not field.nullable:
            raise CuesqueueError(
                f"column {field.name!r} of the Iceberg table must not be null, and rows hold null in it"
            )
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def sync_local(locations: Iterable[str]) -> None:
    """Flush local files to disk, so that they survive a power cut. Object stores do so by themselves."""
    for location in locations:
        parts = urlsplit(location)
        if parts.scheme in ("", "file"):
            make_durable(Path(location if not parts.scheme else location[len("file://") :]))


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files that one task wrote, with their table and partition spec."""

    table: uuid.UUID
    spec_id: int
    files: list[DataFile]


def _property(metadata: TableMetadata, name: str, default: int | None) -> Any:
    return property_as_int(metadata.properties, name, default)
