"""Compressed objects: which codec, by suffix or else by the first bytes, and their content as a stream. No archives.

Nothing is held but the piece that was asked for, so an object of a few bytes that expands to terabytes costs no
memory; and one that expands beyond all measure is refused.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Protocol

import google_crc32c
import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.varints import snappy_length
from queue_source.storage.files import ObjectFile

ALWAYS_ALLOWED = 256 << 20
"""Bytes up to which an object may grow by any factor when it is decompressed."""

_SUFFIXES = {
    ".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd",
    ".snappy": "snappy", ".sz": "snappy", ".lz4": "lz4", ".deflate": "deflate",
}  # fmt: skip
_SNAPPY_FRAMES = b"\xff\x06\x00\x00sNaPpY"
_LZ4_FRAME = b"\x04\x22\x4d\x18"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", _LZ4_FRAME: "lz4", _SNAPPY_FRAMES: "snappy"}
_ARCHIVES = {
    b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"PK\x07\x08": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar",
}  # fmt: skip
_TAR = re.compile(rb"[ \0]*([0-7]+)[ \0]")  # the checksum of a member's header
_TAR_HEADER = 512
_BZ2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # a block, or the end; text too may begin with BZh
_WINDOWS = {"gzip": 31, "deflate": 15}  # zlib's numbers for its formats
_ZEROS = re.compile(rb"\0+")
_CHUNK = 1 << 20
_AT_ONCE = 16 << 20  # pyarrow makes room for all that it is asked for, however little there is
_FIRST_BYTES = 256
_NO_SNAPPY = "not a Snappy block"
_LARGEST_BLOCK = 64 << 20  # Hadoop's writers use 256 KB


class Readable(Protocol):
    """A stream of bytes: up to `size` bytes, fewer only at the end."""

    def read(self, size: int) -> bytes: ...


def codec_of(uri: str, first: bytes) -> str | None:
    """Return the codec of an object by the suffix of its name, else by its first bytes; None for plain content."""
    name = uri.rpartition("/")[2].lower()
    for suffix, codec in _SUFFIXES.items():
        if name.endswith(suffix):
            return codec
    if _BZ2.match(first):
        return "bz2"
    return next((codec for magic, codec in _MAGIC.items() if first.startswith(magic)), None)


def refuse_archive(first: bytes) -> None:
    """Raise BadObject("archive") where content begins as an archive does: its members are no records, nor text."""
    kind = next((kind for magic, kind in _ARCHIVES.items() if first.startswith(magic)), None)
    header = first[:_TAR_HEADER]
    if len(header) == _TAR_HEADER and b"\0" in header and (told := _TAR.match(header, 148, 156)):
        others = header[:148] + b" " * 8 + header[156:]
        signed = sum(others) - 256 * sum(byte > 127 for byte in others)  # as some old programs have it
        kind = "tar" if int(told[1], 8) in (sum(others), signed) else None
    if kind is not None:
        raise BadObject("archive", f"it is a {kind} archive; unpack it, and announce what is in it")


class Stored:
    """The bytes of an object as they are stored, from `place` on; those that were read ahead are not asked for again.

    `read` raises BadObject("object-changed") when the object ends before its `size`: it was exchanged meanwhile.
    """

    def __init__(self, file: ObjectFile, size: int, first: bytes = b"", place: int = 0) -> None:
        self.file = file
        self._size = size
        self._place = place  # of the object; `first` begins where this began
        self._first = first
        self._taken = 0  # of `first`

    def starts_with(self, prefix: bytes) -> bool:
        """Tell whether the bytes that were read ahead begin so; call it before anything is read."""
        return self._first.startswith(prefix)

    def read(self, size: int) -> bytes:
        length = min(size, self._size - self._place)  # nothing is asked for behind the end
        data = self._first[self._taken : self._taken + length]  # no copy, if it is all of it
        self._taken += len(data)
        if self._taken == len(self._first):  # what may be a whole block is not held any longer
            self._first, self._taken = b"", 0
        if len(data) < length:
            data += self.file.read(length - len(data))
        self._place += len(data)
        if len(data) < length:
            raise BadObject("object-changed", f"it ends at byte {self._place}, and had {self._size} when it was opened")
        return data


def decompressed(compressed: Stored, codec: str, size: int, max_expansion: int) -> Readable:
    """Return the content of an object of `size` compressed bytes. Its `read` raises BadObject("corrupt-object")."""
    content: Readable
    if codec == "snappy":
        framed = compressed.starts_with(_SNAPPY_FRAMES)
        content = Pieces(_snappy_frames(compressed) if framed else _hadoop_blocks(compressed, "snappy"))
    elif codec == "lz4" and not compressed.starts_with(_LZ4_FRAME):
        content = Pieces(_hadoop_blocks(compressed, "lz4_raw"))
    elif codec in _WINDOWS:
        content = Pieces(_inflated(compressed, _WINDOWS[codec]))
    else:  # of any number of members; a member that is cut off is an error
        content = pa.CompressedInputStream(pa.PythonFile(_Plain(compressed), "r"), codec)
    return _Content(content, compressed.file, codec, size, max_expansion)


class _Content:
    """What a codec makes of an object of `size` bytes: no more than is allowed, and what it raises as BadObject."""

    def __init__(self, content: Readable, file: ObjectFile, codec: str, size: int, max_expansion: int) -> None:
        self._content = content
        self._file = file
        self._codec = codec
        self._size = size
        self._allowed = max(ALWAYS_ALLOWED, size * max_expansion)
        self._total = 0

    def read(self, size: int) -> bytes:
        data = self._read(min(size, _AT_ONCE))
        if len(data) == size or len(data) < _AT_ONCE:
            return data
        whole = BytesIO()  # unlike parts that are joined it is never there twice
        while data:
            whole.write(data)
            data = self._read(min(size - whole.tell(), _AT_ONCE))
        return whole.getvalue()

    def _read(self, size: int) -> bytes:
        try:
            data = self._content.read(size)
        except MemoryError:  # one of them is an ArrowException
            raise
        except (OSError, ValueError, zlib.error, struct.error, pa.ArrowException) as error:
            if self._file.failure is not None:  # what the store raises stays as it is
                raise self._file.failure from error
            raise BadObject("corrupt-object", f"{self._codec}: {error}") from error
        if not self._total:
            refuse_archive(data)
        self._total += len(data)
        if self._total > self._allowed:
            raise BadObject(
                "corrupt-object",
                f"{self._codec}: {self._size} bytes expand to more than {self._allowed}; a larger maxExpansion allows "
                "more",
            )
        return data


class Pieces:
    """Pieces of any size as reads of a given size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


