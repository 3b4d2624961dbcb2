"""Schemas of Delta tables, as their log has them in JSON: from Arrow and to it, and with columns of new rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.types import special_struct

DeltaType = str | Mapping[str, Any]
"""`long`, `decimal(9,2)`, or an object with the `type` struct, array or map."""
DeltaField = Mapping[str, Any]
"""An object with `name`, `type`, `nullable`, `metadata`."""

_SIMPLE: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}
_ARROW = {name: kind for kind, name in _SIMPLE.items()} | {"string": pa.string(), "binary": pa.binary()}
_LARGE = {"string": pa.large_string(), "binary": pa.large_binary()}
"""No more than the offsets differ, and a batch may hold more than 2 GiB."""
_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_NO_NAME = frozenset(" ,;{}()\n\t=")


def delta_fields(schema: pa.Schema) -> list[DeltaField]:
    """Return the fields of a table for these rows; all may be null. Raises OptionError with the first bad column."""
    return [_field(field, field.name) for field in schema]


def _field(field: pa.Field, column: str) -> DeltaField:
    return {"name": field.name, "type": _type(field.type, column), "nullable": True, "metadata": {}}


def _type(kind: pa.DataType, column: str) -> DeltaType:
    if simple := _SIMPLE.get(kind):
        return simple
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _type(kind.value_type, f"{column}.element")
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(kind):
        key, value = _type(kind.key_type, f"{column}.key"), _type(kind.item_type, f"{column}.value")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_struct(kind) and kind.num_fields:
        if special := special_struct(kind):
            raise _refused(column, special)
        return {"type": "struct", "fields": [_field(field, f"{column}.{field.name}") for field in kind]}
    raise _refused(column, str(kind))


def _refused(column: str, kind: str) -> OptionError:
    return OptionError(
        "delta",
        f"column {column!r} is of type {kind}, which this sink cannot write to a Delta table; cast it in the query, "
        "for example to STRING, or leave it out",
    )


def arrow_type(kind: DeltaType, *, large: bool = True) -> pa.DataType:
    """Return the Arrow type in which values of a table's column are written. What is inside may be null.

    Raises KeyError for a type whose values this sink cannot write.
    """
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _LARGE[kind] if large and kind in _LARGE else _ARROW[kind]
    if kind["type"] == "struct":
        fields = [pa.field(field["name"], arrow_type(field["type"], large=large)) for field in kind["fields"]]
        return pa.struct(fields)
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"], large=large)))
    return pa.map_(arrow_type(kind["keyType"], large=large), arrow_type(kind["valueType"], large=large))


def arrow_columns(fields: Sequence[DeltaField]) -> pa.Schema:
    """Return the columns of a table that can be filled here, in the types in which objects are read."""
    columns = []
    for field in fields:
        with suppress(KeyError):  # VARIANT, or a type that is newer than this sink
            columns.append(pa.field(field["name"], arrow_type(field["type"], large=False)))
    return pa.schema(columns)


def text_of(kind: DeltaType) -> str:
    """Return the type for messages, as Spark writes it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        fields = ", ".join(f"{field['name']}: {text_of(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "array":
        return f"array<{text_of(kind['elementType'])}>"
    return f"map<{text_of(kind['keyType'])}, {text_of(kind['valueType'])}>"


def added_fields(table: str, fields: Sequence[DeltaField], columns: Sequence[DeltaField]) -> list[DeltaField]:
    """Return the columns that the table lacks, or lacks a part of, each with all of its parts.

    Raises OptionError where rows with these columns can never be appended to the table.
    """
    united = _united(table, "", fields, columns)
    old = {field["name"]: field for field in fields}
    return [field for field in united if old.get(field["name"]) != field]


def _united(table: str, above: str, old: Sequence[DeltaField], new: Sequence[DeltaField]) -> list[DeltaField]:
    """Return the fields of the table with those of the rows: the new ones behind the others."""
    columns = {field["name"]: field for field in new}
    names = {field["name"].lower(): field["name"] for field in old}
    for name in columns:
        if names.setdefault(name.lower(), name) != name:
            raise OptionError(
                "delta",
                f"columns {above + names[name.lower()]!r} and {above + name!r} of {table} would differ in case alone, "
                "which a Delta table does not distinguish; rename the column in the query",
            )
    united = []
    for field in old:
        column = columns.pop(field["name"], None)
        if column is None:
            if not field["nullable"]:
                raise OptionError(
                    "delta", f"column {above + field['name']!r} of {table} must not be null, and the rows have none"
                )
            united.append(field)
        else:
            where = above + field["name"]
            united.append({**field, "type": _united_type(table, where, field["type"], column["type"])})
    for column in columns.values():
        check_names(above, [column])
        united.append(column)
    return united


def check_names(above: str, fields: Iterable[DeltaField]) -> None:
    """Refuse names of new columns that only a table with column mapping may have."""
    for field in fields:
        if bad := sorted(_NO_NAME & set(field["name"])):
            raise OptionError(
                "delta",
                f"column {above + field['name']!r} has {bad[0]!r} in its name, which a Delta table cannot have; rename "
                "it in the query",
            )
        check_names(f"{above}{field['name']}.", inner_fields(field["type"]))


def inner_fields(kind: DeltaType) -> Iterator[DeltaField]:
    """Yield the fields of the structs directly inside a type."""
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        yield from kind["fields"]
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from inner_fields(kind[part])


def _united_type(table: str, column: str, old: DeltaType, new: DeltaType) -> DeltaType:
    if not isinstance(old, str) and not isinstance(new, str) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return {**old, "fields": _united(table, f"{column}.", old["fields"], new["fields"])}
        if old["type"] == "array":
            element = _united_type(table, f"{column}.element", old["elementType"], new["elementType"])
            return {**old, "elementType": element}
        if text_of(old["keyType"]) == text_of(new["keyType"]):
            value = _united_type(table, f"{column}.value", old["valueType"], new["valueType"])
            return {**old, "valueType": value}
    elif old == new or _fits(new, old):
        return old
    end = "cast it in the query, or name another table"
    if _fits(old, new):
        end = "deltalake cannot widen a column; cast it in the query, or widen the table's with another engine first"
    raise OptionError(
        "delta", f"column {column!r} of {table} is of type {text_of(old)}, and the rows have {text_of(new)}; {end}"
    )


def _fits(narrow: DeltaType, wide: DeltaType) -> bool:
    """Tell whether each value of the one type is a value of the other, which a column may hold instead."""
    if not isinstance(narrow, str) or not isinstance(wide, str):
        return False
    if wide in _WIDER.get(narrow, ()):
        return True
    decimals = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if decimals[0] is None or decimals[1] is None:
        return False
    (precision, scale), (most, places) = ((int(d[1]), int(d[2])) for d in decimals if d is not None)
    return scale == places and precision <= most
