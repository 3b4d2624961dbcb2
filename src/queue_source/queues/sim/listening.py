"""Which listeners still run: each holds a lock that the system releases when its process ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # Windows has none: a listener that is killed there leaves its queue behind
    import fcntl


def hold(file: Path) -> int:
    """Lock the file of a listener until the handle that is returned is closed, or the process ends."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    with suppress(NameError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def is_held(file: Path) -> bool:
    """Tell whether the listener of this file runs; removes the file of one that does not."""
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, NameError):
        return True
    else:
        file.unlink(missing_ok=True)
        return False
    finally:
        os.close(handle)
