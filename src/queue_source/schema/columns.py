"""Columns: as Spark's DDL writes them, as Arrow types and back, and schemas combined.

Both are needed without a JVM: Spark's own parser and printer are in it (`common.columns` reads the text). Combined are
schemas of several samples (`merged`), a kept schema with a later one (`widened`), and a schema with hints. Names that
differ in nothing but case are one, in the spelling that came first: Spark would not distinguish two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from queue_source.common.columns import DdlType, Path
from queue_source.common.columns import parse_fields as read_fields
from queue_source.formats.types import (
    LARGEST_DECIMAL,
    fields_of,
    holds_nothing,
    is_bytes,
    is_text,
    special_struct,
    wider_type,
)

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


Hints = Sequence[tuple[Path, pa.DataType]]


class TypesDiffer(ValueError):
    """Two samples have types for one column that no type holds both of."""


def merged(schemas: Iterable[pa.Schema], *, textual: bool) -> pa.Schema:
    """Merge all columns of all schemas, in the order in which they first occur.

    `textual`: types without a common type become STRING, the text that was written. Otherwise raises TypesDiffer.
    """
    kind: pa.DataType = pa.struct([])
    for schema in schemas:
        kind = common_type(kind, _distinct(pa.struct(list(schema)), textual), textual=textual)
    return pa.schema(fields_of(kind))


def _distinct(kind: pa.DataType, textual: bool) -> pa.DataType:
    """Make one field of those whose names differ in case alone: of all their types with `textual`, else the first."""
    if pt.is_struct(kind) and special_struct(kind) is None:
        fields: dict[str, pa.Field] = {}
        for field in fields_of(kind):
            before = fields.setdefault(field.name.casefold(), field.with_type(pa.null()))
            if textual or pt.is_null(before.type):
                both = common_type(before.type, _distinct(field.type, textual), textual=True)
                fields[field.name.casefold()] = before.with_type(both)
        return pa.struct(list(fields.values()))
    return pa.list_(_distinct(kind.value_type, textual)) if pt.is_list(kind) else kind


def common_type(a: pa.DataType, b: pa.DataType, *, textual: bool, path: str = "") -> pa.DataType:
    """Return the narrowest type that holds the values of both."""
    if a == b or pt.is_null(b):
        return a
    if pt.is_null(a):
        return b
    if pt.is_struct(a) and pt.is_struct(b):
        fields = _by_name(a)
        for name, field in _by_name(b).items():
            before = fields.get(name, field)
            both = common_type(before.type, field.type, textual=textual, path=f"{path}{field.name}.")
            fields[name] = before.with_type(both)
        return pa.struct(list(fields.values()))
    if pt.is_list(a) and pt.is_list(b):
        return pa.list_(common_type(a.value_type, b.value_type, textual=textual, path=path))
    if pt.is_map(a) and pt.is_map(b) and a.key_type == b.key_type:
        return pa.map_(a.key_type, common_type(a.item_type, b.item_type, textual=textual, path=path))
    wider = _wider(a, b) or _wider(b, a)
    if wider is not None:
        return wider
    if textual:
        return pa.string()
    raise TypesDiffer(
        f"column {path.rstrip('.')!r} is {a} in one sample and {b} in another; name its type in schemaHints"
    )


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return `b`, or another type, where it holds all values of `a` and `b`; else None."""
    if pt.is_integer(a) and pt.is_integer(b):
        return b if a.bit_width <= b.bit_width else None
    if pt.is_floating(b) and (pt.is_integer(a) or pt.is_floating(a) or pt.is_decimal(a)):
        return pa.float64() if a.bit_width >= b.bit_width or not pt.is_floating(a) else b
    if pt.is_decimal(b) and (pt.is_integer(a) or pt.is_decimal(a)):
        digits, scale = (
            (a.precision - a.scale, a.scale) if pt.is_decimal(a) else ({8: 3, 16: 5, 32: 10}.get(a.bit_width, 19), 0)
        )
        digits, scale = max(digits, b.precision - b.scale), max(scale, b.scale)
        return pa.decimal128(digits + scale, scale) if digits + scale <= LARGEST_DECIMAL else pa.float64()
    if pt.is_timestamp(b) and pt.is_date(a):
        return b
    return None


def resolved(schema: pa.Schema) -> pa.Schema:
    """Replace undetermined types: a column that was null in every sample, or an empty object, becomes STRING."""
    return pa.schema([(field.name, _resolved(field.type)) for field in schema])


def _resolved(kind: pa.DataType) -> pa.DataType:
    if pt.is_null(kind) or (pt.is_struct(kind) and kind.num_fields == 0):
        return pa.string()
    if pt.is_struct(kind):
        return pa.struct([(field.name, _resolved(field.type)) for field in fields_of(kind)])
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _resolved(kind.item_type))
    return pa.list_(_resolved(kind.value_type)) if pt.is_list(kind) else kind


