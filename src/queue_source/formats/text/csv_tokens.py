"""The grammar of CSV as Spark's parser reads it: where a field ends, and with `multiLine` where a record ends.

A field that begins with a quote ends at the quote before the next separator or the record's end. Where another
character follows that quote, the whole field is taken as it is written, up to the next separator; where no quote closes
it, it goes on to the end of the object. In a field that does not begin with a quote, a quote is an ordinary character.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from queue_source.formats.text.marks import Marks, between, is_marked, mark, marks, one_earlier, one_later, places
from queue_source.options.content import FormatOptions

Ends = np.ndarray[Any, np.dtype[np.intp]]
"""Places behind the ends of records, in ascending order."""

Field = tuple[str, bool]
"""The text of a field, and whether it was quoted."""

MAX_COLUMNS = 20_480
"""Fields of a record; one with more is bad, as in Spark."""

_MAX_PLACES = 4 << 20
_POSSESSIVE = sys.version_info >= (3, 11)
"""Whether `re` has possessive quantifiers. Without them it keeps 200 bytes for each repetition, to go back to it."""
_MOST_PAIRS = 500_000
"""Doubled quotes and escaped characters that a field may have where `re` cannot."""
_AT_ONCE = 1 << 16
_IN_CACHE = 1 << 19

BLANK = bytes(range(33)).decode()
"""The characters that Spark takes for white space around a field."""


class Tokenizer:
    """Cuts a record into fields."""

    def __init__(self, options: FormatOptions) -> None:
        self._trailing = options.ignore_trailing_white_space
        self._field = re.compile(_field(options))
        q, e = re.escape(options.quote), re.escape(options.escape)
        self._pair = re.compile(f"{e}({e}|{q})|{q}({q})" if e else f"{q}({q})")

    def fields(self, record: str, most: int = MAX_COLUMNS) -> tuple[list[Field], bool]:
        """The fields of a record (without its line end), and whether every quote is closed. Raises ValueError."""
        found: list[Field] = []
        all_closed, place = True, 0
        while True:
            field = self._field.match(record, place)
            assert field is not None  # the expression matches any text
            kind = field.lastgroup or ""
            if kind == "many":
                too_many = f"more than {_MOST_PAIRS} quotes and escapes in a field"
                raise ValueError(f"{too_many}; Python 3.11 or newer reads it")
            text = field[kind]
            if kind in ("quoted", "open"):
                text = self._pair.sub(lambda pair: pair[pair.lastindex or 0], text)
            elif kind == "plain" and self._trailing:
                text = text.rstrip(BLANK)
            if len(found) == most:
                raise ValueError(f"more than {most} fields")
            found.append((text, kind in ("quoted", "open")))
            all_closed = all_closed and kind != "open"
            place = field.end()
            if place >= len(record):
                return found, all_closed
            place += 1  # the separator


class CsvRecords:
    """The records of CSV with `multiLine`, where a line end within quotes is data: a `Separator`."""

    length = 1
    found_from_anywhere = False

    def __init__(self, options: FormatOptions) -> None:
        self._quote = options.quote.encode()
        self._escape = options.escape.encode() if options.escape != options.quote else b""
        self._sep, self._comment = options.sep.encode(), options.comment.encode()
        # a record, or the part of one up to a separator; what has no quote up to the line's end is one step
        field = re.sub(r"\?P<\w+>", "?:", _field(options))
        comment = rf"(?:(?<=[\r\n])|\A){re.escape(options.comment)}[^\r\n]*|" if options.comment else ""
        start = rf"{comment}[^{re.escape(options.quote)}\r\n]*|{field}"
        self._step = re.compile(rf"(?:{start})(?:(?P<end>\r\n?|\n|\Z)|{re.escape(options.sep)})".encode())

    def ends(self, data: bytes) -> Ends:
        """Where the records end in text that begins with a record; the last end may be that of the text."""
        if self._is_regular(data):
            return _line_ends(data, self._quote)
        return np.fromiter((step.end() for step in self._step.finditer(data) if step.lastgroup), np.intp)

    def last_end(self, data: bytes) -> int:
        end = len(data)  # which may be the half of \r\n, or within a field: never an answer
        if not self._is_regular(data):
            ends = self.ends(data)
            complete = ends[ends < len(data)]
            return int(complete[-1]) if len(complete) else 0
        outside = _ends_outside(data, self._quote)
        while end := max(data.rfind(b"\n", 0, end - 1), data.rfind(b"\r", 0, end - 1)) + 1:
            if is_marked(outside, end - 1) and data[end - 1 : end + 1] != b"\r\n":
                return end
        return 0

    def first_end(self, data: bytes, start: int) -> int:
        ends = self.ends(data)
        complete = ends[(ends >= start) & (ends < len(data))]
        return int(complete[0]) if len(complete) else -1

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        ends = self.ends(data)
        some = (ends[at : at + _AT_ONCE].tolist() for at in range(0, len(ends), _AT_ONCE))
        for end in chain(chain.from_iterable(some), (len(data),)):
            if start < end:
                record = data[start:end]
                yield start, record.removesuffix(b"\n").removesuffix(b"\r")
            start = end

    def _is_regular(self, data: bytes) -> bool:
        """Whether quotes do nothing but surround fields: then numpy finds the ends many times as fast."""
        if _count(data, b"\n") + _count(data, b"\r") > _MAX_PLACES:
            return False  # a list of their places would take many times the memory of the text
        if not self._quote or self._quote not in data:
            return True
        if self._comment and self._comment in data:
            return False
        may_escape = self._escape and self._escape in data  # one character is found ten times as fast as two
        if may_escape and (self._escape + self._quote in data or self._escape * 2 in data):
            return False
        return regular_quotes(data, self._quote, self._sep, open_end=True)


def _count(data: bytes, character: bytes) -> int:
    """How many of a character there are; numpy counts them ten times as fast as bytes do."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord(character)))


