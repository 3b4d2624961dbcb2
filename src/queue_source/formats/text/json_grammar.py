"""The grammar of JSON as Spark's parser takes it: numbers keep their text, and limits are those of Spark.

`decode_objects` uses Python's own decoder where a record has nothing unusual. Everything else is read by `parse`: it
knows the text of each object and array and the keys that are there twice, takes single quotes, and is no deeper in
calls however deep the record is. Before pyarrow parses lines, `inspect_lines` and `may_exceed_limits` ask whether it
would take them as Spark does.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from queue_source.formats.text.json_structure import has_more_values, measure_depth
from queue_source.formats.text.values import quote_json

MAX_DEPTH = 1000
"""Objects and arrays within one another; a record with more is bad, as in Spark."""
MAX_NUMBER = 1000
"""Characters of a number, as in Spark."""
SHALLOW = 100
"""What parsers that call themselves may be given."""
_SHORT_STACK = 20  # calls within one another that Python may be given anywhere
_ANY_NUMBER = 1 << 62
_CACHED = 1 << 18  # bytes that stay in the processor's cache
_NEWLINE, _BRACE = ord("\n"), ord("{")
_SHORT = 500  # twice as many bytes have room neither for `MAX_DEPTH` brackets that are closed nor for a long number
_LONGEST_INFERRED = 1 << 16  # bytes of a line of which pyarrow may find out the columns: it makes one of every name

_WHITE = re.compile(r"[ \t\r\n]*")
# where Python has it, what is repeated is never tried again: each repetition would take a hundred bytes until the end
_ONCE = "+" if sys.version_info >= (3, 11) else ""
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % MAX_NUMBER)
_SAMPLES = 20  # of so many digits, taken at equal distances
_SAMPLED_NUMBER = re.compile(rb"[0-9]{%d}" % _SAMPLES)
_ESCAPED = r"""\\(?:["'\\/bfnrt]|u[0-9a-fA-F]{4})"""
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:"
    rf'"(?P<double>[^"\\\x00-\x1f]*(?:{_ESCAPED}[^"\\\x00-\x1f]*)*{_ONCE})"'
    rf"|'(?P<single>[^'\\\x00-\x1f]*(?:{_ESCAPED}[^'\\\x00-\x1f]*)*{_ONCE})'"
    r"|(?P<mark>[{}\[\]:,])"
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|[+-]INF|[+-]?Infinity)(?![^ \t\r\n,\]}])"
    r"|(?P<word>true|false|null)(?![^ \t\r\n,\]}]))"
)
_ESCAPE = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)")
_PLAIN = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}
_CONSTANTS = {True: "true", False: "false", None: "null"}


class Number(str):
    """The text of a JSON number; a str of its own, so that it is not taken for a JSON string."""

    __slots__ = ()


class Object(dict[str, Any]):
    """An object that `parse` read. As a dict it has the last value of each key.

    Attributes:
        repeated: All values of each key that is there more than once.
        pairs: All keys and values in their order.
    """

    __slots__ = ("_end", "_source", "_start", "pairs", "repeated")

    def __init__(self, source: str, start: int) -> None:
        super().__init__()
        self._source, self._start, self._end = source, start, start
        self.pairs: list[tuple[str, Any]] = []
        self.repeated: dict[str, list[Any]] = {}

    def close(self, end: int) -> None:
        self._end = end
        self.update(self.pairs)
        if len(self) < len(self.pairs):
            all_values: dict[str, list[Any]] = {}
            for key, value in self.pairs:
                all_values.setdefault(key, []).append(value)
            self.repeated = {key: values for key, values in all_values.items() if len(values) > 1}

    @property
    def text(self) -> str:
        """The text of the object in the record."""
        return self._source[self._start : self._end]


class Array(list[Any]):
    """An array that `parse` read."""

    __slots__ = ("_end", "_source", "_start")

    def __init__(self, source: str, start: int) -> None:
        super().__init__()
        self._source, self._start, self._end = source, start, start

    def close(self, end: int) -> None:
        self._end = end

    @property
    def text(self) -> str:
        """The text of the array in the record."""
        return self._source[self._start : self._end]


class _Repeated(ValueError):
    """A key is there twice, which a dict cannot hold."""


def _make_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Repeated
    return made


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number, object_pairs_hook=_make_dict)


def decode_text(record: bytes) -> str:
    """Decode the text of one record; a byte order mark is none of it, as in Spark. Raises UnicodeDecodeError."""
    return record.removeprefix(codecs.BOM_UTF8).decode("utf-8")


