"""binaryFile: an object a row, with the columns that Spark gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.storage.files import ObjectFile, StorageOptions, stat_object

LARGEST = (1 << 31) - 1
"""Bytes that a value of type BINARY can hold."""


def read_binary_file(
    uri: str, file: ObjectFile, size: int, schema: pa.Schema, storage: StorageOptions | None
) -> Iterator[pa.Table]:
    """The one row of an object; its content is only read when it is declared. Raises BadObject("corrupt-object")."""
    values: dict[str, Any] = {"path": uri, "length": size}
    if "modificationTime" in schema.names:
        values["modificationTime"] = stat_object(uri, storage).modified
    if "content" in schema.names:
        if size > LARGEST:
            raise BadObject("corrupt-object", f"{size} bytes are more than a column of type BINARY can hold")
        values["content"] = file.read(size)
        if len(values["content"]) != size:
            raise BadObject("object-changed", f"{len(values['content'])} bytes were read of {size}")
    if not schema.names:
        yield pa.table({"": pa.nulls(1)}).select([])
        return
    yield pa.Table.from_pylist([values], schema=schema)
