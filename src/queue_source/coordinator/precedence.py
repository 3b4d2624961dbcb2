"""Spark's calls go first: what can wait shares the interpreter's lock and the store with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Precedence:
    """Work that can wait gives way while a call of Spark's is under way: for a time that the caller bounds.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0

    @contextmanager
    def first(self) -> Iterator[None]:
        """A call of Spark's, or a part of one, that waits for nothing but the store and the queues."""
        with self._changed:
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def give_way(self, seconds: float) -> None:
        """Wait until no call is under way, at most so many seconds: else a busy reader would never do the rest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, seconds)
