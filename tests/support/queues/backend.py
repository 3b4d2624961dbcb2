"""What a queue of the contract suite is: how it is opened, whose clock it has, and what it does not promise.

A backend opens any number of independent views (connections of their own, as another process would have) of one
queue that is empty at first. Where the queue's clock can be set, tests move it; else they wait, on a smaller scale.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from queue_source.messages import Receipt, Received
from queue_source.queues import Queue, open_queue

SHORTEST = 20.0
"""The least number of seconds in tests: as many as are one second of a server that counts in whole seconds."""


@dataclass
class Clock:
    """Seconds since 1970 that pass only when told to; sleeping makes them pass."""

    now: float = 1_700_000_000.0
    slept: list[float] = field(default_factory=list)
    precision = 0.001
    slack = 10.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """What the queue calls now."""
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class RealClock(Clock):
    """The clock of a server: a second of the tests is `pace` real seconds, and they are waited for."""

    precision = 2.0

    def __init__(self, pace: float) -> None:
        super().__init__()
        self.pace = pace
        self.slack = 60 / pace

    def __call__(self) -> float:
        return time.monotonic() / self.pace

    def wall(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds * self.pace)


class Paced:
    """A queue of a server with all times scaled; everything else is the queue's own."""

    def __init__(self, queue: Queue, pace: float) -> None:
        self._queue = queue
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        return self._queue.receive(max_messages, lease * self._pace, wait * self._pace)

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        return self._queue.extend(receipts, lease * self._pace)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._queue.nack(receipts, delay * self._pace)

    def __enter__(self) -> Paced:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()


@dataclass
class Backend:
    """One empty queue; `url` with `options` opens it in another process, by that queue's own clock.

    `lacks`: promises of the contract that this kind of queue does not make, each with the reason; tests that need one
    of them are skipped with it. The promises are in `PROMISES`.
    `spellings`: other URLs of this queue, each with its options; `another`: the URL of another queue.
    """

    url: str
    clock: Clock
    views: list[Queue] = field(default_factory=list)
    shared: bool = False  # every view is the same object
    lacks: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    many: int = 10_000  # messages of the tests with many
    spellings: Sequence[tuple[str, Mapping[str, Any]]] = ()
    another: str = ""

    def open(self) -> Queue:
        if self.shared and self.views:
            return self.views[0]
        if isinstance(self.clock, RealClock):
            paced: Any = Paced(open_queue(self.url, **self.options), self.clock.pace)
            self.views.append(paced)
        else:
            self.views.append(open_queue(self.url, clock=self.clock, sleep=self.clock.sleep, **self.options))
        return self.views[-1]

    def open_in_real_time(self) -> Queue:
        self.views.append(open_queue(self.url, **self.options))
        return self.views[-1]

    def open_later(self, seconds: float) -> Queue:
        """A view for which so much time has passed, by the queue's own clock."""
        if isinstance(self.clock, RealClock):
            self.clock.advance(seconds)
            return self.open()
        now = _time_of(self.open_in_real_time())
        self.views.append(replace(self, clock=Clock(now + seconds), views=[]).open())
        return self.views[-1]

    def real_seconds(self, seconds: float) -> float:
        """So many seconds of the tests, as a view in real time counts them before `open_later`."""
        return seconds * self.clock.pace if isinstance(self.clock, RealClock) else seconds

    def close(self) -> None:
        for view in self.views:
            view.close()


def _time_of(queue: Queue) -> float:
    marker = f"marker-{os.urandom(4).hex()}"
    queue.publish([marker])
    (message,) = queue.receive(1, 60, 0)
    queue.acknowledge([message.receipt])
    assert message.sent_at is not None
    return message.sent_at


PROMISES = {
    "order": "what has been visible longest is received first",
    "groups": "messages of one group come in order, and wait for each other",
    "expiry": "a lease ends by itself after its time",
    "delay": "a message given back with a delay is invisible for that long",
    "stale": "a receipt of an earlier delivery is told from the newest one, and changes nothing",
    "unknown": "a receipt that was never given is told as stale",
    "count": "the receive count tells each delivery",
    "depth": "the depth is exact, and tells leased from delayed messages",
    "exclusive": "a leased message is given to nobody else, however many consumers there are",
    "large": "a message may have 256 KB",
    "places": "a message given back keeps its place",
}
