"""Where a Parquet footer says that the columns of its row groups are.

pyarrow's accessors of a footer end the whole process where a column of it says what cannot be, so none of them is
called: we read where the columns are ourselves, and pyarrow says what is wrong with them where it can raise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from queue_source.formats.typed.parquet_thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I32,
    I64,
    LIST,
    MAP,
    OF_64_BITS,
    SET,
    STRUCT,
    TRUE,
    WHOLE_OR_BINARY,
    forms,
    signed,
    varint,
)

_DEPTH = 64  # of structs, as Thrift itself


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
            found = self._columns[number] = Column(*map(signed, found.groups(b"\0")))
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
    walk = Walk(data)
    _, schema, rest = _last
    groups: list[RowGroup] = []
    for number, kind in walk.fields():
        start = walk.place
        if number == 4 and kind == LIST:
            groups = [_row_group(walk) for _ in range(walk.length(STRUCT))]
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


def _row_group(walk: Walk) -> RowGroup:
    group, form = RowGroup(), forms().column
    for number, kind in walk.fields():
        if (number, kind) == (1, LIST):
            for _ in range(walk.length(STRUCT)):
                usual = form.match(walk.data, walk.place)
                if usual is not None:
                    walk.place = usual.end()
                    group.add(usual)
                else:
                    group.add(_column(walk))
        elif (number, kind) == (3, I64):
            group.rows = walk.number()
        else:
            walk.skip(kind)
    return group


def _column(walk: Walk) -> Column:
    said: dict[tuple[int, int], int] = {}
    for number, kind in walk.fields():
        if (number, kind) == (3, STRUCT):
            for inner in walk.fields():
                if inner[1] in (I32, I64):
                    said[inner] = walk.number()
                else:
                    walk.skip(inner[1])
        else:
            walk.skip(kind)
    places = ((4, I32), (6, I64), (7, I64), (9, I64), (11, I64))
    return Column(*[said.get(place, 0) for place in places])


class Walk:
    """A place in some bytes, which moves on."""

    __slots__ = ("_struct", "data", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self._struct = forms().struct

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
        if kind in WHOLE_OR_BINARY:
            size = self._varint()
            self.place += size if kind == BINARY else 0
        elif kind == STRUCT:
            if usual := self._struct.match(self.data, self.place):
                self.place = usual.end()
                return
            if depth > _DEPTH:
                raise ValueError("the footer has no end of structs")
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (LIST, SET):
            head = self.data[self.place]
            self.place += 1
            for _ in range(head >> 4 if head < 0xF0 else self._size()):
                self._skip_item(head & 0x0F, depth)
        elif kind == MAP:
            if size := self._size():
                types = self.data[self.place]
                self.place += 1
                for _ in range(size):
                    self._skip_item(types >> 4, depth)
                    self._skip_item(types & 0x0F, depth)
        elif kind in (BYTE, DOUBLE):
            self.place += 1 if kind == BYTE else 8
        elif kind not in (TRUE, FALSE):  # there is nothing more of these
            raise ValueError("the footer has a type that there is not")

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (TRUE, FALSE):
            self.place += 1
        else:
            self.skip(kind, depth + 1)

    def _varint(self) -> int:
        value, self.place = varint(self.data, self.place)
        return value & OF_64_BITS

    def _size(self) -> int:
        size = self._varint()
        if size > len(self.data):
            raise ValueError("the footer has more values than bytes")
        return size

    def text(self) -> bytes:
        """The bytes of a value of type BINARY. Raises ValueError where the footer ends before them."""
        size = self._size()
        start, self.place = self.place, self.place + size
        if self.place > len(self.data):
            raise ValueError("the footer ends within a text")
        return self.data[start : self.place]
