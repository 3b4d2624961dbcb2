"""Open objects as files for `ObjectFile`: with a position, over reads of a range, and of one version."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from pyarrow import fs as pafs

from queue_source.errors import ObjectReplaced


class OpenFile(ABC):
    """One version of an object: the one that existed when it was opened.

    Attributes:
        is_pinned: Each read fails by itself when the object is another one by now, so nothing is asked at the end.
        tells_at_once: `is_same` costs no request: it is asked before each batch, and none is held back.
        modified: Aware, UTC; None if it was not requested.
    """

    is_pinned = False
    tells_at_once = False
    modified: datetime | None = None

    def __init__(self, size: int, etag: str | None = None) -> None:
        self._size = size
        self._etag = etag
        self._at = 0
        self.closed = False

    @abstractmethod
    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, which is not beyond the size; fewer if the object has shrunk."""

    @abstractmethod
    def is_same(self) -> bool:
        """Tell whether all reads were of the version that was opened. Raises what reading raises."""

    def is_version(self, etag: str) -> bool:
        """Tell whether it may be the object of this ETag (without quotes): False only where that is certain."""
        return self._etag is None or self._etag == etag

    def size(self) -> int:
        return self._size

    def etag(self) -> str | None:
        """The ETag without quotes; None where the store has none."""
        return self._etag

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


class ArrowFile(OpenFile):
    """An object that pyarrow reads: of Google's by its generation in each request, of others the present version."""

    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        """Open the object with one request. Raises what pyarrow raises."""
        self._filesystem, self._path = filesystem, path
        self._native: Any = filesystem.open_input_file(path)
        self.is_pinned = filesystem.type_name == "gcs"
        self._facts = {} if self.is_pinned else _facts(self._native)  # Google would be asked once more
        super().__init__(self._native.size(), self._facts.get("ETag"))

    def read_range(self, start: int, end: int) -> bytes:
        try:
            data: bytes = self._native.read_at(end - start, start)
        except FileNotFoundError as error:
            raise ObjectReplaced(f"{self._path!r} is another object by now, or none: {error}") from error
        return data

    def is_same(self) -> bool:
        if self.is_pinned:
            return True
        try:
            with self._filesystem.open_input_file(self._path) as now:
                return now.size() == self._size and _facts(now) == self._facts
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._native.close()
        super().close()


def _facts(native: Any) -> dict[str, str]:
    """Return the facts that distinguish a version of an object from others; the ETag without quotes."""
    facts: dict[str, str] = {}
    for key, value in (native.metadata() or {}).items():  # pyarrow returns text, or bytes
        name, text = (part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in (key, value))
        if name in ("ETag", "Last-Modified") and text:
            facts[name] = text.strip('"')
    return facts
