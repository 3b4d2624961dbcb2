"""The container of Avro objects: its header, and its blocks as bytes, decompressed.

The codecs are those that come with Python and pyarrow, so that an object never depends on what else is installed.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from queue_source.formats.typed.files import ReadAhead
from queue_source.formats.typed.limits import Limits
from queue_source.formats.varints import LONGEST, read_varint, snappy_length, without_zigzag
from queue_source.storage.files import ObjectFile

_MAGIC = b"Obj\x01"
_SYNC = 16
_AHEAD = 1 << 20
_HEADER = 16 << 20  # a schema is text, and has to be parsed


@dataclass(frozen=True, slots=True)
class Block:
    """Records one after the other, as Avro writes them."""

    records: int
    data: bytes


class Blocks:
    """An object of Avro: the schema with which it was written, and its blocks.

    Raises ValueError and what codecs raise where the object is damaged, BadObject beyond the limits.
    """

    def __init__(self, file: ObjectFile, limits: Limits) -> None:
        self._input = ReadAhead(file, _AHEAD)
        self._limits = limits
        if self._exactly(4) != _MAGIC:
            raise ValueError("it does not begin as Avro does")
        self.metadata: dict[str, bytes] = {}
        while count := self._number():
            if count < 0:
                self._number()  # bytes, to skip
            for _ in range(abs(count)):
                name = self._text().decode()
                self.metadata[name] = self._text()
        self._sync = self._exactly(_SYNC)
        codec = self.metadata.get("avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise ValueError(f"its codec {codec!r} is none of Avro's: {', '.join(_CODECS)}")
        self._decompress = _CODECS[codec]
        self.schema: Any = json.loads(self.metadata.get("avro.schema", b""))

    def __iter__(self) -> Iterator[Block]:
        while self._input.place < self._input.size():
            records = self._number()
            size = self._number()
            if records < 0 or size < 0:
                raise ValueError("a block has a negative size")
            self._limits.check_rows(records)
            stored = self._exactly(size)
            if self._exactly(_SYNC) != self._sync:
                raise ValueError("a block does not end where it says")
            data = self._decompress(stored)
            if records > len(data):
                self._limits.check_empty(records)
            yield Block(records, data)

    def _exactly(self, size: int) -> bytes:
        is_there = self._input.place + size <= self._input.size()
        data = bytes(self._input.read(size)) if is_there else b""
        if len(data) < size:
            raise ValueError("it ends in the middle")
        return data

    def _text(self) -> bytes:
        size = self._number()
        if not 0 <= size <= _HEADER:
            raise ValueError(f"a text of {size} bytes in its header")
        return self._exactly(size)

    def _number(self) -> int:
        data = self._exactly(1)
        while data[-1] > 0x7F and len(data) < LONGEST:
            data += self._exactly(1)
        value, _ = read_varint(data)
        return without_zigzag(value)


def _deflate(stored: bytes) -> bytes:
    machine = zlib.decompressobj(-15)
    return machine.decompress(stored) + machine.flush()  # not all writers write an end mark


def _snappy(stored: bytes) -> bytes:
    data, checksum = stored[:-4], stored[-4:]
    plain: bytes = pa.Codec("snappy").decompress(
        data, snappy_length(data, "a block is not compressed with snappy"), asbytes=True
    )
    if zlib.crc32(plain) != int.from_bytes(checksum, "big"):
        raise ValueError("the checksum of a block is wrong")
    return plain


def _zstandard(stored: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(stored), "zstd") as stream:
        return bytes(stream.read())


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}
