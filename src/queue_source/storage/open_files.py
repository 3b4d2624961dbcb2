"""Open objects that pyarrow cannot open, as files for `ObjectFile`: with a position, over reads of a range."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import datetime


class OpenFile(ABC):
    """The methods of pyarrow's files that `ObjectFile` uses. `modified` is aware, UTC; None where nobody asked."""

    modified: datetime | None = None

    def __init__(self, size: int, etag: str | None = None) -> None:
        self._size = size
        self._etag = etag
        self._at = 0
        self.closed = False

    @abstractmethod
    def read_range(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, which is not beyond the size; fewer if the object has shrunk."""

    def size(self) -> int:
        return self._size

    def metadata(self) -> dict[str, str]:
        return {} if self._etag is None else {"ETag": self._etag}

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = None) -> bytes:
        if self.closed:
            raise ValueError("read of a closed file")
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        data = self.read_range(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True
