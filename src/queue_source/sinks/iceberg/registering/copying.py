"""Copies the rows of a Parquet object that cannot be a data file as it is into new files of the table.

Types that `columns` refuses are allowed here, as far as the table has a type for all of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FloatType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.path_columns import path_values
from queue_source.options.columns import PartitionField
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.objects import ExpectedObject, read_object
from queue_source.read.refused import Refusals
from queue_source.sinks.iceberg.registering.candidates import TableOfFiles, check_required, collect, take_up
from queue_source.sinks.iceberg.registering.columns import (
    Bound,
    bind_names,
    file_fields,
    stored_as_iceberg,
    wanted_fields,
    wrong,
)
from queue_source.sinks.iceberg.registering.facts import Facts
from queue_source.sinks.iceberg.registering.footers import Described
from queue_source.sinks.iceberg.registering.known_partitions import folder_columns


class Copy:
    """An object whose rows are to be copied, with the columns that a table needs to have for them."""

    def __init__(self, uri: str, expected: ExpectedObject, described: Described) -> None:
        self.uri = uri
        self._expected = expected
        self._folders = path_values(uri)
        self._described = described
        self._fields = file_fields(described, _as_read)

    def columns_needed(
        self, name: str, metadata: TableMetadata | None, partition_by: Sequence[PartitionField]
    ) -> Schema:
        """Return the columns, as wide as object and table need them. Raises BadObject("wrong-columns")."""
        bound = bind_names(self._fields, metadata)
        for column in bound:
            _check_names(column.children, column.name)
        return take_up(name, metadata, wanted_fields(bound), self._folders, partition_by)

    def check(self, table: TableOfFiles) -> None:
        """Raise BadObject for nulls where the table allows none: once rows are written, it is too late."""
        bound = bind_names(self._fields, table.metadata)
        leaves: dict[int, tuple[NestedField, Facts]] = {}
        collect(bound, self._described, leaves)
        filled = folder_columns(table.metadata.spec(), table.schema, self._folders)
        check_required(table.schema.fields, bound, filled, {id: facts for id, (_, facts) in leaves.items()})

    def rows(self, table: TableOfFiles, storage: StorageOptions) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the table's columns. Raises BadObject before the first batch or never."""
        bound = [column for column in bind_names(self._fields, table.metadata) if column.field is not None]
        names = {column.file.name: column.name for column in bound}
        columns = [pa.field(column.file.name, _read_type(column)) for column in bound]
        filled = folder_columns(table.metadata.spec(), table.schema, self._folders)
        from_path = [field for field in table.schema.fields if field.field_id in filled and field.name not in names]
        columns += [pa.field(field.name, _small(field)) for field in from_path]
        options = FormatOptions("parquet", timezone="UTC", partition_columns=tuple(field.name for field in from_path))
        batches = read_object(
            self.uri, pa.schema(columns), options, BadRecords("FAILFAST"), storage=storage, expected=self._expected
        )
        for batch in batches:
            yield batch.rename_columns([names.get(name, name) for name in batch.schema.names])


def all_rows(
    copies: Sequence[Copy],
    table: TableOfFiles,
    storage: StorageOptions,
    refusals: Refusals,
    refuse: Callable[[Copy, BadObject], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one object after the other; a bad object yields none."""
    for copy in copies:
        try:
            yield from refusals.read(copy.uri, partial(copy.rows, table, storage))
        except BadObject as error:
            refuse(copy, error)


def _check_names(bound: Sequence[Bound], above: str) -> None:
    for column in bound:
        if column.name != column.file.name:
            raise wrong(f"field {column.file.name!r} of its column {above!r} has another name in the table")
        _check_names(column.children, f"{above}.{column.name}")


def _as_read(kind: pa.DataType, physical: str, column: str) -> PrimitiveType:
    """Return the type that holds all values of a type. INT96 is a moment, as Spark writes it."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_timestamp(kind):
        return TimestamptzType() if kind.tz is not None or physical == "INT96" else TimestampType()
    if pt.is_date(kind):
        return DateType()
    if pt.is_uint32(kind):
        return LongType()
    if pt.is_uint64(kind):
        return DecimalType(20, 0)
    if pt.is_float16(kind):
        return FloatType()
    if pt.is_decimal(kind) and kind.precision <= 38:
        return DecimalType(kind.precision, kind.scale)
    if pt.is_string_view(kind):
        return StringType()
    if pt.is_binary_view(kind):
        return BinaryType()
    return stored_as_iceberg(kind, physical, column)


def _read_type(column: Bound) -> pa.DataType:
    """Return the table's type of the column, with the parts that the file has."""
    assert column.field is not None
    if column.file.kind == "struct":
        fields = [pa.field(part.file.name, _read_type(part)) for part in column.children if part.field is not None]
        return pa.struct(fields)
    if column.file.kind == "list":
        return pa.list_(_read_type(column.children[0]))
    if column.file.kind == "map":
        return pa.map_(*map(_read_type, column.children))
    return _small(column.field)


def _small(field: NestedField) -> pa.DataType:
    kind = schema_to_pyarrow(Schema(field)).field(0).type
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
