"""Which declared schemas each file format can fill: checked on the driver, before anything is read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.formats.metadata import METADATA_COLUMN, check_metadata_field
from queue_source.options.file_format import LINE_FORMATS, FormatOptions

__all__ = [
    "BINARY_FILE",
    "COLUMNAR_FORMATS",
    "LINE_FORMATS",
    "FormatOptions",
    "check_schema",
    "data_schema",
    "is_bytes",
    "is_text",
    "require_fastavro",
]

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
