"""Refuses nulls where a Delta table must not have any: in columns, in fields of structs, in arrays and maps."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.errors import CuesqueueError
from queue_source.sinks.delta.schemas import DeltaField, DeltaType


def check_nulls(field: DeltaField, column: pa.Array) -> None:
    """Raise CuesqueueError for a null in a column that must not have any, or inside of it."""
    _check(field["name"], field["type"], field["nullable"], column)


def _check(name: str, kind: DeltaType, nullable: bool, values: pa.Array) -> None:
    if not nullable and values.null_count:
        raise CuesqueueError(f"column {name!r} of the Delta table must not be null, and rows hold null in it")
    if isinstance(kind, str) or not _is_strict(kind):
        return
    if values.null_count:
        values = values.drop_null()  # what is inside of a null is none of the table's
    if kind["type"] == "struct":
        for field, inner in zip(kind["fields"], values.flatten(), strict=True):
            _check(f"{name}.{field['name']}", field["type"], field["nullable"], inner)
    elif kind["type"] == "array":
        _check(f"{name}.element", kind["elementType"], kind["containsNull"], values.flatten())
    else:
        pair = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        entries = pc.list_flatten(values.cast(pa.list_(pair)))  # the parts of a map know nothing of its slice
        _check(f"{name}.key", kind["keyType"], True, pc.struct_field(entries, 0))
        _check(f"{name}.value", kind["valueType"], kind["valueContainsNull"], pc.struct_field(entries, 1))


def _is_strict(kind: DeltaType) -> bool:
    """Tell whether there is a place inside of the type where no null may be."""
    if isinstance(kind, str):
        return False
    if kind["type"] == "struct":
        return any(not field["nullable"] or _is_strict(field["type"]) for field in kind["fields"])
    if kind["type"] == "array":
        return not kind["containsNull"] or _is_strict(kind["elementType"])
    return not kind["valueContainsNull"] or _is_strict(kind["keyType"]) or _is_strict(kind["valueType"])
