"""Where JSON values begin and end: the brackets and commas outside of strings, in text that comes in pieces.

It is no parser: what is between the marks may be no JSON, and the parser that reads it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_QUOTE, _APOSTROPHE, COMMA, _BACKSLASH, SPACE, NEWLINE = b"\"',\\ \n"
OPENING, _CLOSING = b"{[", b"}]"
WHITE = b" \t\r\n"
_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")
_IS_MARK = bytes(byte in b"\"'{}[]," for byte in range(256))
_STEPS = np.array([(byte in OPENING) - (byte in _CLOSING) for byte in range(256)], np.int8)
_TOKEN = re.compile(rb'"[^"]*"?|\'[^\']*\'?|[{}\[\],]')
_NEXT_OBJECT = re.compile(rb"}[ \t]*{")
_BEGINNING = 64 << 10  # bytes of a text that tell whether it is worth a look
_CHUNK = 1 << 18  # bytes that stay in the processor's cache

Places = np.ndarray[Any, np.dtype[np.intp]]


class Marks(NamedTuple):
    """Brackets and commas: where each is, which one, and how deep in objects and arrays the text is behind it."""

    places: Places
    kinds: np.ndarray[Any, np.dtype[np.uint8]]
    depths: np.ndarray[Any, np.dtype[np.int32]]


class Scanner:
    """Finds the marks of a text that comes in pieces. Its strings are in quotes of either kind."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = b""
        self._is_escaped = False

    def find_marks(self, text: bytes, deepest: int) -> Marks:
        """Find the marks of the next text behind which it is at most so deep."""
        pieces = []
        for start in range(0, len(text), _CHUNK):
            marks = self._scan(text[start : start + _CHUNK])
            shallow = marks.depths <= deepest
            pieces.append(Marks(marks.places[shallow] + start, marks.kinds[shallow], marks.depths[shallow]))
        return Marks(*map(np.concatenate, zip(*pieces, strict=True))) if pieces else self._scan(b"")

    def each(self, text: bytes) -> Iterator[Marks]:
        """Yield all marks of the next text, some at a time."""
        return (self._scan(text[start : start + _CHUNK]) for start in range(0, len(text), _CHUNK))

    def _scan(self, piece: bytes) -> Marks:
        masked = self._mask_escapes(piece)
        characters = np.frombuffer(masked, np.uint8)
        places: Places = np.flatnonzero(np.frombuffer(masked.translate(_IS_MARK), np.bool_))
        kinds = characters[places]
        quotes = kinds == _QUOTE
        inside = np.cumsum(quotes.view(np.uint8), dtype=np.uint8) + np.uint8(self._quote != b"") & 1
        if self._quote == b"'" or ((kinds == _APOSTROPHE) & (inside == 0)).any():
            places = np.fromiter(self._find_in_either_quotes(masked), np.intp)
        elif len(places):
            self._quote = b'"' if inside[-1] else b""
            places = places[(inside == 0) & ~quotes]
        kinds = characters[places]
        depths = np.cumsum(_STEPS[kinds], dtype=np.int32) + self._depth
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return Marks(places, kinds, depths)

    def _mask_escapes(self, piece: bytes) -> bytes:
        """Make spaces of the characters that are escaped, which the last one of the piece before may do too."""
        if self._is_escaped and piece:
            piece, self._is_escaped = b" " + piece[1:], False
        if b"\\" not in piece:
            return piece
        escapes = np.flatnonzero(np.frombuffer(piece, np.uint8) == _BACKSLASH)
        if (escapes[1:] - escapes[:-1] == 1).any():
            piece = piece.replace(b"\\\\", b"  ")
            escapes = np.flatnonzero(np.frombuffer(piece, np.uint8) == _BACKSLASH)
        self._is_escaped = piece.endswith(b"\\")
        masked = bytearray(piece)
        np.frombuffer(masked, np.uint8)[escapes[: len(escapes) - self._is_escaped] + 1] = SPACE
        return bytes(masked)

    def _find_in_either_quotes(self, masked: bytes) -> Iterator[int]:
        before = len(self._quote)
        for token in _TOKEN.finditer(self._quote + masked):
            text = token.group()
            if text[0] in b"\"'":
                self._quote = text[:1] if len(text) == 1 or text[-1] != text[0] else b""
            else:
                yield token.start() - before


def has_more_values(text: bytes, most: int) -> bool:
    """Tell whether there are more than so many keys and values."""
    if len(text) <= most or text.count(b",") + text.count(b"{") <= most:
        return False
    counts = (np.count_nonzero((kinds == COMMA) | (kinds == OPENING[0])) for _, kinds, _ in Scanner().each(text))
    return sum(map(int, counts)) > most


def measure_depth(text: bytes) -> int:
    """Measure how deep objects and arrays are within one another, in a text that may be no JSON."""
    return max((int(depths.max(initial=0)) for _, _, depths in Scanner().each(text)), default=0)


def without_breaks(text: bytes) -> bytearray:
    """Return text in one line. Its line ends become tabs, which are white space too, and as bad within strings."""
    return bytearray(text.translate(_BREAKS) if b"\n" in text or b"\r" in text else text)


def cut_items(document: bytes) -> bytes | None:
    """Write a document with a line for each item of its array, or in one line if it is an object.

    None where it is neither by its brackets and quotes. What is in the lines may be no JSON.
    """
    last = len(document.rstrip(WHITE)) - 1
    places, kinds, depths = Scanner().find_marks(document, 1)
    is_one = len(places) > 1 and places[0] == 0 and places[-1] == last and (depths[:-1] > 0).all() and depths[-1] == 0
    if not is_one or document[:1] + document[last : last + 1] not in (b"[]", b"{}"):
        return None
    lines = without_breaks(document)
    if document[0] == OPENING[1]:
        np.frombuffer(lines, np.uint8)[places[kinds == COMMA]] = NEWLINE
        lines[0] = lines[last] = SPACE
    return bytes(lines)


def find_object_ends(text: bytes) -> Places:
    """Find where objects end that another one follows in the same line, with no more than spaces between them."""
    places, kinds, depths = Scanner().find_marks(text, 1)
    are_right = np.cumsum(depths < 0) == 0  # up to a bracket that closes nothing
    starts = places[(depths == 1) & (_STEPS[kinds] > 0) & are_right][1:]
    ends = places[(depths == 0) & (_STEPS[kinds] < 0)][: len(starts)] + 1
    characters = np.frombuffer(text, np.uint8)
    follows = starts == ends
    for at in np.flatnonzero((characters[ends] == SPACE) | (characters[ends] == WHITE[1])):
        follows[at] = not text[ends[at] : starts[at]].strip(b" \t")
    follows &= (characters[ends - 1] == _CLOSING[0]) & (characters[starts] == OPENING[0])
    return np.asarray(ends[follows])


def last_object_end(text: bytes) -> int:
    """Return the last of these ends; 0 without one."""
    return int(find_object_ends(text).max(initial=0))


def split_objects(text: bytes) -> bytes | None:
    """Write text with a line for each of the objects that follow each other in a line; None where none do at first."""
    if _NEXT_OBJECT.search(text, 0, _BEGINNING) is None or not len(ends := find_object_ends(text)):
        return None
    return bytes(np.insert(np.frombuffer(text, np.uint8), ends, NEWLINE))


def cut_objects(line: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a line into its objects: (offset, object). What is none stays with the one before it."""
    start = 0
    for end in find_object_ends(line).tolist() if _NEXT_OBJECT.search(line) else ():
        yield start, line[start:end]
        start = end
    yield start, line[start:]
