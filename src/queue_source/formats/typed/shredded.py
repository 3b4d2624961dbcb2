"""VARIANT whose values are in columns of their own (`typed_value`): put together as if they had never been parted.

A group has the bytes of a value, or its typed columns, or both: an object of which only some fields have columns. The
metadata of a row has the names of all its fields, those in columns too, and so stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.formats import variants
from queue_source.formats.types import is_bytes, is_text

_WHOLE = "typed_value"
_OBJECT, _ARRAY = 2, 3
_SIZES = {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 4, 6: 8, 7: 8, 8: 5, 9: 9, 10: 17, 11: 4, 12: 8, 13: 8, 14: 4, 17: 8, 18: 8,
          19: 8, 20: 16}  # fmt: skip
"""Bytes of a primitive value behind its first one, by its type; others begin with their length."""

Places = dict[str, int]
"""The places of names in the metadata of a row."""


def is_shredded(kind: pa.DataType) -> bool:
    """Tell whether a written VARIANT has columns for its values."""
    return bool(pt.is_struct(kind)) and kind.get_field_index(_WHOLE) >= 0


def unshredded(array: pa.StructArray, target: pa.StructType) -> pa.StructArray:
    """Return the variants of a shredded column as `target`, which has them whole. Raises ValueError with the reason."""
    parts = _parts(array)
    if "metadata" not in parts:
        raise ValueError("a shredded VARIANT without metadata")
    names = parts["metadata"].to_pylist()
    values = _values(array, [{} if name is None else _places(name) for name in names])
    valid = array.is_valid().to_pylist()
    whole = [
        variants.checked(value or variants.NULL) if row else None for value, row in zip(values, valid, strict=True)
    ]
    mask = array.is_null() if array.null_count else None
    columns = {"value": pa.array(whole, pa.binary()), "metadata": parts["metadata"].cast(pa.binary())}
    fields = [target.field(i) for i in range(target.num_fields)]
    return pa.StructArray.from_arrays(
        [columns[field.name].cast(field.type) for field in fields], fields=fields, mask=mask
    )


def _parts(group: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of a group, null where it is."""
    names = [group.type.field(i).name for i in range(group.type.num_fields)]
    return dict(zip(names, group.flatten(), strict=True))


def _values(group: pa.Array, places: list[Places]) -> list[bytes | None]:
    """Return the written value of each row of a group; None where it has none."""
    if not pt.is_struct(group.type):
        raise ValueError(f"a shredded VARIANT has {group.type} where a group belongs")
    parts = _parts(group)
    whole: list[bytes | None] = parts["value"].to_pylist() if "value" in parts else [None] * len(group)
    typed = parts.get(_WHOLE)
    if typed is None:
        return whole
    if isinstance(typed, pa.ExtensionArray):
        raise _unknown(typed.type)
    if pt.is_struct(typed.type):
        return _objects(typed, whole, places)
    written = _arrays(typed, places) if pt.is_list(typed.type) else _leaves(typed)
    for value, other in zip(whole, written, strict=True):
        if value is not None and other is not None:
            raise ValueError("a shredded VARIANT has two values in one row")
    return [other if value is None else value for value, other in zip(whole, written, strict=True)]


def _objects(typed: pa.StructArray, whole: list[bytes | None], places: list[Places]) -> list[bytes | None]:
    fields = [(name, _values(child, places)) for name, child in _parts(typed).items()]
    written = list(whole)
    for row, is_object in enumerate(typed.is_valid().to_pylist()):
        if not is_object:
            continue
        ids = places[row]
        of_row = {name: value for name, values in fields if (value := values[row]) is not None}
        others = whole[row]
        if others is not None:
            names = list(ids)
            for place, value in _fields_of(others):
                if place >= len(names):
                    raise ValueError(f"the metadata of a shredded VARIANT has {len(names)} names, not {place + 1}")
                if names[place] in of_row:
                    raise ValueError(f"a shredded VARIANT has the field {names[place]!r} twice")
                of_row[names[place]] = value
        if missing := next((name for name in of_row if name not in ids), None):
            raise ValueError(f"the metadata of a shredded VARIANT lacks the field {missing!r}")
        written[row] = variants.fields(list(of_row), [ids[name] for name in of_row], list(of_row.values()))
    return written


def _arrays(typed: pa.ListArray, places: list[Places]) -> list[bytes | None]:
    lengths = pc.list_value_length(typed).to_pylist()
    of_items = [ids for length, ids in zip(lengths, places, strict=True) for _ in range(length or 0)]
    items = iter(_values(typed.flatten(), of_items))
    return [
        None if length is None else variants.array([next(items) or variants.NULL for _ in range(length)])
        for length in lengths
    ]


