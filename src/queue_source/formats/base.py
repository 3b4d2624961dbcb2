"""What is to be read, and how: the options of a file format, and which declared schemas each format can fill.

Both are checked on the driver, before anything is read; the frozen options are pickled to the executors.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.formats.date_patterns import parse_pattern
from queue_source.formats.metadata import METADATA_COLUMN, check_metadata_field

FILE_FORMATS = ("csv", "json", "parquet", "text", "orc", "avro", "binaryFile")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
LINE_FORMATS = ("csv", "json", "text")
COLUMNAR_FORMATS = ("parquet", "orc")
BINARY_FILE = pa.schema(
    [
        ("path", pa.string()),
        ("modificationTime", pa.timestamp("us", tz="UTC")),
        ("length", pa.int64()),
        ("content", pa.binary()),
    ]
)
"""The columns that Spark's `binaryFile` has; a schema may declare any of them."""
_ONE_CHARACTER = "must be one ASCII character"


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """A file format and its options, with Spark's names (in snake case) and Spark's defaults.

    `timezone` (an IANA name) is the zone of timestamps that do not tell theirs. `quote` and `escape` may be "" for
    none, as may `comment`. Raises OptionError at construction.
    """

    file_format: str
    header: bool = False
    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    null_value: str = ""
    empty_value: str = ""
    timezone: str = "UTC"
    mode: str = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt_record"
    rescued_data_column: str | None = None
    multi_line: bool = False
    whole_text: bool = False
    line_sep: str | None = None
    encoding: str = "UTF-8"
    comment: str = ""
    ignore_leading_white_space: bool = False
    ignore_trailing_white_space: bool = False
    nan_value: str = "NaN"
    positive_inf: str = "Inf"
    negative_inf: str = "-Inf"
    date_format: str | None = None
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None
    partition_columns: tuple[str, ...] = ()
    watch_new_columns: bool = False  # columns that are not declared end the read (schemaEvolutionMode)

    def __post_init__(self) -> None:
        if self.file_format not in FILE_FORMATS:
            raise OptionError("fileFormat", f"{self.file_format!r} is not one of {', '.join(FILE_FORMATS)}")
        if self.mode not in MODES:
            raise OptionError("mode", f"{self.mode!r} is not one of {', '.join(MODES)}")
        for name, value, may_be_empty in (
            ("sep", self.sep, False),
            ("quote", self.quote, True),
            ("comment", self.comment, True),
        ):
            if not _is_one_character(value) and not (may_be_empty and value == ""):
                raise OptionError(name, f"{value!r} {_ONE_CHARACTER}")
        if self.escape and not _is_one_character(self.escape):
            raise OptionError("escape", f"{self.escape!r} {_ONE_CHARACTER}, or empty for none")
        if self.sep in (self.quote, self.escape, self.comment):
            raise OptionError("sep", f"{self.sep!r} is also the quote, the escape or the comment character")
        self._check_lines()
        for name, pattern in (
            ("dateFormat", self.date_format),
            ("timestampFormat", self.timestamp_format),
            ("timestampNTZFormat", self.timestamp_ntz_format),
        ):
            if pattern is not None:
                parse_pattern(name, pattern)
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise OptionError("timezone", f"{self.timezone!r} is not the name of a time zone") from error

    def _check_lines(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            raise OptionError("encoding", "is not a character set that is known here") from error
        if self.line_sep == "":
            raise OptionError("lineSep", "is empty; write what ends a record, or leave it out")
        if self.line_sep is not None and (self.multi_line or self.whole_text):
            other = "multiLine" if self.multi_line else "wholeText"
            raise OptionError("lineSep", f"has no meaning with {other}; leave one of them out")

    @property
    def plain_utf8(self) -> bool:
        """Whether the bytes of an object are taken as they are."""
        return codecs.lookup(self.encoding).name == "utf-8"

    @property
    def splittable(self) -> bool:
        """Whether a record of an uncompressed object can be found from any place in it."""
        return self.file_format in LINE_FORMATS and self.plain_utf8 and not (self.multi_line or self.whole_text)


def check_schema(schema: pa.Schema, options: FormatOptions) -> None:
    """Refuse, on the driver, a declared schema that the format cannot fill. Raises OptionError naming the column."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise OptionError("schema", f"column {name!r} is declared twice")
    check_metadata_field(schema)
    if options.file_format == "avro":
        require_fastavro()
    _check_special_columns(schema, options)
    _check_fixed_columns(data_schema(schema, options), options)
    _check_path_columns(schema, options)
    for column in data_schema(schema, options):
        problem = _unsupported(column.type, options.file_format)
        if problem:
            raise OptionError("schema", f"column {column.name!r}: {options.file_format} cannot fill {problem}")


def require_fastavro() -> None:
    """Refuse `fileFormat=avro` where the library is missing. Driver and executors; raises OptionError."""
    try:
        import fastavro  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "fileFormat", 'avro needs the package fastavro: pip install "cuesqueue[avro]" on driver and executors'
        ) from error


def _check_special_columns(schema: pa.Schema, options: FormatOptions) -> None:
    """The columns of bad records and of rescued data are text; the second has to be declared."""
    rescued = options.rescued_data_column
    if rescued is not None and rescued not in schema.names:
        raise OptionError("rescuedDataColumn", f"the schema has no column {rescued!r}: add {rescued} STRING to it")
    if rescued is not None and rescued == options.column_name_of_corrupt_record:
        raise OptionError("rescuedDataColumn", f"{rescued!r} is also the column of corrupt records; name another")
    special = [("rescuedDataColumn", rescued)]
    if options.file_format in ("csv", "json"):
        special.append(("columnNameOfCorruptRecord", options.column_name_of_corrupt_record))
    for option, name in special:
        if name in schema.names and not is_text(schema.field(name).type):
            raise OptionError(option, f"column {name!r} is {schema.field(name).type} in the schema; declare it STRING")


def _check_path_columns(schema: pa.Schema, options: FormatOptions) -> None:
    for name in options.partition_columns:
        if name not in schema.names:
            raise OptionError("partitionColumns", f"the schema has no column {name!r}: add it, or leave it out here")
        problem = _unsupported(schema.field(name).type, "csv")
        if problem or name in (METADATA_COLUMN, options.column_name_of_corrupt_record, options.rescued_data_column):
            raise OptionError("partitionColumns", f"column {name!r} cannot come from a path; leave it out here")


def _check_fixed_columns(schema: pa.Schema, options: FormatOptions) -> None:
    """`text` has one column, and `binaryFile` those that Spark gives it."""
    if options.file_format == "text" and not (len(schema) == 1 and is_text(schema.field(0).type)):
        raise OptionError("schema", "text has one column of type STRING: declare value STRING")
    if options.file_format != "binaryFile":
        return
    for column in schema:
        place = BINARY_FILE.get_field_index(column.name)
        if place < 0:
            raise OptionError(
                "schema",
                f"column {column.name!r}: binaryFile has {', '.join(BINARY_FILE.names)}; declare some of these",
            )
        if column.type != BINARY_FILE.field(place).type and not (column.name == "content" and is_bytes(column.type)):
            raise OptionError("schema", f"column {column.name!r} is {BINARY_FILE.field(place).type}, not {column.type}")


def data_schema(schema: pa.Schema, options: FormatOptions) -> pa.Schema:
    """The columns that come from the object: all but `_metadata` and those in its path."""
    elsewhere = {METADATA_COLUMN, *options.partition_columns}
    return pa.schema([column for column in schema if column.name not in elsewhere])


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
