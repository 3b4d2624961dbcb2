"""binaryFile: an object a row, with the columns that Spark gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import BadRecords, Format, OpenObject, Part, Tables
from queue_source.formats.types import is_bytes
from queue_source.options.content import FormatOptions

MAX_CONTENT = (1 << 31) - 1
"""Bytes that a value of type BINARY can hold."""
COLUMNS = pa.schema(
    [
        ("path", pa.string()),
        ("modificationTime", pa.timestamp("us", tz="UTC")),
        ("length", pa.int64()),
        ("content", pa.binary()),
    ]
)
"""A schema may declare any of them."""


class BinaryFile(Format):
    name = "binaryFile"
    fixed_schema = COLUMNS

    def check_columns(self, schema: pa.Schema) -> None:
        for column in schema:
            if column.name not in COLUMNS.names:
                raise OptionError(
                    "schema",
                    f"column {column.name!r}: binaryFile has {', '.join(COLUMNS.names)}; declare some of these",
                )
            kind = COLUMNS.field(column.name).type
            if column.type != kind and not (column.name == "content" and is_bytes(column.type)):
                raise OptionError("schema", f"column {column.name!r} is {kind}, not {column.type}")

    def decode_memory(self, options: FormatOptions) -> int:
        """Return the memory of the largest content: nothing is decoded."""
        return 4 * MAX_CONTENT

    def open(
        self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions, bad: BadRecords
    ) -> Tables:
        """Read the one row of the object; its content only when that is declared."""

        def row() -> Iterator[pa.Table]:
            values: dict[str, Any] = {"path": source.uri, "length": source.size}
            if "modificationTime" in schema.names:
                values["modificationTime"] = source.file.modified()
            if "content" in schema.names:
                if source.size > MAX_CONTENT:
                    problem = f"{source.size} bytes are more than a column of type BINARY can hold"
                    raise BadObject("corrupt-object", problem)
                values["content"] = source.file.read(source.size)
            table = pa.Table.from_pylist([values], schema=schema)
            yield table if schema.names else pa.table({"": pa.nulls(1)}).select([])

        return Tables(row(), may_fail_late=False)


BINARY_FILE = BinaryFile()
