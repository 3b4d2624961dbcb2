"""An object's text in blocks of whole records, so that a worker holds a block and never the object.

A record belongs to the range that has its first byte: ranges that tile an object tile its records, wherever
their bounds fall. Offsets are bytes of the (decompressed) object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from queue_source.formats.base import BadRecords
from queue_source.formats.compression import Readable
from queue_source.options.content import FormatOptions

BLOCK_SIZE = 16 << 20
"""Bytes that are read and parsed at a time. It hardly matters for speed."""

BOM = b"\xef\xbb\xbf"
"""A byte order mark: at the beginning of an object it is no data."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_UNBOUNDED = 1 << 62
_COUNTED_AT_ONCE = 1 << 17
_NEWLINE = ord("\n")
_NEXT_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records as they are in the object, with what ends them; `offset` is where the first one begins."""

    offset: int
    data: bytes


class Separator(Protocol):
    """Where records end. All text that is given to it begins with a record, unless it is `found_from_anywhere`.

    `length` is how many bytes are read before a range to see whether a record ends there.
    """

    @property
    def length(self) -> int: ...

    @property
    def found_from_anywhere(self) -> bool:
        """Tell whether an end is found without knowing what comes before it."""

    def last_end(self, data: bytes) -> int:
        """Return the end of the last record that is complete, whatever follows; 0 without one."""

    def first_end(self, data: bytes, start: int) -> int:
        """Return the first end of a record at or after `start`, or -1 while that cannot be known."""

    @property
    def inner_end(self) -> Callable[[bytes], int]:
        """Return the last place where text without an end may be cut between records; 0 where there is none."""

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Cut the text into (offset, record without its end)."""


def no_inner_end(data: bytes) -> int:
    """Return that text without an end is one record."""
    return 0


class LineEnds:
    """`\\n`, `\\r\\n` or `\\r`: what Spark takes for a line's end unless `lineSep` is set."""

    length = 1
    found_from_anywhere = True

    def __init__(self, inner_end: Callable[[bytes], int] = no_inner_end) -> None:
        self.inner_end = inner_end

    def last_end(self, data: bytes) -> int:
        at = data.rfind(b"\n")
        if at < 0:
            at = data.rfind(b"\r", 0, len(data) - 1)  # the last byte may be the half of \r\n
        return at + 1

    def first_end(self, data: bytes, start: int) -> int:
        match = _LINE_END.search(data, max(0, start - 1))
        if match is None or (match.group() == b"\r" and match.end() == len(data)):
            return -1
        return match.end()

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        for end in _LINE_END.finditer(data):
            yield start, data[start : end.start()]
            start = end.end()
        if start < len(data):
            yield start, data[start:]


class ExactBytes:
    """The bytes of `lineSep` and nothing else."""

    found_from_anywhere = True

    def __init__(self, separator: bytes, inner_end: Callable[[bytes], int] = no_inner_end) -> None:
        self.inner_end = inner_end
        self.bytes = separator
        self.length = len(separator)

    def last_end(self, data: bytes) -> int:
        at = data.rfind(self.bytes)
        return 0 if at < 0 else at + self.length

    def first_end(self, data: bytes, start: int) -> int:
        at = data.find(self.bytes, max(0, start - self.length))
        return -1 if at < 0 else at + self.length

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        while (end := data.find(self.bytes, start)) >= 0:
            yield start, data[start:end]
            start = end + self.length
        if start < len(data):
            yield start, data[start:]


class OverlappingBytes(ExactBytes):
    """A `lineSep` that may overlap itself: which two of `|||` are `||` depends on all the text before them."""

    found_from_anywhere = False

    def last_end(self, data: bytes) -> int:
        return len(data) - len(data.split(self.bytes)[-1])

    def first_end(self, data: bytes, start: int) -> int:
        ends = (offset + len(record) + self.length for offset, record in self.split(data))
        return next((end for end in ends if start <= end <= len(data)), -1)


def make_separator(options: FormatOptions, inner_end: Callable[[bytes], int] = no_inner_end) -> Separator:
    """Return what ends a line: `lineSep`, or else any of the usual line ends."""
    if options.line_sep is None:
        return LineEnds(inner_end)
    separator = options.line_sep.encode()
    overlaps = any(separator.startswith(separator[at:]) for at in range(1, len(separator)))
    return (OverlappingBytes if overlaps else ExactBytes)(separator, inner_end)


