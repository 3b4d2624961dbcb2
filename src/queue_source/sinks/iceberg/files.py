"""Writes the data files of an Iceberg table, by partition."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import transforms
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from queue_source.common.columns import PartitionField as Wanted
from queue_source.errors import CuesqueueError, OptionError
from queue_source.sinks.splits import OpenFile, PartitionedFiles, Values, grouped, make_durable, short_folders, writing

_FIRST_ID = 1000
_TRANSFORMS: dict[str, transforms.Transform[Any, Any]] = {
    "identity": transforms.IdentityTransform(),
    "year": transforms.YearTransform(),
    "month": transforms.MonthTransform(),
    "day": transforms.DayTransform(),
    "hour": transforms.HourTransform(),
}
_WITHOUT_LEVEL = frozenset({"none", "snappy"})
"""Compressions for which other engines do not look at the level of a table's properties, and pyarrow refuses it."""
_NUMBERS = {
    pa.date32(): pa.int32(),
    pa.time64("us"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", "UTC"): pa.int64(),
}
"""How partition values of these types are written in manifests."""


def partition_spec(schema: Schema, partition_by: Sequence[Wanted]) -> PartitionSpec:
    """Build the spec that `partitionBy` asks for. Raises OptionError for an unsuitable column or type."""
    fields: list[PartitionField] = []
    for number, field in enumerate(partition_by):
        if field.column not in schema.column_names:
            raise OptionError("partitionBy", f"there is no column {field.column!r} to partition by")
        source = schema.find_field(field.column)
        suffix = "" if field.transform == "identity" else f"_{field.transform}"
        if field.transform == "bucket":
            transform: transforms.Transform[Any, Any] = transforms.BucketTransform(field.size)
        elif field.transform == "truncate":
            transform, suffix = transforms.TruncateTransform(field.size), "_trunc"
        else:
            transform = _TRANSFORMS[field.transform]
        if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
            raise OptionError("partitionBy", f"{field}: the column is of type {source.field_type}, which does not suit")
        fields.append(
            PartitionField(source.field_id, _FIRST_ID + number, transform, f"{field.column}{suffix}")  # Java's names
        )
    return PartitionSpec(*fields)


def check_spec(table: str, schema: Schema, spec: PartitionSpec, partition_by: Sequence[Wanted]) -> None:
    """Raise OptionError when an existing table is partitioned in another way than asked for."""
    if not partition_by:
        return
    asked = [(f.source_id, f.transform) for f in partition_spec(schema, partition_by).fields]
    if asked != [(f.source_id, f.transform) for f in spec.fields]:
        present = ", ".join(f"{f.transform} of {schema.find_column_name(f.source_id)}" for f in spec.fields)
        raise OptionError(
            "partitionBy",
            f"asks for {', '.join(map(str, partition_by))}, but {table} is partitioned by {present or 'nothing'}; "
            "leave the option out, or change the table",
        )


class NamingSpec(PartitionSpec):
    """Names each partition, also one of a day that Python does not have: its name says nothing to readers."""

    @classmethod
    def of(cls, spec: PartitionSpec) -> NamingSpec:
        return cls.model_construct(**vars(spec))

    def partition_to_path(self, data: Record, schema: Schema) -> str:
        try:
            return super().partition_to_path(data, schema)
        except OverflowError:
            return quote(repr(data), safe="")


def write_files(batches: Iterable[pa.RecordBatch], metadata: TableMetadata, io: FileIO, prefix: str) -> list[DataFile]:
    """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
    return _TableFiles(metadata, io, prefix).write_all(batches)


class _TableFiles(PartitionedFiles[DataFile]):
    def __init__(self, metadata: TableMetadata, io: FileIO, prefix: str) -> None:
        file_bytes = _property(
            metadata, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
        schema = metadata.schema()
        super().__init__(schema_to_pyarrow(schema), file_bytes)
        self._metadata, self._io, self._prefix = metadata, io, prefix
        self._fields = [
            (
                schema.accessor_for_field(field.source_id),
                field.transform.pyarrow_transform(schema.find_type(field.source_id)),
            )
            for field in metadata.spec().fields
        ]
        self._locations = load_location_provider(metadata.location, metadata.properties)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        batch, columns = conform(batch, self._schema), []
        for accessor, transform in self._fields:
            array = batch.column(accessor.position)
            while (inner := accessor.inner) is not None:
                accessor = inner
                array = pc.struct_field(array, accessor.position)
            if array.type == pa.large_binary():  # which PyIceberg's core cannot transform
                array = array.cast(pa.binary())
            values = transform(array)
            columns.append(values.cast(_NUMBERS.get(values.type, values.type)))
        return grouped(batch, columns)

    def _new_file(self, values: Values) -> OpenFile[DataFile]:
        """Open a file that is written as the table's properties say."""
        metadata, properties, schema = self._metadata, self._metadata.properties, self._metadata.schema()
        key = None  # by which paths name the partition
        if self._fields:
            key = PartitionKey([], NamingSpec.of(metadata.spec()), schema)
            vars(key)["partition"] = Record(*values)  # PyIceberg derives it from one field a column; here it is known
        location = self._locations.new_data_location(f"{self._prefix}-{uuid.uuid4().hex}.parquet", key)
        location = short_folders(location, location)
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()
        codec = "none" if codec == "uncompressed" else codec
        level = _property(metadata, TableProperties.PARQUET_COMPRESSION_LEVEL, None)
        with writing(location):
            # its name is new: no check whether it exists
            stream = cast(pa.NativeFile, self._io.new_output(location).create(overwrite=True))
            writer = pq.ParquetWriter(
                stream,
                self._schema,
                compression=codec,
                compression_level=None if codec in _WITHOUT_LEVEL else level,
                store_decimal_as_integer=True,  # as Iceberg's specification asks for
            )
        rows_per_group = _property(
            metadata, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )

        def finished(size: int, footer: pq.FileMetaData) -> DataFile:
            sync_local([location])
            plan, paths = compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
            counts = MetricsMode(MetricModeTypes.COUNTS)
            for path in _unbounded(footer):  # to PyIceberg the bounds of the other row groups are those of the file
                plan[paths[path]] = replace(plan[paths[path]], mode=counts)
            statistics = data_file_statistics_from_parquet_metadata(footer, plan, paths)
            return data_file(
                metadata, location, key.partition if key else Record(), size, statistics.to_serialized_dict()
            )

        return OpenFile(location, stream, writer, rows_per_group, finished)


def _unbounded(footer: pq.FileMetaData) -> Iterator[str]:
    """Yield the columns that have values without bounds in a row group: too long ones, or none that Python has."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            facts = column.statistics
            try:
                has_bounds = facts.null_count == column.num_values or None not in (facts.min, facts.max)
            except (OverflowError, UnicodeDecodeError):
                has_bounds = False
            if not has_bounds:
                yield column.path_in_schema


def data_file(
    metadata: TableMetadata, location: str, partition: Record, size: int, statistics: Mapping[str, Any]
) -> DataFile:
    """Return the manifest entry of a Parquet file of the table."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
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