def _ends_outside(data: bytes, quote: bytes) -> Marks:
    """The characters that end lines, outside of quotes."""
    ends = marks(data, b"\r\n")
    return ends & ~between(marks(data, quote)) if quote else ends


def _line_ends(data: bytes, quote: bytes) -> Ends:
    """The ends of lines outside of quotes, `\\r\\n` once."""
    characters = np.frombuffer(data, np.uint8)
    newlines = places(_ends_outside(data, quote))
    if len(newlines) == 0:
        return newlines
    halves = (characters[newlines[:-1]] == 13) & (characters[newlines[1:]] == 10) & (np.diff(newlines) == 1)
    ends: Ends = np.delete(newlines, np.flatnonzero(halves)) + 1
    return ends


def regular_quotes(data: bytes, quote: bytes, sep: bytes, *, over_lines: bool = True, open_end: bool = False) -> bool:
    """Whether every quote opens a field, closes it, or is one of two within.

    `over_lines`: a quoted field may have line ends. `open_end`: the last one may stay open.
    """
    pieces = (data,) if over_lines else _whole_lines(data)
    return all(_regular_quotes(piece, quote, sep, over_lines, open_end) for piece in pieces)


def _whole_lines(data: bytes) -> Iterator[bytes]:
    """The text in pieces that end with a line: what is made of one stays in the processor's cache."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _IN_CACHE) + 1 or len(data)
        yield data[start:end]
        start = end


def _regular_quotes(data: bytes, quote: bytes, sep: bytes, over_lines: bool, open_end: bool) -> bool:
    quotes, ends = marks(data, quote), marks(data, b"\r\n" if b"\r" in data else b"\n")
    within = between(quotes)
    if (not open_end and is_marked(within, len(data))) or (not over_lines and (ends & within).any()):
        return False
    opening, closing = quotes & within, quotes & ~within
    borders = marks(data, sep) | ends
    mark(borders, len(data))
    # a doubled quote closes the field, and opens it again at once
    misplaced = (opening & ~one_later(borders | closing)) | (closing & ~one_earlier(borders | opening))
    return not misplaced.any()


def _field(options: FormatOptions) -> str:
    """A field as an expression that matches at any place: `quoted`, `open` (never closed), `stray` or `plain`.

    `many`, without possessive quantifiers: more pairs than `_MOST_PAIRS`, and with them all text that follows.
    """
    s, q = re.escape(options.sep), re.escape(options.quote)
    e = re.escape(options.escape) if options.escape != options.quote else ""
    stop = rf"{s}\r\n" if options.multi_line else s
    blanks = "".join(c for c in BLANK if c not in (options.sep, *("\r\n" if options.multi_line else "")))
    leading = f"[{re.escape(blanks)}]*" if options.ignore_leading_white_space else ""
    plain = f"(?P<plain>[^{stop}]*)"
    if not q:
        return leading + plain
    pair = rf"{e}[\s\S]|{q}{q}" if e else q + q
    rest = f"(?:(?:{pair})[^{q}{e}]*)"
    inner = f"[^{q}{e}]*{rest}" + ("*+" if _POSSESSIVE else f"{{0,{_MOST_PAIRS}}}")
    many = "" if _POSSESSIVE else rf"|(?P<many>{q}[^{q}{e}]*{rest}{{{_MOST_PAIRS}}}[\s\S]*)"
    border = rf"(?={s}|[\r\n]|\Z)" if options.multi_line else rf"(?={s}|\Z)"
    behind = "".join(c for c in " \t" if c != options.sep)
    quoted = rf"{q}(?P<quoted>{inner}){q}[{behind}]*{border}"  # spaces behind a closing quote are no data
    never_closed = rf"{q}(?P<open>{inner}){f'{e}?' if e else ''}\Z"
    return rf"{leading}(?:{quoted}|{never_closed}{many}|(?P<stray>{q}{inner}[^{stop}]*)|{plain})"
