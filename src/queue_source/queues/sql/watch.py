"""Noticing that a SQLite file has changed, long before the next poll and for a thousandth of its cost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_LOOK = 0.01  # seconds between two checks of the file's version

Wait = Callable[[float], object]
"""Sleeps for so many seconds, or less."""


@contextmanager
def waking_early(file: Path | None, wait: Wait) -> Iterator[Wait]:
    """Yield a `wait` that a change of the file by another connection ends early; without a file `wait` itself.

    Enter it before the first query of the rows. SQLite counts a version of the file for each connection (`PRAGMA
    data_version`) in memory that all processes share: checking it takes microseconds. The caller must still poll: time
    makes messages visible without any change, and an unwatchable file is noticed by the poll.
    """
    try:
        connection = None if file is None else _read_only(file)
    except sqlite3.Error:
        connection = None
    if connection is None:
        yield wait
        return
    with closing(connection):

        def version() -> int:
            try:
                return int(connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return 0

        seen_version = version()

        def wait_for_change(seconds: float) -> None:
            nonlocal seen_version
            until = time.monotonic() + seconds
            while (remaining := until - time.monotonic()) > 0:
                if wait(min(remaining, _LOOK)) or version() != seen_version:
                    break
            seen_version = version()  # before the caller queries the rows: later changes end the next wait

        yield wait_for_change


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
