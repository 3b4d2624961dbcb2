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

    def __init__(self, file: ObjectFile, size: int, limits: Limits) -> None:
        self._input = _Input(file, size)
        self._limits = limits
        if self._input.exactly(4) != _MAGIC:
            raise ValueError("it does not begin as Avro does")
        self.metadata: dict[str, bytes] = {}
        while count := self._input.number():
            if count < 0:
                self._input.number()  # bytes, to skip
            for _ in range(abs(count)):
                name = self._input.counted(_HEADER).decode()
                self.metadata[name] = self._input.counted(_HEADER)
        self._sync = self._input.exactly(_SYNC)
        codec = self.metadata.get("avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise ValueError(f"its codec {codec!r} is none of Avro's: {', '.join(_CODECS)}")
        self._decompress = _CODECS[codec]
        self.schema: Any = json.loads(self.metadata.get("avro.schema", b""))

    def __iter__(self) -> Iterator[Block]:
        while not self._input.at_end:
            records = self._input.number()
            size = self._input.number()
            if records < 0 or size < 0:
                raise ValueError("a block has a negative size")
            self._limits.check_rows(records)
            stored = self._input.exactly(size)
            if self._input.exactly(_SYNC) != self._sync:
                raise ValueError("a block does not end where it says")
            data = self._decompress(stored)
            if records > len(data):
                self._limits.check_empty(records)
            yield Block(records, data)


class _Input:
    """The bytes of an object, in order."""

    def __init__(self, file: ObjectFile, size: int) -> None:
        self._file = file
        self._left = size  # not yet asked for
        self._ahead = b""
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._ahead) and not self._left

    def exactly(self, size: int) -> bytes:
        missing = self._place + size - len(self._ahead)
        if missing > self._left:
            raise ValueError("it ends in the middle")
        if missing > 0:
            more = self._file.read(min(max(missing, _AHEAD), self._left))
            self._left -= len(more)
            self._ahead, self._place = self._ahead[self._place :] + more, 0
            if len(more) < missing:
                raise ValueError("it ends in the middle")
        data = self._ahead[self._place : self._place + size]
        self._place += size
        return data

    def counted(self, limit: int) -> bytes:
        size = self.number()
        if not 0 <= size <= limit:
            raise ValueError(f"a text of {size} bytes in its header")
        return self.exactly(size)

    def number(self) -> int:
        data = self.exactly(1)
        while data[-1] > 0x7F and len(data) < LONGEST:
            data += self.exactly(1)
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
