"""What the formats with types of their own share: from what was decoded to the declared columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from queue_source.content.columns import conform_column, shorten, typed_leaf
from queue_source.content.files import ObjectFile
from queue_source.content.formats import FormatOptions
from queue_source.errors import BadObject, CuesqueueError


@contextmanager
def damage_is_bad(file: ObjectFile, format_name: str) -> Iterator[None]:
    """What a decoder raises, as BadObject("corrupt-object"); a failure of the store stays what it is."""
    try:
        yield
    except CuesqueueError:
        raise
    except Exception as error:
        if file.failure is not None:
            raise file.failure from error
        raise BadObject("corrupt-object", shorten(f"not readable as {format_name}: {error}")) from error


def conformed(table: pa.Table, schema: pa.Schema, matches: dict[str, str], options: FormatOptions) -> pa.Table:
    """The declared columns of a decoded table; those that it lacks are null. Raises BadObject("corrupt-object")."""
    leaf = typed_leaf(options.timezone)
    columns = [
        conform_column(table.column(matches[field.name]), field, leaf)
        if field.name in matches
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema) if columns else table
