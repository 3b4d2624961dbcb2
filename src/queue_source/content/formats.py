"""What is to be read, and how: the options of a file format, and which declared schemas each format can fill.

Both are checked on the driver, before anything is read; the frozen options are pickled to the executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.types as pt

from queue_source.content.metadata import METADATA_COLUMN, check_metadata_field
from queue_source.errors import OptionError

FILE_FORMATS = ("csv", "json", "parquet")
_ONE_CHARACTER = "must be one ASCII character"


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """A file format and its options, with Spark's names (in snake case) and Spark's defaults.

    `timezone` (an IANA name) is the zone of timestamps that do not tell theirs. `quote` and `escape` may be "" for
    none. Raises OptionError at construction. Deviations from Spark's CSV: with `header`, columns are matched by name;
    doubled quotes are one quote whatever `escape` is.
    """

    file_format: str
    header: bool = False
    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    null_value: str = ""
    empty_value: str = ""
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if self.file_format not in FILE_FORMATS:
            raise OptionError("fileFormat", f"{self.file_format!r} is not one of {', '.join(FILE_FORMATS)}")
        for name, value, may_be_empty in (("sep", self.sep, False), ("quote", self.quote, True)):
            if not _is_one_character(value) and not (may_be_empty and value == ""):
                raise OptionError(name, f"{value!r} {_ONE_CHARACTER}")
        if self.escape and not _is_one_character(self.escape):
            raise OptionError("escape", f"{self.escape!r} {_ONE_CHARACTER}, or empty for none")
        if self.sep in (self.quote, self.escape):
            raise OptionError("sep", f"{self.sep!r} is also the quote or the escape character")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise OptionError("timezone", f"{self.timezone!r} is not the name of a time zone") from error


def check_schema(schema: pa.Schema, options: FormatOptions) -> None:
    """Refuse, on the driver, a declared schema that the format cannot fill. Raises OptionError naming the column."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise OptionError("schema", f"column {name!r} is declared twice")
    check_metadata_field(schema)
    for column in data_schema(schema):
        problem = _unsupported(column.type, options.file_format)
        if problem:
            raise OptionError("schema", f"column {column.name!r}: {options.file_format} cannot fill {problem}")


def data_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that come from the object: all but `_metadata`."""
    return pa.schema([column for column in schema if column.name != METADATA_COLUMN])


def is_text(kind: pa.DataType) -> bool:
    """STRING, in either of the widths that Spark may ask for."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """BINARY, in either of the widths that Spark may ask for."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def _unsupported(kind: pa.DataType, file_format: str) -> str | None:
    """The innermost type that cannot be filled, None when all can."""
    if pt.is_struct(kind) or pt.is_list(kind) or pt.is_map(kind):
        if file_format == "csv":
            return str(kind)
        if pt.is_map(kind) and file_format == "json" and not is_text(kind.key_type):
            return f"{kind}: the keys of a JSON object are strings"
        parts = [kind.field(i).type for i in range(kind.num_fields)] if pt.is_struct(kind) else []
        if pt.is_list(kind):
            parts = [kind.value_type]
        elif pt.is_map(kind):
            parts = [kind.key_type, kind.item_type]
        return next((problem for part in parts if (problem := _unsupported(part, file_format))), None)
    fine = (
        pt.is_boolean(kind)
        or pt.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or pt.is_decimal128(kind)
        or is_text(kind)
        or is_bytes(kind)
        or pt.is_date32(kind)
        or (pt.is_timestamp(kind) and kind.unit == "us")
    )
    return None if fine else str(kind)


def _is_one_character(value: str) -> bool:
    return len(value) == 1 and value.isascii() and value not in "\r\n\0"
