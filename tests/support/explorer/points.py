"""The places at which a process may die, or something else happens meanwhile: the code's failpoints, and two of ours.

The code asks at each of its failpoints whether it is armed. `Points` takes the place of what it asks: so it counts
all that are reached, and acts where it is told to. Our own: a transaction is committed, a message is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from shard_store import failpoints

TRANSACTION, SENT = "a transaction is committed", "messages are sent"
OURS = (TRANSACTION, SENT)
OF_CODE = tuple(
    point
    for points in ("POINTS", "LISTING_POINTS", "CLEANING_POINTS", "ROUTING_POINTS", "COMPACTING_POINTS")
    for point in getattr(failpoints, points)
)
OUTSIDE = (TRANSACTION, SENT, "files-joined", "files-compacted")
"""Where a command holds no lock: anything may happen meanwhile."""
REACHED: Counter[str] = Counter()
"""How often each was reached in this process, and how often something died there (`NAME: died`)."""


class Death(BaseException):
    """The process dies here; no handler of errors runs."""


class Points(dict[str, tuple[int, str, str]]):
    """Takes the place of the dict of armed failpoints; none is armed as the code means it.

    `paused`: nothing acts, as in the fair end, or while something else happens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.repeats: Random | None = None  # says which transactions are run twice
        self._death: tuple[str, int] | None = None
        self._meanwhile: tuple[str, int, Callable[[], None]] | None = None

    def __contains__(self, name: object) -> bool:
        self.passed(str(name))
        return False

    def passed(self, name: str) -> None:
        REACHED[name] += 1
        if self.paused:
            return
        if self._meanwhile is not None and self._meanwhile[0] == name:
            _, more, call = self._meanwhile
            self._meanwhile = None if more == 0 else (name, more - 1, call)
            if more == 0:
                REACHED[f"{name}: meanwhile"] += 1
                with self.calm():
                    call()
        if self._death is not None and self._death[0] == name:
            _, more = self._death
            self._death = None if more == 0 else (name, more - 1)
            if more == 0:
                REACHED[f"{name}: died"] += 1
                raise Death(name)

    def runs_twice(self) -> bool:
        """Whether this transaction fails at its end, and is run again."""
        if self.paused or self.repeats is None or self.repeats.random() >= 0.1:
            return False
        REACHED["a transaction is run twice"] += 1
        return True

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Nothing acts."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @contextmanager
    def dying(self, name: str | None, after: int = 0) -> Iterator[None]:
        """Die where this point is reached, after having passed it so often."""
        before, self._death = self._death, self._death if name is None else (name, after)
        try:
            yield
        finally:
            self._death = before

    @contextmanager
    def meanwhile(self, name: str, after: int, call: Callable[[], None]) -> Iterator[None]:
        """Call this where the point is reached, once."""
        self._meanwhile = (name, after, call)
        try:
            yield
        finally:
            self._meanwhile = None


POINTS = Points()
