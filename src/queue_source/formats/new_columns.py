"""Columns that objects have and the declared schema lacks: noticed where objects are read, at no cost per row.

JSON: the columns that pyarrow infers in addition; CSV: the header; formats with types: the schema in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, CuesqueueError
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.formats.types import (
    fields_of,
    holds_nothing,
    inner_types,
    spark_schema,
    special_struct,
    wider_type,
)
from queue_source.options.content import FormatOptions

Tree = Mapping[str, Any]
"""Names of fields; to each the tree of what is new in it, or None where all of it is."""


class NewColumns(CuesqueueError):
    """An object has columns that the stream's schema lacks, and its options ask for a report.

    Raised and caught in one task (`read/task.py`). `found`: the object's columns; or `record`: the JSON object that has
    them. `where`: the object's URI or the message's shard id, where it is known.
    """

    def __init__(self, found: pa.Schema | None = None, record: Mapping[str, Any] | None = None) -> None:
        self.found, self.record = found, record
        self.where: str | None = None
        super().__init__("there are columns that the schema lacks")


def no_data(options: FormatOptions) -> list[str]:
    """Return the names of columns that do not come from the content of objects."""
    others = (options.column_name_of_corrupt_record, options.rescued_data_column)
    return [METADATA_COLUMN, *options.partition_columns, *(name for name in others if name is not None)]


def check_file(schema: pa.Schema, written: pa.Schema, options: FormatOptions) -> None:
    """Raise NewColumns when a file of a typed format has more than the declared columns.

    Raises BadObject("wrong-columns") when Spark has no type for one of them.
    """
    passed = {name.casefold() for name in no_data(options)}
    try:
        others = spark_schema(pa.schema([field for field in written if field.name.casefold() not in passed]))
    except ValueError as error:
        raise BadObject("wrong-columns", str(error)) from error
    declared, of_file = pa.struct(list(schema)), pa.struct(list(others))
    if more(declared, of_file) or (options.watch_wider_types and _has_wider(declared, of_file)):
        raise NewColumns(others)


def _has_wider(declared: pa.DataType, written: pa.DataType) -> bool:
    """Tell whether anything that is declared has a wider type in a file."""
    if special_struct(declared) is not None:
        return False
    if pt.is_struct(declared) and pt.is_struct(written):
        types = {field.name.casefold(): field.type for field in fields_of(declared)}
        return any(
            _has_wider(types[name], field.type)
            for field in fields_of(written)
            if (name := field.name.casefold()) in types
        )
    both = (inner_types(declared), inner_types(written))
    if all(both):
        return any(_has_wider(*pair) for pair in zip(*both, strict=False))
    return wider_type(declared, written) is not None


def check_header(schema: pa.Schema, names: list[str], options: FormatOptions) -> None:
    """Raise NewColumns when a CSV header has more than the declared columns."""
    declared_names = {name.casefold() for name in (*schema.names, *no_data(options))}
    if any(name.casefold() not in declared_names for name in names):
        raise NewColumns(pa.schema([(name, pa.string()) for name in dict.fromkeys(names)]))


Exceeds = Callable[[Any, int], bool]
"""Tells whether a decoded value is a number that a whole number of so many bits has no room for."""


class KnownNames:
    """The names of a schema, to hold JSON objects against; where types may widen, its whole numbers too."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, exceeds: Exceeds) -> None:
        self._names: dict[str, Any] = _names(pa.struct(list(schema)), numbers=options.watch_wider_types)
        self._names.update(dict.fromkeys((name.casefold() for name in no_data(options)), None))
        self._exceeds = exceeds

    def check(self, record: dict[str, Any]) -> None:
        """Raise NewColumns when a decoded object has a value for an unknown name, or a wider number, at any depth."""
        if self._has_new(record, self._names):
            raise NewColumns(record=record)

    def _has_new(self, value: Any, names: Any) -> bool:
        if isinstance(value, list):
            return any(self._has_new(item, names) for item in value)
        if isinstance(names, int):
            return self._exceeds(value, names)
        if not isinstance(value, dict):
            return False
        for name, inner in value.items():
            folded = name.casefold()
            if folded not in names:
                if _says_something(inner):
                    return True
            elif names[folded] is not None and self._has_new(inner, names[folded]):
                return True
        return False


def _names(kind: pa.DataType, *, numbers: bool) -> Any:
    """Return the names of the fields in a type, or the bits of a whole number; None for what has any value."""
    if special_struct(kind) is not None:
        return None
    if pt.is_struct(kind):
        return {field.name.casefold(): _names(field.type, numbers=numbers) for field in fields_of(kind)}
    if pt.is_list(kind):
        return _names(kind.value_type, numbers=numbers)
    return kind.bit_width if numbers and pt.is_signed_integer(kind) else None


def _says_something(value: Any) -> bool:
    """Tell whether there is any value in it; objects may be nested to any depth."""
    unvisited = [value]
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, (dict, list)):
            unvisited.extend(item.values() if isinstance(item, dict) else item)
        elif item is not None:
            return True
    return False


def more(declared: pa.DataType, written: pa.DataType, *, exactly: bool = False) -> Tree | None:
    """Return the parts of a written type that the declared one lacks, {} for none.

    `exactly`: names match in their case too.
    """
    if special_struct(declared) is not None:
        return {}  # what is in it are no columns
    if pt.is_struct(declared) and pt.is_struct(written):
        fold = str if exactly else str.casefold
        types_by_name = {fold(field.name): field.type for field in fields_of(declared)}
        tree: dict[str, Any] = {}
        for field in fields_of(written):
            if fold(field.name) in types_by_name:
                inner = more(types_by_name[fold(field.name)], field.type, exactly=exactly)
                if inner:
                    tree[field.name] = inner
            elif not holds_nothing(field.type):
                tree[field.name] = None
        return tree
    if (pt.is_list(declared) or pt.is_large_list(declared)) and (pt.is_list(written) or pt.is_large_list(written)):
        return more(declared.value_type, written.value_type, exactly=exactly)
    if pt.is_map(declared) and pt.is_map(written):
        return more(declared.item_type, written.item_type, exactly=exactly)
    return {}
