"""JSON values in Python, one at a time: which values each declared type has, and which types values have.

This is the slow way and the reference: the quick one (`json.py`) either agrees with it or is not used.
Numbers keep their text until the declared type is known, so decimals are exact and a STRING gets what was written.

As in Spark, a field that is not of its type is null and its record bad, while the other fields stay: of a struct, in
any depth, its good fields; an array or a map with one bad element is null. A key that is there twice has its last good
value, in a map both; an object or array in a STRING is the text that was written.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats import variants
from queue_source.formats.new_columns import (
    NewColumns,
    Tree,
    data_of,
    more_than,
    no_data,
    pass_by,
    paths_of,
    would_widen,
)
from queue_source.formats.text.json_grammar import Array, Number, Object, dump_value
from queue_source.formats.text.json_names import NameMatcher
from queue_source.formats.text.records import Record
from queue_source.formats.text.values import check_range, make_time_converter, parse_decimal, parse_float
from queue_source.formats.types import fields_of, is_bytes, is_text, special_struct
from queue_source.options.content import FormatOptions

_SPECIAL = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-INF": float("-inf"),
}
_SHORT_STACK = 20  # calls within one another
DEEPEST_TYPE = 100
"""Objects and arrays within one another that an inferred type has; what is deeper is text."""
_NONE: dict[str, list[Any]] = {}
_LARGEST_MOMENT = 1 << 63
_BASE64 = re.compile(r"(?:[\0-\x20]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\0-\x20]*")
_BASE64_WHITE = re.compile(r"[\0-\x20]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,37})")
_PADDED = re.compile(r"[^=]*={1,2}|[^=]+")

Converter = Callable[[Any, Record], Any]
"""From a decoded value that is not null to what `pa.array` takes. Raises ValueError with the reason.

What its type has no place for is in `rescued` of the record afterwards.
"""


Items = Callable[[Iterable[Any], Record], tuple[list[Any], Sequence[Any]]]
"""From the items of an array or a map to their values, and what each has to be rescued; nothing where none may have."""


class TextNeeded(Exception):
    """The text of an object or array is needed, which only `parse_objects` knows."""


class ObjectReader:
    """Reads decoded objects as the fields of a schema or struct."""

    def __init__(self, fields: list[pa.Field], options: FormatOptions, path: str = "") -> None:
        self._fields = [
            (field.name, f"{path}{field.name}", make_converter(field, options, path), _null_of(field.type))
            for field in fields
        ]
        self._matcher = NameMatcher((field.name for field in fields), options)
        self._names = {field.name for field in fields}
        self._rescues = options.rescued_data_column is not None

    def read_object(self, value: dict[str, Any], record: Record) -> tuple[list[Any], dict[str, Any]]:
        """Read the fields' values, and what is to be rescued; what is wrong goes into `record`."""
        values: list[Any] = []
        rescued: dict[str, Any] = {}
        repeated = value.repeated if isinstance(value, Object) else _NONE
        spelled, wrong = self._matcher.match(value)
        if wrong is not None:
            record.reasons.append(wrong)
        for name, path, convert, null in self._fields:
            written = spelled.get(name, name)
            converted = None
            for candidate in repeated[written] if written in repeated else (value.get(written),):
                if candidate is None:
                    converted = null if written in value else None
                    continue
                record.rescued = None
                try:
                    converted = convert(candidate, record)
                    if record.rescued:
                        rescued[written] = record.rescued
                except ValueError as error:
                    if self._rescues:
                        rescued[written] = candidate
                    else:
                        record.reasons.append(f"column {path!r}: {error}")
            values.append(converted)
        if self._rescues:
            taken = self._names.union(spelled.values()) if spelled else self._names
            # a null is nothing to be rescued, as a field of csv without a text
            others = ((name, inner) for name, inner in value.items() if name not in taken)
            rescued.update([(name, inner) for name, inner in others if inner is not None])
        return values, rescued


def _null_of(kind: pa.DataType) -> Any:
    """Return what a null of JSON becomes: VARIANT has one of its own, which is no null of SQL."""
    return VariantWriter().write(None) if special_struct(kind) == "VARIANT" else None


