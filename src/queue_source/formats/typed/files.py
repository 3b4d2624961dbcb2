"""Files for pyarrow over an open object (`pa.PythonFile`): they say how it is fetched, or where it would be read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from queue_source.storage.files import ObjectFile

AT_LEAST = 256 << 10
"""Bytes of the smallest request: fewer take as long."""
AT_MOST = 32 << 20
"""Bytes of the largest request for more than was asked for."""
_GAP = 64 << 10  # between two reads that still follow each other


class ArrowReadable(ABC):
    """A file of `size` bytes with a place."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self.place = 0

    @abstractmethod
    def read(self, size: int) -> bytes | memoryview:
        """Return so many bytes from the place on, or those that there are."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self._size}[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def size(self) -> int:
        return self._size

    def close(self) -> None:  # noqa: B027 - nothing to override
        """Do nothing: the opener of the object closes it, however many readers use it."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class ReadAhead(ArrowReadable):
    """Fetches more and more with each request, as long as what is asked for follows what was asked for before."""

    def __init__(self, file: ObjectFile, at_least: int = AT_LEAST) -> None:
        super().__init__(file.size())
        self._file, self._at_least = file, at_least
        self._asked = self._start = 0
        self._data = memoryview(b"")

    def read(self, size: int) -> memoryview:
        start, end = self.place, min(self.place + size, self._size)
        if not self._start <= start <= end <= self._start + len(self._data):
            follows = self._asked <= start <= self._asked + _GAP
            ahead = min(2 * len(self._data), AT_MOST) if follows else 0
            self._data = memoryview(b"")
            self._file.seek(start)
            self._start, self._data = start, memoryview(self._file.read(max(end - start, ahead, self._at_least)))
        data = self._data[start - self._start : max(end - self._start, 0)]
        self.place = self._asked = start + len(data)
        return data


class Probe(ArrowReadable):
    """Has no content: `place` is where it was asked to read, which raises `Asked`."""

    def read(self, size: int) -> bytes:
        raise Asked


class Asked(Exception):
    """Says that a probe was asked to read."""
