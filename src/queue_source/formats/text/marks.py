"""Where characters stand in a text: a bit for each byte, in words of 64.

However many there are, marks take an eighth of the text, where a list of places would take many times its size; and a
question about all of them is a few operations on words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Marks = np.ndarray[Any, np.dtype[np.uint64]]
"""Bit `i` of word `w` is for byte `64 * w + i`. At least one bit follows that of the last byte."""

Places = np.ndarray[Any, np.dtype[np.intp]]

_LITTLE = np.dtype("<u8")
_ONE, _LAST = np.uint64(1), np.uint64(63)
_AT_ONCE = 1 << 17  # bytes that stay in the processor's cache; a multiple of 8


def marks(data: bytes, characters: bytes) -> Marks:
    """Where any of the characters stands."""
    text = np.frombuffer(data, np.uint8)
    packed = np.zeros((len(data) // 64 + 1) * 8, np.uint8)
    for start in range(0, len(data), _AT_ONCE):
        piece = text[start : start + _AT_ONCE]
        found = piece == characters[0]
        for other in characters[1:]:
            found |= piece == other
        bits = np.packbits(found, bitorder="little")
        packed[start // 8 : start // 8 + len(bits)] = bits
    return packed.view(_LITTLE)


def mark(marked: Marks, place: int) -> None:
    marked[place // 64] |= _ONE << np.uint64(place % 64)


def is_marked(marked: Marks, place: int) -> bool:
    return bool(marked[place // 64] >> np.uint64(place % 64) & _ONE)


def places(marked: Marks) -> Places:
    """In ascending order."""
    found: Places = np.flatnonzero(np.unpackbits(marked.view(np.uint8), bitorder="little"))
    return found


def between(marked: Marks) -> Marks:
    """From each odd mark up to the next one, without that: within quotes, where quotes are marked."""
    odd: Marks = marked.copy()
    for step in (1, 2, 4, 8, 16, 32):
        odd ^= odd << np.uint64(step)
    before = np.bitwise_xor.accumulate(odd >> _LAST)[:-1]
    odd[1:] ^= np.uint64(0) - before  # all bits of a word, where the marks before it are odd in number
    return odd


def one_later(marked: Marks) -> Marks:
    """Each mark at the next byte, and one at the first byte."""
    later: Marks = marked << _ONE
    later[1:] |= marked[:-1] >> _LAST
    later[0] |= _ONE
    return later


def one_earlier(marked: Marks) -> Marks:
    """Each mark at the byte before."""
    earlier: Marks = marked >> _ONE
    earlier[:-1] |= marked[1:] << _LAST
    return earlier
