"""Columns as Spark's DDL writes them: `id BIGINT, tags.key STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>`.

Spark itself parses it only in a JVM, which the process that is asked for a schema does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.base import is_bytes, is_text

Path = tuple[str, ...]
"""The names that lead to a field: `("tags", "key")`. `element`, `key` and `value` are the parts of arrays and maps."""

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|'((?:[^'\\]|\\.)*)'|([<>(),:.]))", re.ASCII | re.DOTALL)
_UNICODE_NAME = re.compile(r"\s*(\w+)")
_SIMPLE: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean",), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("double",), pa.float64()),
    **dict.fromkeys(("string", "varchar", "char", "character"), pa.string()),
    **dict.fromkeys(("binary",), pa.binary()),
    **dict.fromkeys(("date",), pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    **dict.fromkeys(("timestamp_ntz",), pa.timestamp("us")),
}
_DECIMALS = ("decimal", "dec", "numeric")
_NAMES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.date32(): "DATE", pa.timestamp("us"): "TIMESTAMP_NTZ",
}  # fmt: skip


def parse_columns(text: str) -> pa.Schema:
    """The columns of a DDL text. Raises ValueError with what is wrong and where."""
    columns = []
    for path, kind in parse_fields(text):
        if len(path) > 1:
            raise ValueError(f"{'.'.join(path)} has a dot; write `{'.'.join(path)}` in backticks for such a name")
        columns.append(pa.field(path[0], kind))
    return pa.schema(columns)


def parse_fields(text: str) -> list[tuple[Path, pa.DataType]]:
    """The fields of a DDL text in which dots lead into columns (`tags.key STRING`). Raises ValueError."""
    return _Parser(text).fields()


def format_columns(schema: Iterable[pa.Field]) -> str:
    """DDL that `parse_columns` reads as these columns."""
    return ", ".join(f"{_quoted(field.name)} {format_type(field.type)}" for field in schema)


def format_type(kind: pa.DataType) -> str:
    """A type as DDL. Raises ValueError for one that Spark has no name for."""
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
        raise ValueError(f"{kind} is no type that Spark has")
    return _NAMES[kind]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """Recursive descent; `_word` and `_mark` are the token at hand, both empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._advance()

    def fields(self) -> list[tuple[Path, pa.DataType]]:
        found: list[tuple[Path, pa.DataType]] = []
        seen: set[Path] = set()
        while not self._ended:
            path = self._path()
            if path in seen:
                raise ValueError(f"column {'.'.join(path)!r} is there twice")
            seen.add(path)
            self._take(":")
            found.append((path, self._type()))
            self._extras()
            if not self._take(",") and not self._ended:
                raise self._unexpected("a comma")
        return found

    def _path(self) -> Path:
        path = [self._name()]
        while self._take("."):
            path.append(self._name())
        return tuple(path)

    def _type(self) -> pa.DataType:
        word = self._name("a type").lower()
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            return self._within(lambda: pa.list_(self._type()))
        if word == "map":
            return self._within(self._map)
        if word == "struct":
            return self._within(self._struct)
        if word not in _SIMPLE:
            known = ", ".join(sorted({*_SIMPLE, "decimal(p, s)", "array<>", "map<>", "struct<>"})).upper()
            raise ValueError(f"{word.upper()!r} is not a type that is known here; there are {known}")
        if word in ("varchar", "char", "character") and self._take("("):
            self._number()
            self._expect(")")
        return _SIMPLE[word]

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(
                f"DECIMAL({precision}, {scale}) has more digits than it may; at most 38, scale within them"
            )
        return pa.decimal128(precision, scale)

    def _map(self) -> pa.DataType:
        key = self._type()
        self._expect(",")
        return pa.map_(key, self._type())

    def _struct(self) -> pa.DataType:
        parts = []
        while not self._is(">"):
            name = self._name()
            self._take(":")
            parts.append(pa.field(name, self._type()))
            self._extras()
            if not self._take(",") and not self._is(">"):
                raise self._unexpected("a comma or >")
        if len({part.name for part in parts}) < len(parts):
            raise ValueError("a STRUCT has a field twice")
        return pa.struct(parts)

    def _within(self, inner: Callable[[], pa.DataType]) -> pa.DataType:
        self._expect("<")
        kind = inner()
        self._expect(">")
        return kind

    def _extras(self) -> None:
        """NOT NULL and COMMENT 'text': what is read may be null, and comments are for people."""
        if self._keyword("not") and not self._keyword("null"):
            raise self._unexpected("NULL")
        if self._keyword("comment"):
            if self._kind != "text":
                raise self._unexpected("a text in quotes")
            self._advance()

    # tokens

    @staticmethod
    def _split(text: str) -> Iterator[tuple[str, str]]:
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place) or _UNICODE_NAME.match(text, place)
            if found is None:
                raise ValueError(f"{text[place : place + 20]!r} is not expected there")
            place = found.end()
            if found.re is _UNICODE_NAME:
                yield "name", found[1]
            elif found[1] is not None:
                yield "quoted", found[1].replace("``", "`")
            elif found[2] is not None:
                wide = _UNICODE_NAME.match(text, found.start(2))  # a name that goes on in other letters
                assert wide is not None
                place = wide.end()
                yield "name", wide[1]
            elif found[3] is not None:
                yield "text", found[3]
            else:
                yield "mark", found[4]

    def _advance(self) -> None:
        self._kind, self._value = next(self._tokens, ("end", ""))

    @property
    def _ended(self) -> bool:
        return self._kind == "end"

    def _is(self, mark: str) -> bool:
        return self._kind == "mark" and self._value == mark

    def _take(self, mark: str) -> bool:
        if not self._is(mark):
            return False
        self._advance()
        return True

    def _keyword(self, word: str) -> bool:
        if self._kind != "name" or self._value.lower() != word:
            return False
        self._advance()
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._unexpected(mark)

    def _name(self, what: str = "a name") -> str:
        if self._kind not in ("name", "quoted"):
            raise self._unexpected(what)
        name = self._value
        self._advance()
        return name

    def _number(self) -> int:
        if self._kind != "name" or not self._value.isdecimal():
            raise self._unexpected("a number")
        number = int(self._value)
        self._advance()
        return number

    def _unexpected(self, wanted: str) -> ValueError:
        found = "the end" if self._ended else repr(self._value)
        return ValueError(f"expected {wanted}, found {found} in {self._text!r}")
