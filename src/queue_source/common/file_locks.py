"""Files by which one process knows that another one still runs: the system releases a lock when its holder ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # Windows has none: a file is never found free there
    import fcntl


def hold(file: Path) -> int:
    """Lock the file, which is made, until `release` of the handle that is returned, or the end of this process.

    Raises OSError where the folder takes no file, or its file system has no locks.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        with suppress(NameError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # who checks it at the moment releases the lock at once
    except OSError:
        os.close(handle)
        raise
    return handle


def release(file: Path, handle: int) -> None:
    """Remove the file of a lock that this process holds, and end the lock."""
    file.unlink(missing_ok=True)
    os.close(handle)


def is_held(file: Path) -> bool:
    """Tell whether a process holds the file; removes the file of one that has ended."""
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, NameError):
        return True
    except OSError:  # no locks here: no process holds one
        return False
    else:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return False
    finally:
        os.close(handle)
