"""Avro: records to Arrow by `fastavro`, which the extra `avro` installs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import IO, Any, cast

import pyarrow as pa

from queue_source.content.columns import conform_column, match_names, require_any, typed_leaf
from queue_source.content.files import ObjectFile
from queue_source.content.formats import FormatOptions, require_fastavro
from queue_source.content.typed_tables import damage_is_bad

_ROWS = 16_384


def read_avro(file: ObjectFile, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
    """The records of an object file, of any codec of its own, in exactly `schema`.

    Raises BadObject (`wrong-columns`, `corrupt-object`), and ObjectStoreError when the store fails in the middle.
    """
    require_fastavro()
    import fastavro

    with damage_is_bad(file, "Avro"):
        records: Any = fastavro.reader(cast("IO[bytes]", file))
        present = _fields(records.writer_schema)
        matches = match_names(schema.names, present)
        require_any(schema.names, matches, present)
    leaf = typed_leaf(options.timezone)
    while True:
        with damage_is_bad(file, "Avro"):
            rows: list[dict[str, Any]] = list(islice(records, _ROWS))
        if not rows:
            return
        columns = []
        for field in schema:
            name = matches.get(field.name)
            with damage_is_bad(file, "Avro"):
                values = pa.array([None if name is None else row[name] for row in rows])
            columns.append(conform_column(pa.chunked_array([values]), field, leaf))
        if columns:
            yield pa.Table.from_arrays(columns, schema=schema)
        else:
            yield pa.table({"": pa.nulls(len(rows))}).select([])


def _fields(writer_schema: Any) -> list[str]:
    """The names of the top-level record's fields."""
    if not isinstance(writer_schema, dict) or writer_schema.get("type") != "record":
        raise ValueError("the objects are not records")
    return [field["name"] for field in writer_schema["fields"]]
