"""Thrift's compact form, in which a Parquet footer is written: a walk over the fields of a struct.

pyarrow's own accessors of row groups end the process on an impossible footer, and PyIceberg uses these.
"""

from __future__ import annotations

from collections.abc import Iterator

from queue_source.formats.varints import read_varint, without_zigzag

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Types of fields and items."""
WHOLE_OR_BINARY = (I16, I32, I64, BINARY)
"""Types whose values begin with a number."""
_OF_64_BITS = (1 << 64) - 1  # ten bytes of seven bits are more: pyarrow drops the rest
_DEPTH = 64  # of structs, as Thrift itself


class Walk:
    """A place in some bytes, which moves forward."""

    __slots__ = ("data", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and type of each field of a struct; the caller moves over its value."""
        number = 0
        while kind := self.data[self.place] & 0x0F:
            delta = self.data[self.place] >> 4
            self.place += 1
            number = number + delta if delta else self.number()
            yield number, kind
        self.place += 1

    def number(self) -> int:
        value = self._varint()
        return without_zigzag(value)

    def length(self, kind: int) -> int:
        """Read the length of a list; raise ValueError where its values are of another type."""
        head = self.data[self.place]
        self.place += 1
        if head & 0x0F != kind:
            raise ValueError("a list of the footer is not of structs")
        return head >> 4 if head < 0xF0 else self._size()

    def skip(self, kind: int, depth: int = 0) -> None:
        """Move over the value of a field."""
        if kind in WHOLE_OR_BINARY:
            size = self._varint()
            self.place += size if kind == BINARY else 0
        elif kind == STRUCT:
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
        elif kind not in (TRUE, FALSE):  # these have no further bytes
            raise ValueError("the footer has a type that there is not")

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (TRUE, FALSE):
            self.place += 1
        else:
            self.skip(kind, depth + 1)

    def _varint(self) -> int:
        value, self.place = read_varint(self.data, self.place)
        return value & _OF_64_BITS

    def _size(self) -> int:
        size = self._varint()
        if size > len(self.data):
            raise ValueError("the footer has more values than bytes")
        return size

    def text(self) -> bytes:
        """Read a value of type BINARY. Raises ValueError where the footer ends before it does."""
        size = self._size()
        start, self.place = self.place, self.place + size
        if self.place > len(self.data):
            raise ValueError("the footer ends within a text")
        return self.data[start : self.place]
