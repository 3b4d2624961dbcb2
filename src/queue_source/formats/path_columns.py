"""Columns whose values are in an object's path (`.../day=2020-01-01/part.json`), as Hive and Spark write them."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.text.values import make_text_converter
from queue_source.options.content import FormatOptions

_NULL = "__HIVE_DEFAULT_PARTITION__"


def path_columns(uri: str, schema: pa.Schema, options: FormatOptions) -> dict[str, pa.Scalar]:
    """Return the values of the declared partition columns of one object.

    Percent signs in them are decoded, as in Spark. Raises BadObject("wrong-columns") when the path lacks one, or its
    value is not of the declared type.
    """
    if not options.partition_columns:
        return {}
    values_by_name = path_values(uri)
    values = {}
    for name in options.partition_columns:
        if name not in values_by_name:
            raise BadObject("wrong-columns", f"the path has no folder {name}=...: {uri!r}")
        text, kind = values_by_name[name], schema.field(name).type
        try:
            convert = make_text_converter(kind, FormatOptions(options.file_format, timezone=options.timezone))
            value = None if text == _NULL else convert(text)
        except ValueError as error:
            raise BadObject("wrong-columns", f"column {name!r} in the path: {error}") from error
        values[name] = pa.array([value], kind)[0]
    return values


def path_values(uri: str) -> dict[str, str]:
    """Return the values of `name=value` folders, the last of a name; the object's own name is none of them."""
    folders = (folder.partition("=") for folder in uri.split("/")[:-1])
    return {unquote(name): unquote(value) for name, equals, value in folders if equals}
