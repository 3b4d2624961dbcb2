"""The queues that the contract runs over. A new adapter adds a `Backend` here, and no test.

A backend opens any number of independent views (connections of their own, as another process would have) of one
queue that is empty at first. Its clock is moved by tests; a backend without a clock of its own may really wait.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from queue_source.queues import Queue, open_queue

MYSQL_URL = os.environ.get("CUESQUEUE_TEST_MYSQL_URL", "")
"""The URL of a MySQL or MariaDB server on which databases may be created; PyPI has none, so it may be absent."""

BACKENDS = ["sqlite", "sqlite-two-views", "postgresql", *(["mysql"] if MYSQL_URL else [])]


@dataclass
class Clock:
    """Seconds since 1970 that pass only when told to; sleeping makes them pass."""

    now: float = 1_700_000_000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class Backend:
    """One empty queue; `url` opens it in another process, by that queue's own clock."""

    url: str
    clock: Clock
    views: list[Queue] = field(default_factory=list)
    shared: bool = False  # every view is the same object

    def open(self) -> Queue:
        if self.shared and self.views:
            return self.views[0]
        self.views.append(open_queue(self.url, clock=self.clock, sleep=self.clock.sleep))
        return self.views[-1]

    def open_in_real_time(self) -> Queue:
        self.views.append(open_queue(self.url))
        return self.views[-1]

    def close(self) -> None:
        for view in self.views:
            view.close()


def sqlite_file(folder: Path) -> str:
    return f"sql+sqlite:///{folder / 'queue.db'}?queue=contract"


def on_server(database_url: str) -> str:
    return f"sql+{database_url}?queue=contract"
