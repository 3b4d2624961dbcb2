"""Arrow types and values as Spark has them, and columns of an object as the declared columns: matched by name, no loss.

Arrays keep their buffers wherever the types allow it. A leaf converter decides what one kind of source may turn into:
`typed_leaf` for formats that have types (Parquet), `text_leaf` (`text/values.py`) for those that write text.

Local times become instants in a zone by its name or offset; dates before 1582-10-15 are counted as by ISO 8601. Spark
before 3.0, Hive and ORC's own writer count days so that 1582-10-15 follows 1582-10-04, and every fourth year before is
a leap year: a day of the same name has another number in the Gregorian calendar of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.common.times import clock_of, fixed_offset
from queue_source.errors import BadObject
from queue_source.options.content import FormatOptions

LeafConverter = Callable[[pa.Array, pa.DataType], pa.Array]
"""Converts an array without children to exactly the type asked for; raises ValueError with the reason."""

_DETAIL_LIMIT = 500
_TEXTS = (1 << 31) - 1  # bytes of the texts of an array
LARGEST_DECIMAL = 38


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
    if pt.is_decimal(kind) and kind.precision <= LARGEST_DECIMAL:
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_duration(kind):
        return pa.int64()
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_null(kind):
        return kind
    raise ValueError(f"column {path!r} is {kind}, which Spark has no type for; declare the columns with .schema(...)")


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
    return pa.decimal128(digits + scale, scale) if digits + scale <= LARGEST_DECIMAL else None


def match_names(
    declared: Iterable[str], present: Iterable[str], options: FormatOptions | None = None
) -> dict[str, str]:
    """Match each declared name with a present one: the same, or else the only one that differs just in case.

    Declared names without a match are left out. Raises BadObject("wrong-columns") when two names match equally well, or
    one in another case that the `options` neither allow nor rescue.
    """
    counts: dict[str, int] = {}
    for name in present:
        counts[name] = counts.get(name, 0) + 1
    folded: dict[str, list[str]] = {}
    for name, count in counts.items():
        folded.setdefault(name.casefold(), []).extend([name] * count)
    matches: dict[str, str] = {}
    for name in declared:
        candidates = [name] * counts[name] if name in counts else folded.get(name.casefold(), [])
        if options is not None and options.reader_case_sensitive and name not in counts and candidates:
            if options.rescued_data_column is not None:
                continue
            raise BadObject(
                "wrong-columns", f"column {name!r} is there as {candidates[0]!r}, and readerCaseSensitive is true"
            )
        if len(candidates) > 1:
            raise BadObject("wrong-columns", f"column {name!r} is there more than once: {', '.join(candidates)}")
        if candidates:
            matches[name] = candidates[0]
    return matches


def require_any(declared: Iterable[str], matches: dict[str, str], present: Iterable[str]) -> None:
    """Raise BadObject("wrong-columns") when columns are declared and none of them is there."""
    names = list(declared)
    if names and not matches:
        raise BadObject(
            "wrong-columns", shorten(f"none of the declared columns {names} is there, but {sorted(set(present))}")
        )


def corrupt_column(name: str, reason: object) -> BadObject:
    return BadObject("corrupt-object", shorten(f"column {name!r}: {reason}"))


def shorten(text: str) -> str:
    """Shorten a text for the table of errors: messages of parsers may quote whole lines."""
    return text if len(text) <= _DETAIL_LIMIT else text[: _DETAIL_LIMIT - 3] + "..."


def check_decimals(table: pa.Table) -> None:
    """Raise pa.ArrowInvalid for decimals of more digits than their type has: pyarrow's parsers let some through."""
    for column in table.columns:
        if _has_decimals(column.type):
            column.validate(full=True)


def _has_decimals(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal(kind)) or any(_has_decimals(kind.field(i).type) for i in range(kind.num_fields))


def may_overflow(kind: pa.DataType) -> bool:
    """Tell whether pyarrow may read a text as another number of this type.

    It counts the digits of a text before it appends the zeros of the scale, and does not notice where these leave the
    128 bits.
    """
    return bool(pt.is_decimal128(kind)) and kind.precision + kind.scale > LARGEST_DECIMAL


