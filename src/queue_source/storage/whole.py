"""All bytes of an object that its store hands out in one piece alone, without saying how many there are.

Cloud Storage unpacks what is stored with `Content-Encoding: gzip`: it ignores ranges then, and what it says of the size
is that of the packed bytes. Some services that speak S3 ignore ranges, too.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from typing import BinaryIO

from queue_source.errors import ObjectRefused

_IN_MEMORY = 1 << 20
"""Bytes that are kept in memory; more goes to a temporary file on local disk."""
_PIECE = 1 << 20
_MOST = 64 << 30
"""Bytes after which an answer is taken for one without an end."""


class Whole:
    """The bytes that `read` returns until it returns none. Usable by several threads.

    Raises ObjectRefused where they do not fit on the disk, and what `read` raises.
    """

    def __init__(self, uri: str, read: Callable[[int], bytes]) -> None:
        self.size = 0
        self._file: BinaryIO | None = None
        parts: list[bytes] = []
        try:
            while piece := read(_PIECE):
                self.size += len(piece)
                if self.size > _MOST:
                    raise _too_large(uri)
                if self._file is None and self.size > _IN_MEMORY:
                    self._file = tempfile.TemporaryFile(prefix="cuesqueue-object-")  # noqa: SIM115 - see close
                    for part in parts:
                        _write(uri, self._file, part)
                if self._file is None:
                    parts.append(piece)
                else:
                    _write(uri, self._file, piece)
            if self._file is not None:
                self._file.flush()
        except BaseException:
            self.close()
            raise
        self._data = b"" if self._file is not None else b"".join(parts)

    def get(self, start: int, end: int) -> bytes:
        """Return these bytes, as far as there are any."""
        if self._file is None:
            return self._data[start:end]
        parts: list[bytes] = []
        while start < end and (part := os.pread(self._file.fileno(), end - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._data = b""
        if self._file is not None:
            self._file.close()


def _write(uri: str, file: BinaryIO, data: bytes) -> None:
    try:
        file.write(data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _too_large(uri) from error
        raise


def _too_large(uri: str) -> ObjectRefused:
    return ObjectRefused(
        f"{uri!r} comes in one piece without a length, and is too large for {tempfile.gettempdir()!r}; store it "
        "without Content-Encoding, or in smaller objects",
        own=False,
        cause="corrupt-object",
    )
