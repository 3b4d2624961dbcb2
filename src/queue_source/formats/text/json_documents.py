"""Documents with records in them (`recordsPath`): the elements of an array become lines, in the place where they are.

Documents follow each other and have any size: a block is held, and never an array. What is around an array is decoded
when its document ends; the reader of lines decodes the elements.
A fault of an element is a bad record; one of a document makes the object bad, since where its records end is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.formats.compression import Readable
from queue_source.formats.text import json_grammar as grammar
from queue_source.formats.text.blocks import BOM, Block
from queue_source.formats.text.json_structure import (
    COMMA,
    NEWLINE,
    OPENING,
    SPACE,
    WHITE,
    Places,
    Scanner,
    without_breaks,
)
from queue_source.formats.types import shorten
from queue_source.options.content import FormatOptions

BLOCK_SIZE = 4 << 20
"""Bytes that are read at a time. They are held once more as lines."""
_OBJECT, _ARRAY = OPENING
_KEY = re.compile(
    rb"""[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*){0,1000}"|'[^'\\]*(?:\\.[^'\\]*){0,1000}')[ \t\r\n]*:""", re.DOTALL
)


def cut_elements(stream: Readable, bad: BadRecords, options: FormatOptions) -> Iterator[Block]:
    """Cut documents into blocks of lines, each an element. What is between them is white, and no byte moves.

    An element of more than `maxRecordBytes` is a bad record: it is skipped, not held.
    Raises BadObject (`wrong-columns`, `corrupt-object`) where a document has no such array, or is none.
    """
    documents, longest = _Documents(options), options.max_record_bytes
    tail = stream.read(len(BOM))
    offset = len(BOM) if tail == BOM else 0
    tail, scanned, is_last = tail[offset:], 0, False
    while not is_last:
        data = stream.read(BLOCK_SIZE)
        is_last = len(data) < BLOCK_SIZE
        data = tail + data if tail else data
        block, end = documents.cut(data, scanned, offset)
        tail, offset = data[end:], offset + end
        if len(tail) > longest:
            if not documents.skips:
                reason = f"a record of more than {longest} bytes is skipped; a larger maxRecordBytes reads it"
                bad.add(offset, reason, tail)
            documents.skips = True
            tail, offset = b"", offset + len(tail)
        scanned = len(tail)
        del data
        if block is not None:
            yield block
        del block
    documents.finish()


