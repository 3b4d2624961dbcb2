"""Local files: only regular ones are opened, whatever a name leads to, and only where their real path may be read.

A message names the path, and whoever can write into an allowed folder makes the links in it. What is looked at and what
is read is one open file, so nobody can exchange it in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from queue_source.errors import BadObject

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def opened_file(uri: str, path: str, prefixes: Sequence[str]) -> Iterator[str]:
    """A path that leads to the file itself as long as the block lasts, however the name is exchanged meanwhile.

    `prefixes` of URIs: if there are any, the file's real path begins with one of them. Raises BadObject and OSError.
    """
    if "\0" in path:
        raise BadObject("missing-object", f"{uri!r} contains a NUL, which no path does")
    _check_regular(uri, Path(path).stat().st_mode)  # first: to open a device may do something, and a socket cannot be
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
    try:
        _check_regular(uri, os.fstat(descriptor).st_mode)
        if prefixes:
            _check_place(uri, _real_path(descriptor, path), prefixes)
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _check_regular(uri: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise BadObject("missing-object", f"{uri!r}: it is a directory")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise BadObject("corrupt-object", f"{uri!r} is {kind}; only regular files are read")


def _check_place(uri: str, real: str, prefixes: Sequence[str]) -> None:
    allowed = [prefix.removeprefix("file://") for prefix in prefixes]
    # a prefix may itself lead over links, as /tmp does on a Mac; its last part need not be a whole name
    if not real.startswith(tuple(allowed)) and not real.startswith(tuple(map(_real_prefix, allowed))):
        raise BadObject(
            "forbidden-object",
            f"{uri!r} is a link to {real!r}, which starts with none of the allowed prefixes; name it in option "
            "'allowedPrefixes' if it may be read",
        )


def _real_path(descriptor: int, path: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:  # not on Linux
        return str(Path(path).resolve())


def _real_prefix(prefix: str) -> str:
    folder, _, name = prefix.rpartition("/")
    return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"
