"""Columns that objects have and the declared schema lacks: noticed where objects are read, at no cost per row.

JSON: the columns that pyarrow infers in addition; CSV: the header; formats with types: the schema in the file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, CuesqueueError
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.formats.types import (
    fields_of,
    holds_nothing,
    spark_schema,
    special_struct,
    wider_type,
)
from queue_source.options.content import FormatOptions

logger = logging.getLogger("cuesqueue")

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


PASSED_BY: Counter[str] = Counter()
"""Columns that are not read, by their paths and why, and how many objects have them: of the task that runs here."""
_SAID: set[tuple[str, str]] = set()


_OTHER_CASE = ", as its name differs from another one's in case alone"


def pass_by(paths: Iterable[str], why: str = ", as schemaEvolutionMode is none") -> None:
    """Count columns of an object that are not read."""
    PASSED_BY.update(path + why for path in paths)


def paths_of(tree: Tree, above: str = "") -> set[str]:
    paths = set[str]()
    for name, inner in tree.items():
        paths |= {above + name} if inner is None else paths_of(inner, f"{above}{name}.")
    return paths


def say_passed_by(pipeline: str, counts: Mapping[str, int]) -> None:
    """Log columns that are not read: each once in a process."""
    for path, count in sorted(counts.items()):
        if (pipeline, path) not in _SAID:
            _SAID.add((pipeline, path))
            logger.warning(
                "pipeline %s: %d object(s) of a batch, or parts of them, have a column that is not read: %s",
                pipeline,
                count,
                path,
            )


def no_data(options: FormatOptions) -> list[str]:
    """Return the names of columns that do not come from the content of objects."""
    corrupt = options.column_name_of_corrupt_record if options.is_of_records else None
    others = (corrupt, options.rescued_data_column)
    return [METADATA_COLUMN, *options.partition_columns, *(name for name in others if name is not None)]


def check_file(schema: pa.Schema, written: pa.Schema, options: FormatOptions) -> None:
    """Raise NewColumns when a file of a typed format has more than the declared columns.

    Raises BadObject("wrong-columns") when Spark has no type for one of them, and it is not passed by.
    """
    if options.tells_new_columns:
        pass_by(_not_read(schema, data_of(written, options)))
        return
    try:
        others = spark_schema(data_of(written, options))
    except ValueError as error:
        raise BadObject("wrong-columns", str(error)) from error
    if would_widen(schema, others, options):
        raise NewColumns(others)
    whole = pa.struct(list(others))
    if options.rescued_data_column is None and whole != _distinct(whole):
        pass_by(_not_read(schema, others), _OTHER_CASE)


def _not_read(schema: pa.Schema, written: pa.Schema) -> set[str]:
    return paths_of(more(pa.struct(list(schema)), pa.struct(list(written))) or {})


def more_than(schema: pa.Schema, written: pa.Schema) -> Tree:
    """Return the columns that only the second schema has, whatever their case."""
    return more(pa.struct(list(schema)), _distinct(pa.struct(list(written)))) or {}


def data_of(schema: pa.Schema, options: FormatOptions) -> pa.Schema:
    passed = {name.casefold() for name in no_data(options)}
    return pa.schema([field for field in schema if field.name.casefold() not in passed])


def would_widen(schema: pa.Schema, written: pa.Schema, options: FormatOptions) -> bool:
    """Tell whether the schema that is kept would become another one: if not, each start would end the same way."""
    declared, distinct = pa.struct(list(schema)), _distinct(pa.struct(list(written)))
    return bool(more(declared, distinct)) or (options.watch_wider_types and _has_wider(declared, distinct))


def _distinct(kind: pa.DataType) -> pa.DataType:
    """Leave out fields whose names differ from an earlier one's in nothing but case: no schema keeps them."""
    if pt.is_struct(kind):
        fields: dict[str, pa.Field] = {}
        for field in fields_of(kind):
            fields.setdefault(field.name.casefold(), field.with_type(_distinct(field.type)))
        return pa.struct(list(fields.values()))
    if pt.is_list(kind):
        return pa.list_(_distinct(kind.value_type))
    return pa.map_(kind.key_type, _distinct(kind.item_type)) if pt.is_map(kind) else kind


def _has_wider(declared: pa.DataType, written: pa.DataType) -> bool:
    """Tell whether anything that is declared has a wider type in a file; keys of maps keep theirs."""
    if special_struct(declared) is not None:
        return False
    if pt.is_struct(declared) and pt.is_struct(written):
        types = {field.name.casefold(): field.type for field in fields_of(declared)}
        return any(
            _has_wider(types[name], field.type)
            for field in fields_of(written)
            if (name := field.name.casefold()) in types
        )
    if pt.is_list(declared) and pt.is_list(written):
        return _has_wider(declared.value_type, written.value_type)
    if pt.is_map(declared) and pt.is_map(written):
        return _has_wider(declared.item_type, written.item_type)
    return wider_type(declared, written) is not None


def check_header(schema: pa.Schema, names: list[str], options: FormatOptions) -> None:
    """Raise NewColumns when a CSV header has more than the declared columns."""
    declared_names = {name.casefold() for name in (*schema.names, *no_data(options))}
    if new := {name for name in names if name.casefold() not in declared_names}:
        if options.watch_new_columns:
            raise NewColumns(pa.schema([(name, pa.string()) for name in dict.fromkeys(names)]))
        pass_by(new)
    if options.rescued_data_column is None:
        read = {name.casefold() for name in names if name in schema.names}
        pass_by((name for name in names if name not in schema.names and name.casefold() in read), _OTHER_CASE)


def more(declared: pa.DataType, written: pa.DataType, *, exactly: bool = False, empties: bool = False) -> Tree | None:
    """Return the parts of a written type that the declared one lacks, {} for none.

    `exactly`: names match in their case too. `empties`: arrays and objects that hold nothing are parts, too.
    """
    if special_struct(declared) is not None:
        return {}  # what is in it are no columns
    if pt.is_struct(declared) and pt.is_struct(written):
        kinds = {field.name: field.type for field in fields_of(declared)}
        names = {field.name for field in fields_of(written)}
        # a column that has its own name is not matched by another case
        folded = {} if exactly else {name.casefold(): name for name in kinds if name not in names}
        tree: dict[str, Any] = {}
        for field in fields_of(written):
            name = field.name if field.name in kinds else folded.get(field.name.casefold())
            if name is not None:
                inner = more(kinds[name], field.type, exactly=exactly, empties=empties)
                if inner:
                    tree[field.name] = inner
            elif not (pt.is_null(field.type) if empties else holds_nothing(field.type)):
                tree[field.name] = None
        return tree
    if (pt.is_list(declared) or pt.is_large_list(declared)) and (pt.is_list(written) or pt.is_large_list(written)):
        return more(declared.value_type, written.value_type, exactly=exactly, empties=empties)
    if pt.is_map(declared) and pt.is_map(written):
        return more(declared.item_type, written.item_type, exactly=exactly, empties=empties)
    return {}
