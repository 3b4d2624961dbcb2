"""Columns as Spark's DDL writes them, as Arrow types and back: `common.columns` reads the text.

Both are needed without a JVM: Spark's own parser and printer are in it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pt

from queue_source.common.columns import DdlType, Path
from queue_source.common.columns import parse_fields as read_fields
from queue_source.formats.types import is_bytes, is_text, special_struct

__all__ = ["Path", "arrow_type", "format_columns", "format_type", "parse_columns", "parse_fields"]

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_NAMES = {kind: name.upper() for name, kind in _SIMPLE.items()}


def parse_columns(text: str) -> pa.Schema:
    """Parse the columns of a DDL text. Raises ValueError with what is wrong and where."""
    columns = []
    for path, kind in parse_fields(text):
        if len(path) > 1:
            raise ValueError(f"{'.'.join(path)} has a dot; write `{'.'.join(path)}` in backticks for such a name")
        columns.append(pa.field(path[0], kind))
    return pa.schema(columns)


def parse_fields(text: str) -> list[tuple[Path, pa.DataType]]:
    """Parse the fields of a DDL text in which dots lead into columns (`tags.key STRING`). Raises ValueError."""
    return [(path, arrow_type(kind)) for path, kind in read_fields(text)]


def arrow_type(kind: DdlType) -> pa.DataType:
    """Return the Arrow type of a DDL type."""
    parts = [arrow_type(part) for part in kind.parts]
    if kind.name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.name == "array":
        return pa.list_(*parts)
    if kind.name == "map":
        return pa.map_(*parts)
    if kind.name == "struct":
        return pa.struct([pa.field(name, part) for name, part in zip(kind.fields, parts, strict=True)])
    return _SIMPLE[kind.name]


def format_columns(schema: Iterable[pa.Field]) -> str:
    """Format columns as DDL, which `parse_columns` reads, but for VARIANT, GEOMETRY and GEOGRAPHY."""
    return ", ".join(f"{_quoted(field.name)} {format_type(field.type)}" for field in schema)


def format_type(kind: pa.DataType) -> str:
    """Format a type as DDL. Raises ValueError for one that Spark has no name for."""
    if special := special_struct(kind):
        return special
    if pt.is_struct(kind):
        parts = (kind.field(i) for i in range(kind.num_fields))
        return f"STRUCT<{', '.join(f'{_quoted(part.name)}: {format_type(part.type)}' for part in parts)}>"
    if pt.is_list(kind):
        return f"ARRAY<{format_type(kind.value_type)}>"
    if pt.is_map(kind):
        return f"MAP<{format_type(kind.key_type)}, {format_type(kind.item_type)}>"
    if pt.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if is_text(kind):
        return "STRING"
    if is_bytes(kind):
        return "BINARY"
    if pt.is_timestamp(kind) and kind.tz is not None:
        return "TIMESTAMP"
    if kind not in _NAMES:
        raise ValueError(f"{kind} is not a type that Spark has")
    return _NAMES[kind]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
