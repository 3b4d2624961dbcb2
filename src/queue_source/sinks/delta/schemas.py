"""Schemas of Delta tables in Arrow, and the features of a table that this sink does not write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import CuesqueueError, OptionError
from queue_source.formats.types import fields_of, is_plain, special_struct
from queue_source.schema.columns import format_type

_NO_NAME = frozenset(" ,;{}()\n\t=")


def parts(kind: pa.DataType) -> list[pa.Field]:
    """Return what a struct, a list or a map consists of; nothing for another type."""
    if pt.is_struct(kind):
        return fields_of(kind)
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pt.is_list(kind) or pt.is_large_list(kind) else []


def text_of(kind: pa.DataType) -> str:
    """Return the type for messages, as Spark writes it."""
    try:
        return format_type(kind)
    except ValueError:
        return str(kind)


def check_columns(fields: Iterable[pa.Field], above: str = "") -> None:
    """Raise OptionError for the first column that deltalake would refuse without its name, or take for another type."""
    fields = list(fields)
    _check_case(above, (field.name for field in fields))
    for field in fields:
        kind, inner = field.type, parts(field.type)
        is_held = is_plain(kind) and not (pt.is_timestamp(kind) and kind.tz not in (None, "UTC"))
        if special_struct(kind) or not (inner or is_held):
            raise OptionError(
                "delta",
                f"column {above + field.name!r} is of type {text_of(kind)}, which this sink cannot write to a Delta "
                "table; cast it in the query, for example to STRING, or leave it out",
            )
        check_columns(inner, f"{above}{field.name}.")


def _check_case(above: str, names: Iterable[str]) -> None:
    spelled: dict[str, str] = {}
    for name in names:
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise OptionError(
                "delta",
                f"columns {above + other!r} and {above + name!r} would differ in case alone, which a Delta table does "
                "not distinguish; rename the column in the query",
            )


def added_fields(table: str, fields: Iterable[pa.Field], columns: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns that the table lacks, or lacks a part of, each with all of its parts.

    Raises OptionError where rows with these columns can never be appended to the table.
    """
    old = {field.name: field for field in fields}
    united = _united(table, "", old.values(), columns)
    return [field for field in united if field.name not in old or field != old[field.name]]


def _united(table: str, above: str, old: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the fields of the table with those of the rows: the new ones behind the others."""
    columns = {field.name: field for field in new}
    united = {field.name: field for field in old}
    _check_case(above, [*united, *columns])
    for name, field in united.items():
        if name in columns:
            united[name] = field.with_type(_united_type(table, above + name, field.type, columns.pop(name).type))
        elif not field.nullable:
            raise OptionError("delta", f"column {above + name!r} of {table} must not be null, and the rows have none")
    for field in columns.values():
        _check_names(above, field)
    return [*united.values(), *columns.values()]


def _check_names(above: str, field: pa.Field) -> None:
    """Refuse names that only a table with column mapping may have; deltalake takes them."""
    if bad := sorted(_NO_NAME & set(field.name)):
        raise OptionError(
            "delta",
            f"column {above + field.name!r} has {bad[0]!r} in its name, which a Delta table cannot have; rename it in "
            "the query",
        )
    for part in parts(field.type):
        _check_names(f"{above}{field.name}.", part)


def _united_type(table: str, column: str, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if pt.is_struct(old) and pt.is_struct(new):
        return pa.struct(_united(table, f"{column}.", fields_of(old), fields_of(new)))
    if pt.is_list(old) and pt.is_list(new):
        element = _united_type(table, f"{column}.element", old.value_type, new.value_type)
        return pa.list_(old.value_field.with_type(element))
    if pt.is_map(old) and pt.is_map(new) and _fits(new.key_type, old.key_type):
        value = _united_type(table, f"{column}.value", old.item_type, new.item_type)
        return pa.map_(old.key_field, old.item_field.with_type(value))
    if _fits(new, old):
        return old
    end = "cast it in the query, or name another table"
    if _fits(old, new):
        end = "deltalake cannot widen a column; cast it in the query, or widen the table's with another engine first"
    raise OptionError(
        "delta", f"column {column!r} of {table} is of type {text_of(old)}, and the rows have {text_of(new)}; {end}"
    )


def _fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Tell whether each value of the one type is a value of the other, which a column may hold instead."""
    if pt.is_decimal(narrow) and pt.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision <= wide.precision)
    for is_number in (pt.is_signed_integer, pt.is_floating):
        if is_number(narrow) and is_number(wide):
            return bool(narrow.bit_width <= wide.bit_width)
    return bool(narrow == wide)