class _Documents:
    """Where in its documents a text is that comes in pieces.

    Attributes:
        skips: Whether the beginning of the present element is gone.
    """

    def __init__(self, options: FormatOptions) -> None:
        assert options.records_path is not None
        self.skips = False
        self._options = options
        self._names = options.records_path.split(".")
        self._scanner = Scanner()
        self._in_array = self._has_commas = False
        self._level = 0  # objects that are open, of the document and on the path
        self._met: set[int] = set()  # levels at which the path's name was there
        self._begin = 0
        self._around = bytearray()  # the document without its elements
        self._item = 0  # where in it the present key begins

    def cut(self, text: bytes, scanned: int, offset: int) -> tuple[Block | None, int]:
        """Return the elements that end in a text, and where what is to come again before the next text begins."""
        places, kinds, depths = self._scanner.find_marks(text[scanned:], len(self._names) + 1)
        places += scanned
        array_ends = np.flatnonzero(depths <= len(self._names))
        lines = without_breaks(text)
        written = np.frombuffer(lines, np.uint8)
        first = start = last = taken = at = 0
        has_array = self._in_array
        while at < len(places):
            if self._in_array:
                nearest = int(np.searchsorted(array_ends, at))
                is_closed = nearest < len(array_ends)
                stop = int(array_ends[nearest]) if is_closed else len(places)
                commas = places[at:stop][kinds[at:stop] == COMMA]
                ends = np.append(commas, places[stop]) if is_closed else commas
                if len(ends):
                    self._check_elements(text, start, ends, offset)
                    if self.skips:
                        written[start : ends[0]] = SPACE
                    written[commas] = NEWLINE
                    self.skips, self._has_commas = False, self._has_commas or len(commas) > 0
                    start = last = int(ends[-1]) + (not is_closed)
                self._in_array, taken, at = not is_closed, start, stop
                continue
            place, kind, depth = int(places[at]), int(kinds[at]), int(depths[at])
            at += 1
            if depth - (kind in OPENING) > self._level:
                continue
            self._around += text[taken : place + 1]
            taken = place + 1
            self._in_array = self._opens_array(kind, depth, offset + place)
            if self._in_array:
                start = taken
                if has_array:  # what is between this array and the one before becomes the end of a line
                    written[last:start] = SPACE
                    written[start - 1] = NEWLINE
                else:
                    first = last = start
                has_array = True
        if not self._in_array:
            self._around += text[taken:]
            start = len(text)
        if len(self._around) > self._options.max_record_bytes:
            most = self._options.max_record_bytes
            raise self._fault(f"it has more than {most} bytes beside its records; a larger maxRecordBytes reads it")
        return (Block(offset + first, bytes(memoryview(lines)[first:last])) if last > first else None), start

    def finish(self) -> None:
        """Require that the last document has ended."""
        if self._level:
            raise self._fault("it is cut off")
        if self._around.strip(WHITE):
            raise self._no_object(bytes(self._around))

    def _check_elements(self, text: bytes, start: int, ends: Places, offset: int) -> None:
        starts = np.append(start, ends[:-1] + 1)
        # most end in a brace
        for at in np.flatnonzero((starts == ends) | (np.frombuffer(text, np.uint8)[ends - 1] != ord("}"))):
            is_empty = not text[starts[at] : ends[at]].strip(WHITE)
            is_only = len(ends) == 1 and text[ends[0]] != COMMA and not self._has_commas
            if is_empty and not is_only and not (self.skips and at == 0):
                raise self._fault(f"there is no element before the {chr(text[ends[at]])!r} at byte {offset + ends[at]}")

    def _opens_array(self, kind: int, depth: int, offset: int) -> bool:
        """Go past a mark, the last character of what is around, and tell whether the records begin behind it."""
        if self._level == 0:
            before, self._begin = bytes(self._around[:-1]).strip(WHITE), offset
            if before or kind not in OPENING:
                raise self._no_object(before or bytes(self._around))
            if kind == _ARRAY:
                raise self._no_array("it is an array itself")
            self._around, self._item, self._level = bytearray(b"{"), 1, 1
            self._met.clear()
            return False
        is_value = kind in OPENING or kind == COMMA or depth < self._level
        if is_value and self._is_named():
            if self._level in self._met:
                raise self._fault(f"{self._names[self._level - 1]!r} is there twice")
            self._met.add(self._level)
            if kind != (_ARRAY if self._level == len(self._names) else _OBJECT):
                raise self._no_array(f"{'.'.join(self._names[: self._level])!r} has another value")
            self._has_commas = False
            self._level += kind == _OBJECT
            self._item = len(self._around)
            return kind == _ARRAY
        if is_value:
            self._item = len(self._around) - (kind in OPENING)  # a bracket is no key: one is looked at once
        if is_value and kind not in OPENING:
            self._level = depth
            if depth == 0:
                self._end_document()
        return False

    def _is_named(self) -> bool:
        """Tell whether the present key is the next name of the path."""
        if (key := _KEY.match(self._around, self._item)) is None:
            return False
        try:
            return bool(grammar.parse(key[1].decode()) == self._names[self._level - 1])
        except ValueError:
            return False  # what is no string is seen when the document ends

    def _end_document(self) -> None:
        try:
            document = grammar.decode_value(grammar.decode_text(bytes(self._around)), self._options.max_values)
        except UnicodeDecodeError as error:
            raise self._fault(f"not UTF-8: {error.reason}") from error
        except ValueError as error:
            raise self._fault(f"not JSON: {error}") from error
        if len(self._names) not in self._met:
            raise self._no_array(f"its keys are {list(document)}")
        self._around.clear()
        self._item = 0

    def _no_object(self, text: bytes) -> BadObject:
        return self._fault(f"{text.strip(WHITE)[:20].decode(errors='replace')!r} is no JSON object")

    def _no_array(self, detail: str) -> BadObject:
        return self._fault(
            f"there is no array at {self._options.records_path!r} (recordsPath): {detail}", "wrong-columns"
        )

    def _fault(self, reason: str, cause: str = "corrupt-object") -> BadObject:
        return BadObject(cause, shorten(f"the document at byte {self._begin}: {reason}"), self._begin)
