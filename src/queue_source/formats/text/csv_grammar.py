"""The grammar of CSV as Spark's parser reads it: fields, records, and what of it pyarrow reads in the same way.

A field that begins with a quote ends at the quote before the next separator or the record's end. Where another
character follows that quote, the whole field is taken as it is written, up to the next separator; where no quote closes
it, it goes on to the end of the object. In a field that does not begin with a quote, a quote is an ordinary character.
An escape has a meaning only before a quote (or itself) within quotes, and is a plain character elsewhere.

Where characters stand in a text is kept as marks: a bit for each byte, in words of 64. However many there are, marks
take an eighth of the text, where a list of places would take many times its size; and a question about all of them is
a few operations on words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from queue_source.formats.text.blocks import BOM, Lines, count_newlines, keep_utf8, no_inner_end, unify_lines
from queue_source.options.content import FormatOptions

Places = np.ndarray[Any, np.dtype[np.intp]]
"""Places in a text, in ascending order; those of ends are behind what ends there."""

Marks = np.ndarray[Any, np.dtype[np.uint64]]
"""Bit `i` of word `w` is for byte `64 * w + i`. At least one bit follows that of the last byte."""

Field = tuple[str, bool]
"""The text of a field, and whether it was quoted."""

MAX_COLUMNS = 20_480
"""Fields of a record; one with more is bad, as in Spark."""

BLANK = bytes(range(33)).decode()
"""The characters that Spark takes for white space around a field."""

_BLANK_LINE = re.compile(rb"^[\0-\x09\x0b-\x20]+$", re.MULTILINE)
_POSSESSIVE = sys.version_info >= (3, 11)
"""Whether `re` has possessive quantifiers. Without them it keeps 200 bytes for each repetition, to go back to it."""
_MOST_PAIRS = 500_000
"""Doubled quotes and escaped characters that a field may have where `re` cannot."""
_MAX_ESCAPES = 1 << 20  # each takes a hundred bytes while a field is searched
_MAX_PLACES = 4 << 20
_LISTED_AT_ONCE = 1 << 16
_MARKED_AT_ONCE = 1 << 17  # bytes that stay in the processor's cache; a multiple of 8
_CHECKED_AT_ONCE = 1 << 19

_LITTLE = np.dtype("<u8")
_ONE, _LAST = np.uint64(1), np.uint64(63)


@dataclass(frozen=True, slots=True)
class CsvLines(Lines):
    """Lines of CSV with plain quotes and nothing but records. `hexadecimals`: pyarrow may find some among integers."""

    hexadecimals: bool


def plain_lines(data: bytes, options: FormatOptions, columns: int, *, has_integers: bool) -> CsvLines | None:
    """Write the records so that pyarrow reads them as Spark does: in lines, with plain quotes and nothing else.

    None where they cannot be written so. `columns` is how many there are in the object; `has_integers` says whether any
    is declared to hold integers.
    """
    if data.startswith(BOM):  # which pyarrow leaves out wherever a block begins
        return None
    lines = keep_utf8(data) if options.multi_line else unify_lines(data, options.line_sep, blank=None)
    if lines is None:
        return None
    quote, comment = options.quote.encode(), options.comment.encode()
    if comment and comment in lines:
        if options.multi_line:
            return None
        lines = re.sub(rb"(?m)^%b[^\n]*\n?" % re.escape(comment), b"", lines)
    if options.ignore_leading_white_space or options.ignore_trailing_white_space:
        if quote and quote in lines:
            return None
        s = re.escape(options.sep.encode())
        if options.ignore_leading_white_space:
            lines = re.sub(rb"(^|%b)(?:(?!%b)[\0-\x09\x0b-\x20])+" % (s, s), rb"\1", lines, flags=re.MULTILINE)
        if options.ignore_trailing_white_space:
            lines = re.sub(rb"(?:(?!%b)[\0-\x09\x0b-\x20])+(?=$|%b)" % (s, s), b"", lines, flags=re.MULTILINE)
    if columns == 1 or options.sep <= " ":  # to pyarrow a blank line is a record then
        characters = np.frombuffer(lines, np.uint8)
        first = np.append(characters[:1], characters[1:][characters[:-1] == ord("\n")])
        # to look at the first characters of lines is many times faster than a search
        if ((first <= ord(" ")) & (first != ord("\n"))).any() and _BLANK_LINE.search(lines):
            return None
    lines = _double_escaped_quotes(lines, options)
    if lines is None:
        return None
    has_quotes = quote and quote in lines
    if has_quotes and not are_quotes_regular(lines, quote, options.sep.encode(), over_lines=options.multi_line):
        return None
    # a `0x`, which pyarrow takes for the beginning of a number; a search for two characters would be slow
    hexadecimals = has_integers and (b"x" in lines or b"X" in lines)
    if hexadecimals:
        hexadecimals = bool((mark_characters(lines, b"0") & move_earlier(mark_characters(lines, b"xX"))).any())
    return CsvLines(lines, count_newlines(lines), hexadecimals)


def _double_escaped_quotes(lines: bytes, options: FormatOptions) -> bytes | None:
    """Write escaped quotes as doubled quotes, so that no other escape character has a meaning.

    None where there are too many, and where a field with one is never closed.
    """
    quote, escape = options.quote.encode(), options.escape.encode()
    if not escape or escape not in lines:  # to search is quicker than to count
        return lines
    if lines.count(escape) > _MAX_ESCAPES:
        return None
    if not quote or escape == quote or (escape + quote not in lines and escape * 2 not in lines):
        return lines  # the usual file; each escape character in it means itself
    q, e, s = re.escape(quote), re.escape(escape), re.escape(options.sep.encode())
    line_end = b"" if options.multi_line else rb"\n"  # that no quoted field goes over
    inner = rb"[^%b%b%b]*" % (q, e, line_end)
    pair = (rb"%b[\s\S]|%b%b" if options.multi_line else rb"%b.|%b%b") % (e, q, q)
    quoted = re.compile(rb"(?:(?<=\A)|(?<=[\r\n%b]))%b(%b(?:(?:%b)%b)*)%b" % (s, q, inner, pair, inner, q))
    pairs = re.compile(rb"%b(%b|%b)" % (e, e, q))

    outside: list[bytes] = []
    inside: list[bytes] = []
    place = 0
    for field in quoted.finditer(lines):
        if escape in field.group(1):
            outside.append(lines[place : field.start(1)])
            inside.append(pairs.sub(lambda pair: quote * 2 if pair.group(1) == quote else escape, field.group(1)))
            place = field.end(1)
    outside.append(lines[place:])
    if any(escape + quote in part for part in outside):
        return None  # no end of the field that this quote is in was found
    return b"".join(chain.from_iterable(zip(outside, [*inside, b""], strict=True)))


def are_quotes_regular(
    data: bytes, quote: bytes, sep: bytes, *, over_lines: bool = True, open_end: bool = False
) -> bool:
    """Tell whether every quote opens a field, closes it, or is one of two within.

    `over_lines`: a quoted field may have line ends. `open_end`: the last one may stay open.
    """
    start = 0
    while start < len(data):
        end = len(data)
        if not over_lines:  # cut where lines end, so that what is made of a piece stays in the processor's cache
            end = data.find(b"\n", start + _CHECKED_AT_ONCE) + 1 or end
        piece, start = data[start:end], end
        quotes, ends = mark_characters(piece, quote), mark_characters(piece, b"\r\n" if b"\r" in piece else b"\n")
        quoted = mark_between(quotes)
        if (not open_end and is_marked(quoted, len(piece))) or (not over_lines and (ends & quoted).any()):
            return False
        opening, closing = quotes & quoted, quotes & ~quoted
        borders = mark_characters(piece, sep) | ends
        borders[len(piece) // 64] |= _ONE << np.uint64(len(piece) % 64)  # its end
        # a doubled quote closes the field, and opens it again at once
        misplaced = (opening & ~move_later(borders | closing)) | (closing & ~move_earlier(borders | opening))
        if misplaced.any():
            return False
    return True


class Tokenizer:
    """Cuts a record into fields."""

    def __init__(self, options: FormatOptions) -> None:
        self._trims_end = options.ignore_trailing_white_space
        self._field = re.compile(_field_expression(options))
        q, e = re.escape(options.quote), re.escape(options.escape)
        self._pair = re.compile(f"{e}({e}|{q})|{q}({q})" if e else f"{q}({q})")

    def cut_fields(self, record: str, most: int = MAX_COLUMNS) -> tuple[list[Field], bool]:
        """Cut a record (without its line end); also whether every quote is closed. Raises ValueError."""
        fields: list[Field] = []
        all_closed, place = True, 0
        while True:
            match = self._field.match(record, place)
            assert match is not None  # the expression matches any text
            kind = match.lastgroup or ""
            if kind == "many":
                too_many = f"more than {_MOST_PAIRS} quotes and escapes in a field"
                raise ValueError(f"{too_many}; Python 3.11 or newer reads it")
            text = match[kind]
            if kind in ("quoted", "open"):
                text = self._pair.sub(lambda pair: pair[pair.lastindex or 0], text)
            elif kind == "plain" and self._trims_end:
                text = text.rstrip(BLANK)
            if len(fields) == most:
                raise ValueError(f"more than {most} fields")
            fields.append((text, kind in ("quoted", "open")))
            all_closed = all_closed and kind != "open"
            place = match.end()
            if place >= len(record):
                return fields, all_closed
            place += 1  # the separator


class CsvRecords:
    """The records of CSV with `multiLine`, where a line end within quotes is data: a `Separator`."""

    length = 1
    found_from_anywhere = False
    inner_end = staticmethod(no_inner_end)

    def __init__(self, options: FormatOptions) -> None:
        self._quote = options.quote.encode()
        self._escape = options.escape.encode() if options.escape != options.quote else b""
        self._sep, self._comment = options.sep.encode(), options.comment.encode()
        # a record, or the part of one up to a separator; what has no quote up to the line's end is one step
        field = re.sub(r"\?P<\w+>", "?:", _field_expression(options))
        comment = rf"(?:(?<=[\r\n])|\A){re.escape(options.comment)}[^\r\n]*|" if options.comment else ""
        start = rf"{comment}[^{re.escape(options.quote)}\r\n]*|{field}"
        self._step = re.compile(rf"(?:{start})(?:(?P<end>\r\n?|\n|\Z)|{re.escape(options.sep)})".encode())

    def find_ends(self, data: bytes) -> Places:
        """Find where the records end in text that begins with a record; the last end may be that of the text."""
        if self._is_regular(data):
            marks = _mark_line_ends(data, self._quote)
            newlines: Places = np.flatnonzero(np.unpackbits(marks.view(np.uint8), bitorder="little"))
            characters = np.frombuffer(data, np.uint8)
            first, second = newlines[:-1], newlines[1:]
            halves = (characters[first] == 13) & (characters[second] == 10) & (second - first == 1)  # \r\n ends once
            ends: Places = np.delete(newlines, np.flatnonzero(halves)) + 1
            return ends
        return np.fromiter((step.end() for step in self._step.finditer(data) if step.lastgroup), np.intp)

    def last_end(self, data: bytes) -> int:
        end = len(data)  # which may be the half of \r\n, or within a field: never an answer
        if not self._is_regular(data):
            ends = self.find_ends(data)
            complete = ends[ends < len(data)]
            return int(complete[-1]) if len(complete) else 0
        outside = _mark_line_ends(data, self._quote)
        while end := max(data.rfind(b"\n", 0, end - 1), data.rfind(b"\r", 0, end - 1)) + 1:
            if is_marked(outside, end - 1) and data[end - 1 : end + 1] != b"\r\n":
                return end
        return 0

    def first_end(self, data: bytes, start: int) -> int:
        ends = self.find_ends(data)
        complete = ends[(ends >= start) & (ends < len(data))]
        return int(complete[0]) if len(complete) else -1

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        ends = self.find_ends(data)
        chunks = (ends[at : at + _LISTED_AT_ONCE].tolist() for at in range(0, len(ends), _LISTED_AT_ONCE))
        for end in chain(chain.from_iterable(chunks), (len(data),)):
            if start < end:
                record = data[start:end]
                yield start, record.removesuffix(b"\n").removesuffix(b"\r")
            start = end

    def _is_regular(self, data: bytes) -> bool:
        """Tell whether quotes do nothing but surround fields: then numpy finds the ends many times as fast."""
        if _count_character(data, b"\n") + _count_character(data, b"\r") > _MAX_PLACES:
            return False  # a list of their places would take many times the memory of the text
        if not self._quote or self._quote not in data:
            return True
        if self._comment and self._comment in data:
            return False
        may_escape = self._escape and self._escape in data  # one character is found ten times as fast as two
        if may_escape and (self._escape + self._quote in data or self._escape * 2 in data):
            return False
        return are_quotes_regular(data, self._quote, self._sep, open_end=True)


def _count_character(data: bytes, character: bytes) -> int:
    """Count a character; numpy does it ten times as fast as bytes do."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord(character)))


