"""Local files: only regular ones are opened, whatever a name leads to, and only where their real path may be read.

A message names the path, and any user who can write into an allowed folder makes the links in it. The checked file and
the read one are one open file, so it cannot be exchanged in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from queue_source.errors import BadObject
from queue_source.storage.open_files import ObjectVersion

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_VERSION = "mtime-"
"""How the versions of files begin, which have no ETag: what a message says of them is not compared."""


class LocalObject(ObjectVersion):
    """A regular file that may be read. Thousands of small ones are opened in a task: with few system calls each.

    A file that is replaced under its name is read to its end as it was; one that is written to shows it by its time.
    """

    is_local = tells_at_once = True

    def __init__(self, uri: str, path: str, prefixes: Sequence[str]) -> None:
        """Open the file; with `prefixes` of URIs, its real path begins with one of them.

        Raises BadObject and OSError.
        """
        stat_local(uri, path)  # before it is opened, since that may do something to a device
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
        try:
            status = os.fstat(self._descriptor)
            _check_regular(uri, status)
            if prefixes:
                _check_place(uri, real_path(self._descriptor, path), prefixes)
        except BaseException:
            os.close(self._descriptor)
            raise
        super().__init__(status.st_size)
        self._opened = status

    @property
    def modified(self) -> datetime:  # type: ignore[override]
        return file_time(self._opened.st_mtime)

    def is_same(self) -> bool:
        return version_of(os.fstat(self._descriptor)) == version_of(self._opened)

    def is_version(self, etag: str) -> bool:
        return not is_version(etag) or etag == version_of(self._opened)

    def read_range(self, start: int, end: int) -> bytes:
        data = os.pread(self._descriptor, end - start, start)
        if not data or len(data) == end - start:
            return data
        parts = [data]  # a system call reads 2 GB at most
        while parts[-1]:
            start += len(parts[-1])
            parts.append(os.pread(self._descriptor, end - start, start))
        return b"".join(parts)

    def close(self) -> None:
        os.close(self._descriptor)


def stat_local(uri: str, path: str) -> os.stat_result:
    """Return the system's status of a regular file, readable or not. Raises BadObject and OSError."""
    if "\0" in path:
        raise BadObject("missing-object", f"{uri!r} contains a NUL, which no path does")
    status = os.stat(path)  # noqa: PTH116 - costs less
    _check_regular(uri, status)
    return status


def version_of(status: os.stat_result) -> str:
    """Return a text that identifies a file before later writes to it, in place of an ETag."""
    return f"{_VERSION}{status.st_mtime_ns}-{status.st_size}"


def is_version(etag: str) -> bool:
    """Tell whether a text is a result of `version_of` for a file, and no ETag."""
    return etag.startswith(_VERSION)


def file_time(seconds: float) -> datetime:
    """Return a file's time in UTC; the last or the first time of the calendar where the file's is beyond it."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return (datetime.max if seconds > 0 else datetime.min).replace(tzinfo=timezone.utc)


def _check_regular(uri: str, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise BadObject("missing-object", f"{uri!r}: it is a directory")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise BadObject("corrupt-object", f"{uri!r} is {kind}; only regular files are read")


def _check_place(uri: str, real: str, prefixes: Sequence[str]) -> None:
    plain = tuple(prefix.removeprefix("file://") for prefix in prefixes)  # many are read without a look at links
    if not real.startswith(plain) and not real.startswith(allowed_places(prefixes)):
        raise BadObject(
            "forbidden-object",
            f"{uri!r} is a link to {real!r}, which starts with none of the allowed prefixes; name it in option "
            "'allowedPrefixes' if it may be read",
        )


def allowed_places(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the beginnings of the real paths that may be read, by the present links."""
    allowed = tuple(prefix.removeprefix("file://") for prefix in prefixes)
    # a prefix may itself lead over links, as /tmp does on a Mac; its last part need not be a whole name
    parts = (prefix.rpartition("/") for prefix in allowed)
    return allowed + tuple(f"{os.path.realpath(folder or '/').rstrip('/')}/{name}" for folder, _, name in parts)


def real_path(descriptor: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - costs less
    except OSError:  # not on Linux
        return str(Path(path).resolve())