def check_nulls(field: pa.Field, values: pa.Array, name: str = "") -> None:
    """Raise CuesqueueError for a null where the table must not have any; pyarrow would write a 0 for some of them."""
    name = name or field.name
    if not field.nullable and values.null_count:
        raise CuesqueueError(f"column {name!r} of the Delta table must not be null, and rows hold null in it")
    if not _is_strict(field.type):
        return
    values = values.drop_null()  # what is inside of a null is none of the table's
    if pt.is_map(field.type):
        pair = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(pair)).flatten()  # the parts of a map know nothing of its slice
    inner = values.flatten()
    for part, within in zip(parts(field.type), inner if isinstance(inner, list) else [inner], strict=True):
        check_nulls(part, within, f"{name}.{part.name}")


def _is_strict(kind: pa.DataType) -> bool:
    """Tell whether there is a place inside of the type where no null may be, keys aside."""
    inner = fields_of(kind) if pt.is_struct(kind) else parts(kind)[-1:]
    return any(not part.nullable or _is_strict(part.type) for part in inner)


_WRITER_VERSION = 5
"""The newest without a list of features whose features are all known here; 7 has the list."""
_LISTED = 7
_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # files that are only added need no files of changes
        "deletionVectors",  # of other files
        "timestampNtz",
        "v2Checkpoint",
        "variantType",  # a column of which the rows have none
        "variantType-preview",
    }
)
_CHECKED = frozenset({"invariants", "checkConstraints", "generatedColumns", "columnMapping"})
"""Features that ask something of a writer only where the table uses them, which is looked at."""
_CONSTRAINT = "delta.constraints."
_OF_COLUMNS = {
    b"delta.invariants": "an invariant",
    b"delta.generationExpression": "values that are generated",
    b"delta.identity.start": "values that count up (IDENTITY)",
    b"CURRENT_DEFAULT": "a default value",
    b"__CHAR_VARCHAR_TYPE_STRING": "a length (CHAR or VARCHAR)",
}


def check_features(
    table: str,
    writer_version: int,
    features: Collection[str] | None,
    configuration: Mapping[str, str],
    fields: Iterable[pa.Field],
) -> None:
    """Raise OptionError for a table to which this sink cannot write what its rules ask for."""
    if not features and _WRITER_VERSION < writer_version != _LISTED:
        raise _refused(table, f"asks for writers of version {writer_version} of Delta's protocol")
    if unknown := sorted(set(features or ()) - _HARMLESS - _CHECKED):
        raise _refused(table, f"has the feature {', '.join(unknown)}")
    if (mode := configuration.get("delta.columnMapping.mode", "none").lower()) != "none":
        raise _refused(table, f"maps its columns to other names in files (delta.columnMapping.mode = {mode})")
    if constraint := next((name for name in configuration if name.startswith(_CONSTRAINT)), None):
        raise _refused(table, f"has the constraint {constraint.removeprefix(_CONSTRAINT)!r}")
    for column, field in _all_fields("", fields):
        if rule := next((text for name, text in _OF_COLUMNS.items() if name in (field.metadata or {})), None):
            raise _refused(table, f"has a column with {rule}: {column!r}")


def _all_fields(above: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.Field]]:
    for field in fields:
        yield above + field.name, field
        yield from _all_fields(f"{above}{field.name}.", parts(field.type))


def _refused(table: str, why: str) -> OptionError:
    return OptionError(
        "delta",
        f"{table} {why}, which this sink cannot keep; name another table, or write with delta-spark in foreachBatch "
        "(docs/how-to/delta.md)",
    )
