"""Thrift's compact form, in which a Parquet footer is written, as plain values.

pyarrow's own accessors of row groups, which PyIceberg uses, end the process on an impossible footer.
"""

from __future__ import annotations

from typing import Any

from queue_source.formats.typed.tables import read_varint, without_zigzag

_DEPTH = 64  # of values within values, as Thrift itself
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def parse_struct(data: bytes) -> dict[int, Any]:
    """Return the values of a struct by their field numbers, structs in it likewise; raises ValueError, IndexError."""
    return _Reader(data).struct(0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        values: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else without_zigzag(self._varint())
            kind = head & 0x0F
            values[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("the footer has no end of structs")
        if kind in (_I16, _I32, _I64):
            return without_zigzag(self._varint())
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._count(head >> 4 if head < 0xF0 else self._varint())
            return [self._value(head & 0x0F, depth + 1) for _ in range(size)]
        if kind == _MAP:
            size = self._count(self._varint())
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(size)]
        if kind in (_TRUE, _FALSE, _BYTE):  # of lists: fields that are true or false have no further bytes
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise ValueError("the footer has a type that there is not")

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        value, self._place = read_varint(self._data, self._place)
        return value & ((1 << 64) - 1)  # ten bytes of seven bits are more: pyarrow drops the rest

    def _count(self, size: int) -> int:
        if size > len(self._data):
            raise ValueError("the footer has more values than bytes")
        return size

    def _bytes(self, size: int) -> bytes:
        start, self._place = self._place, self._place + size
        if self._place > len(self._data):
            raise ValueError("the footer ends within a text")
        return self._data[start : self._place]