def conform_column(column: pa.ChunkedArray, target: pa.Field, leaf: LeafConverter) -> pa.ChunkedArray:
    """Convert the column to exactly the declared type. Raises BadObject("corrupt-object") naming column and reason."""
    if column.type.equals(target.type, check_metadata=True):
        return column
    try:
        return pa.chunked_array([conform(chunk, target.type, leaf) for chunk in column.chunks], target.type)
    except MemoryError:  # one of them is an ArrowException
        raise
    except (ValueError, TypeError, pa.ArrowException, OverflowError) as error:
        raise corrupt_column(target.name, error) from error


def conform(array: pa.Array, target: pa.DataType, leaf: LeafConverter) -> pa.Array:
    """Convert to exactly `target` (names and nullability of nested fields too). Raises ValueError with the reason."""
    kind = array.type
    if kind.equals(target, check_metadata=True):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return conform(array.storage, target, leaf)
    if pt.is_dictionary(kind):
        if is_text(kind.value_type) and (pc.max(pc.binary_length(array.dictionary)).as_py() or 0) * len(array) > _TEXTS:
            raise MemoryError("more texts than an array of Arrow holds")
        return conform(array.dictionary_decode(), target, leaf)
    if pt.is_null(kind):
        return pa.nulls(len(array), target)
    if special_struct(target) == "VARIANT" and pt.is_struct(kind) and kind.get_field_index("typed_value") >= 0:
        raise ValueError(
            "a shredded VARIANT, whose values are in columns of their own (typed_value), is not read; write it with "
            "spark.sql.variant.writeShredding.enabled = false, or let Spark read it (docs/how-to/foreach-batch.md)"
        )
    if pt.is_struct(kind) and pt.is_struct(target):
        return _conform_struct(array, target, leaf)
    if pt.is_list(target) and (pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
        if not pt.is_list(kind):
            array = array.cast(pa.list_(kind.value_type))
        return over_children(array, target, [conform(array.values, target.value_type, leaf)])
    if pt.is_map(kind) and pt.is_map(target):
        entries = pa.StructArray.from_arrays(
            [conform(array.keys, target.key_type, leaf), conform(array.items, target.item_type, leaf)],
            fields=[target.key_field, target.item_field],
        )
        return over_children(array, target, [entries])
    if leaf is typed_leaf and pt.is_struct(kind) and not kind.num_fields and pt.is_string(target):  # as it is inferred
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, target))
    if pt.is_nested(kind) or pt.is_nested(target):
        raise ValueError(f"{kind} does not become {target}")
    return leaf(array, target)


def typed_leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert for formats with types: widening, and narrowing that loses no value. Never from or to text.

    Timestamps without a zone are taken to be in UTC when the declared type is an instant, as in Spark, whatever zone
    the session has.
    """
    kind = array.type
    if pt.is_integer(target) and (pt.is_duration(kind) or pt.is_time(kind)):  # the number that is written, as in Spark
        return typed_leaf(array.view(pa.int32() if pt.is_time32(kind) else pa.int64()), target)
    if pt.is_timestamp(target) and pt.is_timestamp(kind):
        if kind.tz is not None and target.tz is None:
            raise ValueError(f"{kind} is an instant and does not become {target}, which has no zone")
        return (instants(array, "UTC") if kind.tz is None and target.tz is not None else array).cast(target)
    if not _may_become(kind, target):
        raise ValueError(f"{kind} does not become {target}")
    return cast_exactly(array, target)


def cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast, but raise pa.ArrowInvalid also for a decimal that does not fit, at any depth.

    pyarrow does not notice where the zeros of another scale leave the 128 bits: the way back does.
    """
    cast = array.cast(target)
    if _may_leave_room(array.type, target) and not cast.cast(array.type).equals(array):
        raise pa.ArrowInvalid(f"a decimal that does not fit {target}")
    return cast


def _may_leave_room(kind: pa.DataType, target: pa.DataType) -> bool:
    if pt.is_decimal(kind) and pt.is_decimal(target):
        return bool(kind.scale < target.scale and kind.precision - kind.scale > target.precision - target.scale)
    return any(map(_may_leave_room, inner_types(kind), inner_types(target)))


def _may_become(kind: pa.DataType, target: pa.DataType) -> bool:
    if is_text(target) or is_bytes(target):
        texts = is_text(kind) or is_bytes(kind) or pt.is_string_view(kind) or pt.is_binary_view(kind)
        return texts or (is_bytes(target) and bool(pt.is_fixed_size_binary(kind)))
    if pt.is_integer(target):
        return bool(pt.is_integer(kind))
    if pt.is_floating(target):
        narrower = pt.is_floating(kind) and kind.bit_width <= target.bit_width
        return bool(pt.is_integer(kind) or narrower)
    if pt.is_decimal(target):
        return bool(pt.is_decimal(kind) or pt.is_integer(kind))
    if pt.is_date(target):
        return bool(pt.is_date(kind))
    if pt.is_timestamp(target):
        return bool(pt.is_date(kind)) and target.tz is None
    return bool(pt.is_boolean(kind) and pt.is_boolean(target))


