"""What we need of the structs of a Parquet file, which are in Thrift's compact form: its footer, and headers of pages.

pyarrow's accessors of a footer end the whole process where a column of it says what cannot be, so none of them is
called: we read where the columns are ourselves, and pyarrow says what is wrong with them where it can raise it.

Structs as most writers write them are recognized by one regular expression each, which is quicker than any loop here;
all others are walked. Nothing else is different about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE_OR_BINARY = (_I16, _I32, _I64, _BINARY)  # these begin with a number
_DEPTH = 64  # of structs, as Thrift itself
_OF_64_BITS = (1 << 64) - 1  # ten bytes of seven bits are more: pyarrow drops the rest


class Column(NamedTuple):
    """What the footer says of a column of a row group."""

    codec: int
    decoded: int
    stored: int
    data_page: int
    dictionary_page: int

    @property
    def start(self) -> int:
        """Where its first page is."""
        return self.dictionary_page if 0 < self.dictionary_page < self.data_page else self.data_page


class RowGroup:
    """What the footer says of a row group."""

    __slots__ = ("_columns", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._columns: list[Column | re.Match[bytes]] = []

    def __len__(self) -> int:
        return len(self._columns)

    def column(self, number: int) -> Column:
        """Raises IndexError where there are fewer columns."""
        found = self._columns[number]
        if not isinstance(found, Column):
            found = self._columns[number] = Column(*map(_signed, found.groups(b"\0")))
        return found

    def add(self, column: Column | re.Match[bytes]) -> None:
        self._columns.append(column)


class Footer(NamedTuple):
    """What a footer says.

    Attributes:
        schema: The columns, as they are written.
        rest: All that is after the row groups, such as the pairs of metadata.
    """

    groups: list[RowGroup]
    schema: bytes
    rest: bytes


_last = Footer([], b"", b"")
"""The ends of the last footer: of thousands of files all may have the same, which need not be walked again."""


def read_footer(data: bytes) -> Footer:
    """A footer that pyarrow has accepted. Raises ValueError, IndexError."""
    global _last
    walk = _Walk(data)
    _, schema, rest = _last
    groups: list[RowGroup] = []
    for number, kind in walk.fields():
        start = walk.place
        if number == 4 and kind == _LIST:
            groups = [_row_group(walk) for _ in range(walk.length(_STRUCT))]
            if len(data) - walk.place == len(rest) and data.endswith(rest):
                break
            rest = data[walk.place :]
        elif number == 2 and schema and data.startswith(schema, start):
            walk.place += len(schema)
        else:
            walk.skip(kind)
            if number == 2:
                schema = data[start : walk.place]
    _last = Footer([], schema, rest)
    return Footer(groups, schema, rest)


def _row_group(walk: _Walk) -> RowGroup:
    group, form = RowGroup(), _forms().column
    for number, kind in walk.fields():
        if (number, kind) == (1, _LIST):
            for _ in range(walk.length(_STRUCT)):
                usual = form.match(walk.data, walk.place)
                if usual is not None:
                    walk.place = usual.end()
                    group.add(usual)
                else:
                    group.add(_column(walk))
        elif (number, kind) == (3, _I64):
            group.rows = walk.number()
        else:
            walk.skip(kind)
    return group


def _column(walk: _Walk) -> Column:
    said: dict[tuple[int, int], int] = {}
    for number, kind in walk.fields():
        if (number, kind) == (3, _STRUCT):
            for inner in walk.fields():
                if inner[1] in (_I32, _I64):
                    said[inner] = walk.number()
                else:
                    walk.skip(inner[1])
        else:
            walk.skip(kind)
    places = ((4, _I32), (6, _I64), (7, _I64), (9, _I64), (11, _I64))
    return Column(*[said.get(place, 0) for place in places])


class _Walk:
    """A place in some bytes, which moves on."""

    __slots__ = ("_struct", "data", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self._struct = _forms().struct

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and type of each field of a struct; the caller moves on over its value."""
        number = 0
        while kind := self.data[self.place] & 0x0F:
            delta = self.data[self.place] >> 4
            self.place += 1
            number = number + delta if delta else self.number()
            yield number, kind
        self.place += 1

    def number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def length(self, kind: int) -> int:
        """How many values a list has; ValueError where they are of another type."""
        head = self.data[self.place]
        self.place += 1
        if head & 0x0F != kind:
            raise ValueError("a list of the footer is not of structs")
        return head >> 4 if head < 0xF0 else self._size()

    def skip(self, kind: int, depth: int = 0) -> None:
        """Move on over the value of a field."""
        if kind in _WHOLE_OR_BINARY:
            size = self._varint()
            self.place += size if kind == _BINARY else 0
        elif kind == _STRUCT:
            if usual := self._struct.match(self.data, self.place):
                self.place = usual.end()
                return
            if depth > _DEPTH:
                raise ValueError("the footer has no end of structs")
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            head = self.data[self.place]
            self.place += 1
            for _ in range(head >> 4 if head < 0xF0 else self._size()):
                self._skip_item(head & 0x0F, depth)
        elif kind == _MAP:
            if size := self._size():
                types = self.data[self.place]
                self.place += 1
                for _ in range(size):
                    self._skip_item(types >> 4, depth)
                    self._skip_item(types & 0x0F, depth)
        elif kind in (_BYTE, _DOUBLE):
            self.place += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):  # there is nothing more of these
            raise ValueError("the footer has a type that there is not")

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            self.place += 1
        else:
            self.skip(kind, depth + 1)

    def _varint(self) -> int:
        value, self.place = varint(self.data, self.place)
        return value & _OF_64_BITS

    def _size(self) -> int:
        size = self._varint()
        if size > len(self.data):
            raise ValueError("the footer has more values than bytes")
        return size