def widened(kept: pa.Schema, seen: pa.Schema, ignored: Iterable[str] = (), *, types: bool = False) -> pa.Schema:
    """Add to `kept` the columns that only `seen` has, at the end; also within structs.

    Columns that are null in `seen` are skipped. `ignored`: names of columns that are no data. `types`: whether kept
    types become wider where `seen` has a wider one; otherwise they stay.
    """
    passed = {name.casefold() for name in ignored}
    others = [field for field in seen if field.name.casefold() not in passed]
    return pa.schema(fields_of(_widened(pa.struct(list(kept)), pa.struct(others), types)))


def _widened(kept: pa.DataType, seen: pa.DataType, types: bool) -> pa.DataType:
    if pt.is_struct(kept) and pt.is_struct(seen):
        fields = _by_name(kept)
        for name, field in _by_name(seen).items():
            if name in fields:
                fields[name] = fields[name].with_type(_widened(fields[name].type, field.type, types))
            elif not holds_nothing(field.type):
                fields[name] = field.with_type(_resolved(field.type))
        return pa.struct(list(fields.values()))
    if pt.is_list(kept) and pt.is_list(seen):
        return pa.list_(_widened(kept.value_type, seen.value_type, types))
    if pt.is_map(kept) and pt.is_map(seen):
        return pa.map_(kept.key_type, _widened(kept.item_type, seen.item_type, types))
    return (wider_type(kept, seen) or kept) if types else kept


def news(kept: pa.Schema, wider: pa.Schema) -> list[str]:
    """Return what `wider` has and `kept` has not, or not in such a wide type: paths with types (`tags.id BIGINT`)."""
    return _news(pa.struct(list(kept)), pa.struct(list(wider)), "")


def _news(kept: pa.DataType, wider: pa.DataType, path: str) -> list[str]:
    if pt.is_struct(kept) and pt.is_struct(wider):
        before = _by_name(kept)
        paths = []
        for name, field in _by_name(wider).items():
            whole = f"{path}{field.name}"
            if name in before:
                paths += _news(before[name].type, field.type, f"{whole}.")
            else:
                paths.append(f"{whole} {format_type(field.type)}")
        return paths
    if pt.is_list(kept) and pt.is_list(wider):
        return _news(kept.value_type, wider.value_type, f"{path}element.")
    if pt.is_map(kept) and pt.is_map(wider):
        return _news(kept.item_type, wider.item_type, f"{path}value.")
    is_wider = wider_type(kept, wider) == wider
    return [f"{path.removesuffix('.')} {format_type(wider)}"] if is_wider else []


def with_hints(schema: pa.Schema, hints: Hints, *, adds: bool = False, wider: bool = False) -> pa.Schema:
    """Apply the types that the user named; a hinted column that is absent is added at the end.

    `adds`: whether a struct keeps fields that its hint lacks: a mode that adds columns has noticed them. `wider`:
    whether a column keeps a type that is wider than the hint.
    """
    kind: pa.DataType = pa.struct(list(schema))
    for path, hint in hints:
        hinted = _hinted(kind, path, hint, ".".join(path))
        kind = _widened(hinted, kind, types=wider) if adds or wider else hinted
    return pa.schema(fields_of(kind))


def _hinted(kind: pa.DataType, path: Path, hint: pa.DataType, whole: str) -> pa.DataType:
    """Apply a hint to a type. Raises ValueError for a path into a type without parts."""
    if not path:
        return hint
    first, inner_path = path[0], path[1:]
    if pt.is_list(kind) and first == "element":
        return pa.list_(_hinted(kind.value_type, inner_path, hint, whole))
    if pt.is_map(kind) and first in ("key", "value"):
        key, item = kind.key_type, kind.item_type
        if first == "key":
            return pa.map_(_hinted(key, inner_path, hint, whole), item)
        return pa.map_(key, _hinted(item, inner_path, hint, whole))
    if pt.is_null(kind):
        kind = pa.struct([])
    if not pt.is_struct(kind):
        raise ValueError(f"{whole!r} leads into a column of type {kind}, which has no part {first!r}")
    fields = _by_name(kind)
    field = fields.get(first.casefold(), pa.field(first, pa.null()))
    fields[first.casefold()] = field.with_type(_hinted(field.type, inner_path, hint, whole))
    return pa.struct(list(fields.values()))


def _by_name(kind: pa.StructType) -> dict[str, pa.Field]:
    """Return the fields by their names in small letters; of several with one name the first."""
    fields: dict[str, pa.Field] = {}
    for field in fields_of(kind):
        fields.setdefault(field.name.casefold(), field)
    return fields
