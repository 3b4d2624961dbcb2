"""Schemas of Iceberg tables from those of Arrow, and names that readers map to columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg import types
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, promote
from pyiceberg.table.name_mapping import MappedField

from queue_source.errors import OptionError
from queue_source.formats.types import special_struct

_SIMPLE: dict[pa.DataType, types.PrimitiveType] = {
    pa.bool_(): types.BooleanType(),
    pa.int8(): types.IntegerType(),
    pa.int16(): types.IntegerType(),
    pa.int32(): types.IntegerType(),
    pa.uint8(): types.IntegerType(),
    pa.uint16(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.large_string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.large_binary(): types.BinaryType(),
    pa.date32(): types.DateType(),
    pa.time64("us"): types.TimeType(),
    pa.time64("ns"): types.TimeType(),  # Spark's TIME, which has microseconds at most
    pa.timestamp("us"): types.TimestampType(),
    pa.timestamp("us", "UTC"): types.TimestamptzType(),
}


Identify = Callable[[pa.Field], tuple[int, bool]]
"""Returns the field id of a column, or of a part of one, and whether it must not be null."""


def iceberg_schema(schema: pa.Schema, identify: Identify | None = None) -> Schema:
    """Return the schema of a table for these rows.

    By default all columns may be null, and field ids are arbitrary: those of a table are given by its catalog. Raises
    OptionError with the first bad column.
    """
    if identify is None:
        ids = itertools.count(1)
        return iceberg_schema(schema, lambda _: (next(ids), False))
    return Schema(*[_field(field, field.name, identify) for field in schema])


def arrow_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a table in the types in which objects are read."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(field.name, _small(field.type)) for field in columns])


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _small(part.type)) for part in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _field(field: pa.Field, column: str, identify: Identify) -> types.NestedField:
    id, required = identify(field)
    return types.NestedField(id, field.name, _type(field.type, column, identify), required=required)


def _type(kind: pa.DataType, column: str, identify: Identify) -> types.IcebergType:
    if simple := _SIMPLE.get(kind):
        return simple
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, column, identify)
    if pa.types.is_decimal128(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return types.FixedType(kind.byte_width)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        id, required = identify(kind.value_field)
        return types.ListType(id, _type(kind.value_type, f"{column}.element", identify), element_required=required)
    if pa.types.is_map(kind):
        (key_id, _), (value_id, required) = identify(kind.key_field), identify(kind.item_field)
        key = _type(kind.key_type, f"{column}.key", identify)
        value = _type(kind.item_type, f"{column}.value", identify)
        return types.MapType(key_id, key, value_id, value, value_required=required)
    if pa.types.is_struct(kind) and kind.num_fields:
        if special := special_struct(kind):
            raise _refused(column, special)
        return types.StructType(*[_field(field, f"{column}.{field.name}", identify) for field in kind])
    raise _refused(column, str(kind))


def _refused(column: str, kind: str) -> OptionError:
    return OptionError(
        "table",
        f"column {column!r} is of type {kind}, which an Iceberg table cannot hold; cast it in the query, for example "
        "to STRING, or leave it out",
    )


def united(table: str, schema: Schema, columns: Schema) -> Schema:
    """Return `columns` as additions to the table's `schema`, or raise OptionError.

    A column of both has the wider of its two types, if a table may be promoted to it, and stays as mandatory as it is.
    """
    mandatory = [field.name for field in schema.fields if field.required]
    for name in mandatory:
        if name not in (field.name for field in columns.fields):
            raise OptionError("table", f"column {name!r} of {table} must not be null, and the rows have no such column")
    merged = Schema(*_united_fields(table, "", schema.fields, columns.fields))
    names = {name.lower(): name for name in merged.column_names}
    for name in (*merged.column_names, *schema.column_names):
        if names.setdefault(name.lower(), name) != name:
            raise OptionError(
                "table",
                f"columns {names[name.lower()]!r} and {name!r} of {table} would differ in case alone, which most "
                "engines cannot distinguish; rename the column in the query",
            )
    return merged


def _united_fields(
    table: str, above: str, old: tuple[types.NestedField, ...], new: tuple[types.NestedField, ...]
) -> list[types.NestedField]:
    old_fields = {field.name: field for field in old}
    fields = []
    for field in new:
        if (before := old_fields.get(field.name)) is not None:
            kind = _united_type(table, f"{above}{field.name}", before.field_type, field.field_type)
            field = types.NestedField(field.field_id, field.name, kind, required=before.required)
        fields.append(field)
    return fields


def _united_type(table: str, column: str, old: types.IcebergType, new: types.IcebergType) -> types.IcebergType:
    if isinstance(old, types.StructType) and isinstance(new, types.StructType):
        return types.StructType(*_united_fields(table, f"{column}.", old.fields, new.fields))
    if isinstance(old, types.ListType) and isinstance(new, types.ListType):
        element = _united_type(table, f"{column}.element", old.element_type, new.element_type)
        return types.ListType(new.element_id, element, element_required=old.element_required)
    if isinstance(old, types.MapType) and isinstance(new, types.MapType):
        if old.key_type != new.key_type:
            raise _changed(table, f"{column}.key", old.key_type, new.key_type)
        value = _united_type(table, f"{column}.value", old.value_type, new.value_type)
        return types.MapType(new.key_id, new.key_type, new.value_id, value, value_required=old.value_required)
    if old == new:
        return old
    for narrow, wide in ((new, old), (old, new)):
        if isinstance(narrow, types.StringType | types.BinaryType | types.FixedType):
            continue  # PyIceberg reads one as the other; a column cannot become the other
        if isinstance(narrow, types.DecimalType) and isinstance(wide, types.DecimalType) and narrow.scale != wide.scale:
            continue  # PyIceberg ignores it; files have the digits alone
        with suppress(ResolveError):
            if isinstance(wide, types.PrimitiveType) and promote(narrow, wide) == wide:
                return wide
    raise _changed(table, column, old, new)


def _changed(table: str, column: str, old: types.IcebergType, new: types.IcebergType) -> OptionError:
    return OptionError(
        "table",
        f"column {column!r} of {table} is of type {old}, and the rows have {new}; cast it in the query, or name "
        "another table",
    )


def children_of(kind: types.IcebergType) -> tuple[types.NestedField, ...]:
    """Return the parts of a nested type, under their names in name mappings."""
    if isinstance(kind, types.StructType):
        return kind.fields
    if isinstance(kind, types.ListType):
        return (kind.element_field,)
    if isinstance(kind, types.MapType):
        return kind.key_field, kind.value_field
    return ()


def completed(fields: Sequence[types.NestedField], mapped: Iterable[MappedField] = ()) -> list[MappedField]:
    """Return the mapping with all of the columns in it. Existing entries stay: files are read by them."""
    mapped = list(mapped)
    taken = {name for entry in mapped for name in entry.names}
    live = {field.field_id: field for field in fields}
    result = []
    for entry in mapped:
        field = live.pop(entry.field_id, None) if entry.field_id is not None else None
        if field is None:
            result.append(entry)
            continue
        names = [*entry.names, *([] if field.name in taken else [field.name])]
        below = completed(children_of(field.field_type), entry.fields)
        result.append(MappedField(field_id=entry.field_id, names=names, fields=below))  # type: ignore[call-arg]
    for field in live.values():
        names = [] if field.name in taken else [field.name]
        below = completed(children_of(field.field_type))
        result.append(MappedField(field_id=field.field_id, names=names, fields=below))  # type: ignore[call-arg]
    return result