def make_converter(field: pa.Field, options: FormatOptions, path: str = "") -> Converter:
    """Return what reads values of a field's type."""
    kind = field.type
    if special_struct(kind) == "VARIANT":
        return lambda value, _record: VariantWriter().write(value)
    path = f"{path}{field.name}."
    if pt.is_struct(kind):
        reader, names = ObjectReader(fields_of(kind), options, path), [inner.name for inner in fields_of(kind)]

        def convert_struct(value: Any, record: Record) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise _unexpected("an object", value)
            values, record.rescued = reader.read_object(value, record)
            return dict(zip(names, values, strict=True))

        return convert_struct
    if pt.is_list(kind):
        items = _make_items_converter(kind.value_field, options, path)

        def convert_list(value: Any, record: Record) -> list[Any]:
            if not isinstance(value, list):
                raise _unexpected("an array", value)
            values, rescued = items(value, record)
            record.rescued = rescued if any(rescued) else None
            return values

        return convert_list
    if pt.is_map(kind):
        items_of_map = _make_items_converter(kind.item_field, options, path)

        def convert_map(value: Any, record: Record) -> list[tuple[str, Any]]:
            if not isinstance(value, dict):
                raise _unexpected("an object", value)
            pairs = value.pairs if isinstance(value, Object) else value.items()
            values, rescued = items_of_map([inner for _, inner in pairs], record)
            record.rescued = {key: inner for (key, _), inner in zip(pairs, rescued, strict=False) if inner}
            return [(_require_characters(key), inner) for (key, _), inner in zip(pairs, values, strict=True)]

        return convert_map
    leaf = _make_leaf_converter(kind, options)
    return lambda value, _record: leaf(value)


def _make_items_converter(field: pa.Field, options: FormatOptions, path: str) -> Items:
    """Return what reads the items of an array or a map."""
    if not pt.is_nested(field.type):
        leaf = _make_leaf_converter(field.type, options)
        return lambda items, _record: ([None if inner is None else leaf(inner) for inner in items], ())
    item, null = make_converter(field, options, path), _null_of(field.type)

    def convert(items: Iterable[Any], record: Record) -> tuple[list[Any], list[Any]]:
        values, rescued = [], []
        for inner in items:
            record.rescued = None
            values.append(null if inner is None else item(inner, record))
            rescued.append(record.rescued)
        return values, rescued

    return convert


def _make_leaf_converter(kind: pa.DataType, options: FormatOptions) -> Callable[[Any], Any]:
    if is_text(kind):
        return _convert_text
    if pt.is_boolean(kind):

        def convert_boolean(value: Any) -> bool:
            if not isinstance(value, bool):
                raise _unexpected("true or false", value)
            return value

        return convert_boolean
    if pt.is_integer(kind):
        return lambda value: check_range(_convert_integer(value), kind.bit_width)
    if pt.is_floating(kind):
        return lambda value: _convert_float(value, kind)
    if pt.is_decimal(kind):

        def convert_decimal(value: Any) -> Decimal:
            if not isinstance(value, str):
                raise _unexpected("a number", value)
            return parse_decimal(value, kind)

        return convert_decimal
    if is_bytes(kind):
        return _decode_base64
    parse_text = make_time_converter(kind, options)
    if pt.is_timestamp(kind) and kind.tz is not None:
        return lambda value: _convert_instant(value, parse_text)
    return lambda value: parse_text(_require_string(value))


def _convert_text(value: Any) -> str:
    """Take a string as it is, anything else as it is written: as Spark does."""
    if isinstance(value, str):
        return _require_characters(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Object, Array)):
        return _require_characters(value.text)
    raise TextNeeded


def _require_characters(text: str) -> str:
    """Return the text as a plain str. Raises ValueError for half a surrogate pair, which is no character."""
    if not text.isascii():
        text.encode("utf-8")
    return str(text)


def _convert_integer(value: Any) -> int:
    if not isinstance(value, Number):
        raise _unexpected("a whole number", value)
    try:
        return int(value)
    except ValueError as error:
        raise _unexpected("a whole number", value) from error