def _leaves(typed: pa.Array) -> list[bytes | None]:
    kind = typed.type
    if pt.is_date(kind):
        typed = typed.cast(pa.int32())
    elif pt.is_timestamp(kind):
        typed = typed.cast(pa.int64())
    write = _writer(kind)
    return [None if value is None else write(value) for value in typed.to_pylist()]


def _writer(kind: pa.DataType) -> Callable[[Any], bytes]:
    """Return what writes values of a type. Raises ValueError for one that Spark's VARIANT has not."""
    if pt.is_boolean(kind):
        return lambda value: variants.TRUE if value else variants.FALSE
    if pt.is_signed_integer(kind):
        return variants.integer
    if pt.is_decimal128(kind):
        return lambda value: _decimal(value, kind.scale)
    if is_text(kind):
        return variants.text
    if is_bytes(kind):
        return lambda value: variants.primitive(15, "I", len(value)) + bytes(value)
    us = pt.is_timestamp(kind) and kind.unit == "us"
    numbers = {pa.float32(): (14, "f"), pa.float64(): (7, "d"), pa.date32(): (11, "i")}
    number = (12 if kind.tz else 13, "q") if us else numbers.get(kind)
    if number is None:
        raise _unknown(kind)
    return lambda value: variants.primitive(*number, value)


def _unknown(kind: pa.DataType) -> ValueError:
    return ValueError(f"a shredded VARIANT has values of type {kind}, which Spark's has not")


def _decimal(value: Decimal, scale: int) -> bytes:
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits)))
    return variants.decimal(-unscaled if sign else unscaled, scale)


@lru_cache(64)
def _places(metadata: bytes) -> Places:
    """Read the names of metadata, in their order. Raises ValueError for what is none."""
    if not metadata or metadata[0] & 15 != 1:
        raise ValueError("the metadata of a VARIANT is of another version than 1")
    width = (metadata[0] >> 6) + 1
    count, *offsets = _read(metadata, 1, width, _number(metadata, 1, width) + 2)
    begin = 1 + width * (count + 2)
    _number(metadata, begin, max(offsets))
    names = [metadata[begin + start : begin + end].decode() for start, end in pairwise(offsets)]
    return {name: place for place, name in enumerate(names)}


def _number(data: bytes, place: int, width: int) -> int:
    if place + width > len(data):
        raise ValueError("a VARIANT is cut off")
    return int.from_bytes(data[place : place + width], "little")


def _read(data: bytes, place: int, width: int, count: int) -> list[int]:
    _number(data, place + width * (count - 1), width)
    return [_number(data, place + width * i, width) for i in range(count)]


def _fields_of(value: bytes) -> Iterator[tuple[int, bytes]]:
    """Read the fields of a written object: the place of the name, and the value. Raises ValueError for no object."""
    header = _number(value, 0, 1)
    if header & 3 != _OBJECT:
        raise ValueError("a shredded VARIANT has an object and another value in one row")
    width, id_width, large = (header >> 2 & 3) + 1, (header >> 4 & 3) + 1, 4 if header >> 6 & 1 else 1
    count = _number(value, 1, large)
    ids = 1 + large
    starts = ids + id_width * count
    begin = starts + width * (count + 1)
    for i in range(count):
        start = begin + _number(value, starts + width * i, width)
        size = _size(value, start)
        _number(value, start, size)
        yield _number(value, ids + id_width * i, id_width), value[start : start + size]


def _size(data: bytes, place: int) -> int:
    """Return how many bytes the value at a place has. Raises ValueError for an unknown type."""
    header = _number(data, place, 1)
    basic, kind = header & 3, header >> 2
    if basic == 0:
        if kind in (15, 16):
            return 5 + _number(data, place + 1, 4)
        if kind not in _SIZES:
            raise ValueError(f"a VARIANT has a value of the unknown type {kind}")
        return 1 + _SIZES[kind]
    if basic == 1:
        return 1 + kind
    is_object = basic == _OBJECT
    width, id_width = (kind & 3) + 1, (kind >> 2 & 3) + 1 if is_object else 0
    large = 4 if kind >> (4 if is_object else 2) & 1 else 1
    count = _number(data, place + 1, large)
    last = 1 + large + id_width * count + width * count
    return last + width + _number(data, place + last, width)
