"""VARIANT: values of any type in binary, as Parquet defines them, beside the names of the fields of their objects.

Arrow has it as a struct of `value` and `metadata`, whose mark Spark knows it by. Numbers are written as Spark's
`parse_json` writes them: whole ones in the fewest bytes, others as decimals of the digits that were written.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

VARIANT = pa.struct(
    [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
)
LARGEST = 16 << 20
"""Bytes of a value, or of its metadata: the most that every version of Spark takes."""
NULL = b"\x00"
TRUE, FALSE = b"\x04", b"\x08"
_INT8, _DOUBLE, _LONG_TEXT = 6, 7, 16
_SHORT_TEXT = 63
_DIGITS = 38
_PLAIN_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")


def primitive(kind: int, form: str, *values: Any) -> bytes:
    """Write a value of a primitive type by its number in the specification. `form` is one of `struct`."""
    return struct.pack(f"<B{form}", kind << 2, *values)


@lru_cache(4096)
def integer(number: int) -> bytes:
    """Write a whole number in the fewest bytes; beyond 64 bits as a decimal. Raises ValueError for too many digits."""
    for kind, form, bits in ((3, "b", 7), (4, "h", 15), (5, "i", 31), (_INT8, "q", 63)):
        if -(1 << bits) <= number < 1 << bits:
            return primitive(kind, form, number)
    return decimal(number, 0)


def decimal(unscaled: int, scale: int) -> bytes:
    """Write a decimal in the fewest bytes. Raises ValueError for more than 38 digits."""
    digits = max(scale, len(str(abs(unscaled))))
    if digits > _DIGITS:
        raise ValueError(f"a decimal of {digits} digits; VARIANT has {_DIGITS}")
    if digits <= 9:
        return primitive(8, "Bi", scale, unscaled)
    if digits <= 18:
        return primitive(9, "Bq", scale, unscaled)
    return primitive(10, "B", scale) + unscaled.to_bytes(16, "little", signed=True)


@lru_cache(4096)
def number(text: str) -> bytes:
    """Write a number of JSON by its text."""
    if plain := _PLAIN_NUMBER.fullmatch(text):
        sign, whole, fraction = plain[1], plain[2], plain[3]
        if fraction is None and len(whole) <= _DIGITS:
            return integer(int(sign + whole))
        unscaled = int(whole + (fraction or ""))
        if len(str(unscaled)) <= _DIGITS and len(fraction or "") <= _DIGITS:
            return decimal(-unscaled if sign else unscaled, len(fraction or ""))
    return primitive(_DOUBLE, "d", float(text))


def text(value: str) -> bytes:
    """Write a text. Raises ValueError for half a surrogate pair, which is no character."""
    data = value.encode()
    if len(data) <= _SHORT_TEXT:
        return bytes((len(data) << 2 | 1,)) + data
    return primitive(_LONG_TEXT, "I", len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    """Write an array of written values."""
    offsets = list(accumulate(map(len, items), initial=0))
    width = _width(offsets[-1])
    is_large = len(items) > 255
    header = is_large << 4 | (width - 1) << 2 | 3
    count = len(items).to_bytes(4 if is_large else 1, "little")
    return b"".join((bytes((header,)), count, _numbers(offsets, width), *items))


def fields(names: Sequence[str], ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """Write an object of written values; `ids` are the places of its names in the metadata."""
    order = sorted(range(len(names)), key=names.__getitem__)
    offsets = list(accumulate(map(len, values), initial=0))
    width, id_width = _width(offsets[-1]), _width(max(ids, default=0))
    is_large = len(values) > 255
    header = is_large << 6 | (id_width - 1) << 4 | (width - 1) << 2 | 2
    count = len(values).to_bytes(4 if is_large else 1, "little")
    sorted_ids = _numbers([ids[place] for place in order], id_width)
    starts = _numbers([offsets[place] for place in order] + offsets[-1:], width)
    return b"".join((bytes((header,)), count, sorted_ids, starts, *values))


def metadata(names: tuple[str, ...]) -> bytes:
    """Write the names of fields. Raises ValueError where they are too large."""
    # names come from objects: what is kept of them is small
    is_small = len(names) < 100 and sum(map(len, names)) < 4_000
    return (_cached_metadata if is_small else _metadata)(names)


def _metadata(names: tuple[str, ...]) -> bytes:
    keys = [name.encode() for name in names]
    offsets = list(accumulate(map(len, keys), initial=0))
    width = _width(max(offsets[-1], len(keys)))
    header = bytes((1 | (width - 1) << 6,))
    return checked(b"".join((header, _numbers([len(keys), *offsets], width), *keys)))


_cached_metadata = lru_cache(256)(_metadata)


def _width(largest: int) -> int:
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    if width == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(width, "little") for number in numbers])


def checked(data: bytes) -> bytes:
    """Return a written value. Raises ValueError where it is too large."""
    if len(data) > LARGEST:
        raise ValueError(f"{len(data)} bytes as VARIANT, which may have {LARGEST}; read it as text")
    return data