class _Forms(NamedTuple):
    """How most writers write some structs.

    Attributes:
        struct: Any struct of plain fields, and a few structs in it, such as an element of the schema.
        column: A column of a row group; its groups are the attributes of `Column`.
        page: The header of a page, of each type with groups of its own: its sizes, and what is in `Page` after them.
    """

    struct: re.Pattern[bytes]
    column: re.Pattern[bytes]
    page: re.Pattern[bytes]


@cache
def _forms() -> _Forms:
    """Numbers of fields are written as steps from the one before, so no field passed over can be one that we read."""
    n = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    binary = b"(?:" + b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(128)) + b")"

    def field(*kinds: int) -> bytes:
        """The beginnings of fields of such types."""
        return b"[" + b"".join(rb"\x%02x" % (step << 4 | kind) for step in range(1, 16) for kind in kinds) + b"]"

    def list_of(kind: int, value: bytes, most: int) -> bytes:
        sizes = [rb"\x%02x(?:%b){%d}" % (size << 4 | kind, value, size) for size in range(1, most + 1)]
        return b"(?:" + b"|".join([*sizes, rb"\x%02x" % kind]) + b")"

    def any_of(*ways: bytes) -> bytes:
        return b"(?:" + b"|".join(ways) + b")"

    numbers, flags = field(_I16, _I32, _I64) + n, field(_TRUE, _FALSE)
    texts = field(_BINARY) + binary
    # nothing below is matched in two ways, which would take a time without end where it is not as usual
    statistics = any_of(texts, numbers, flags) + rb"*\x00"
    nested = field(_STRUCT) + any_of(numbers, flags) + rb"*\x00"
    for _ in range(2):
        nested = field(_STRUCT) + any_of(numbers, flags, nested) + rb"*\x00"
    struct = any_of(numbers, flags, texts, nested) + rb"*\x00"
    sizes = field(_STRUCT) + any_of(numbers, field(_LIST) + list_of(_I64, n, 14)) + rb"*\x00"
    counts = field(_LIST) + list_of(_STRUCT, rb"\x15%b\x15%b\x15%b\x00" % (n, n, n), 6)
    rest = any_of(numbers, counts, sizes, flags) + b"*"
    column = b"".join([
        rb"\x26", n, rb"\x1c\x15", n, rb"\x19", list_of(_I32, n, 6), rb"\x19", list_of(_BINARY, binary, 6),
        rb"\x15(", n, rb")\x16", n, rb"\x16(", n, rb")\x16(", n, rb")",  # codec, values, sizes
        rb"\x26(", n, rb")(?:\x26(", n, rb")|(?![\x10-\x2f]))(?:[\x1c\x3c]", statistics, b")?", rest,
        rb"\x00(?:", numbers, rb")*\x00",
    ])  # fmt: skip
    end = rb"(?:[\x1c\x2c]" + statistics + rb")?\x00\x00"
    sizes = rb"\x15(%b)\x15(%b)" % (n, n)
    page = rb"\x15" + any_of(
        rb"\x00%b(?:\x15%b\x1c|\x2c)\x15(%b)\x15(.)\x15.\x15(.)" % (sizes, n, n) + end,
        rb"\x04%b(?:\x15%b\x3c|\x4c)\x15(%b)\x15(.)[\x11\x12]?\x00\x00" % (sizes, n, n),
        rb"\x06%b(?:\x15%b\x4c|\x5c)\x15(%b)\x15%b\x15%b\x15(.)\x15%b\x15(%b)[\x11\x12]?" % (sizes, n, n, n, n, n, n)
        + end,
    )
    return _Forms(*[re.compile(form, re.DOTALL) for form in (struct, column, page)])