def decode_objects(text: str, max_values: int = _ANY_NUMBER) -> list[dict[str, Any]]:
    """Decode the objects of one record: an array holds several. Raises ValueError as `decode_value`."""
    return _require_objects(decode_value(text, max_values))


def decode_value(text: str, max_values: int = _ANY_NUMBER) -> Any:
    """Decode the one value of a record. Raises ValueError.

    A record of more than `max_values` keys and values is refused: each of them takes many times its own bytes.
    """
    if len(text) > max_values and has_more_values(text.encode("utf-8", "surrogatepass"), max_values):
        raise ValueError(f"more than {max_values} values in one record; a larger maxRecordBytes allows more")
    few = text.count("{") + text.count("[") <= SHALLOW
    is_simple = few and len(text) < MAX_NUMBER  # nothing in it is deep, and no number is too long
    if not is_simple:
        data = text.encode("utf-8", "surrogatepass")
        is_simple = not has_long_number(data) and (few or measure_depth(data) <= SHALLOW)
    if is_simple:
        try:
            if text.startswith("{"):  # as most are, with nothing around it
                value, end = _DECODER.raw_decode(text)
                if end == len(text):
                    return value
            return _DECODER.decode(text)
        except json.JSONDecodeError:
            pass  # it may be JSON for Spark all the same; and `parse` has the better words for what is wrong
        except _Repeated:
            pass
    return parse(text)


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Read the same objects as `decode_objects`, by `parse`."""
    return _require_objects(parse(text))


def _require_objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    objects = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in objects):
        raise ValueError("not a JSON object")
    return objects


def has_long_number(text: bytes) -> bool:
    """Tell whether `MAX_NUMBER` digits follow each other. A search of all the text takes longer than to parse it."""
    sampled = text[:: MAX_NUMBER // _SAMPLES]
    return _SAMPLED_NUMBER.search(sampled) is not None and _LONG_NUMBER.search(text) is not None


def cut_lines(lines: bytes, size: int) -> Iterator[bytes]:
    """Cut into pieces of whole lines, at most so many bytes at a time. One that is longer comes by itself."""
    start = 0
    while start < len(lines):
        end = len(lines)
        if start + size < end:
            end = lines.rfind(b"\n", start, start + size + 1)
        if end < 0:
            end = lines.find(b"\n", start + size)
        if end < 0:
            end = len(lines)
        yield lines[start:end]
        start = end + 1


class Look(NamedTuple):
    """What `inspect_lines` sees: if not all lines begin with `{`, some may be blank or indented, or no object."""

    begin_with_braces: bool
    are_short: bool


def inspect_lines(lines: bytes) -> Look:
    """Tell whether every line begins with `{`, and whether no line is long.

    pyarrow dies of SIGSEGV on a block that begins with `null` (apache/arrow#47409), also after a byte order mark, and
    reads a later `null` as a row. All else that is no object it refuses by itself.
    """
    braces, short = lines.startswith(b"{"), True
    characters = np.frombuffer(lines, np.uint8)
    for start in range(0, len(lines), _CACHED):
        # one byte more, so that the first character of a line meets its newline; 5 times faster than a search
        piece = characters[start : start + _CACHED + 1]
        newlines = piece[:-1] == _NEWLINE
        braces = braces and not (piece[1:][newlines] != _BRACE).any()
        # a line of more than twice as many bytes as here are in a row has all of a row
        rows = newlines[: len(newlines) // _SHORT * _SHORT].reshape(-1, _SHORT)
        short = short and bool(rows.any(axis=1).all())
    return Look(braces, short)


def may_exceed_limits(lines: bytes, *, infers: bool) -> bool:
    """Tell whether anything may be so deep, or so long, that Spark takes the record for bad, or pyarrow dies of it.

    pyarrow takes any depth of what is not declared; where it `infers` what that is, it calls itself, and makes a column
    of every name.
    """
    deepest = SHALLOW if infers else MAX_DEPTH
    characters = np.frombuffer(lines, np.uint8)
    ends = np.append(np.flatnonzero(characters == _NEWLINE), len(lines))
    starts = np.append(0, ends[:-1] + 1)
    opening = np.flatnonzero((characters | 0x20) == _BRACE)  # `[` too
    openings = np.searchsorted(opening, ends) - np.searchsorted(opening, starts)
    if infers and (ends - starts).max() > _LONGEST_INFERRED:
        return True
    many = np.flatnonzero(openings > deepest)
    if any(measure_depth(lines[start:end]) > deepest for start, end in zip(starts[many], ends[many], strict=True)):
        return True
    return has_long_number(lines)


def parse(text: str) -> Any:
    """Parse the value that is all of a text. Raises ValueError with the reason and its place."""
    opened: list[Object | Array] = []
    keys: list[str] = []  # of each open object, the key whose value comes
    place, may_close = 0, False
    while True:
        token = _match_token(text, place)
        if may_close and token["mark"] in ("}", "]"):
            value, place = _close_last(opened, keys, token), token.end()
        else:
            if opened and isinstance(opened[-1], Object):
                keys[-1] = _read_string(token)
                colon = _match_token(text, token.end())
                _require(colon["mark"] == ":", colon)
                token = _match_token(text, colon.end())
            place = token.end()
            if token["mark"] in ("{", "["):
                _require(len(opened) < MAX_DEPTH, token, f"nested more than {MAX_DEPTH} deep")
                opened.append((Object if token["mark"] == "{" else Array)(text, place - 1))
                keys.append("")
                may_close = True
                continue
            value = _read_scalar(token)
        while opened:  # the value is complete; what ends behind it is another
            inner = opened[-1]
            if isinstance(inner, Object):
                inner.pairs.append((keys[-1], value))
            else:
                inner.append(value)
            token = _match_token(text, place)
            place = token.end()
            if token["mark"] == ",":
                break
            value = _close_last(opened, keys, token)
        else:
            white = _WHITE.match(text, place)
            assert white is not None
            if white.end() < len(text):
                raise ValueError(f"there is more behind the record, at character {white.end()}")
            return value
        may_close = False


def _match_token(text: str, place: int) -> re.Match[str]:
    token = _TOKEN.match(text, place)
    if token is None:
        ahead = text[place : place + 20].strip()
        raise ValueError(f"{ahead!r} at character {place} is not JSON" if ahead else "it is cut off")
    return token


def _require(condition: bool, token: re.Match[str], reason: str = "") -> None:
    if not condition:
        raise ValueError(reason or f"unexpected {token.group().strip()[:20]!r} at character {token.start()}")


def _close_last(opened: list[Object | Array], keys: list[str], token: re.Match[str]) -> Object | Array:
    closed = opened[-1]
    _require(token["mark"] == ("}" if isinstance(closed, Object) else "]"), token)
    closed.close(token.end())
    opened.pop()
    keys.pop()
    return closed


def _read_scalar(token: re.Match[str]) -> Any:
    if (number := token["number"]) is not None:
        _require(len(number) <= MAX_NUMBER, token, f"a number of more than {MAX_NUMBER} characters")
        return Number(number)
    if (word := token["word"]) is not None:
        return _WORDS[word]
    return _read_string(token)


def _read_string(token: re.Match[str]) -> str:
    text = token["double"]
    if text is None:
        text = token["single"]
    if text is None:
        raise ValueError(f"unexpected {token.group().strip()[:20]!r} at character {token.start()}")
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(escape: re.Match[str]) -> str:
    high, low, code, other = escape.groups()
    if high:
        return bytes.fromhex(high + low).decode("utf-16-be")
    return chr(int(code, 16)) if code else _PLAIN.get(other, other)


class _Written(str):
    """Text of JSON that is not to be written as a string."""

    __slots__ = ()


def dump_value(value: Any) -> str:
    """Write compact JSON in which numbers keep their text. Objects within one another may be any number."""
    return _dump(value, 0)


def _dump(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return str(value) if isinstance(value, Number) else quote_json(value)
    if isinstance(value, (dict, list)):
        if depth > _SHORT_STACK:
            return _dump_deep(value)
        if isinstance(value, list):
            return "[" + ",".join([_dump(inner, depth + 1) for inner in value]) + "]"
        pairs = value.pairs if isinstance(value, Object) else value.items()
        return "{" + ",".join([f"{quote_json(str(key))}:{_dump(inner, depth + 1)}" for key, inner in pairs]) + "}"
    return _CONSTANTS[value]


def _dump_deep(value: Any) -> str:
    written: list[str] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, (_Written, Number)):
            written.append(str(item))
        elif isinstance(item, dict):
            pairs = item.pairs if isinstance(item, Object) else item.items()
            parts: list[Any] = [_Written("{")]
            for key, inner in pairs:
                parts += [_Written(f"{quote_json(str(key))}:"), inner, _Written(",")]
            pending += reversed([*(parts[:-1] if len(parts) > 1 else parts), _Written("}")])
        elif isinstance(item, list):
            parts = [_Written("[")]
            for inner in item:
                parts += [inner, _Written(",")]
            pending += reversed([*(parts[:-1] if len(parts) > 1 else parts), _Written("]")])
        else:
            written.append(_dump(item, 0))
    return "".join(written)
