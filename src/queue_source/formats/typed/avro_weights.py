"""How much there is in a block of Avro, counted before it is decoded.

A byte may stand for a record of a thousand nulls, and no byte for a billion of them; a record within itself may be
deeper than a decoder's stack. Where a look at the types says that a block cannot become large, nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queue_source.formats.typed.avro_types import Types
from queue_source.formats.typed.limits import INDIVISIBLE, Limits

CELL = 100
"""Bytes that a decoded value takes, roughly: the value, and its place in what holds it."""
_RECORD = INDIVISIBLE // CELL
_WORST = 1 << 60
_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
Skip = Callable[[bytes, int], int]


class Weights:
    """What the types of an object may become."""

    def __init__(self, types: Types, limits: Limits) -> None:
        self._types = types
        self._limits = limits
        self._skips: dict[str, Skip] = {}
        self._measured: dict[str, tuple[int, int]] = {}
        self._left = 0
        self._per_byte = 1  # the largest number of values that a byte may stand for
        self._size, self._cells = self._measure(types.decoded)
        if self._size:
            self._per(self._size, self._cells)
        self._skip = self._skipper(types.decoded)

    def of(self, records: int, data: bytes) -> int:
        """Bytes that a block takes at most when it is decoded. Raises ValueError where it has too few bytes."""
        if records * self._size > len(data):
            raise ValueError("a block has fewer bytes than its records need")
        self._limits.check_empty(0 if self._size else records)
        return CELL * max(self._per_byte * len(data), records * self._cells)

    def of_record(self, data: bytes, place: int) -> tuple[int, int]:
        """Where the record at a place ends, and the bytes that it takes when it is decoded.

        Raises BadObject for one that is too large, ValueError for one with too many levels.
        """
        self._left = _RECORD
        try:
            end = self._skip(data, place)
        except RecursionError as error:
            raise ValueError("a record has too many levels") from error
        return end, (_RECORD - self._left) * CELL + end - place

    def _measure(self, schema: Any) -> tuple[int, int]:
        """The fewest bytes of a value, and the values in it (besides what is in arrays and maps)."""
        if isinstance(schema, list):
            found = [self._measure(one) for one in schema]
            return 1 + min((size for size, _ in found), default=0), max((cells for _, cells in found), default=1)
        schema = self._types.definition(schema)
        kind = schema["type"]
        if kind == "record":
            name = schema["name"]
            if name not in self._measured:
                self._measured[name] = (0, _WORST)  # within itself: no limit
                inner = [self._measure(field["type"]) for field in schema["fields"]]
                self._measured[name] = sum(size for size, _ in inner), 3 + sum(cells for _, cells in inner)
            return self._measured[name]
        if kind in ("array", "map"):
            size, cells = self._measure(schema["items" if kind == "array" else "values"])
            self._per(size + (kind == "map"), cells + 1)
            return 1, 2
        return (schema["size"] if kind == "fixed" else _SIZES[kind]), 1

    def _per(self, size: int, cells: int) -> None:
        self._per_byte = max(self._per_byte, -(-cells // size) if size else _WORST)

    def _skipper(self, schema: Any) -> Skip:
        """A function that finds the end of a value, and counts."""
        if isinstance(schema, list):
            return self._skip_union([self._skipper(one) for one in schema])
        schema = self._types.definition(schema)
        kind = schema["type"]
        if kind == "record":
            return self._skip_record(schema)
        if kind in ("array", "map"):
            return self._skip_items(schema, kind)
        if kind in ("bytes", "string"):
            return self._counted(_skip_counted)
        if kind in ("int", "long", "enum"):
            return self._counted(lambda data, place: _number(data, place)[1])
        size = schema["size"] if kind == "fixed" else _FIXED[kind]
        return self._counted(lambda data, place: place + size)

    def _count(self, cells: int) -> None:
        self._left -= cells
        if self._left < 0:
            self._limits.check_indivisible((_RECORD - self._left) * CELL, "a record")

    def _counted(self, skip: Skip) -> Skip:
        def counted(data: bytes, place: int) -> int:
            self._count(1)
            return skip(data, place)

        return counted

    def _skip_record(self, schema: Any) -> Skip:
        name = schema["name"]
        if name not in self._skips:
            self._skips[name] = lambda data, place: self._skips[name](data, place)  # within itself
            fields = [self._skipper(field["type"]) for field in schema["fields"]]

            def skip(data: bytes, place: int) -> int:
                self._count(3)
                for field in fields:
                    place = field(data, place)
                return place

            self._skips[name] = skip
        return self._skips[name]

    def _skip_union(self, members: list[Skip]) -> Skip:
        def skip(data: bytes, place: int) -> int:
            index, place = _number(data, place)
            return members[index](data, place)

        return skip

    def _skip_items(self, schema: Any, kind: str) -> Skip:
        items = schema["items" if kind == "array" else "values"]
        size, cells = self._measure(items)
        item = self._skipper(items)

        def skip(data: bytes, place: int) -> int:
            self._count(2)
            while True:
                count, place = _number(data, place)
                if not count:
                    return place
                if count < 0:
                    count, (_, place) = -count, _number(data, place)
                if kind == "array" and not size:  # nothing is written of them
                    self._count(count * cells)
                    continue
                for _ in range(count):
                    if kind == "map":
                        place = _skip_counted(data, place)
                    place = item(data, place)

        return skip


def _skip_counted(data: bytes, place: int) -> int:
    length, place = _number(data, place)
    if not 0 <= length <= len(data) - place:
        raise ValueError("a text ends beyond its block")
    return place + length


def _number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
    raise ValueError("a number has no end")