def _mark_line_ends(data: bytes, quote: bytes) -> Marks:
    """Mark the characters that end lines, outside of quotes."""
    ends = mark_characters(data, b"\r\n")
    return ends & ~mark_between(mark_characters(data, quote)) if quote else ends


def _field_expression(options: FormatOptions) -> str:
    """Write an expression of a field that matches at any place: `quoted`, `open` (never closed), `stray` or `plain`.

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
    repeated = f"(?:(?:{pair})[^{q}{e}]*)"
    inner = f"[^{q}{e}]*{repeated}" + ("*+" if _POSSESSIVE else f"{{0,{_MOST_PAIRS}}}")
    many = "" if _POSSESSIVE else rf"|(?P<many>{q}[^{q}{e}]*{repeated}{{{_MOST_PAIRS}}}[\s\S]*)"
    border = rf"(?={s}|[\r\n]|\Z)" if options.multi_line else rf"(?={s}|\Z)"
    behind = "".join(c for c in " \t" if c != options.sep)
    quoted = rf"{q}(?P<quoted>{inner}){q}[{behind}]*{border}"  # spaces behind a closing quote are no data
    never_closed = rf"{q}(?P<open>{inner}){f'{e}?' if e else ''}\Z"
    return rf"{leading}(?:{quoted}|{never_closed}{many}|(?P<stray>{q}{inner}[^{stop}]*)|{plain})"


def mark_characters(data: bytes, characters: bytes) -> Marks:
    """Mark where any of the characters stands."""
    text = np.frombuffer(data, np.uint8)
    packed = np.zeros((len(data) // 64 + 1) * 8, np.uint8)
    for start in range(0, len(data), _MARKED_AT_ONCE):
        piece = text[start : start + _MARKED_AT_ONCE]
        matches = piece == characters[0]
        for other in characters[1:]:
            matches |= piece == other
        bits = np.packbits(matches, bitorder="little")
        packed[start // 8 : start // 8 + len(bits)] = bits
    return packed.view(_LITTLE)


def is_marked(marks: Marks, place: int) -> bool:
    return bool(marks[place // 64] >> np.uint64(place % 64) & _ONE)


def mark_between(marks: Marks) -> Marks:
    """Mark from each odd mark up to the next one, without that: within quotes, where quotes are marked."""
    odd: Marks = marks.copy()
    for step in (1, 2, 4, 8, 16, 32):
        odd ^= odd << np.uint64(step)
    before = np.bitwise_xor.accumulate(odd >> _LAST)[:-1]
    odd[1:] ^= np.uint64(0) - before  # all bits of a word, where the marks before it are odd in number
    return odd


def move_later(marks: Marks) -> Marks:
    """Move each mark to the next byte, and mark the first byte."""
    later: Marks = marks << _ONE
    later[1:] |= marks[:-1] >> _LAST
    later[0] |= _ONE
    return later


def move_earlier(marks: Marks) -> Marks:
    """Move each mark to the byte before."""
    earlier: Marks = marks >> _ONE
    earlier[:-1] |= marks[1:] << _LAST
    return earlier
