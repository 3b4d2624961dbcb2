"""The largest number in a stream of lengths of ORC, and the sum of all, found without decoding what has these lengths.

So much is known of how large a list or a text of a stripe may be, before memory is taken for any of them.
"""

from __future__ import annotations

import numpy as np

_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
_RUN = 3  # the shortest run of equal numbers, and the fewest of a run of the first version


def measured(data: bytes, version: int, count: int) -> tuple[int, int]:
    """The largest of the first `count` numbers of an unsigned stream, and their sum or more.

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
            value, place = _varint(data, place + 1)
            length = control + _RUN
            above = max(value, value + delta * (length - 1))
            most, total = max(most, above), total + above * length
        else:
            length = 256 - control
            for _ in range(length):
                value, place = _varint(data, place)
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
            entry = next(one for one in _WIDTHS if one >= min(gap_width + patch_width, 64))
            patch, place = _unpacked(data, place, patches, entry)
            above = int((patch & np.uint64((1 << patch_width) - 1)).max()) if patches else 0
            highest = base + (above << width) + (1 << width) - 1
            most, total = max(most, highest), total + length * base + every + patches * (highest - base)
        else:  # each larger than the one before, or each smaller
            if not (header >> 1) & 31:
                width = 0
            first, place = _varint(data, place)
            step, place = _varint(data, place)
            step = (step >> 1) ^ -(step & 1)
            climbed = step * (length - 1)
            if width and length > 2:
                found, place = _unpacked(data, place, length - 2, width)
                climbed = step + (int(found.sum(dtype=np.float64)) if step >= 0 else 0)
            highest = max(first, first + climbed)
            most, total = max(most, highest), total + length * highest
    return most, total


def _measured(data: bytes, place: int, count: int, width: int) -> tuple[int, int, int]:
    """The largest of so many numbers of so many bits, their sum, and the place after them.

    Writers round up to whole bytes; of other widths no more is taken than a number needs.
    """
    if width % 8:
        most = (1 << width) - 1
        return most, count * most, place + -(-count * width // 8)
    found, place = _unpacked(data, place, count, width)
    return int(found.max()), int(found.sum(dtype=np.float64)), place


def _unpacked(data: bytes, place: int, count: int, width: int) -> tuple[np.ndarray, int]:
    """So many numbers of so many bits, the most significant first, and the place after them."""
    size = -(-count * width // 8)
    piece = np.frombuffer(data, np.uint8, size, place)  # raises ValueError where there is less
    if width in (8, 16, 32, 64):
        return piece.view(f">u{width // 8}"), place + size
    bits = np.unpackbits(piece)[: count * width].reshape(count, width)
    powers = np.uint64(1) << np.arange(width - 1, -1, -1, dtype=np.uint64)
    return (bits * powers).sum(axis=1, dtype=np.uint64), place + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number has no end")