def _conform_struct(array: pa.StructArray, target: pa.StructType, leaf: LeafConverter) -> pa.StructArray:
    fields = [target.field(i) for i in range(target.num_fields)]
    matches = match_names([f.name for f in fields], [array.type.field(i).name for i in range(array.type.num_fields)])
    values = array.flatten()  # under a null struct there may be any value; flattened, it is null too
    children = []
    for field in fields:
        if field.name in matches:
            position = array.type.get_field_index(matches[field.name])
            try:
                children.append(conform(values[position], field.type, leaf))
            except MemoryError:
                raise
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"field {field.name!r}: {error}") from error
        else:
            children.append(pa.nulls(len(array), field.type))
    if special_struct(target) == "VARIANT":
        for field, child in zip(fields, children, strict=True):
            if child.null_count > array.null_count:  # Spark would fail, each time, behind this reader
                raise ValueError(f"a VARIANT with null in its {field.name!r}")
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def parts_of(array: pa.Array) -> list[pa.Array]:
    """Return the arrays of which a struct, a list or a map consists; none for another type."""
    if pt.is_struct(array.type):
        return list(array.flatten())  # under a null struct there may be any value; flattened, it is null too
    if pt.is_map(array.type):
        return [array.keys, array.items]
    return [array.values] if pt.is_list(array.type) else []


def with_parts(array: pa.Array, parts: list[pa.Array]) -> pa.Array:
    """Return the array with other parts than `parts_of` has returned, which may have other types."""
    if pt.is_struct(array.type):
        return pa.StructArray.from_arrays(parts, names=[field.name for field in array.type], mask=array.is_null())
    if pt.is_list(array.type):
        return over_children(array, pa.list_(parts[0].type), parts)
    keys, items = parts
    fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
    entries = pa.StructArray.from_arrays(parts, fields=fields)
    return over_children(array, pa.map_(keys.type, items.type), [entries])


def over_children(array: pa.Array, target: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return the same lists (or maps) over converted values: validity and offsets keep their buffers."""
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], null_count=array.null_count, offset=array.offset, children=children
    )


_SWITCH = -141_427
"""The number of 1582-10-15, the first day that both calendars name alike."""
_DAY = 86_400_000_000
_START_OF_1900 = -2_208_988_800_000_000
_YEAR_1, _YEAR_9999 = -62_135_510_400_000_000, 253_402_041_600_000_000
"""Microseconds from 1970 to days of the first and the last year, with which Python's zones reckon safely."""


def instants(local: pa.Array, zone: str) -> pa.Array:
    """Convert timestamps without a zone, of microseconds but for UTC, to instants.

    When the clock is put back the earlier one is taken, when it skips an hour it is in the next one: as in Java. `zone`
    is what `parse_time_zone` returned. Older versions of pyarrow know no offsets: these are subtracted here.
    """
    offset = fixed_offset(zone)
    if offset is not None:
        unit = local.type.unit
        shifted = pc.subtract_checked(local, pa.scalar(offset, pa.duration(unit)))
        return shifted.cast(pa.timestamp(unit, tz="UTC"))
    if zone == "UTC":
        return local.cast(pa.timestamp(local.type.unit, tz=zone))
    if not _is_beyond(local, _known_until(zone)):
        try:
            return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="raise")
        except pa.ArrowInvalid:
            pass
    return _shifted(local, zone, pa.timestamp("us", tz=zone))


def local_times(moments: pa.Array) -> pa.Array:
    """Convert instants (microseconds) to the times at the clock of their zone."""
    zone = moments.type.tz
    if fixed_offset(zone) is None and not _is_beyond(moments, _known_until(zone) - _DAY):
        return pc.local_timestamp(moments)
    return _shifted(moments, zone, pa.timestamp("us"))


def _is_beyond(times: pa.Array, last: int) -> bool:
    latest = pc.max(times).cast(pa.int64()).as_py()
    return latest is not None and latest > last


