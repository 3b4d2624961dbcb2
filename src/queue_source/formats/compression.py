"""Compressed objects: which codec, by the first bytes or else by suffix, and their content as a stream; and archives.

Nothing is held but the piece that was asked for, so an object of a few bytes that expands to terabytes costs no
memory; and one that expands beyond all measure is refused. What is in an archive, `text/archives.py` reads.
"""

from __future__ import annotations

import bz2
import codecs
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from typing import Protocol

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.storage.open_files import AT_LEAST, ObjectFile

ALWAYS_ALLOWED = 256 << 20
"""Bytes up to which an object may grow by any factor when it is decompressed."""

_SUFFIXES = {
    ".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd",
    ".snappy": "snappy", ".sz": "snappy", ".lz4": "lz4", ".deflate": "deflate",
}  # fmt: skip
_SNAPPY_FRAMES = b"\xff\x06\x00\x00sNaPpY"
_LZ4_FRAME = b"\x04\x22\x4d\x18"
_GZIP_MAGIC = b"\x1f\x8b"
_MAGIC = {_GZIP_MAGIC: "gzip", b"\x28\xb5\x2f\xfd": "zstd", _LZ4_FRAME: "lz4", _SNAPPY_FRAMES: "snappy"}
_ARCHIVES = {
    b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"PK\x07\x08": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar", b"\xfd7zXZ\0": "xz",
}  # fmt: skip
_TAR = re.compile(rb"[ \0]*([0-7]+)[ \0]")  # the checksum of a member's header
TAR_HEADER = 512
"""Bytes by which every archive is known."""
_BZ2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # a block, or the end; text too may begin with BZh
_DAMAGED = re.compile(rb"BZh|\(\xb5|\x1f\x8b")
_TEXT = re.compile(rb"[^\0-\x08\x0e-\x1a\x1c-\x1f\x7f]+")  # no codec begins so
_WHITE = dict.fromkeys(map(ord, "\t\n\v\f\r\x1e\x85\xa0\ufeff"))
_GZIP = 31  # zlib's number for this format
_ZEROS = re.compile(rb"\0+")
CHUNK = 1 << 20  # not more: pyarrow makes room for all that it is asked for, however little there is
_FIRST_BYTES = 256


class Readable(Protocol):
    """A stream of bytes: up to `size` bytes, fewer only at the end."""

    def read(self, size: int) -> bytes: ...


def codec_of(uri: str, first: bytes, encoding: str = "UTF-8") -> str | None:
    """Return the codec of an object by its first bytes, else by the suffix of its name; None for plain content.

    Text is plain whatever the name says: clients and proxies unpack what they hand on, and leave the name.
    `encoding`: that of text, as Python names it.
    """
    if _BZ2.match(first):
        return "bz2"
    if by_bytes := next((codec for magic, codec in _MAGIC.items() if first.startswith(magic)), None):
        return by_bytes
    name = uri.rpartition("/")[2].lower()
    by_name = next((codec for suffix, codec in _SUFFIXES.items() if name.endswith(suffix)), None)
    has_magic = by_name not in ("snappy", "deflate")
    return None if has_magic and _is_text(first[:TAR_HEADER], encoding) else by_name


def _is_text(first: bytes, encoding: str) -> bool:
    if _DAMAGED.match(first):
        return False
    if _TEXT.fullmatch(first):
        return True
    try:  # of several bytes each, characters may be without the last one's end
        text = "" if encoding == "UTF-8" else codecs.getincrementaldecoder(encoding)().decode(first)
    except UnicodeError:
        return False
    return text.translate(_WHITE).isprintable() and bool(text)


def archive_of(first: bytes) -> str | None:
    """Return the kind of archive that content begins as (`zip`, `tar`, `7z`, `rar`), or `xz`; None where it is none."""
    header = first[:TAR_HEADER]
    if len(header) == TAR_HEADER and b"\0" in header and (checksum := _TAR.match(header, 148, 156)):
        others = header[:148] + b" " * 8 + header[156:]
        signed = sum(others) - 256 * sum(byte > 127 for byte in others)  # as some old programs have it
        if int(checksum[1], 8) in (sum(others), signed):
            return "tar"
    return next((kind for magic, kind in _ARCHIVES.items() if first.startswith(magic)), None)


def refuse_archive(first: bytes) -> None:
    """Raise BadObject("archive") where content begins as an archive does: its bytes are no records."""
    if (kind := archive_of(first)) is not None:
        raise BadObject("archive", f"it is a {kind} archive; unpack it, and announce what is in it")


_LIKE_TEXT = re.compile(rb'PK|Rar!|BZh|\x04"M\x18')


def may_be_packed(text: bytes) -> bool:
    """Tell whether what may be text is packed, or an archive: all else that is either begins with no UTF-8."""
    return b"\0" in text or _LIKE_TEXT.match(text) is not None


class Expansion:
    """How much an object may grow when it is unpacked, all its layers and members together."""

    def __init__(self, size: int, max_expansion: int) -> None:
        self._size, self._allowed, self._total = size, max(ALWAYS_ALLOWED, size * max_expansion), 0

    def bounded(self, pieces: Iterable[bytes], codec: str) -> Iterator[bytes]:
        """Yield the unpacked pieces. Raises BadObject("corrupt-object") instead of one piece too many."""
        for piece in pieces:
            self._total += len(piece)
            if self._total > self._allowed:
                raise BadObject(
                    "corrupt-object",
                    f"{codec}: {self._size} bytes expand to more than {self._allowed}; a larger maxExpansion allows "
                    "more",
                )
            yield piece


