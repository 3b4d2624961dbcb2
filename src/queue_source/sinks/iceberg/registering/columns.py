"""Columns of a landed file matched with those of its table, and the partition that the file proves to be of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from queue_source.errors import BadObject
from queue_source.formats.metadata import path_columns
from queue_source.options.content import FormatOptions
from queue_source.sinks.iceberg.registering.footers import Footer, Statistics, wrong
from queue_source.sinks.iceberg.schemas import children_of, completed


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file or a part of one, and the table's column: None for a new one, or one that the table dropped.

    The id of `file` is its number (`Footer`).
    """

    file: NestedField
    table: NestedField | None
    dropped: bool
    parts: tuple[Column, ...]


def match(footer: Footer, metadata: TableMetadata | None) -> tuple[Column, ...]:
    """Match each column with one of the table. Without a table all are new. Raises BadObject("wrong-columns")."""
    if metadata is None:
        return _matched(footer.fields, (), (), None, "")
    fields = metadata.schema().fields
    if not footer.ids:
        return _matched(footer.fields, fields, completed(fields, metadata.name_mapping()), None, "")
    names: dict[int, set[str]] = {}
    for schema in metadata.schemas:
        for id, field in index_by_id(schema).items():
            names.setdefault(id, set()).add(field.name)
    for field in _all(footer.fields):
        if field.name not in names.get(id := footer.ids[field.field_id], ()):
            raise wrong(
                f"its column {field.name!r} has field id {id}, which in this table was never a column of that name: "
                "the ids are those of another table"
            )
    return _matched(footer.fields, fields, (), footer.ids, "")


def _all(fields: Sequence[NestedField]) -> Iterator[NestedField]:
    for field in fields:
        yield field
        yield from _all(children_of(field.field_type))


def _matched(
    fields: Sequence[NestedField],
    table: Sequence[NestedField],
    mapped: Sequence[MappedField],
    ids: Mapping[int, int] | None,
    above: str,
) -> tuple[Column, ...]:
    live = {field.field_id: field for field in table}
    own = {field.name: field.field_id for field in table}
    entries = {name: entry for entry in mapped for name in entry.names}
    taken: dict[int, str] = {}
    columns = []
    for file in fields:
        entry = entries.get(file.name)
        id = ids[file.field_id] if ids is not None else None if entry is None else entry.field_id
        if ids is None and own.get(file.name, id) != id:
            raise wrong(
                f"column {above + file.name!r} is another one by the table's name mapping (field id {id}) than by its "
                f"name ({own[file.name]})"
            )
        if id is not None and id in taken:
            raise wrong(f"its columns {taken[id]!r} and {file.name!r} are one column of the table (field id {id})")
        field = None
        if id is not None:
            taken[id], field = file.name, live.get(id)
        below = () if field is None else children_of(field.field_type)
        inner = () if entry is None else entry.fields
        parts = _matched(children_of(file.field_type), below, inner, ids, f"{above}{file.name}.")
        columns.append(Column(file, field, id is not None and field is None, parts))
    return tuple(columns)


def every(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield the columns with all of their parts, without what is dropped."""
    for column in columns:
        if not column.dropped:
            yield column
            yield from every(column.parts)


def wanted_fields(columns: Sequence[Column]) -> list[NestedField]:
    """Return the columns that a table needs for these, under its own names. Their ids are the file's numbers."""
    return [
        NestedField(column.file.field_id, (column.table or column.file).name, _wanted_type(column), required=False)
        for column in columns
        if not column.dropped
    ]


def _wanted_type(column: Column) -> IcebergType:
    kind, inner = column.file.field_type, wanted_fields(column.parts)
    if isinstance(kind, StructType):
        return StructType(*inner)
    if len(inner) != len(column.parts):
        raise wrong(f"a part of its column {column.file.name!r} is no part of the table's")
    if isinstance(kind, ListType):
        return ListType(inner[0].field_id, inner[0].field_type, element_required=False)
    if isinstance(kind, MapType):
        key, value = inner
        return MapType(key.field_id, key.field_type, value.field_id, value.field_type, value_required=False)
    return kind


def covers(table: Sequence[NestedField], columns: Sequence[NestedField]) -> bool:
    """Tell whether the table has all columns, as wide as these."""
    fields = {field.name: field for field in table}
    for column in columns:
        field, inner = fields.get(column.name), children_of(column.field_type)
        if field is None or not (
            covers(children_of(field.field_type), inner) if inner else field.field_type == column.field_type
        ):
            return False
    return True


def check_required(table: Sequence[NestedField], columns: Sequence[Column], filled: set[int], footer: Footer) -> None:
    """Check that columns that must not be null are in the file, and that the footer reports no nulls in them."""
    matched = {column.table.field_id: column for column in columns if column.table is not None}
    for field in table:
        column = matched.get(field.field_id)
        if column is None:
            if field.required and field.field_id not in filled:
                raise wrong(f"column {field.name!r} of the table must not be null, and the file has no such column")
            continue
        statistics = footer.statistics.get(column.file.field_id)
        if field.required and not column.file.required and (statistics is None or statistics.nulls != 0):
            raise wrong(f"column {field.name!r} of the table must not be null, and in the file it may be")
        check_required(children_of(field.field_type), column.parts, set(), footer)


_IN_FOLDERS = (StringType, IntegerType, LongType, DateType, BooleanType, DecimalType)
"""Types with one way to be written."""


def folder_columns(spec: PartitionSpec, schema: Schema, folders: Mapping[str, str]) -> set[int]:
    """Return the ids of the columns that readers fill from the partition's value where a file does not have them."""
    ids = {field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform)}
    return {field.field_id for field in schema.fields if field.field_id in ids and field.name in folders}


