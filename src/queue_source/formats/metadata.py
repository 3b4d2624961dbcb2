"""Columns that are not in an object's content: `_metadata`, and values in its path (`.../day=2020-01-01/part.json`).

`_metadata` says where a row came from, and is filled when the declared schema has it. Spark's own fields (`file_*`)
mean what they mean in Spark; the others are of the message and the plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, OptionError
from queue_source.formats.text.values import TextConverter, make_text_converter
from queue_source.formats.types import LARGEST_DECIMAL, fields_of
from queue_source.options.content import FormatOptions

METADATA_COLUMN = "_metadata"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|Infinity)|NaN")
_DAY = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")
_MOMENT = re.compile(
    _DAY.pattern + r"[T ][0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]+)?)?\s*(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)

_TYPES: dict[str, pa.DataType] = {
    "file_path": pa.string(),
    "file_name": pa.string(),
    "file_size": pa.int64(),
    "file_block_start": pa.int64(),
    "file_block_length": pa.int64(),
    "file_modification_time": pa.timestamp("us", tz="UTC"),
    "shard_id": pa.string(),
    "message_id": pa.string(),
    "queue": pa.string(),
    "receive_count": pa.int32(),
    "delivery_hash": pa.string(),
    "archive_member": pa.string(),
}
METADATA_FIELDS = tuple(_TYPES)
"""The names that a declared `_metadata` struct may have, in any order, each with its own type or a wider one."""


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """The values of `_metadata` for one range of one object, or one member. Sizes in bytes; None becomes null.

    `file_path` is the URI, `file_name` its last part. `file_modification_time` is aware. When built by the reader,
    `file_size` and the block default to the whole object.
    """

    file_path: str | None = None
    file_name: str | None = None
    file_size: int | None = None
    file_block_start: int | None = None
    file_block_length: int | None = None
    file_modification_time: datetime | None = None
    shard_id: str | None = None
    message_id: str | None = None
    queue: str | None = None
    receive_count: int | None = None
    delivery_hash: str | None = None
    archive_member: str | None = None


assert tuple(f.name for f in fields(ObjectMetadata)) == METADATA_FIELDS


def check_metadata_field(schema: pa.Schema) -> None:
    """Refuse a declared `_metadata` that cannot be filled. Driver; raises OptionError naming the field."""
    if METADATA_COLUMN not in schema.names:
        return
    declared = schema.field(METADATA_COLUMN).type
    if not pt.is_struct(declared) or declared.num_fields == 0:
        raise OptionError("schema", f"{METADATA_COLUMN!r} must be a struct of some of {', '.join(METADATA_FIELDS)}")
    for part in fields_of(declared):
        own = _TYPES.get(part.name)
        if own is None:
            names = ", ".join(METADATA_FIELDS)
            raise OptionError("schema", f"{METADATA_COLUMN}.{part.name} is unknown; the fields are {names}")
        same = part.type == own
        wider = own == pa.int32() and part.type == pa.int64()
        large = own == pa.string() and part.type == pa.large_string()
        if not (same or wider or large):
            raise OptionError("schema", f"{METADATA_COLUMN}.{part.name} is {own}, not {part.type}")


def metadata_column(declared: pa.StructType, values: Sequence[ObjectMetadata], rows: int) -> pa.StructArray:
    """Build the column for `rows` rows: a value for each, or one for all. Runs in an executor worker.

    `declared` passed `check_metadata_field`.
    """
    parts = fields_of(declared)
    arrays = [pa.array([getattr(value, part.name) for value in values], part.type) for part in parts]
    column = pa.StructArray.from_arrays(arrays, fields=parts)
    return column if len(values) == rows else pa.repeat(column[0], rows)


def path_columns(uri: str, schema: pa.Schema, options: FormatOptions) -> dict[str, pa.Scalar]:
    """Return the values of the declared partition columns of one object.

    Percent signs in them are decoded, as in Spark. Raises BadObject("wrong-columns") when the path lacks one, or its
    value is not of the declared type.
    """
    values_by_name = path_values(uri)
    values = {}
    for name in options.partition_columns:
        if name not in values_by_name:
            raise BadObject("wrong-columns", f"the path has no folder {name}=...: {uri!r}")
        text, kind = values_by_name[name], schema.field(name).type
        try:
            value = None if text == _NULL else _converter(kind, options)(text)
        except ValueError as error:
            raise BadObject("wrong-columns", f"column {name!r} in the path: {error}") from error
        values[name] = pa.array([value], kind)[0]
    return values


def folder_type(text: str, options: FormatOptions) -> pa.DataType:
    """Infer the type of a partition column from the value of one folder; null where that stands for null.

    By its form alone, as in Spark: `08` and `09` are whole numbers as `10` is, so that no type depends on the day.
    """
    if not text or text == _NULL:
        return pa.null()
    if _WHOLE.fullmatch(text) and len(text) <= LARGEST_DECIMAL:
        return pa.int64() if -(1 << 63) <= int(text) < 1 << 63 else pa.decimal128(LARGEST_DECIMAL, 0)
    if _NUMBER.fullmatch(text):
        return pa.string() if _WHOLE.fullmatch(text) else pa.float64()
    if text.lower() in ("true", "false"):
        return pa.bool_()
    for form, kind in ((_DAY, pa.date32()), (_MOMENT, pa.timestamp("us", tz="UTC"))):
        if form.fullmatch(text):
            with suppress(ValueError):
                _converter(kind, options)(text)
                return kind
    return pa.string()


def _converter(kind: pa.DataType, options: FormatOptions) -> TextConverter:
    """Return what reads the value of a folder: patterns of the options are those of the content."""
    return make_text_converter(kind, FormatOptions(options.file_format, timezone=options.timezone))


def path_values(uri: str) -> dict[str, str]:
    """Return the values of `name=value` folders, the last of a name; the object's own name is none of them."""
    folders = (folder.partition("=") for folder in uri.split("/")[:-1])
    return {unquote(name): unquote(value) for name, equals, value in folders if equals}
