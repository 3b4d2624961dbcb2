"""Spark's batches go first: what can wait shares the interpreter's lock, the store and the processors with them."""

from __future__ import annotations

import threading
from collections.abc import Callable

_LONG = 10.0  # seconds without a call of Spark's after which a batch is long, or over without a word


class Precedence:
    """Work that can wait gives way while a micro-batch is under way: for a time that the caller bounds.

    All methods may be called from any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._until = clock()

    def begin(self) -> None:
        """A batch is under way: until `end`, or until nothing has been heard of it for a while."""
        with self._changed:
            self._until = self._clock() + _LONG

    def end(self) -> None:
        """There is nothing to do for Spark."""
        with self._changed:
            self._until = self._clock()
            self._changed.notify_all()

    def give_way(self, seconds: float) -> None:
        """Wait until no batch is under way, at most so many seconds: else a busy reader would never do the rest."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock() >= self._until, seconds)
