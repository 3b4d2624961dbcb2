"""JSON values in Python, one at a time: which values each declared type has.

This is the slow way and the reference: the fast one (`json_lines.py`) either agrees with it or is not used.
Numbers keep their text until the declared type is known, so decimals are exact and a STRING gets what was written.

As in Spark, a field that is not of its type is null and its record bad, while the other fields stay: of a struct, in
any depth, its good fields; an array or a map with one bad element is null.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.text.parsing import in_range, time_converter, to_decimal
from queue_source.formats.text.records import Record
from queue_source.formats.types import is_bytes, is_text
from queue_source.options.file_format import FormatOptions

_SPECIAL = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+Infinity": float("inf"),
    "INF": float("inf"),
    "+INF": float("inf"),
    "-INF": float("-inf"),
}
_LARGEST_MOMENT = 1 << 63

Converter = Callable[[Any, Record], Any]
"""From a decoded value that is not null to what `pa.array` takes. Raises ValueError with the reason.

What its type has no place for is in `rescued` of the record afterwards.
"""


class _Number(str):
    """The text of a JSON number; a str of its own, so that it is not taken for a JSON string."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def decode(text: str) -> list[dict[str, Any]]:
    """The objects of one record: an array holds several. Numbers are their text. Raises ValueError."""
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in found):
        raise ValueError("not a JSON object")
    return found


class Objects:
    """Reads decoded objects as the fields of a schema or struct."""

    def __init__(self, fields: list[pa.Field], options: FormatOptions, path: str = "") -> None:
        self._parts = [(field.name, f"{path}{field.name}", converter(field, options, path)) for field in fields]
        self._names = {field.name for field in fields}
        self._rescues = options.rescued_data_column is not None

    def read(self, value: dict[str, Any], record: Record) -> tuple[list[Any], dict[str, Any]]:
        """The fields' values, and what is to be rescued; what is wrong goes into `record`."""
        values: list[Any] = []
        rescued: dict[str, Any] = {}
        for name, path, convert in self._parts:
            converted, found = None, value.get(name)
            if found is not None:
                record.rescued = None
                try:
                    converted = convert(found, record)
                    if record.rescued:
                        rescued[name] = record.rescued
                except ValueError as error:
                    if self._rescues:
                        rescued[name] = found
                    else:
                        record.reasons.append(f"column {path!r}: {error}")
            values.append(converted)
        if self._rescues:
            rescued.update({name: found for name, found in value.items() if name not in self._names})
        return values, rescued


def converter(field: pa.Field, options: FormatOptions, path: str = "") -> Converter:
    """How values of a field's type are read."""
    kind = field.type
    if pt.is_struct(kind):
        return _struct(kind, options, f"{path}{field.name}.")
    if pt.is_list(kind):
        return _list(converter(kind.value_field, options, f"{path}{field.name}."))
    if pt.is_map(kind):
        return _map(converter(kind.item_field, options, f"{path}{field.name}."))
    leaf = _leaf(kind, options)
    return lambda value, _record: leaf(value)


def _struct(kind: pa.StructType, options: FormatOptions, path: str) -> Converter:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in fields]
    objects = Objects(fields, options, path)

    def convert(value: Any, record: Record) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        values, record.rescued = objects.read(value, record)
        return dict(zip(names, values, strict=True))

    return convert


def _list(item: Converter) -> Converter:
    def convert(value: Any, record: Record) -> list[Any]:
        if not isinstance(value, list):
            raise _unexpected("an array", value)
        values, rescued = _each(item, value, record)
        record.rescued = rescued if any(rescued) else None
        return values

    return convert


def _map(item: Converter) -> Converter:
    def convert(value: Any, record: Record) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        values, rescued = _each(item, value.values(), record)
        record.rescued = {key: rest for key, rest in zip(value, rescued, strict=True) if rest}
        return list(zip(map(_encodable, value), values, strict=True))

    return convert


def _each(item: Converter, found: Iterable[Any], record: Record) -> tuple[list[Any], list[Any]]:
    """The values of the items of an array or a map, and what each of them has to be rescued."""
    values, rescued = [], []
    for inner in found:
        record.rescued = None
        values.append(None if inner is None else item(inner, record))
        rescued.append(record.rescued)
    return values, rescued


def _leaf(kind: pa.DataType, options: FormatOptions) -> Callable[[Any], Any]:
    if is_text(kind):
        return _text
    if pt.is_boolean(kind):
        return _boolean
    if pt.is_integer(kind):
        return lambda value: in_range(_integer(value), kind.bit_width)
    if pt.is_floating(kind):
        return _floating
    if pt.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if is_bytes(kind):
        return _base64
    of_text = time_converter(kind, options)
    if pt.is_timestamp(kind) and kind.tz is not None:
        return lambda value: _instant(value, of_text)
    return lambda value: of_text(_string(value))


def _text(value: Any) -> str:
    """As Spark: a string as it is, anything else as its JSON."""
    return _encodable(value if isinstance(value, str) else dump(value))


def _encodable(text: str) -> str:
    """The text, as a plain str. Raises ValueError for half a surrogate pair, which is no character."""
    text.encode("utf-8")
    return str(text)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, _Number):
        raise _unexpected("a whole number", value)
    try:
        return int(value)
    except ValueError as error:
        raise _unexpected("a whole number", value) from error


def _floating(value: Any) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if not isinstance(value, _Number):
        raise _unexpected("a number", value)
    return float(value)


def _decimal(value: Any, kind: pa.Decimal128Type) -> Any:
    if not isinstance(value, str):
        raise _unexpected("a number", value)
    return to_decimal(value, kind)


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_string(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _instant(value: Any, of_text: Callable[[str], Any]) -> Any:
    """Text; or a whole number of seconds since 1970, as in Spark."""
    if not isinstance(value, _Number):
        return of_text(_string(value))
    microseconds = _integer(value) * 1_000_000
    if abs(microseconds) >= _LARGEST_MOMENT:
        raise _unexpected("seconds since 1970", value)
    return microseconds


def _string(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise _unexpected("a string", value)
    return value


def dump(value: Any) -> str:
    """Compact JSON in which numbers keep their text."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{dump(str(key))}:{dump(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _unexpected(wanted: str, value: Any) -> ValueError:
    return ValueError(f"expected {wanted}, found {dump(value)}")


def is_number(value: Any) -> bool:
    """Whether a decoded value was a number; it is the text of it."""
    return isinstance(value, _Number)