def cut_blocks(
    stream: Readable,
    separator: Separator,
    bad: BadRecords,
    *,
    offset: int = 0,
    until: int | None = None,
    longest: int = _UNBOUNDED,
) -> Iterator[Block]:
    """Cut a stream into blocks of the records that begin at or after `offset` and before `until`.

    A record of more than `longest` bytes is bad: it is skipped, not held. Several records of one line are of the range
    that has the line's first byte.
    The stream is at the object's beginning, or `bytes_before` the range: a record that began earlier is left to its own
    range. A byte order mark at the beginning is no data.
    """
    until = _UNBOUNDED if until is None else until
    tail = b""  # what was read behind the last complete record
    if offset:
        before = bytes_before(separator, offset)
        offset, tail = _skip_record(stream, separator, offset - before, b"", before, until)
    may_have_mark = offset == 0
    large = BLOCK_SIZE
    while offset < until:
        size = min(BLOCK_SIZE, until - offset - len(tail))
        size = size if size > 0 else _NEXT_PIECE
        if may_have_mark:
            size = max(size, len(BOM))
        data = stream.read(size)
        is_last = len(data) < size
        data = tail + data if tail else data
        if may_have_mark and data.startswith(BOM):
            offset, data = len(BOM), data[len(BOM) :]
            until = max(until, offset + 1)  # the first record begins with its mark
        may_have_mark = False
        if offset + len(data) >= until:
            end = separator.first_end(data, until - offset)
            end = len(data) if end < 0 and is_last else max(end, 0)
        else:
            end = len(data) if is_last else separator.last_end(data)
        if not end and len(data) >= large:
            end = separator.last_end(data) or separator.inner_end(data)
            large = BLOCK_SIZE if end else 2 * len(data)  # nothing is searched again and again
            until = max(until, offset + end + 1) if end else until  # the rest of the line is of this range, too
        if end:
            block, tail = Block(offset, data if end == len(data) else data[:end]), data[end:]
            offset += end
            del data  # while the block is parsed, and the next one read, nothing is held twice
            yield block
            del block
        elif len(data) > longest:
            bad.add(offset, f"a record of more than {longest} bytes is skipped; a larger maxRecordBytes reads it", data)
            offset, tail = _skip_record(stream, separator, offset, data, len(data), until)
        else:
            tail = data
        if is_last:
            return


def bytes_before(separator: Separator, start: int) -> int:
    """Return how many bytes before a range are read: a `lineSep` may be longer than what is there."""
    return min(separator.length, start)


def _skip_record(
    stream: Readable, separator: Separator, offset: int, data: bytes, start: int, until: int
) -> tuple[int, bytes]:
    """Return where the first record at or after `offset + start` begins, and what was read from there on.

    `data` is what was read from `offset` on. Only a piece is held at a time, and none that begins behind `until`.
    """
    while not separator.found_from_anywhere or (end := separator.first_end(data, start)) < 0:
        more = stream.read(_NEXT_PIECE) if offset + len(data) <= until else b""
        if not more:
            return offset + len(data), b""
        kept = data[-separator.length :]  # the first bytes of a separator, perhaps
        passed = len(data) - len(kept)
        offset, start, data = offset + passed, max(start - passed, 1), kept + more
    return offset + end, data[end:]


def keep_utf8(data: bytes) -> bytes | None:
    """Return the bytes if they are UTF-8: checked as one long string, ten times faster than Python decodes them."""
    buffer = pa.py_buffer(data)
    offsets = pa.array([0, buffer.size], pa.int64()).buffers()[1]
    try:
        pa.LargeStringArray.from_buffers(1, offsets, buffer).validate(full=True)
    except pa.ArrowInvalid:
        return None
    return data


def unify_lines(data: bytes, separator: str | None, *, blank: bytes | None) -> bytes | None:
    r"""End records of UTF-8 with `\n`; None where they are not UTF-8. Without a `separator` any line end is one.

    With one, other line ends within records become `blank`; None: then the answer is None.
    """
    if keep_utf8(data) is None:
        return None
    if separator is None:
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    end = separator.encode()
    outside = data if end == b"\n" else data.replace(end, b"")
    if b"\r" in outside or (end != b"\n" and b"\n" in outside):
        if blank is None:
            return None
        records = [record.replace(b"\n", blank).replace(b"\r", blank) for record in data.split(end)]
        return b"\n".join(records)
    return data if end == b"\n" else data.replace(end, b"\n")


def count_newlines(text: bytes) -> int:
    """Count the `\\n`: numpy is quicker than `bytes.count` where they are many, and in pieces needs no memory."""
    characters = np.frombuffer(text, np.uint8)
    pieces = range(0, len(text), _COUNTED_AT_ONCE)
    return sum(int(np.count_nonzero(characters[at : at + _COUNTED_AT_ONCE] == _NEWLINE)) for at in pieces)


@dataclass(frozen=True, slots=True)
class Lines:
    r"""Text whose records end with `\n`, as parsers take it, and how many `\n` it has."""

    text: bytes
    newlines: int

    @classmethod
    def of(cls, text: bytes) -> Lines:
        return cls(text, count_newlines(text))

    def count_filled(self, guess: int, *, strip: bool) -> int:
        """Count the lines that hold something (with `strip`: more than white space).

        A right guess makes it quick: blank lines are searched for only where it is wrong.
        """
        lines = self.newlines + (len(self.text) > 0 and not self.text.endswith(b"\n"))
        if lines == guess:
            return lines
        split = self.text.split(b"\n")
        return sum(1 for line in split if line.strip()) if strip else sum(map(bool, split))
