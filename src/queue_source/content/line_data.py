"""What the two line formats share: bytes that are text, in lines that end with one newline."""

from __future__ import annotations

import pyarrow as pa

from queue_source.errors import BadObject

_BOM = b"\xef\xbb\xbf"
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}

BLOCK_SIZE = 16 << 20
"""Bytes that pyarrow's parsers take at a time; a longer record needs a larger block. It hardly matters for speed."""


def decompress(data: bytes, uri: str) -> bytes:
    """The content by the suffix of the name (`.gz`, `.bz2`, `.zst`). Raises BadObject("corrupt-object").

    An object of zero bytes is an empty one, whatever its name.
    """
    codec = next((codec for suffix, codec in _CODECS.items() if uri.lower().endswith(suffix)), None)
    if codec is None or not data:
        return data
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            content: bytes = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise BadObject("corrupt-object", f"{codec}: {error}") from error
    return content


def as_lines(data: bytes) -> bytes:
    """The text without a byte order mark, with `\\n` for every line end (`\\r` and `\\r\\n` too, as in Spark).

    Raises BadObject("corrupt-object") when it is not UTF-8, with the offset of the first bad byte.
    """
    _check_utf8(data)
    if data.startswith(_BOM):
        data = data[len(_BOM) :]
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def count_lines(data: bytes, rows: int, *, start: int = 0, strip: bool) -> int:
    """How many lines from `start` on hold something (with `strip`: more than white space).

    `rows` is a guess that makes it quick: blank lines are looked for only where it is wrong.
    """
    lines = data.count(b"\n", start) + (len(data) > start and not data.endswith(b"\n"))
    if lines == rows:
        return lines
    split = data[start:].split(b"\n")
    return sum(1 for line in split if line.strip()) if strip else sum(map(bool, split))


def _check_utf8(data: bytes) -> None:
    buffer = pa.py_buffer(data)
    offsets = pa.array([0, buffer.size], pa.int64()).buffers()[1]
    try:
        # one string over the whole object: Arrow checks it without a copy, ten times faster than bytes.decode
        pa.LargeStringArray.from_buffers(1, offsets, buffer).validate(full=True)
    except pa.ArrowInvalid as error:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as where:
            raise BadObject(
                "corrupt-object", f"byte {where.start} is not UTF-8: {where.reason}", where.start
            ) from error
        raise BadObject("corrupt-object", f"not UTF-8: {error}") from error
