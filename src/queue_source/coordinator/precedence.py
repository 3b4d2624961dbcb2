"""Spark's batches go first: other work shares the interpreter's lock, the store and the processors with them."""

from __future__ import annotations

import threading
from collections.abc import Callable

_LONG = 10.0  # seconds without a call of Spark's, after which a batch is long, or over without notice


class Precedence:
    """Makes other work wait while a micro-batch runs, for as long as the caller allows.

    All methods may be called from any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._until = clock()

    def begin(self) -> None:
        """Note that a batch is under way: until `end`, or until Spark has been silent for `_LONG` seconds."""
        with self._changed:
            self._until = self._clock() + _LONG

    def end(self) -> None:
        """Note that Spark waits for nothing."""
        with self._changed:
            self._until = self._clock()
            self._changed.notify_all()

    def wait_for_batch_end(self, seconds: float) -> None:
        """Wait until no batch is under way, at most `seconds`: otherwise work in a busy reader would never be done."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock() >= self._until, seconds)
