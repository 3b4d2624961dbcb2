"""Checks that rows name their objects: for sinks that take objects instead of rows (`register`, `load`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import OptionError


def check_columns(schema: pa.Schema, option: str, column: str) -> None:
    """Check that the rows name their objects in `column`, with size and ETag. Raises OptionError of `option`."""
    for name, is_right, kind in (
        (column, pt.is_string, "STRING"),
        ("size", pt.is_int64, "BIGINT"),
        ("etag", pt.is_string, "STRING"),
    ):
        actual = schema.field(name).type if name in schema.names else None
        if actual is None or not (is_right(actual) or (kind == "STRING" and pt.is_large_string(actual))):
            raise OptionError(
                option,
                f"needs a column {name!r} of type {kind}, and the rows have {'none' if actual is None else actual}; "
                "read the stream with content reference, and leave its columns size and etag in: by them it is noticed "
                "that an object was replaced",
            )
