"""Texts that name columns: with types, as in Spark's DDL, and with transforms, as in `partitionBy`.

`id BIGINT, tags.key STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>`: Spark itself parses DDL only in a JVM, which the
process that is asked for a schema does not have. `day(ts), bucket(16, id), country`: the words of Iceberg, singular or,
as in Spark, plural. No pyarrow: `schema.columns` turns the result into Arrow types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shard_store.redaction import quote

Path = tuple[str, ...]
"""The names that lead to a field: `("tags", "key")`. `element`, `key` and `value` are the parts of arrays and maps."""

SIMPLE_TYPES = {
    "boolean": "boolean",
    **dict.fromkeys(("tinyint", "byte"), "tinyint"),
    **dict.fromkeys(("smallint", "short"), "smallint"),
    **dict.fromkeys(("int", "integer"), "int"),
    **dict.fromkeys(("bigint", "long"), "bigint"),
    **dict.fromkeys(("float", "real"), "float"),
    "double": "double",
    **dict.fromkeys(("string", "varchar", "char", "character"), "string"),
    "binary": "binary",
    "date": "date",
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "timestamp"),
    "timestamp_ntz": "timestamp_ntz",
}
"""Every name of a type without parts, and the one name that it has in `DdlType`."""

_TOKEN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)*)`|(?P<name>\w+)|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<mark>[<>(),:.]))", re.DOTALL
)
_DECIMALS = ("decimal", "dec", "numeric")


class DdlType(NamedTuple):
    """A type: `name` in small letters; `parts` of arrays, maps and structs, `fields` the names of a struct's parts."""

    name: str
    parts: tuple[DdlType, ...] = ()
    fields: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0


def parse_fields(text: str) -> list[tuple[Path, DdlType]]:
    """Parse the fields of a DDL text in which dots lead into columns (`tags.key STRING`). Raises ValueError."""
    return _Parser(text).fields()


class _Parser:
    """Recursive descent; `_word` and `_mark` are the token at hand, both empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._advance()

    def fields(self) -> list[tuple[Path, DdlType]]:
        fields: list[tuple[Path, DdlType]] = []
        seen: set[Path] = set()
        while not self._ended:
            names = [self._name()]
            while self._take("."):
                names.append(self._name())
            path = tuple(names)
            if path in seen:
                raise ValueError(f"column {'.'.join(path)!r} is there twice")
            seen.add(path)
            self._take(":")
            fields.append((path, self._type()))
            self._extras()
            if not self._take(",") and not self._ended:
                raise self._unexpected("a comma")
        return fields

    def _type(self) -> DdlType:
        word = self._name("a type").lower()
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            return self._within(lambda: DdlType("array", (self._type(),)))
        if word == "map":
            return self._within(self._map)
        if word == "struct":
            return self._within(self._struct)
        if word not in SIMPLE_TYPES:
            names_of_types = ", ".join(sorted({*SIMPLE_TYPES, "decimal(p, s)", "array<>", "map<>", "struct<>"})).upper()
            raise ValueError(f"{word.upper()!r} is not a type that is known here; write one of {names_of_types}")
        if word in ("varchar", "char", "character") and self._take("("):
            self._number()
            self._expect(")")
        return DdlType(SIMPLE_TYPES[word])

    def _decimal(self) -> DdlType:
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
        return DdlType("decimal", precision=precision, scale=scale)

    def _map(self) -> DdlType:
        key = self._type()
        self._expect(",")
        return DdlType("map", (key, self._type()))

    def _struct(self) -> DdlType:
        names: list[str] = []
        parts: list[DdlType] = []
        while not self._is(">"):
            names.append(self._name())
            self._take(":")
            parts.append(self._type())
            self._extras()
            if not self._take(",") and not self._is(">"):
                raise self._unexpected("a comma or >")
        if len(set(names)) < len(names):
            raise ValueError("a STRUCT has a field twice")
        return DdlType("struct", tuple(parts), tuple(names))

    def _within(self, inner: Callable[[], DdlType]) -> DdlType:
        self._expect("<")
        kind = inner()
        self._expect(">")
        return kind

    def _extras(self) -> None:
        """Skip NOT NULL and COMMENT 'text': read values may be null, and comments are for people."""
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
            token = _TOKEN.match(text, place)
            if token is None or token.lastgroup is None:
                raise ValueError(f"{text[place : place + 20]!r} is not expected there")
            place = token.end()
            yield token.lastgroup, token[token.lastgroup]

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
        name = self._value if self._kind == "name" else self._value.replace("``", "`")
        self._advance()
        return name

    def _number(self) -> int:
        if self._kind != "name" or not self._value.isdecimal():
            raise self._unexpected("a number")
        number = int(self._value)
        self._advance()
        return number

    def _unexpected(self, expected: str) -> ValueError:
        actual = "the end" if self._ended else repr(self._value)
        return ValueError(f"expected {expected}, found {actual} in {self._text!r}")


# partitioning

_TIMES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
_FIELD = re.compile(
    r"\s*(?:(?P<name>[A-Za-z]+)\s*\(\s*(?:(?P<size>[0-9]{1,9})\s*,\s*)?(?P<of>[^(),]+?)\s*\)|(?P<column>[^(),]+?))\s*(?:,|$)"
)


class PartitionField(NamedTuple):
    """One field: `transform` is `identity`, `year`, `month`, `day`, `hour`, `bucket` or `truncate` (of `size`)."""

    transform: str
    column: str
    size: int = 0

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.size}, ' if self.size else ''}{self.column})"


def parse_partitioning(text: str) -> tuple[PartitionField, ...]:
    """Parse `partitionBy`. Raises ValueError with the part that is not understood."""
    fields: list[PartitionField] = []
    place = 0
    while place < len(text.rstrip()):
        field: PartitionField | None = None
        if (match := _FIELD.match(text, place)) is not None:
            name, of, size = (match["name"] or "").lower(), match["of"], match["size"]
            if match["column"]:
                field = PartitionField("identity", match["column"])
            elif name.removesuffix("s") in _TIMES and size is None:
                field = PartitionField(name.removesuffix("s"), of)
            elif name == "identity" and size is None:
                field = PartitionField(name, of)
            elif name in _SIZED and int(size or 0):
                field = PartitionField(name, of, int(size))
        if match is None or field is None:
            raise ValueError(
                f"{quote(text[place:].strip())} is no partitioning; write columns or transforms of them, separated by "
                "commas, as in day(ts), bucket(16, id), country"
            )
        fields.append(field)
        place = match.end()
    if text.rstrip().endswith(",") or len(set(fields)) < len(fields):
        raise ValueError(f"{quote(text)} holds an empty field or one twice; write each once, as in day(ts), country")
    return tuple(fields)
