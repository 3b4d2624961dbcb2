"""Columns that loaded objects have and a table lacks: the table gets them, or they are counted, and said.

An object is read in all its columns, also in those that its table does not get: so each value that is not loaded is
seen, and no column ends the query again and again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.formats.types import fields_of

if TYPE_CHECKING:
    from queue_source.sinks.base import Sink

logger = logging.getLogger("cuesqueue")

Values = Mapping[str, int]
"""How many values of a column are not loaded, by its path (`part.kind`)."""


def taken_columns(
    target: Sink, own: pa.Schema, columns: pa.Schema, removed: Collection[str], *, widens: bool
) -> tuple[pa.Schema, dict[str, str]]:
    """Return those of the columns that a table is given beside its `own`, and why it is not given others, by name.

    `removed`: names of columns that the table has had, in small letters. `widens`: a wider type than its own is asked
    for, which it has to take.
    """
    taken, reasons = own, dict[str, str]()
    for field in columns:
        place = taken.get_field_index(field.name)
        if place >= 0 and taken.field(place).type == field.type:
            continue
        if place < 0 and field.name.casefold() in removed:
            reasons[field.name] = "it was removed from the table; add it there, and its values are loaded again"
            continue
        wider = taken.append(field) if place < 0 else taken.set(place, field)
        try:
            target.check_columns(wider)
        except OptionError as error:
            if widens and place >= 0:
                raise
            reasons[field.name] = error.problem
        else:
            taken = wider
    return pa.schema([field for field in taken if field.name in columns.names]), reasons


def only_taken(rows: Iterable[pa.RecordBatch], taken: pa.Schema, left_out: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows without what the table is not given, which is counted."""
    for batch in rows:
        _count(batch.to_struct_array(), pa.struct(list(taken)), "", left_out)
        columns = [batch.column(field.name) for field in taken]
        cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, taken, strict=True)]
        yield pa.RecordBatch.from_arrays(cast, schema=taken)


def _count(values: pa.Array, taken: pa.DataType, path: str, left_out: Counter[str]) -> None:
    """Count the values that are there and have no place in a type."""
    if pt.is_struct(taken):
        kinds = {field.name: field.type for field in fields_of(taken)}
        for field, inner in zip(fields_of(values.type), values.flatten(), strict=True):
            if field.name in kinds:
                _count(inner, kinds[field.name], f"{path}{field.name}.", left_out)
            elif count := len(inner) - inner.null_count:
                left_out[f"{path}{field.name}"] += count
    elif pt.is_list(taken):
        _count(values.flatten(), taken.value_type, f"{path}element.", left_out)
    elif pt.is_map(taken):
        _count(values.items, taken.item_type, f"{path}value.", left_out)


def say(pipeline: str, left_out: Iterable[Values], reasons: Mapping[str, str]) -> None:
    """Log each column of a batch that is not loaded, with the values that all tasks have counted."""
    total = sum(map(Counter, left_out), Counter[str]())
    for path, count in sorted(total.items()):
        reason = next(text for name, text in reasons.items() if path == name or path.startswith(f"{name}."))
        logger.warning(
            "pipeline %s: %d value(s) of this batch are not loaded, of column %s: %s", pipeline, count, path, reason
        )
