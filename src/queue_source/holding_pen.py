"""What a reader holds between receipt and acknowledgement: Onyx's holding pen, under one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from queue_source.leases import MessageKey, key_of
from queue_source.messages import Received
from queue_source.tracking import Tracker


class HoldingPen:
    """The inbox (received, not parsed), the tracker (what it announced), and what is kept aside.

    `changed` guards everything and is notified whenever something enters, becomes ready or leaves. Full means that
    nothing more is received.
    """

    def __init__(self, most: int) -> None:
        self.changed = threading.Condition()
        self.tracker = Tracker()
        self._most = most
        self._inbox: deque[Received] = deque()
        self._opening: list[Received] = []
        self._aside: list[MessageKey] = []
        self._reserved = 0  # for messages that receives under way may bring

    def held(self) -> int:
        """Messages in flight in this reader."""
        return len(self.tracker.messages) + len(self._inbox) + len(self._opening) + len(self._aside)

    def full(self) -> bool:
        return self.held() >= self._most

    def reserve(self, most: int) -> int:
        """Room for up to `most` messages that a receive may bring; `put` settles it. 0: receive nothing now."""
        room = max(0, min(most, self._most - self.held() - self._reserved))
        self._reserved += room
        return room

    def idle(self) -> bool:
        """Nothing received waits to be opened."""
        return not self._inbox and not self._opening

    def put(self, messages: Sequence[Received], reserved: int) -> None:
        self._reserved -= reserved
        self._inbox.extend(messages)
        self.changed.notify_all()

    def put_aside(self, messages: Sequence[Received]) -> None:
        """Held, but left for the next run (AvailableNow)."""
        self._aside += [key_of(message) for message in messages]

    def begin_opening(self, most: int) -> list[Received]:
        """Up to `most` received messages; they count as held until `end_opening`."""
        self._opening = [self._inbox.popleft() for _ in range(min(most, len(self._inbox)))]
        return self._opening

    def end_opening(self) -> None:
        self._opening = []
        self.changed.notify_all()

    def empty_out(self) -> list[MessageKey]:
        """At the end: everything that was never opened or was kept aside."""
        left = [*map(key_of, self._inbox), *map(key_of, self._opening), *self._aside]
        self._inbox.clear()
        self._opening, self._aside = [], []
        return left

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()
