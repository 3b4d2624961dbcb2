"""JSON lines read in Python, a row at a time: what the values of each declared type may look like.

This is the slow way and the reference: the fast one (`json_lines.py`) either agrees with it or is not used.
Numbers keep their text until the declared type is known, so decimals are exact and a STRING gets what was written.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.content.columns import match_names, shorten
from queue_source.content.formats import is_bytes, is_text
from queue_source.errors import BadObject

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SPECIAL = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+Infinity": float("inf"),
    "INF": float("inf"),
    "+INF": float("inf"),
    "-INF": float("-inf"),
}

Converter = Callable[[Any], Any]


class _Number(str):
    """The text of a JSON number; a str of its own, so that it is not taken for a JSON string."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def read_rows(lines: bytes, schema: pa.Schema) -> tuple[set[str], list[list[Any]], int]:
    """The keys that occur, the values of each declared column in wire form, and the number of rows.

    Raises BadObject("corrupt-object") that names line and column, with the offset of the line.
    """
    objects: list[tuple[int, int, dict[str, Any]]] = []
    keys: set[str] = set()
    offset = 0
    for number, line in enumerate(lines.split(b"\n"), start=1):
        if line.strip():
            row = decode_line(line, number, offset)
            keys.update(row)
            objects.append((number, offset, row))
        offset += len(line) + 1
    matches = match_names(schema.names, keys)
    columns: list[list[Any]] = []
    for field in schema:
        key, convert = matches.get(field.name), converter(field.type)
        values: list[Any] = []
        for number, at, row in objects:
            value = None if key is None else row.get(key)
            try:
                values.append(None if value is None else convert(value))
            except ValueError as error:
                detail = shorten(f"line {number}: column {field.name!r}: {error}")
                raise BadObject("corrupt-object", detail, at) from error
        columns.append(values)
    return keys, columns, len(objects)


def decode_line(line: bytes, number: int, offset: int) -> dict[str, Any]:
    """The object of one line; numbers are their text. Raises BadObject("corrupt-object")."""
    try:
        row = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadObject("corrupt-object", shorten(f"line {number}: {error}"), offset) from error
    if not isinstance(row, dict):
        raise BadObject("corrupt-object", f"line {number}: not a JSON object", offset)
    return row


def converter(kind: pa.DataType) -> Converter:
    """From a decoded JSON value (not null) to the wire form of `kind`. What it returns raises ValueError."""
    if pt.is_struct(kind):
        return _struct([kind.field(i) for i in range(kind.num_fields)])
    if pt.is_list(kind):
        return _list(converter(kind.value_type))
    if pt.is_map(kind):
        return _map(converter(kind.item_type))
    if is_text(kind):
        return _text
    if pt.is_boolean(kind):
        return _boolean
    if pt.is_integer(kind):
        return _integer
    if pt.is_floating(kind):
        return _floating
    if pt.is_decimal(kind):
        return _decimal
    if is_bytes(kind):
        return _base64
    if pt.is_timestamp(kind) and kind.tz is not None:
        return _instant
    return _string  # dates and timestamps without a zone


def _struct(fields: list[pa.Field]) -> Converter:
    parts = {field.name: converter(field.type) for field in fields}

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        found = ((name, part, value.get(name)) for name, part in parts.items())
        return {name: None if inner is None else part(inner) for name, part, inner in found}

    return convert


def _list(item: Converter) -> Converter:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _unexpected("an array", value)
        return [None if inner is None else item(inner) for inner in value]

    return convert


def _map(item: Converter) -> Converter:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        return [(key, None if inner is None else item(inner)) for key, inner in value.items()]

    return convert


def _text(value: Any) -> str:
    """As Spark: a string as it is, anything else as its JSON."""
    return str(value) if isinstance(value, str) else _dump(value)


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


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, str):
        raise _unexpected("a number", value)
    try:
        number = Decimal(value)
    except ArithmeticError as error:
        raise _unexpected("a number", value) from error
    if not number.is_finite():
        raise _unexpected("a finite number", value)
    return number


def _base64(value: Any) -> str:
    text = _string(value)
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    return text


def _instant(value: Any) -> str:
    """Text as it is; a whole number is seconds since 1970, as in Spark."""
    if isinstance(value, _Number):
        try:
            return (_EPOCH + timedelta(seconds=_integer(value))).isoformat()
        except OverflowError as error:
            raise _unexpected("seconds since 1970", value) from error
    return _string(value)


def _string(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise _unexpected("a string", value)
    return value


def _dump(value: Any) -> str:
    """Compact JSON in which numbers keep their text."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dump(str(key))}:{_dump(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _unexpected(wanted: str, value: Any) -> ValueError:
    return ValueError(f"expected {wanted}, found {_dump(value)}")