@dataclass(frozen=True, slots=True)
class PartitionOf:
    """What is known of a file.

    `facts`: by field id, those of the columns that it has; None of a list, a map or a struct. `folders`: `name=value`
    in its URI.
    """

    schema: Schema
    facts: Mapping[int, Statistics | None]
    folders: Mapping[str, str]
    uri: str

    def record(self, spec: PartitionSpec) -> Record:
        """Return the partition's values. Raises BadObject("wrong-partition")."""
        return Record(*map(self._value, spec.fields))

    def _value(self, field: PartitionField) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        if isinstance(field.transform, UnknownTransform):
            raise _refused(f"the table is partitioned by {field.transform}, which nobody here knows")
        name, source = self.schema.find_column_name(field.source_id) or "", self.schema.find_field(field.source_id)
        facts = self.facts.get(field.source_id)
        if name in self.folders and source in self.schema.fields:
            return self._from_folder(field, source, facts)
        if facts is None:
            if source.initial_default is not None:
                raise _refused(f"the file has no column {name!r}, for which readers see a default")
            return None
        if facts.is_all_null:
            return None
        if facts.nulls is None:
            raise _refused(f"its footer does not say whether column {name!r} has nulls")
        if facts.nulls:
            raise _refused(f"column {name!r} has {facts.nulls} nulls beside values")
        if facts.lower is None:
            raise _refused(f"its footer has no bounds of column {name!r}")
        if isinstance(source.field_type, FloatType | DoubleType):
            raise _refused(f"column {name!r} may have NaN, of which its footer does not tell")
        results = self._results(field, facts)
        if len(results) > 1:
            raise _refused(f"column {name!r} has values of several partitions ({field.transform}): {results}")
        return results[0]

    def _from_folder(self, field: PartitionField, source: NestedField, facts: Statistics | None) -> Any:
        said = f"its path says {source.name}={self.folders[source.name]}"
        if not isinstance(source.field_type, _IN_FOLDERS):
            raise _refused(f"{said}, and there are several ways to write a {source.field_type}")
        if facts is None and not isinstance(field.transform, IdentityTransform):
            raise _refused(
                f"{said}, the file has no such column, and readers of a table that is partitioned by "
                f"{field.transform} of it would see null"
            )
        columns = pa.schema([schema_to_pyarrow(Schema(source)).field(0)])
        options = FormatOptions("parquet", timezone="UTC", partition_columns=(source.name,))
        try:
            value = path_columns(self.uri, columns, options)[source.name].as_py()
        except BadObject as error:
            raise _refused(f"{said}: {error.detail}") from error
        value = partition_record_value(field, value, self.schema)
        result = self._transformed(field, value)
        if facts is not None:
            has_value = facts.lower is not None or (facts.nulls is not None and not facts.is_all_null)
            if has_value if value is None else facts.nulls:
                raise _refused(f"{said}, and its footer that the column has {facts.nulls} nulls of {facts.values}")
            is_other = not field.transform.preserves_order and facts.lower != value
            if facts.lower is not None and (is_other or self._results(field, facts) != [result]):
                raise _refused(f"{said}, and its footer that values are from {facts.lower!r} to {facts.upper!r}")
        return result

    def _results(self, field: PartitionField, facts: Statistics) -> list[Any]:
        """Return the one partition of all values, or two.

        Equal bounds are the value, also where their writer cuts them: it cuts the upper one to something greater.
        Others enclose all values; so they prove something where the transform keeps their order.
        """
        first, last = self._transformed(field, facts.lower), self._transformed(field, facts.upper)
        if facts.lower == facts.upper or (first == last and field.transform.preserves_order):
            return [first]
        return [first, last]

    def _transformed(self, field: PartitionField, value: Any) -> Any:
        return field.transform.transform(self.schema.find_type(field.source_id))(value)


def _refused(problem: str) -> BadObject:
    return BadObject("wrong-partition", problem)
