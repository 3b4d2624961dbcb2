"""Reads the facts about an ORC file that pyarrow hides: its stripes, the zones of their writers, and its calendar.

A stripe can be read as a file of its own: the bytes of the stripe, and a new footer, whose zone is GMT. So a stripe is
decoded in batches of bounded size, and its times are read as they are written, before any zone is applied to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from queue_source.formats.typed.files import ArrowReadable
from queue_source.formats.varints import read_varint, snappy_length, written_varint
from queue_source.storage.files import ObjectFile

TIMESTAMP, LIST, MAP, STRUCT, DECIMAL, DATE, CHAR = 9, 10, 11, 12, 14, 15, 17
SMALL = 1 << 20
"""Bytes of the largest stripe that is fetched as a whole, in one request, also where not all of it is needed."""
_CUT_OFF = "a footer is cut off"
_PROLEPTIC = 2
_MAGIC = b"ORC"
_CODECS = {2: "snappy", 4: "lz4_raw", 5: "zstd"}
_ZLIB = 1
_USUAL = 1024
Fields = list[tuple[int, "int | bytes"]]


@dataclass(frozen=True, slots=True)
class OrcType:
    """A type of the file: its kind, the numbers of the types within it, and the names of the fields of a struct."""

    kind: int
    inner: tuple[int, ...]
    names: tuple[str, ...]
    precision: int


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe is: its first byte, the lengths of its three parts, and how many rows it says it has."""

    offset: int
    index: int
    data: int
    footer: int
    rows: int


class OrcFile:
    """The structure of a file. Raises ValueError and what codecs raise where it is damaged."""

    def __init__(self, file: ObjectFile, tail: bytes) -> None:
        self._file = file
        sections = dict(parse(tail))
        postscript, footer = parse(_bytes(sections[1])), parse(_bytes(sections[2]))
        self._footer = footer
        values = dict(postscript)
        self._compression = _int(values.get(2, 0))
        self._block = _int(values.get(3, 256 << 10))
        self._writer = [(number, value) for number, value in postscript if number in (4, 6)]
        self.types = [_type(_bytes(value)) for number, value in footer if number == 4]
        self.stripes = [_stripe(_bytes(value)) for number, value in footer if number == 3]
        self.is_hybrid = _int(dict(footer).get(11, 0)) != _PROLEPTIC

    def alone(self, stripe: Stripe) -> tuple[pa.NativeFile, str]:
        """Build a file of this stripe only, whose zone is GMT: so its times are decoded as they are written.

        Returns the zone of its writer, too ("": unknown). A small one is fetched in one request. Of a large one,
        pyarrow reads what the columns need.
        """
        footer = parse(self._plain(self._at(stripe.offset + stripe.index + stripe.data, stripe.footer)))
        zone = _bytes(dict(footer).get(3, b"")).decode()
        of_stripe = self._framed(written([*((number, value) for number, value in footer if number != 3), (3, b"GMT")]))
        end = len(_MAGIC) + stripe.index + stripe.data + len(of_stripe)
        where = written([(1, len(_MAGIC)), (2, stripe.index), (3, stripe.data), (4, len(of_stripe)), (5, stripe.rows)])
        types = [(number, value) for number, value in self._footer if number == 4]
        tail = self._framed(written([(1, len(_MAGIC)), (2, end), (3, where), *types, (6, stripe.rows), (8, 0)]))
        postscript = written(
            [(1, len(tail)), (2, self._compression), (3, self._block), *self._writer, (5, 0), (8000, _MAGIC)]
        )
        after = of_stripe + tail + postscript + bytes([len(postscript)])
        length = stripe.index + stripe.data
        if length <= SMALL:
            with pa.BufferOutputStream() as sink:  # not bytes: pyarrow's threads may end without Python
                sink.write(_MAGIC + self._at(stripe.offset, length) + after)
                return pa.BufferReader(sink.getvalue()), zone
        return pa.PythonFile(StripeFile(self._file, stripe.offset, length, after), "r"), zone

    def _framed(self, data: bytes) -> bytes:
        """Frame data as a compressed stream, marked as not compressed."""
        return (len(data) << 1 | 1).to_bytes(3, "little") + data if self._compression else data

    def _plain(self, data: bytes) -> bytes:
        if not self._compression:
            return data
        pieces, place = [], 0
        while place < len(data):
            header = int.from_bytes(data[place : place + 3], "little")
            piece = data[place + 3 : place + 3 + (header >> 1)]
            place += 3 + (header >> 1)
            pieces.append(piece if header & 1 else self._decompressed(piece))
        return b"".join(pieces)

    def _decompressed(self, piece: bytes) -> bytes:
        if self._compression == _ZLIB:
            return zlib.decompressobj(-15).decompress(piece, self._block)
        if self._compression == 5:
            with pa.CompressedInputStream(pa.BufferReader(piece), "zstd") as stream:
                return bytes(stream.read(self._block))
        codec = _CODECS.get(self._compression)
        if codec is None:
            raise ValueError(f"its compression {self._compression} is not supported; write it with zstd or snappy")
        size = self._block
        if codec == "snappy":
            size = snappy_length(piece, _CUT_OFF)
            if size > self._block:
                raise ValueError("a footer is larger than a block")
        if codec == "lz4_raw":
            return _lz4(piece, size)
        plain: bytes = pa.Codec(codec).decompress(piece, size, asbytes=True)
        return plain

    def _at(self, place: int, length: int) -> bytes:
        if place < 0 or length < 0 or place + length > self._file.size():
            raise ValueError("a stripe lies beyond the end of the file")
        self._file.seek(place)
        return self._file.read(length)


