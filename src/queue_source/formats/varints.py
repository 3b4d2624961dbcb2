"""Numbers of a variable length (LEB128): seven bits a byte, the lowest first; the last byte is below 128.

ORC, Avro, Thrift and Snappy write them. No pyarrow.
"""

from __future__ import annotations

LONGEST = 10
"""Bytes of a number of 64 bits."""


def read_varint(
    data: bytes, place: int = 0, problem: str = "a number has no end", most: int = LONGEST
) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it.

    Raises ValueError with the problem, where it has more bytes than `most`, or than there are.
    """
    value = shift = 0
    while place < len(data) and shift < 7 * most:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(problem)


def written_varint(value: int) -> bytes:
    """Return a number that is not negative as it is written."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def without_zigzag(value: int) -> int:
    """Return the signed number that was written as an unsigned one: 0, -1, 1, -2 as 0, 1, 2, 3."""
    return (value >> 1) ^ -(value & 1)


def snappy_length(compressed: bytes, problem: str) -> int:
    """Return the length of the content, which raw Snappy has at its beginning. Raises ValueError with the problem."""
    length, _ = read_varint(compressed, 0, problem, most=5)
    return length
