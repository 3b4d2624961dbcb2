"""JSON values in Python, one at a time: which values each declared type has.

This is the slow way and the reference: the fast one (`json_lines.py`) either agrees with it or is not used.
Numbers keep their text until the declared type is known, so decimals are exact and a STRING gets what was written.

As in Spark, a field that is not of its type is null and its record bad, while the other fields stay: of a struct, in
any depth, its good fields; an array or a map with one bad element is null. A key that is there twice has its last good
value, in a map both; an object or array in a STRING is the text that was written.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.text.json_parser import Array, Number, Object, dump
from queue_source.formats.text.records import Record
from queue_source.formats.text.values import check_range, make_time_converter, parse_decimal
from queue_source.formats.types import is_bytes, is_text
from queue_source.options.file_format import FormatOptions

_SPECIAL = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-INF": float("-inf"),
}
_NONE: dict[str, list[Any]] = {}
_LARGEST_MOMENT = 1 << 63
_BASE64 = re.compile(r"(?:[\0-\x20]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\0-\x20]*")
_BASE64_WHITE = re.compile(r"[\0-\x20]+")
_PADDED = re.compile(r"[^=]*={1,2}|[^=]+")

Converter = Callable[[Any, Record], Any]
"""From a decoded value that is not null to what `pa.array` takes. Raises ValueError with the reason.

What its type has no place for is in `rescued` of the record afterwards.
"""


Items = Callable[[Iterable[Any], Record], tuple[list[Any], Sequence[Any]]]
"""From the items of an array or a map to their values, and what each has to be rescued; nothing where none may have."""


class TextNeeded(Exception):
    """The text of an object or array is needed, which only `parse_objects` knows."""


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
        repeated = value.repeated if isinstance(value, Object) else _NONE
        for name, path, convert in self._parts:
            converted = None
            for found in repeated[name] if name in repeated else (value.get(name),):
                if found is None:
                    converted = None
                    continue
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
            names = self._names
            rescued.update([(name, found) for name, found in value.items() if name not in names])
        return values, rescued


def converter(field: pa.Field, options: FormatOptions, path: str = "") -> Converter:
    """How values of a field's type are read."""
    kind = field.type
    if pt.is_struct(kind):
        return _struct(kind, options, f"{path}{field.name}.")
    if pt.is_list(kind):
        return _list(_items(kind.value_field, options, f"{path}{field.name}."))
    if pt.is_map(kind):
        return _map(_items(kind.item_field, options, f"{path}{field.name}."))
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


def _list(items: Items) -> Converter:
    def convert(value: Any, record: Record) -> list[Any]:
        if not isinstance(value, list):
            raise _unexpected("an array", value)
        values, rescued = items(value, record)
        record.rescued = rescued if any(rescued) else None
        return values

    return convert


def _map(items: Items) -> Converter:
    def convert(value: Any, record: Record) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        pairs = value.pairs if isinstance(value, Object) else value.items()
        values, rescued = items([inner for _, inner in pairs], record)
        record.rescued = {key: rest for (key, _), rest in zip(pairs, rescued, strict=False) if rest}
        return [(_encodable(key), inner) for (key, _), inner in zip(pairs, values, strict=True)]

    return convert


def _items(field: pa.Field, options: FormatOptions, path: str) -> Items:
    """How the items of an array or a map are read."""
    if not pt.is_nested(field.type):
        leaf = _leaf(field.type, options)
        return lambda found, _record: ([None if inner is None else leaf(inner) for inner in found], ())
    item = converter(field, options, path)

    def convert(found: Iterable[Any], record: Record) -> tuple[list[Any], list[Any]]:
        values, rescued = [], []
        for inner in found:
            record.rescued = None
            values.append(None if inner is None else item(inner, record))
            rescued.append(record.rescued)
        return values, rescued

    return convert


def _leaf(kind: pa.DataType, options: FormatOptions) -> Callable[[Any], Any]:
    if is_text(kind):
        return _text
    if pt.is_boolean(kind):
        return _boolean
    if pt.is_integer(kind):
        return lambda value: check_range(_integer(value), kind.bit_width)
    if pt.is_floating(kind):
        return _floating
    if pt.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if is_bytes(kind):
        return _base64
    of_text = make_time_converter(kind, options)
    if pt.is_timestamp(kind) and kind.tz is not None:
        return lambda value: _instant(value, of_text)
    return lambda value: of_text(_string(value))


def _text(value: Any) -> str:
    """As Spark: a string as it is, anything else as it is written."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Object, Array)):
        return _encodable(value.text)
    raise TextNeeded


def _encodable(text: str) -> str:
    """The text, as a plain str. Raises ValueError for half a surrogate pair, which is no character."""
    if not text.isascii():
        text.encode("utf-8")
    return str(text)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, Number):
        raise _unexpected("a whole number", value)
    try:
        return int(value)
    except ValueError as error:
        raise _unexpected("a whole number", value) from error


def _floating(value: Any) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if not isinstance(value, Number):
        raise _unexpected("a number", value)
    return float(value)


def _decimal(value: Any, kind: pa.Decimal128Type) -> Any:
    if not isinstance(value, str):
        raise _unexpected("a number", value)
    return parse_decimal(value, kind)


def _base64(value: Any) -> bytes:
    """Units of four characters, with white space between them; each may be padded, as Spark's decoder has it."""
    text = _string(value)
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64")
    return b"".join(map(base64.b64decode, _PADDED.findall(_BASE64_WHITE.sub("", text))))


def _instant(value: Any, of_text: Callable[[str], Any]) -> Any:
    """Text; or a whole number of seconds since 1970, as in Spark."""
    if not isinstance(value, Number):
        return of_text(_string(value))
    microseconds = _integer(value) * 1_000_000
    if abs(microseconds) >= _LARGEST_MOMENT:
        raise _unexpected("seconds since 1970", value)
    return microseconds


def _string(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise _unexpected("a string", value)
    return value


def _unexpected(wanted: str, value: Any) -> ValueError:
    found = dump(value) if isinstance(value, (str, bool)) else "an object" if isinstance(value, dict) else "an array"
    return ValueError(f"expected {wanted}, found {found}")
