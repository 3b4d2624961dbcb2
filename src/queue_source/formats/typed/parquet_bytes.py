"""Where the bytes of a Parquet object are while it is read: all of them in memory, or the fetched chunks of a group."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Protocol

import pyarrow as pa

from queue_source.storage.files import ObjectFile

IN_MEMORY = 64 << 20
"""Bytes of a fetched group that are held in memory; one that is larger is in a file of its own on local disk."""
_GAP = 64 << 10  # between two chunks that are still fetched in one request
_REQUEST = 32 << 20
_BUFFER = 1 << 20


class Stored(Protocol):
    """What is known to be in memory or on local disk of an object, at its places in the object."""

    @property
    def buffer_size(self) -> int:
        """Bytes that pyarrow reads of a column at once; 0 for all of it."""

    def at(self, place: int, size: int) -> bytes:
        """So many bytes, or fewer at the end of what is stored."""

    def native(self) -> pa.NativeFile:
        """A file for pyarrow."""

    def release(self) -> None:
        """Nothing of it is read any more."""


class Whole:
    """A small object, all of it in memory."""

    buffer_size = 0

    def __init__(self, file: ObjectFile) -> None:
        size = file.size()
        file.seek(0)
        self._data = file.read(size)
        if len(self._data) < size:
            raise ValueError(f"it ends at byte {len(self._data)}")

    def size(self) -> int:
        return len(self._data)

    def at(self, place: int, size: int) -> bytes:
        return self._data[place : place + size]

    def native(self) -> pa.NativeFile:
        return pa.BufferReader(self._data)

    def release(self) -> None:
        """Nothing: other groups are in it too."""


class Fetched:
    """The chunks of a group: a file for pyarrow, which has at their places what was fetched."""

    def __init__(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> None:
        self._file = file
        self._place = 0
        joined = _joined(ranges)
        self._starts = [start for start, _ in joined]
        self._pieces: list[memoryview] = []
        self._spool: IO[bytes] | None = None
        self._spooled: list[tuple[int, int]] = []  # where each is in the spool, and its length
        self.closed = False
        if sum(end - start for start, end in joined) > IN_MEMORY:
            self._spool = tempfile.TemporaryFile(prefix="cuesqueue-group-")  # noqa: SIM115 (`release`)
        try:
            for start, end in joined:
                parts = _parts(file, start, end)
                if self._spool is None:
                    self._pieces.append(memoryview(b"".join(parts)))
                else:
                    self._spooled.append((self._spool.tell(), end - start))
                    self._spool.writelines(parts)
        except BaseException:
            self.release()
            raise

    @property
    def buffer_size(self) -> int:
        return 0 if self._spool is None else _BUFFER

    def native(self) -> pa.NativeFile:
        return pa.PythonFile(self, "r")

    def at(self, place: int, size: int) -> bytes:
        return bytes(self._at(place, size))

    def _at(self, place: int, size: int) -> bytes | memoryview:
        index = bisect.bisect_right(self._starts, place) - 1
        if index >= 0:
            inside = place - self._starts[index]
            if self._spool is None:
                if piece := self._pieces[index][inside : inside + size]:
                    return piece
            else:
                where, length = self._spooled[index]
                if inside < length:
                    self._spool.seek(where + inside)
                    return self._spool.read(min(size, length - inside))
        self._file.seek(place)
        return self._file.read(size)

    def read(self, size: int) -> bytes | memoryview:
        """Not copied where it is in memory."""
        data = self._at(self._place, size)
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._file.size() if whence == 2 else 0)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        """Nothing: pyarrow closes what it is given; `release` does."""

    def release(self) -> None:
        self.closed = True
        self._pieces.clear()
        if self._spool is not None:
            self._spool.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def _parts(file: ObjectFile, start: int, end: int) -> Iterator[bytes]:
    """A range of the object, in requests that are not too large."""
    file.seek(start)
    while start < end:
        data = file.read(min(end - start, _REQUEST))
        if not data:
            raise ValueError(f"it ends at byte {start}, within a column")
        yield data
        start += len(data)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1] + _GAP:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
