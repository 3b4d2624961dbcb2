"""Compressed objects: which codec, by suffix or else by the first bytes, and their content as a stream. No archives.

Nothing is held but the piece that was asked for, so an object of a few bytes that expands to terabytes costs no
memory; and one that expands beyond all measure is refused.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Protocol

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.storage.open_files import AT_LEAST, ObjectFile

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
_GZIP = 31  # zlib's number for this format
_ZEROS = re.compile(rb"\0+")
_CHUNK = 1 << 20  # not more: pyarrow makes room for all that it is asked for, however little there is
_FIRST_BYTES = 256


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


def decompressed(file: ObjectFile, codec: str, max_expansion: int) -> Stream:
    """Return the content of a compressed object. Its `read` raises BadObject("corrupt-object").

    Raises that itself for a codec that versions up to 0.3 read.
    """
    if codec == "lz4" and file.size() and file.peek(len(_LZ4_FRAME)) != _LZ4_FRAME:
        codec = "lz4 without frames, as Hadoop writes it,"
    if codec in ("snappy", "deflate") or codec.startswith("lz4 "):
        raise BadObject(
            "corrupt-object",
            f"{codec} is not read; compress it with gzip, zstd, bzip2 or lz4 (in frames), or let Spark read it "
            "(docs/how-to/foreach-batch.md)",
        )
    file.at_least = AT_LEAST
    return Stream(_content(file, codec, max_expansion))


class Stream:
    """Pieces of any size as a stream of bytes: its `read` returns fewer than it is asked for only at the end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        whole = BytesIO()  # unlike parts that are joined it is never there twice
        while (missing := size - whole.tell()) > 0:
            if (piece := self._rest or next(self._pieces, None)) is None:
                break
            self._rest = piece[missing:]
            whole.write(piece[:missing])
        return whole.getvalue()


def _content(file: ObjectFile, codec: str, max_expansion: int) -> Iterator[bytes]:
    """Decompress an object in pieces: no more than is allowed. What the codec raises becomes BadObject."""
    allowed, total, first = max(ALWAYS_ALLOWED, file.size() * max_expansion), 0, b""
    try:
        if codec == "gzip":
            pieces = _inflated(file)
        else:  # any number of members; one that is cut off is an error
            content = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
            pieces = iter(lambda: content.read(_CHUNK), b"")
        for piece in pieces:
            total += len(piece)
            if total > allowed:
                raise BadObject(
                    "corrupt-object",
                    f"{codec}: {file.size()} bytes expand to more than {allowed}; a larger maxExpansion allows more",
                )
            if total - len(piece) >= _TAR_HEADER:
                yield piece
                continue
            first += piece
            if total >= _TAR_HEADER:
                refuse_archive(first)
                yield first
    except MemoryError:  # one of them is an ArrowException
        raise
    except (OSError, ValueError, zlib.error, pa.ArrowException) as error:
        if file.failure is not None:  # what the store raises stays as it is
            raise file.failure from error
        raise BadObject("corrupt-object", f"{codec}: {error}") from error
    if total < _TAR_HEADER:
        refuse_archive(first)
        yield first


def _inflated(file: ObjectFile) -> Iterator[bytes]:
    """Decompress members of gzip, of any number.

    A new one is fed little at first, since it copies what it leaves over: there may be very many short ones. Zeros
    behind a member of gzip are padding, as to gzip itself: tapes and copies by block leave them.
    """
    data, place, step = file.read(_CHUNK), 0, _FIRST_BYTES
    machine, begun = zlib.decompressobj(_GZIP), bool(data)
    while data:
        if machine.eof:
            if padded := _ZEROS.match(data, place):
                place = padded.end()
            if place == len(data):
                data, place = file.read(_CHUNK), 0
                continue
            machine, step = zlib.decompressobj(_GZIP), _FIRST_BYTES
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
