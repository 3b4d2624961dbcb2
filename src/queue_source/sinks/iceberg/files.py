"""Writes the rows of one task to Parquet files of an Iceberg table, with the manifest entry of each.

Runs in executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
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
from queue_source.sinks.partitioned_files import OpenFile, PartitionedFiles, Values
from queue_source.sinks.splits import make_durable


def write_files(batches: Iterable[pa.RecordBatch], metadata: TableMetadata, io: FileIO, prefix: str) -> list[DataFile]:
    """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
    return _TableFiles(metadata, io, prefix).write_all(batches)


class _TableFiles(PartitionedFiles[DataFile]):
    def __init__(self, metadata: TableMetadata, io: FileIO, prefix: str) -> None:
        file_bytes = _property(
            metadata, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
        super().__init__(schema_to_pyarrow(metadata.schema()), file_bytes)
        self._metadata, self._io, self._prefix = metadata, io, prefix
        self._partitioner = Partitioner(metadata.spec(), metadata.schema())
        self._locations = load_location_provider(metadata.location, metadata.properties)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        return self._partitioner.split(conform(batch, self._schema))

    def _new_file(self, values: Values) -> _OpenFile:
        key = self._partitioner.key(values)
        location = self._locations.new_data_location(f"{self._prefix}-{uuid.uuid4().hex}.parquet", key)
        return _OpenFile(self._io, location, key, self._schema, self._metadata)


class _OpenFile(OpenFile[DataFile]):
    """A file whose table's properties say how it is written."""

    def __init__(
        self, io: FileIO, location: str, key: PartitionKey | None, schema: pa.Schema, metadata: TableMetadata
    ) -> None:
        properties = metadata.properties
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT)
        self._location, self._key, self._metadata = location, key, metadata
        # its name is new: no check whether it exists
        stream = cast(pa.NativeFile, io.new_output(location).create(overwrite=True))
        writer = pq.ParquetWriter(
            stream,
            schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=_property(metadata, TableProperties.PARQUET_COMPRESSION_LEVEL, None),
            store_decimal_as_integer=True,  # as Iceberg's specification asks for
        )
        rows_per_group = _property(
            metadata, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )
        super().__init__(stream, writer, rows_per_group)

    def _finished(self, size: int, footer: pq.FileMetaData) -> DataFile:
        """Return its manifest entry."""
        sync_local([self._location])
        schema = self._metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            footer, compute_statistics_plan(schema, self._metadata.properties), parquet_path_to_id_mapping(schema)
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
