"""Columns that objects have and the declared schema lacks: noticed where objects are read, at no cost per row.

JSON: the columns that pyarrow infers in addition; CSV: the header; formats with types: the schema in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, CuesqueueError
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.formats.types import fields_of, holds_nothing, spark_schema, special_struct
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
    if more(pa.struct(list(schema)), pa.struct(list(others))):
        raise NewColumns(others)


def check_header(schema: pa.Schema, names: list[str], options: FormatOptions) -> None:
    """Raise NewColumns when a CSV header has more than the declared columns."""
    declared_names = {name.casefold() for name in (*schema.names, *no_data(options))}
    if any(name.casefold() not in declared_names for name in names):
        raise NewColumns(pa.schema([(name, pa.string()) for name in dict.fromkeys(names)]))


class KnownNames:
    """The names of a schema, to hold JSON objects against."""

    def __init__(self, schema: pa.Schema, options: FormatOptions) -> None:
        self._names = _names(pa.struct(list(schema)))
        assert self._names is not None
        self._names.update(dict.fromkeys((name.casefold() for name in no_data(options)), None))

    def check(self, record: dict[str, Any]) -> None:
        """Raise NewColumns when a decoded object has a value for an unknown name, at any depth."""
        assert self._names is not None
        if _has_new(record, self._names):
            raise NewColumns(record=record)


def _names(kind: pa.DataType) -> dict[str, Any] | None:
    """Return the names of the fields in a type; None for one without fixed fields."""
    if pt.is_struct(kind):
        return {kind.field(i).name.casefold(): _names(kind.field(i).type) for i in range(kind.num_fields)}
    if pt.is_list(kind):
        return _names(kind.value_type)
    return None


def _has_new(value: Any, names: dict[str, Any]) -> bool:
    if isinstance(value, list):
        return any(_has_new(item, names) for item in value)
    if not isinstance(value, dict):
        return False
    for name, inner in value.items():
        folded = name.casefold()
        if folded not in names:
            if _says_something(inner):
                return True
        elif names[folded] is not None and _has_new(inner, names[folded]):
            return True
    return False


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
