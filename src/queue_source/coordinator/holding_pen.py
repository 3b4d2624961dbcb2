"""What a reader holds between receipt and acknowledgement: Onyx's holding pen, under one lock."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from queue_source.coordinator.leases import MessageKey, key_of
from queue_source.coordinator.shares import Shares
from queue_source.coordinator.tracking import Tracker
from queue_source.messages import Received
from shard_store.model import ShardKey


class HoldingPen:
    """The inbox (received, not parsed), the tracker (what it announced), and what is kept aside.

    `changed` guards everything and is notified whenever something enters, becomes ready or leaves. Full means that
    nothing more is received: `most` messages are held, or they announced `most_bytes`.
    """

    def __init__(self, most: int, most_bytes: int | None = None, shares: Shares | None = None) -> None:
        self.changed = threading.Condition()
        self.tracker = Tracker(shares or Shares())
        self._shares = shares or Shares()
        self._most = most
        self._most_bytes = most_bytes
        self._inbox: deque[Received] = deque()
        self._opening: list[Received] = []
        self._aside: list[MessageKey] = []
        self._inside: set[MessageKey] = set()
        self._of_queue: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()  # for messages that receives under way may bring

    def held(self) -> int:
        """Messages in flight in this reader."""
        return len(self._inside)

    def full(self) -> bool:
        return len(self._inside) >= self._most or self._heavy()

    def reserve(self, queue: str, most: int) -> int:
        """Room for up to `most` messages that a receive may bring; `put` settles it. 0: receive nothing now."""
        room = min(most, self.room(queue))
        self._reserved[queue] += room
        return room

    def room(self, queue: str) -> int:
        """How many more messages of this queue may come."""
        if self._heavy():
            return 0
        of_queue = self._shares.room(queue, self._most) - self._of_queue[queue] - self._reserved[queue]
        in_all = self._most - len(self._inside) - sum(self._reserved.values())
        return max(0, min(of_queue, in_all))

    def idle(self) -> bool:
        """Nothing received waits to be opened."""
        return not self._inbox and not self._opening

    def put(self, queue: str, messages: Sequence[Received], reserved: int) -> None:
        self._reserved[queue] -= reserved
        self._of_queue[queue] += len(messages)
        self._inside.update(map(key_of, messages))
        self._inbox.extend(messages)
        self.changed.notify_all()

    def leave(self, keys: Iterable[MessageKey]) -> list[ShardKey]:
        """The messages are acknowledged, given back or lost; returns shards on which nothing hangs any more."""
        keys = list(keys)
        for key in keys:
            if key in self._inside:
                self._inside.discard(key)
                self._of_queue[key[0]] -= 1
        self.changed.notify_all()
        return self.tracker.drop(keys)

    def put_aside(self, messages: Sequence[Received]) -> None:
        """Held, but left for the next run (AvailableNow)."""
        self._aside += [key_of(message) for message in messages]

    def begin_opening(self, most: int) -> list[Received]:
        """Up to `most` received messages; they count as held until they leave. Those that have left are skipped."""
        taken = (self._inbox.popleft() for _ in range(min(most, len(self._inbox))))
        self._opening = [message for message in taken if key_of(message) in self._inside]
        return self._opening

    def end_opening(self) -> None:
        self._opening = []
        self.changed.notify_all()

    def empty_out(self) -> list[MessageKey]:
        """At the end: everything that was never opened or was kept aside."""
        left = [*map(key_of, self._inbox), *map(key_of, self._opening), *self._aside]
        self._inbox.clear()
        self._opening, self._aside = [], []
        self.leave(left)
        return left

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _heavy(self) -> bool:
        return self._most_bytes is not None and self.tracker.bytes_held >= self._most_bytes
