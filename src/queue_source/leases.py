"""Visibility-extension tasks: one for each message from its receipt on, run by one thread in batches.

Each message has its own deadline and fate (Quickwit's visibility extension task); what is due goes out in the queue's
batch size, so ten thousand messages cost ten thousand divided by that many calls a period, and no more threads.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from queue_source.errors import QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues.base import Queue

MessageKey = tuple[str, Receipt]
"""One delivery of one message: (queue name, receipt)."""

_EARLY = 0.5  # an extension is due when this part of the lease is left, so that a failed one can be tried again
_GATHER = 0.1  # and goes out with others that would be due within this part of the lease


def key_of(message: Received) -> MessageKey:
    return message.queue, message.receipt


@dataclass(slots=True)
class _Task:
    """The extension task of one message: `deadline` is when the lease ends, by the monotonic clock."""

    deadline: float
    due: float


class LeaseKeeper:
    """Keeps messages invisible until told to stop; runs in the reader process.

    `lease` is the visibility time-out in seconds. `lost` is called (on the keeper's thread) with the messages whose
    lease ended against our will. All methods may be called from any thread.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        lease: float,
        lost: Callable[[Sequence[MessageKey]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._lease = lease
        self._lost = lost
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._tasks: dict[MessageKey, _Task] = {}
        self._order: list[tuple[float, MessageKey]] = []  # a heap of (due, key); entries of stopped tasks are skipped

    def hold(self, messages: Iterable[Received]) -> None:
        """Start the extension tasks of messages just received."""
        with self._wake:
            for message in messages:
                self._plan(key_of(message), message.lease_until)
            self._wake.notify()

    def stop(self, keys: Iterable[MessageKey]) -> None:
        """End the extension tasks: the messages are acknowledged, given back or lost."""
        with self._lock:
            for key in keys:
                self._tasks.pop(key, None)

    def held(self) -> int:
        with self._lock:
            return len(self._tasks)

    def extend_last(self, keys: Iterable[MessageKey], seconds: float) -> None:
        """One last extension, after which the tasks end: the time in which somebody else must finish the work."""
        keys = list(keys)
        self.stop(keys)
        for queue, receipts in by_queue(keys).items():
            self._queues[queue].extend(receipts, seconds)

    def tick(self) -> float:
        """Extend what is due now; returns in how many seconds the next is due."""
        now = self._clock()
        due: list[MessageKey] = []
        with self._lock:
            while self._order and self._order[0][0] <= now + self._lease * _GATHER:
                if self._order[0][0] > now and not due:
                    break  # nothing is due yet
                _, key = heapq.heappop(self._order)
                if key in self._tasks:
                    due.append(key)
        lost: list[MessageKey] = []
        for queue, receipts in by_queue(due).items():
            lost += [(queue, receipt) for receipt in self._extend(queue, receipts)]
        if lost:
            self.stop(lost)
            self._lost(lost)
        with self._lock:
            return max(0.0, self._order[0][0] - self._clock()) if self._order else self._lease * _EARLY

    def run(self, stopping: threading.Event) -> None:
        """The keeper's thread: tick whenever something is due, until `stopping`."""
        while not stopping.is_set():
            wait = self.tick()
            with self._wake:
                self._wake.wait(min(wait, 1.0))

    def _extend(self, queue: str, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Extend in the queue's batches; returns the receipts that are lost."""
        lost: list[Receipt] = []
        size = self._queues[queue].capabilities.largest_batch
        for start in range(0, len(receipts), size):
            batch = receipts[start : start + size]
            asked = self._clock()
            try:
                gone = self._queues[queue].extend(batch, self._lease)
            except QueueUnavailable:
                lost += self._again(queue, batch)  # there is time for another try before the deadlines
                continue
            lost += gone
            with self._lock:
                for receipt in batch:
                    if receipt not in gone and (queue, receipt) in self._tasks:
                        self._plan((queue, receipt), asked + self._lease)
        return lost

    def _again(self, queue: str, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Plan another try soon for leases that are still alive; returns those that are over."""
        now = self._clock()
        over: list[Receipt] = []
        with self._lock:
            for receipt in receipts:
                task = self._tasks.get((queue, receipt))
                if task is None:
                    continue
                if task.deadline <= now:
                    over.append(receipt)
                else:
                    heapq.heappush(self._order, (now + min(1.0, self._lease * _GATHER), (queue, receipt)))
        return over

    def _plan(self, key: MessageKey, deadline: float) -> None:
        due = deadline - self._lease * _EARLY
        self._tasks[key] = _Task(deadline, due)
        heapq.heappush(self._order, (due, key))


def by_queue(keys: Iterable[MessageKey]) -> dict[str, list[Receipt]]:
    """The receipts of each queue."""
    grouped: dict[str, list[Receipt]] = {}
    for queue, receipt in keys:
        grouped.setdefault(queue, []).append(receipt)
    return grouped
