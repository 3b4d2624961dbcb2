"""A cap of the messages that one client holds: `open_queue(..., max_outstanding=N)`, Mercury's parallelism."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from queue_source.messages import Receipt, Received
from queue_source.queues.base import Capabilities, Depth, Payload, Queue

_LOOK = 0.5  # seconds between two looks at what was lost, while there is no room


class CappedQueue(Queue):
    """A queue that gives out no more than `most` messages at a time, to all threads together.

    A message counts until it is acknowledged, returned, rejected or republished, until `extend` reports it as lost, and
    until its lease ends: then it is the queue's again. Where a connection holds messages and no lease does
    (`Capabilities.ends_leases`), it counts until the connection is lost. Everything else is the queue's own.
    """

    def __init__(self, queue: Queue, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = queue
        self._most = most
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[Receipt, float] = {}  # until when it is leased
        self._reserved = 0  # for calls of `receive` that are under way
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        """Return what only some kinds of queues have."""
        return getattr(self.__dict__["_queue"], name)

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def identity(self) -> str:
        return self._queue.identity

    @property
    def capabilities(self) -> Capabilities:
        return self._queue.capabilities

    def outstanding(self) -> int:
        """Return how many messages count now."""
        ends_leases = self._queue.capabilities.ends_leases
        with self._changed:
            receipts = list(self._held)
        lost = set() if ends_leases or not receipts else self._queue.extend(receipts, _LOOK)
        with self._changed:
            now = self._clock()
            for receipt in receipts:
                if receipt in lost or (ends_leases and self._held.get(receipt, now) <= now):
                    self._held.pop(receipt, None)
            return len(self._held)

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive as `Queue.receive`, no more than there is room for; waits up to `wait` seconds for room, too."""
        until = self._clock() + wait
        room = self._reserve(max_messages, until)
        if room <= 0 < max_messages:
            return []
        received: list[Received] = []
        try:
            received = self._queue.receive(room, lease, max(0.0, until - self._clock()))
            return received
        finally:
            with self._changed:
                self._reserved -= room
                self._held.update({message.receipt: message.lease_until for message in received})
                self._changed.notify_all()

    def _reserve(self, most: int, until: float) -> int:
        while True:
            self.outstanding()
            with self._changed:
                room = min(most, self._most - len(self._held) - self._reserved)
                remaining = until - self._clock()
                if room > 0 or most <= 0 or remaining <= 0 or self._closed:
                    room = most if self._closed else max(0, room)  # a closed queue says so itself
                    self._reserved += room
                    return room
                self._changed.wait(min(remaining, _LOOK))

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        until = self._clock() + lease
        lost = self._queue.extend(receipts, lease)
        with self._changed:
            self._held.update({receipt: until for receipt in receipts if receipt in self._held})
        self._forget(lost)
        return lost

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        stale = self._queue.acknowledge(receipts)
        self._forget(receipts)
        return stale

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._queue.nack(receipts, delay)
        self._forget(receipts)

    def reject(self, receipts: Sequence[Receipt]) -> None:
        self._queue.reject(receipts)
        self._forget(receipts)

    def republish(self, message: Received) -> bool:
        was_ours = self._queue.republish(message)
        self._forget([message.receipt])
        return was_ours

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        return self._queue.send(payloads, tag=tag, headers=headers, group=group)

    def depth(self) -> Depth:
        return self._queue.depth()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._queue.close()

    def _forget(self, receipts: Iterable[Receipt]) -> None:
        """Count these no more; after a call that failed they still do, until their leases end."""
        with self._changed:
            for receipt in receipts:
                self._held.pop(receipt, None)
            self._changed.notify_all()
