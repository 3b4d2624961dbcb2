"""Parquet: row groups to Arrow, only the declared columns, checked before anybody sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.content.columns import conform_column, match_names, require_any, shorten, typed_leaf
from queue_source.content.files import ObjectFile
from queue_source.content.formats import FormatOptions
from queue_source.errors import BadObject, ObjectStoreError


def read_parquet(
    file: ObjectFile, schema: pa.Schema, options: FormatOptions, row_groups: Sequence[int] | None = None
) -> pa.Table:
    """The rows of the row groups (None: all) in exactly `schema`.

    Raises BadObject (`wrong-columns`, `corrupt-object`), and ObjectStoreError when the store fails in the middle.
    """
    try:
        reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=True, page_checksum_verification=True)
        present = reader.schema_arrow.names
        matches = match_names(schema.names, present)
        require_any(schema.names, matches, present)
        wanted = [matches[name] for name in schema.names if name in matches]
        groups = range(reader.num_row_groups) if row_groups is None else row_groups
        # no threads: Spark runs one worker a core; a group is only its declared columns
        table = reader.read_row_groups(list(groups), columns=wanted, use_threads=False)
        table.validate(full=True)  # a damaged page may decode into offsets out of bounds, or into no UTF-8
    except (BadObject, ObjectStoreError):
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        if file.failure is not None:
            raise file.failure from error
        raise BadObject("corrupt-object", shorten(f"not readable as Parquet: {error}")) from error
    leaf = typed_leaf(options.timezone)
    columns = [
        conform_column(table.column(matches[field.name]), field, leaf)
        if field.name in matches
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema) if columns else table