def _lz4(piece: bytes, size: int) -> bytes:
    """Decompress a block of LZ4, which does not have its length: as a frame of one block."""
    frame = b"\x04\x22\x4d\x18\x60\x70\x73" + len(piece).to_bytes(4, "little") + piece + bytes(4)
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        return bytes(stream.read(size))


class StripeFile(ArrowReadable):
    """The file of one stripe, for pyarrow: its bytes are read from the object when they are asked for."""

    def __init__(self, file: ObjectFile, offset: int, length: int, after: bytes) -> None:
        super().__init__(len(_MAGIC) + length + len(after))
        self._file, self._offset, self._length, self._after = file, offset, length, after

    def read(self, size: int) -> bytes:
        pieces = []
        while size > 0 and (piece := self._piece(size)):
            pieces.append(piece)
            self.place += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _piece(self, size: int) -> bytes:
        inside = self.place - len(_MAGIC)
        if inside < 0:
            return _MAGIC[self.place : self.place + size]
        if inside < self._length:
            self._file.seek(self._offset + inside)
            return self._file.read(min(size, self._length - inside))
        return self._after[inside - self._length :][:size]


def _type(data: bytes) -> OrcType:
    return _usual_type(data) if len(data) < _USUAL else _parsed_type(data)


@lru_cache(maxsize=1024)
def _usual_type(data: bytes) -> OrcType:
    """Parse a type of a usual size: many files have the same ones."""
    return _parsed_type(data)


def _parsed_type(data: bytes) -> OrcType:
    fields = parse(data)
    inner: list[int] = []
    for number, value in fields:
        if number == 2:
            inner += _packed(value)
    names = tuple(_bytes(value).decode() for number, value in fields if number == 3)
    values = dict(fields)
    return OrcType(_int(values.get(1, 0)), tuple(inner), names, _int(values.get(5, 0)))


def _stripe(data: bytes) -> Stripe:
    values = dict(parse(data))
    return Stripe(
        offset=_int(values.get(1, 0)),
        index=_int(values.get(2, 0)),
        data=_int(values.get(3, 0)),
        footer=_int(values.get(4, 0)),
        rows=_int(values.get(5, 0)),
    )


def _packed(value: int | bytes) -> list[int]:
    if isinstance(value, int):
        return [value]
    numbers, place = [], 0
    while place < len(value):
        number, place = read_varint(value, place, _CUT_OFF)
        numbers.append(number)
    return numbers


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is missing in a footer")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a part of a footer is missing")
    return value


def parse(data: bytes) -> Fields:
    """Parse the fields of a message of Protocol Buffers, in their order. Raises ValueError."""
    fields: Fields = []
    place = 0
    while place < len(data):
        key, place = read_varint(data, place, _CUT_OFF)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = read_varint(data, place, _CUT_OFF)
            fields.append((number, value))
            continue
        if wire == 2:
            length, place = read_varint(data, place, _CUT_OFF)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError("a footer is damaged")
        if length > len(data) - place:
            raise ValueError(_CUT_OFF)
        if wire == 2:
            fields.append((number, data[place : place + length]))
        place += length
    return fields


def written(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """Write a message of such fields."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += written_varint(number << 3) + written_varint(value)
        else:
            out += written_varint(number << 3 | 2) + written_varint(len(value)) + value
    return bytes(out)
