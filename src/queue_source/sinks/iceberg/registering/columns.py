"""Matches the columns of a Parquet file with those of a table, by field id or by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from queue_source.sinks.iceberg.name_mapping import children_of, completed
from queue_source.sinks.iceberg.registering.footers import Footer, wrong


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