@lru_cache(maxsize=64)
def _known_until(zone: str) -> int:
    """Return until when pyarrow knows a zone, in microseconds since 1970 at its clock.

    It knows the changes that the zone's file lists, until 2037 or earlier, and not the rule for those behind them.
    """
    starts = [datetime(year, month, 1) for year in range(1970, 2038) for month in (1, 4, 7, 10)]
    walls = pa.array(starts, pa.timestamp("us"))
    try:
        moments = pc.assume_timezone(walls, zone, ambiguous="earliest", nonexistent="latest").cast(pa.int64())
    except pa.ArrowInvalid:  # it has no database of zones, where Python has one of its own
        return _YEAR_1
    clock, epoch = clock_of(zone), datetime(1970, 1, 1, tzinfo=timezone.utc)
    right = [(start.replace(tzinfo=clock) - epoch) // timedelta(microseconds=1) for start in starts]
    wrong = next((at for at, (a, b) in enumerate(zip(moments.to_pylist(), right, strict=True)) if a != b), len(starts))
    return (starts[max(wrong - 1, 0)] - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def _shifted(times: pa.Array, zone: str, target: pa.TimestampType) -> pa.Array:
    """Convert microseconds by the offsets that Python knows: a look at each day, and at each time of a day with two."""
    to_utc, clock = target.tz is not None, clock_of(zone)

    def offset(micros: int) -> int:
        time = datetime(1970, 1, 1) + timedelta(microseconds=min(max(micros, _YEAR_1), _YEAR_9999))
        aware = time.replace(tzinfo=clock) if to_utc else time.replace(tzinfo=timezone.utc).astimezone(clock)
        return (aware.utcoffset() or timedelta()) // timedelta(microseconds=1)

    def offsets(numbers: np.ndarray) -> np.ndarray:
        unique, places = np.unique(numbers, return_inverse=True)
        return np.array([offset(int(number)) for number in unique], np.int64)[places.reshape(-1)]

    numbers = np.asarray(times.cast(pa.int64()).fill_null(0))
    days = numbers // _DAY * _DAY
    shifts = offsets(days)
    change = shifts != offsets(days + _DAY)
    shifts[change] = offsets(numbers[change])
    moved = pa.array(numbers - shifts if to_utc else numbers + shifts)
    return pc.if_else(times.is_valid(), moved, pa.scalar(None, pa.int64())).cast(target)


def gregorian_days(days: pa.Array) -> pa.Array:
    """Convert days since 1970 (int32) of the hybrid calendar to those of the days with the same names."""
    numbers = np.asarray(days.fill_null(0)).astype(np.int64)
    old = numbers < _SWITCH
    if not old.any():
        return days
    numbers[old] = _gregorian(numbers[old])
    return pc.if_else(days.is_valid(), pa.array(numbers).cast(pa.int32()), pa.scalar(None, pa.int32()))


def gregorian_micros(micros: pa.Array, zone: str) -> pa.Array:
    """Convert microseconds since 1970 (int64) in the same way: the time on the zone's clock stays.

    Such writers took the zone's clock of 1900 for that of all earlier times; local mean time is applied here.
    """
    numbers = np.asarray(micros.fill_null(0)).astype(np.int64)
    old = numbers < _START_OF_1900
    if not old.any():
        return micros
    start = pa.array([_START_OF_1900], pa.timestamp("us"))
    local = numbers[old] + _START_OF_1900 - instants(start, zone).cast(pa.int64())[0].as_py()
    days = local // _DAY
    wall_clock = local + (np.where(days < _SWITCH, _gregorian(days), days) - days) * _DAY
    numbers[old] = np.asarray(instants(pa.array(wall_clock, pa.timestamp("us")), zone).cast(pa.int64()))
    return pc.if_else(micros.is_valid(), pa.array(numbers), pa.scalar(None, pa.int64()))


def _gregorian(days: np.ndarray) -> np.ndarray:
    """Convert days of the Julian calendar to those with the same year, month and day in the Gregorian calendar.

    Years begin in March here, so that a leap day is the last of its year. A 29 February of the Julian calendar alone is
    1 March.
    """
    since = days + 719_470  # days since 1 March of the year 0, Julian
    year = (4 * since + 3) // 1461
    of_year = since - (1461 * year) // 4
    gregorian_days_since_1970: np.ndarray = of_year + 365 * year + year // 4 - year // 100 + year // 400 - 719_468
    return gregorian_days_since_1970