class _Plain:
    """The minimum that pyarrow takes for a file."""

    closed = False

    def __init__(self, source: Readable) -> None:
        self.read = source.read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: the opener of the object closes it."""


def _inflated(file: Readable, window: int) -> Iterator[bytes]:
    """Decompress members of gzip, or zlib streams as Hadoop's DefaultCodec writes them, of any number.

    A new one is fed little at first, since it copies what it leaves over: there may be very many short ones. Zeros
    behind a member of gzip are padding, as to gzip itself: tapes and copies by block leave them.
    """
    data, place, step = file.read(_CHUNK), 0, _FIRST_BYTES
    machine, begun = zlib.decompressobj(window), bool(data)
    is_gzip = window == _WINDOWS["gzip"]
    while data:
        if machine.eof:
            if is_gzip and (padded := _ZEROS.match(data, place)):
                place = padded.end()
            if place == len(data):
                data, place = file.read(_CHUNK), 0
                continue
            machine, step = zlib.decompressobj(window), _FIRST_BYTES
        part = data[place : place + step]
        place, step = place + len(part), min(2 * step, _CHUNK)
        while part and not machine.eof:
            piece = machine.decompress(part, _CHUNK)
            part = machine.unconsumed_tail
            if piece:  # of empty members there may be very many
                yield piece
        place -= len(machine.unused_data)
        if place == len(data):
            data, place = file.read(_CHUNK), 0
    if begun:
        yield machine.flush()
        if not machine.eof:
            raise ValueError("the stream is cut off")


def _hadoop_blocks(file: Readable, codec: str) -> Iterator[bytes]:
    """Decompress the `.snappy` and `.lz4` of Hadoop's block codecs (and so Spark).

    Blocks of: length of the content, then chunks (length, compressed bytes) until that length is reached.
    """
    machine = pa.Codec(codec)
    while header := file.read(4):
        (missing,) = struct.unpack(">I", header)
        while missing:
            (length,) = struct.unpack(">I", file.read(4))
            if length > _LARGEST_BLOCK or missing > _LARGEST_BLOCK:
                raise ValueError(f"a block of {max(length, missing)} bytes: not in Hadoop's format")
            compressed = _exactly(file, length)
            # a raw LZ4 chunk does not have its length; Hadoop writes one a block, so it is what the block still lacks
            size = _snappy_length(compressed) if codec == "snappy" else missing
            plain = machine.decompress(compressed, size, asbytes=True)
            missing -= len(plain)
            if missing < 0:
                raise ValueError("a chunk is longer than its block")
            yield plain


def _snappy_frames(file: Readable) -> Iterator[bytes]:
    """Decompress Snappy's own framing format: chunks of (kind, 3 bytes of length, content)."""
    machine = pa.Codec("snappy")
    while header := file.read(4):
        if len(header) < 4:
            raise ValueError("the stream is cut off")
        kind, length = header[0], int.from_bytes(header[1:], "little")
        content = _exactly(file, length)
        if kind == 0x00:
            yield _checked(machine.decompress(content[4:], _snappy_length(content[4:]), asbytes=True), content)
        elif kind == 0x01:
            yield _checked(content[4:], content)
        elif 0x02 <= kind <= 0x7F:
            raise ValueError(f"a chunk of the unknown kind {kind:#x}")


def _checked(plain: bytes, chunk: bytes) -> bytes:
    """Return the content, if its chunk begins with its checksum: a CRC-32C, masked as the format requires."""
    value = google_crc32c.value(plain)
    if chunk[:4] != (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little"):
        raise ValueError("a chunk's checksum is not that of its content")
    return plain


def _exactly(file: Readable, length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise ValueError("the stream is cut off")
    return data


def _snappy_length(compressed: bytes) -> int:
    """Return the length of the content. Raises ValueError where it is no block, or a larger one than is read."""
    length = snappy_length(compressed, _NO_SNAPPY)
    if length > _LARGEST_BLOCK:
        raise ValueError(_NO_SNAPPY)
    return length
