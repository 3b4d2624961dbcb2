"""What the record formats share: bytes that are text, in lines that end with one newline."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_NEWLINE = ord("\n")


def is_utf8(data: bytes) -> bool:
    """Whether the bytes are UTF-8: as one long string, ten times faster than Python decodes them."""
    buffer = pa.py_buffer(data)
    offsets = pa.array([0, buffer.size], pa.int64()).buffers()[1]
    try:
        pa.LargeStringArray.from_buffers(1, offsets, buffer).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def unified(data: bytes, separator: str | None, *, blank: bytes | None) -> bytes | None:
    r"""Records that end with `\n`. Without a `separator` those are lines, whichever way they end.

    With one, other line ends within records become `blank`; None: then the answer is None.
    """
    if separator is None:
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    end = separator.encode()
    outside = data if end == b"\n" else data.replace(end, b"")
    if b"\r" in outside or (end != b"\n" and b"\n" in outside):
        if blank is None:
            return None
        parts = [part.replace(b"\n", blank).replace(b"\r", blank) for part in data.split(end)]
        return b"\n".join(parts)
    return data if end == b"\n" else data.replace(end, b"\n")


def count_lines(data: bytes, rows: int, *, strip: bool) -> int:
    """How many lines hold something (with `strip`: more than white space).

    `rows` is a guess that makes it quick: blank lines are looked for only where it is wrong.
    """
    newlines = int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))  # ten times faster than bytes.count
    lines = newlines + (len(data) > 0 and not data.endswith(b"\n"))
    if lines == rows:
        return lines
    split = data.split(b"\n")
    return sum(1 for line in split if line.strip()) if strip else sum(map(bool, split))
