"""How much memory a row of an ORC stripe may take, by its streams of lengths, before any row is decoded.

The other formats are limited by the memory of the process alone. ORC's library takes memory for lists, texts and
dictionaries with `malloc`, and does not look whether it got any: it would end the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from queue_source.formats.typed import orc_file
from queue_source.formats.typed.orc_file import OrcFile, Stripe, StripeFooter, varint

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
            row = sum(min(length * one, every) for one, every in inner)
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
        return _FIXED + sum(one for one, _ in inner), _FIXED * count + sum(every for _, every in inner)

    def _lengths(self, number: int, count: int) -> tuple[int, int]:
        stream = self._footer.streams.get((number, orc_file.LENGTH))
        if stream is None or not count:
            return 0, 0
        if (size := self._orc.content_size(stream)) > self._limit:
            raise MemoryError(f"the lengths of a column take {size} bytes")
        version = 1 if self._footer.encodings[number][0] < 2 else 2
        return lengths(self._orc.content(stream), version, count)


def lengths(data: bytes, version: int, count: int) -> tuple[int, int]:
    """Return the largest of the first `count` numbers of an unsigned stream, and their sum.

    Both may be said to be some times as large, since no number is unpacked from its bits. Raises ValueError or
    IndexError for damage.
    """
    return _first_version(data, count) if version == 1 else _second_version(data, count)


def _first_version(data: bytes, count: int) -> tuple[int, int]:
    place = most = total = 0
    while place < len(data) and count > 0:
        control = data[place]
        place += 1
        if control < 0x80:
            delta = data[place] - 256 if data[place] > 127 else data[place]
            value, place = varint(data, place + 1)
            length = control + _RUN
            above = max(value, value + delta * (length - 1))
            most, total = max(most, above), total + above * length
        else:
            length = 256 - control
            for _ in range(length):
                value, place = varint(data, place)
                most, total = max(most, value), total + value
        count -= length
    return most, total


def _second_version(data: bytes, count: int) -> tuple[int, int]:
    place = most = total = 0
    while place < len(data) and count > 0:
        header = data[place]
        kind, few = header >> 6, 0
        if kind == 0:  # a number, repeated
            width = ((header >> 3) & 7) + 1
            highest, length = int.from_bytes(data[place + 1 : place + 1 + width], "big"), (header & 7) + _RUN
            place += 1 + width
        else:
            width, length = _WIDTHS[(header >> 1) & 31], ((header & 1) << 8 | data[place + 1]) + 1
            place += 2
            if kind == 1:  # each in so many bits
                highest = (1 << width) - 1
                place += -(-length * width // 8)
            elif kind == 2:  # above a base, some with more bits
                base_width, patch_width = (data[place] >> 5) + 1, _WIDTHS[data[place] & 31]
                gap_width, patches = (data[place + 1] >> 5) + 1, data[place + 1] & 31
                base = int.from_bytes(data[place + 2 : place + 2 + base_width], "big")
                entry = next(one for one in _WIDTHS if one >= min(gap_width + patch_width, 64))
                usual = base + (1 << width) - 1
                highest = base + (1 << width + patch_width) - 1 if patches else usual
                few = (length - patches) * (highest - usual)  # which are not so large
                place += 2 + base_width + -(-length * width // 8) + -(-patches * entry // 8)
            else:  # each larger than the one before, or each smaller
                steps = (1 << width) - 1 if (header >> 1) & 31 else 0
                first, place = varint(data, place)
                step, place = varint(data, place)
                step = (step >> 1) ^ -(step & 1)
                if steps:
                    place += -(-max(length - 2, 0) * width // 8)
                else:
                    steps = abs(step)
                highest = first + max(step + steps * (length - 2), 0) if step >= 0 else first
        most, total = max(most, highest), total + highest * length - few
        count -= length
    return most, total
