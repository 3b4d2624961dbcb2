"""How much memory a row of an ORC stripe may take, by its streams of lengths, before any row is decoded.

The other formats are limited by the memory of the process alone. ORC's library takes memory for lists, texts and
dictionaries with `malloc`, and does not look whether it got any: it would end the process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from queue_source.formats.typed import orc_file
from queue_source.formats.typed.orc_file import CUT_OFF, OrcFile, Stripe, StripeFooter
from queue_source.formats.varints import read_varint, without_zigzag

_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
_RUN = 3  # the shortest run of equal numbers, and the fewest of a run of the first version
_DICTIONARIES = (1, 3)  # encodings DICTIONARY and DICTIONARY_V2
_TEXTS = (orc_file.STRING, orc_file.BINARY, orc_file.VARCHAR, orc_file.CHAR)
_FIXED = 16
IN_USE = 4
"""How many times a row is there while it is decoded."""


def largest_row(orc: OrcFile, stripe: Stripe, footer: StripeFooter, columns: Sequence[str], room: int) -> int:
    """Return the bytes that a row may take in some columns, or more.

    Raises MemoryError where such a row and the dictionaries of the stripe have no room while they are decoded, and
    ValueError or IndexError for damage.
    """
    root, sizes = orc.types[0], _Sizes(orc, footer, room // IN_USE)
    row = sum(
        sizes.of(number, stripe.rows)[0] for number, name in zip(root.inner, root.names, strict=True) if name in columns
    )
    if IN_USE * row + 2 * sizes.dictionaries > room:
        raise MemoryError(f"a row may have {row} bytes, and the dictionaries of its stripe {sizes.dictionaries}")
    return row


class _Sizes:
    """How large values of a stripe may be; `dictionaries` is what those of the types that were asked for take."""

    def __init__(self, orc: OrcFile, footer: StripeFooter, limit: int) -> None:
        self._orc, self._footer, self._limit = orc, footer, limit
        self.dictionaries = 0

    def of(self, number: int, count: int) -> tuple[int, int]:
        """Return the bytes that a value of a type may have, of which there are so many, and those of all of them."""
        written = self._orc.types[number]
        if written.kind in (orc_file.LIST, orc_file.MAP):
            length, total = self._lengths(number, count)
            inner = [self.of(below, total) for below in written.inner]
            # the longest list need not have the longest texts: no more than all there are
            row = sum(min(length * length_of_one, every) for length_of_one, every in inner)
            return _FIXED + row, _FIXED * count + sum(every for _, every in inner)
        if written.kind in _TEXTS:
            encoding, entries = self._footer.encodings[number]
            if encoding in _DICTIONARIES:
                longest, total = self._lengths(number, entries)
                self.dictionaries += 8 * entries + total
                return _FIXED + longest, (_FIXED + longest) * count
            longest, total = self._lengths(number, count)
            return _FIXED + longest, _FIXED * count + total
        inner = [self.of(below, count) for below in written.inner]
        return _FIXED + sum(length_of_value for length_of_value, _ in inner), _FIXED * count + sum(
            every for _, every in inner
        )

    def _lengths(self, number: int, count: int) -> tuple[int, int]:
        stream = self._footer.streams.get((number, orc_file.LENGTH))
        if stream is None or not count:
            return 0, 0
        if (size := self._orc.content_size(stream)) > self._limit:
            raise MemoryError(f"the lengths of a column take {size} bytes")
        version = 1 if self._footer.encodings[number][0] < 2 else 2
        return lengths(self._orc.content(stream), version, count)


def lengths(data: bytes, version: int, count: int) -> tuple[int, int]:
    """Return the largest of the first `count` numbers of an unsigned stream, and their sum, or somewhat more.

    Raises ValueError or IndexError for damage.
    """
    return _first_version(data, count) if version == 1 else _second_version(data, count)


def _first_version(data: bytes, count: int) -> tuple[int, int]:
    place = most = total = 0
    while place < len(data) and count > 0:
        control = data[place]
        place += 1
        if control < 0x80:
            delta = data[place] - 256 if data[place] > 127 else data[place]
            value, place = read_varint(data, place + 1, CUT_OFF)
            length = control + _RUN
            above = max(value, value + delta * (length - 1))
            most, total = max(most, above), total + above * length
        else:
            length = 256 - control
            for _ in range(length):
                value, place = read_varint(data, place, CUT_OFF)
                most, total = max(most, value), total + value
        count -= length
    return most, total


def _second_version(data: bytes, count: int) -> tuple[int, int]:
    place = most = total = 0
    while place < len(data) and count > 0:
        header = data[place]
        kind = header >> 6
        if kind == 0:  # a number, repeated
            width = ((header >> 3) & 7) + 1
            number, length = int.from_bytes(data[place + 1 : place + 1 + width], "big"), (header & 7) + _RUN
            most, total = max(most, number), total + number * length
            place += 1 + width
            count -= length
            continue
        width = _WIDTHS[(header >> 1) & 31]
        length = ((header & 1) << 8 | data[place + 1]) + 1
        count -= length
        place += 2
        if kind == 1:  # each in so many bits
            high, every, place = _measured(data, place, length, width)
            most, total = max(most, high), total + every
        elif kind == 2:  # above a base, some with more bits
            base_width, patch_width = (data[place] >> 5) + 1, _WIDTHS[data[place] & 31]
            gap_width, patches = (data[place + 1] >> 5) + 1, data[place + 1] & 31
            base = int.from_bytes(data[place + 2 : place + 2 + base_width], "big")
            _, every, place = _measured(data, place + 2 + base_width, length, width)
            entry = next(
                width_of_patch for width_of_patch in _WIDTHS if width_of_patch >= min(gap_width + patch_width, 64)
            )
            patch, place = _unpacked(data, place, patches, entry)
            above = int((patch & np.uint64((1 << patch_width) - 1)).max()) if patches else 0
            highest = base + (above << width) + (1 << width) - 1
            most, total = max(most, highest), total + length * base + every + patches * (highest - base)
        else:  # each larger than the one before, or each smaller
            if not (header >> 1) & 31:
                width = 0
            first, place = read_varint(data, place, CUT_OFF)
            step, place = read_varint(data, place, CUT_OFF)
            step = without_zigzag(step)
            climbed = step * (length - 1)
            if width and length > 2:
                differences, place = _unpacked(data, place, length - 2, width)
                climbed = step + (int(differences.sum(dtype=np.float64)) if step >= 0 else 0)
            highest = max(first, first + climbed)
            most, total = max(most, highest), total + length * highest
    return most, total


def _measured(data: bytes, place: int, count: int, width: int) -> tuple[int, int, int]:
    """Return the largest of so many numbers of so many bits, their sum, and the place after them.

    Writers round up to whole bytes; of other widths no more is taken than a number needs.
    """
    if width % 8:
        most = (1 << width) - 1
        return most, count * most, place + -(-count * width // 8)
    numbers, place = _unpacked(data, place, count, width)
    return int(numbers.max()), int(numbers.sum(dtype=np.float64)), place


def _unpacked(data: bytes, place: int, count: int, width: int) -> tuple[np.ndarray, int]:
    """Unpack numbers of so many bits, the most significant first; return them, and the place after them."""
    size = -(-count * width // 8)
    piece = np.frombuffer(data, np.uint8, size, place)  # raises ValueError where there is less
    if width in (8, 16, 32, 64):
        return piece.view(f">u{width // 8}"), place + size
    bits = np.unpackbits(piece)[: count * width].reshape(count, width)
    powers = np.uint64(1) << np.arange(width - 1, -1, -1, dtype=np.uint64)
    return (bits * powers).sum(axis=1, dtype=np.uint64), place + size