def decompressed(file: ObjectFile | Stream, codec: str, expansion: Expansion) -> Stream:
    """Return the content of a compressed object, or member. Its `read` raises BadObject("corrupt-object").

    Raises that itself for a codec that versions up to 0.3 read.
    """
    if codec == "lz4" and file.peek(len(_LZ4_FRAME)) not in (_LZ4_FRAME, b""):
        codec = "lz4 without frames, as Hadoop writes it,"
    if codec in ("snappy", "deflate") or codec.startswith("lz4 "):
        raise BadObject(
            "corrupt-object",
            f"{codec} is not read; compress it with gzip, zstd, bzip2 or lz4 (in frames), or let Spark read it "
            "(docs/how-to/foreach-batch.md)",
        )
    file.at_least = AT_LEAST
    return Stream(_content(file, codec, expansion))


class Stream:
    """Pieces of any size as a stream of bytes: its `read` returns fewer than it is asked for only at the end.

    Attributes:
        failure, at_least, closed: As those of an ObjectFile, of which nothing fails but what `read` raises.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._ahead = b""
        self._place = 0
        self.failure: BadObject | ObjectStoreError | None = None
        self.at_least = 0
        self.closed = False

    def read(self, size: int) -> bytes:
        whole = BytesIO()  # unlike parts that are joined it is never there twice
        while (missing := size - whole.tell()) > 0:
            if (piece := self._ahead or next(self._pieces, None)) is None:
                break
            self._ahead = piece[missing:]
            whole.write(piece[:missing])
        self._place += whole.tell()
        return whole.getvalue()

    def peek(self, size: int) -> bytes:
        """Return what `read` returns next."""
        data = self.read(size)
        self._place -= len(data)
        self._ahead = data + self._ahead
        return data

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._place

    def pieces(self) -> Iterator[bytes]:
        """Yield all that comes, in pieces of the size that it has."""
        ahead, self._ahead = self._ahead, b""
        for piece in chain((ahead,), self._pieces):
            self._place += len(piece)
            yield piece

    def close(self) -> None:
        """Do nothing, as an ObjectFile."""

    def readable(self) -> bool:
        return True


def _content(file: ObjectFile | Stream, codec: str, expansion: Expansion) -> Iterator[bytes]:
    """Decompress an object in pieces: no more than is allowed. What the codec raises becomes BadObject."""
    try:
        if codec == "gzip":
            content = Stream(expansion.bounded(_inflated(file), codec))
            if content.peek(len(_GZIP_MAGIC)) == _GZIP_MAGIC:  # a sender packed what a service packs again
                content = Stream(expansion.bounded(_inflated(content), codec))
            yield from content.pieces()
        elif codec == "bz2":
            yield from expansion.bounded(_bunzipped(file), codec)
        else:  # any number of members; one that is cut off is an error
            native = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
            yield from expansion.bounded(iter(lambda: native.read(CHUNK), b""), codec)
    except MemoryError:  # one of them is an ArrowException
        raise
    except (OSError, ValueError, zlib.error, pa.ArrowException) as error:
        if file.failure is not None:  # what the store raises stays as it is
            raise file.failure from error
        raise BadObject("corrupt-object", f"{codec}: {error}") from error


def _inflated(file: Readable) -> Iterator[bytes]:
    """Decompress members of gzip, of any number.

    A new one is fed little at first, since it copies what it leaves over: there may be very many short ones. Zeros
    behind a member of gzip are padding, as to gzip itself: tapes and copies by block leave them.
    """
    data, place, step = file.read(CHUNK), 0, _FIRST_BYTES
    machine, begun = zlib.decompressobj(_GZIP), bool(data)
    while data:
        if machine.eof:
            if padded := _ZEROS.match(data, place):
                place = padded.end()
            if place == len(data):
                data, place = file.read(CHUNK), 0
                continue
            machine, step = zlib.decompressobj(_GZIP), _FIRST_BYTES
        part = data[place : place + step]
        place, step = place + len(part), min(2 * step, CHUNK)
        while part and not machine.eof:
            piece = machine.decompress(part, CHUNK)
            part = machine.unconsumed_tail
            if piece:  # of empty members there may be very many
                yield piece
        place -= len(machine.unused_data)
        if place == len(data):
            data, place = file.read(CHUNK), 0
    if begun:
        yield machine.flush()
        if not machine.eof:
            raise ValueError("the stream is cut off")


def _bunzipped(file: Readable) -> Iterator[bytes]:
    """Decompress streams of bzip2, of any number, as `_inflated`.

    pyarrow refuses an empty one between others, and `bz2.BZ2File` reads nothing of a damaged one, and raises no error.
    """
    data, place, step = file.read(CHUNK), 0, _FIRST_BYTES
    machine, begun = bz2.BZ2Decompressor(), bool(data)
    while data:
        if machine.eof:
            machine, step = bz2.BZ2Decompressor(), _FIRST_BYTES
        part = data[place : place + step]
        place, step = place + len(part), min(2 * step, CHUNK)
        piece = machine.decompress(part, CHUNK)
        while piece:
            yield piece
            piece = b"" if machine.eof or machine.needs_input else machine.decompress(b"", CHUNK)
        place -= len(machine.unused_data)
        if place == len(data):
            data, place = file.read(CHUNK), 0
    if begun and not machine.eof:
        raise ValueError("the stream is cut off")