V1, DICTIONARY, V2 = 0, 2, 3
"""Types of pages."""
_OF_PAGES = {V1: (0x51, 0x52, 0x54), DICTIONARY: (0x71, 0x72, 0), V2: (0x81, 0x84, 0x86)}


class Page(NamedTuple):
    """What the header of a page says.

    Attributes:
        stored: Bytes of the page as it is stored, after its header.
        levels: Of V1 the encoding of the levels of repetition; of V2 how many bytes they have.
    """

    kind: int
    decoded: int
    stored: int
    values: int = 0
    encoding: int = 0
    levels: int = 0


def page_header(data: bytes) -> tuple[Page, int]:
    """The header of a page, and its length. Raises IndexError where there is more of it."""
    usual = _forms().page.match(data)
    if usual is None:
        found, length = _page_numbers(data)
        kind = found.get(1, 0)
        more = _OF_PAGES.get(kind, ())
        return Page(kind, found.get(2, 0), found.get(3, 0), *[found.get(number, 0) for number in more]), length
    last = usual.lastindex
    if last == 5:
        page = Page(V1, *map(_signed, usual.group(1, 2, 3, 4, 5)))
    elif last == 9:
        page = Page(DICTIONARY, *map(_signed, usual.group(6, 7, 8, 9)))
    else:
        page = Page(V2, *map(_signed, usual.group(10, 11, 12, 13, 14)))
    return page, usual.end()


def _page_numbers(data: bytes) -> tuple[dict[int, int], int]:
    """The whole numbers of a struct in Thrift's compact form, by number, and its length. Raises IndexError.

    Those of a struct in it are at 16 times the struct's number and theirs. What is deeper, or has larger numbers, is
    not needed of a page's header. Thousands of pages are common: one loop, without calls.
    """
    found: dict[int, int] = {}
    outer: list[tuple[int, int]] = []
    place = number = 0
    base = 0  # -1: nothing of it is wanted
    while True:
        kind = data[place] & 0x0F
        delta = data[place] >> 4
        place += 1
        if not kind:
            if not outer:
                return found, place
            base, number = outer.pop()
            continue
        if delta:
            number += delta
        else:
            value, place = varint(data, place)
            number = (value >> 1) ^ -(value & 1)
        known = base >= 0 and 0 < number < 16
        if kind in _WHOLE_OR_BINARY:
            value = data[place]
            place += 1
            if value > 0x7F:
                value, place = varint(data, place - 1)
            if kind == _BINARY:
                place += value
            elif known:
                found[base + number] = (value >> 1) ^ -(value & 1)
        elif kind == _STRUCT:
            if len(outer) >= 4:
                raise ValueError("a page has no header")
            outer.append((base, number))
            base = 16 * number if known and not base else -1
            number = 0
        elif kind in (_BYTE, _DOUBLE):
            place += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):  # there is nothing more of them
            raise ValueError("a page has no header")


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number has no end")


def _signed(data: bytes) -> int:
    """A number of which these are all bytes."""
    size = len(data)
    if size == 1:
        value = data[0]
    elif size == 2:
        value = data[0] & 0x7F | data[1] << 7
    elif size == 3:
        value = data[0] & 0x7F | (data[1] & 0x7F) << 7 | data[2] << 14
    else:
        value = varint(data, 0)[0] & _OF_64_BITS
    return (value >> 1) ^ -(value & 1)