def _convert_float(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if not isinstance(value, Number):
        raise _unexpected("a number", value)
    return parse_float(value, kind) if value != "-0" else 0.0  # a whole number, as to Spark, has no sign of its zero


def _decode_base64(value: Any) -> bytes:
    """Decode units of four characters, with white space between them; each may be padded, as Spark's decoder has it."""
    text = _require_string(value)
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64")
    return b"".join(map(base64.b64decode, _PADDED.findall(_BASE64_WHITE.sub("", text))))


def _convert_instant(value: Any, parse_text: Callable[[str], Any]) -> Any:
    """Take text; or a whole number of seconds since 1970, as in Spark."""
    if not isinstance(value, Number):
        return parse_text(_require_string(value))
    microseconds = _convert_integer(value) * 1_000_000
    if abs(microseconds) >= _LARGEST_MOMENT:
        raise _unexpected("seconds since 1970", value)
    return microseconds


def _require_string(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise _unexpected("a string", value)
    return value


def _unexpected(expected: str, value: Any) -> ValueError:
    if isinstance(value, (str, bool)):
        return ValueError(f"expected {expected}, found {dump_value(value)}")
    return ValueError(f"expected {expected}, found {'an object' if isinstance(value, dict) else 'an array'}")


class VariantWriter:
    """Writes one decoded value as VARIANT."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def write(self, value: Any) -> dict[str, bytes]:
        """Write it. Raises ValueError for a key that is there twice, as in Spark, and for what is too large."""
        data = variants.checked(self._write(value, 0))
        return {"value": data, "metadata": variants.metadata(tuple(self._ids))}

    def _write(self, value: Any, depth: int) -> bytes:
        kind = type(value)
        if kind is Number:
            return variants.number(value)
        if kind is str:
            return variants.text(value)
        if isinstance(value, (dict, list)) and depth == _SHORT_STACK:
            return self._write_deep(value)
        if isinstance(value, dict):
            ids, numbers, items = self._ids, [], []
            for name, inner in value.items():
                numbers.append(ids.setdefault(name, len(ids)))
                items.append(self._write(inner, depth + 1))
            return self._wrap(value, numbers, items)
        if isinstance(value, list):
            return variants.array([self._write(inner, depth + 1) for inner in value])
        return variants.NULL if value is None else variants.TRUE if value else variants.FALSE

    def _write_deep(self, value: Any) -> bytes:
        """Write objects and arrays within one another, with no call in another."""
        written: list[bytes] = []
        pending = [(value, False)]
        while pending:
            item, are_items_written = pending.pop()
            if are_items_written:
                first = len(written) - len(item)
                items, written[first:] = written[first:], []
                if isinstance(item, dict):
                    numbers = [self._ids.setdefault(name, len(self._ids)) for name in item]
                    written.append(self._wrap(item, numbers, items))
                else:
                    written.append(variants.array(items))
            elif isinstance(item, (dict, list)):
                items_of = list(item.values() if isinstance(item, dict) else item)
                pending.append((item, True))
                pending += [(inner, False) for inner in reversed(items_of)]
            else:
                written.append(self._write(item, 0))
        return written[0]

    def _wrap(self, value: dict[str, Any], numbers: list[int], items: list[bytes]) -> bytes:
        if isinstance(value, Object) and value.repeated:
            raise ValueError(f"the key {next(iter(value.repeated))[:100]!r} is there twice, which VARIANT cannot hold")
        return variants.fields(list(value), numbers, items)


def infer_records(records: Iterable[Mapping[str, Any]], *, types: bool = True) -> pa.Schema:
    """Infer the columns of decoded objects (numbers as their text); without `types` all are STRING."""
    seen = _SeenValues()
    for record in records:
        seen.add_value(record)
    return pa.schema([(name, of.infer_type() if types else pa.string()) for name, of in seen.fields.items()])


class _SeenValues:
    """The values that were seen at one place of JSON objects."""

    __slots__ = ("depth", "fields", "items", "kinds")

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.kinds: set[str] = set()
        self.fields: dict[str, _SeenValues] = {}
        self.items: _SeenValues | None = None

    def add_value(self, value: Any) -> None:
        if value is None:
            return
        if self.depth > DEEPEST_TYPE:
            self.kinds.add("text")
        elif isinstance(value, dict):
            self.kinds.add("object")
            fields = self.fields
            for name, inner in value.items():
                if (seen := fields.get(name)) is None:
                    seen = fields[name] = _SeenValues(self.depth + 1)
                seen.add_value(inner)
        elif isinstance(value, list):
            self.kinds.add("array")
            if self.items is None:
                self.items = _SeenValues(self.depth + 1)
            for inner in value:
                self.items.add_value(inner)
        elif isinstance(value, bool):
            self.kinds.add("boolean")
        elif isinstance(value, Number):
            self.kinds.add(_classify_number(value))
        else:
            self.kinds.add("text")

    def infer_type(self) -> pa.DataType:
        kinds = self.kinds
        if not kinds:
            return pa.null()
        if kinds == {"object"}:
            return pa.struct([(name, inner.infer_type()) for name, inner in self.fields.items()])
        if kinds == {"array"}:
            assert self.items is not None
            return pa.list_(self.items.infer_type())
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds == {"integer"}:
            return pa.int64()
        if kinds <= {"integer", "wide integer"}:
            return pa.decimal128(38, 0)
        return pa.float64() if kinds <= {"integer", "wide integer", "float"} else pa.string()


def _classify_number(text: str) -> str:
    if not _INTEGER.fullmatch(text):
        return "float"
    return "wide integer" if len(text) > 18 and not -(1 << 63) <= int(text) < 1 << 63 else "integer"


def exceeds(value: Any, bits: int) -> bool:
    """Tell whether it is a number that a whole number of so many bits has no room for, and a wider type has."""
    if not isinstance(value, Number):
        return False
    kind = _classify_number(value)
    if kind == "float":
        return bits <= 32  # beyond, DOUBLE would lose digits
    return kind == "wide integer" or not -(1 << bits - 1) <= int(value) < 1 << bits - 1


class KnownNames:
    """The names of a schema, to hold JSON objects against; where types may widen, its whole numbers too."""

    def __init__(self, schema: pa.Schema, options: FormatOptions) -> None:
        self._schema, self._options = schema, options
        self._names: dict[str, Any] = _names(pa.struct(list(schema)), numbers=options.watch_wider_types)
        self._passed = set[str]()
        self._names.update(dict.fromkeys((name.casefold() for name in no_data(options)), None))

    def check(self, record: dict[str, Any]) -> None:
        """Raise NewColumns when a decoded object has a value for an unknown name, or a wider number, at any depth.

        Not where its columns as a whole would add nothing: what is new is in an array where an object is declared, or
        beside a text. Then it is a value that does not fit, as any other.
        """
        if self._has_new(record, self._names):
            try:
                written = data_of(infer_records([record]), self._options)
            except UnicodeEncodeError:  # half a surrogate pair is no part of a column's name
                return
            if not would_widen(self._schema, written, self._options):
                return
            if self._options.watch_new_columns:
                raise NewColumns(record=record)
            self.pass_by(written)

    def pass_by(self, written: pa.Schema) -> None:
        """Count the columns that are new in an object, each once, and know them from here on."""
        new = more_than(self._schema, data_of(written, self._options))
        paths = paths_of(new) - self._passed
        pass_by(paths)
        self._passed |= paths
        _add_names(self._names, new)

    def _has_new(self, value: Any, names: Any) -> bool:
        if isinstance(value, list):
            return any(self._has_new(item, names) for item in value)
        if isinstance(names, int):
            return exceeds(value, names)
        if not isinstance(value, dict):
            return False
        for name, inner in value.items():
            folded = name.casefold()
            if folded not in names:
                if _says_something(inner):
                    return True
            elif names[folded] is not None and self._has_new(inner, names[folded]):
                return True
        return False


def _names(kind: pa.DataType, *, numbers: bool) -> Any:
    """Return the names of the fields in a type, or the bits of a whole number; None for what has any value."""
    if special_struct(kind) is not None:
        return None
    if pt.is_struct(kind):
        return {field.name.casefold(): _names(field.type, numbers=numbers) for field in fields_of(kind)}
    if pt.is_list(kind):
        return _names(kind.value_type, numbers=numbers)
    return kind.bit_width if numbers and pt.is_signed_integer(kind) else None


def _add_names(names: dict[str, Any], new: Tree) -> None:
    for name, inner in new.items():
        if inner is None:
            names.setdefault(name.casefold(), None)
        elif isinstance(within := names.get(name.casefold()), dict):
            _add_names(within, inner)


def _says_something(value: Any) -> bool:
    """Tell whether there is any value in it; objects may be nested to any depth."""
    unvisited = [value]
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, (dict, list)):
            unvisited.extend(item.values() if isinstance(item, dict) else item)
        elif item is not None:
            return True
    return False
