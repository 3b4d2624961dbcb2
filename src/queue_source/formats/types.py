"""Arrow types as Spark has them: which of them a format may fill, and what becomes of those that Spark lacks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def is_text(kind: pa.DataType) -> bool:
    """Tell whether it is STRING, in either of the widths that Spark may ask for."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether it is BINARY, in either of the widths that Spark may ask for."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def fields_of(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether it is a type without parts that Spark may declare for a column."""
    return bool(
        pt.is_boolean(kind)
        or pt.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or pt.is_decimal128(kind)
        or is_text(kind)
        or is_bytes(kind)
        or pt.is_date32(kind)
        or (pt.is_timestamp(kind) and kind.unit == "us")
    )


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of which a struct, a list or a map consists; none for another type."""
    if pt.is_struct(kind):
        return [field.type for field in fields_of(kind)]
    if pt.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if pt.is_list(kind) else []


def special_struct(kind: pa.DataType) -> str | None:
    """Return the type of Spark that a struct stands for in Arrow: VARIANT, GEOMETRY, GEOGRAPHY; None for a struct."""
    if not pt.is_struct(kind):
        return None
    marks = {name for field in fields_of(kind) for name in field.metadata or {}}
    return next((name.decode().upper() for name in (b"variant", b"geometry", b"geography") if name in marks), None)


def holds_nothing(kind: pa.DataType) -> bool:
    """Tell whether a type was inferred from nothing but nulls, empty objects and empty arrays."""
    if pt.is_struct(kind):
        return all(holds_nothing(field.type) for field in fields_of(kind))
    return bool(pt.is_null(kind)) or (bool(pt.is_list(kind)) and holds_nothing(kind.value_type))


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file in the types that Spark holds them in. Raises ValueError as `spark_type`."""
    return pa.schema([(field.name, spark_type(field.type, field.name)) for field in schema])


def spark_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type in which Spark holds a column of a file. Raises ValueError for one that it has no type for."""
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type, path)
    if pt.is_dictionary(kind):
        return spark_type(kind.value_type, path)
    if pt.is_struct(kind):
        return pa.struct([(field.name, spark_type(field.type, f"{path}.{field.name}")) for field in fields_of(kind)])
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(spark_type(kind.value_type, path))
    if pt.is_map(kind):
        return pa.map_(spark_type(kind.key_type, path), spark_type(kind.item_type, path))
    if pt.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if pt.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pt.is_date(kind):
        return pa.date32()
    if is_text(kind) or pt.is_string_view(kind):
        return pa.string()
    if is_bytes(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal128(kind) or pt.is_null(kind):
        return kind
    raise ValueError(f"column {path!r} is {kind}, which Spark has no type for; declare the columns with .schema(...)")


_LARGEST_DECIMAL = 38


def wider_type(kept: pa.DataType, seen: pa.DataType) -> pa.DataType | None:
    """Return the type that a column of type `kept` takes for values of type `seen`, as Auto Loader widens types.

    None where it stays as it is: it has room for them already, or no type has room for both and loses nothing.
    """
    if kept == seen:
        return None
    if pt.is_signed_integer(kept):
        if pt.is_signed_integer(seen):
            return seen if seen.bit_width > kept.bit_width else None
        if pt.is_float64(seen):
            return seen if kept.bit_width <= 32 else None
        digits = 20 if kept.bit_width == 64 else 10
        return _wider_decimal(digits, 0, seen) if pt.is_decimal128(seen) else None
    if pt.is_decimal128(kept) and pt.is_decimal128(seen):
        wider = _wider_decimal(kept.precision - kept.scale, kept.scale, seen)
        return None if wider == kept else wider
    if pt.is_float32(kept) and pt.is_float64(seen):
        return seen
    if pt.is_date32(kept) and pt.is_timestamp(seen) and seen.tz is None:
        return seen
    return None


def _wider_decimal(digits: int, scale: int, seen: pa.Decimal128Type) -> pa.DataType | None:
    digits, scale = max(digits, seen.precision - seen.scale), max(scale, seen.scale)
    return pa.decimal128(digits + scale, scale) if digits + scale <= _LARGEST_DECIMAL else None
