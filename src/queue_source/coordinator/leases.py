"""Visibility extensions: a task for each message from its receipt on, run by few threads in batches.

Each message has its own deadline and fate; what is due goes out in the queue's batch size, so ten thousand messages
cost ten thousand divided by that many calls a period, and no more threads.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities, Queue
from shard_store.sql.transaction import chunks

_CALLERS = 2  # threads that wait for answers to extensions: one slow queue does not delay the others
_EARLY = 0.5  # an extension is due when this part of the lease is left, so that a failed one can be tried again
_GATHER = 0.1  # and goes out with others that would be due within this part of the lease
_FEW = 64  # entries of the heap, for which it is not worth rebuilding


def longest_lease(lease: float, capabilities: Capabilities) -> float:
    """`lease`, or the longest that one call to the queue may ask for."""
    return lease if capabilities.max_lease is None else min(lease, capabilities.max_lease)


class _Task(NamedTuple):
    """The extension task of one message; times are those of the keeper's clock.

    `deadline` is when the lease ends. `cap` is the end of the longest time that one delivery may be held in all: from
    there on no extension helps, and the message will be delivered again.
    """

    deadline: float
    cap: float


class LeaseKeeper:
    """Keeps messages invisible until `stop`; runs in the reader process.

    `lease` is the visibility time-out in seconds. `lost` is called (on a thread of the keeper) with the messages whose
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
        self._wanted = lease
        self._lost = lost
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._tasks: dict[MessageKey, _Task] = {}
        self._order: list[tuple[float, MessageKey]] = []  # a heap of (due, key); entries of stopped tasks are skipped
        self._failure: BaseException | None = None

    def hold(self, messages: Iterable[Received]) -> None:
        """Start the extension tasks of messages just received."""
        with self._changed:
            for message in messages:
                lease, cap = self._lease(message.queue), self._queues[message.queue].capabilities.lease_cap
                end = float("inf") if cap is None else message.lease_until - lease + cap
                self._plan(key_of(message), message.lease_until, end)
            self._changed.notify()

    def stop(self, keys: Iterable[MessageKey]) -> dict[MessageKey, _Task]:
        """End the extension tasks: the messages are acknowledged, given back or lost. Returns them, for `resume`."""
        with self._changed:
            stopped = {key: task for key in keys if (task := self._tasks.pop(key, None)) is not None}
            if len(self._order) > 2 * len(self._tasks) + _FEW:
                self._order = [entry for entry in self._order if entry[1] in self._tasks]
                heapq.heapify(self._order)
            return stopped

    def resume(self, stopped: Mapping[MessageKey, _Task]) -> None:
        """Go on with these extension tasks: the messages could not be acknowledged."""
        with self._changed:
            self._order = [entry for entry in self._order if entry[1] not in stopped]  # a task is in it once
            heapq.heapify(self._order)
            for key, task in stopped.items():
                self._plan(key, task.deadline, task.cap)
            self._changed.notify()

    def kept(self, keys: Iterable[MessageKey]) -> set[MessageKey]:
        """Those whose leases have not ended."""
        with self._changed:
            return {key for key in keys if key in self._tasks}

    def wake(self) -> None:
        """Let the keeper's thread see that it is to stop."""
        with self._changed:
            self._changed.notify()

    def held(self) -> int:
        with self._changed:
            return len(self._tasks)

    def extend_last(self, keys: Iterable[MessageKey], seconds: float) -> None:
        """One last extension, after which the tasks end: the time in which somebody else must finish the work.

        Raises QueueError; the messages become visible when their leases end then.
        """
        keys = list(keys)
        self.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._queues[name]
            queue.extend(receipts, longest_lease(seconds, queue.capabilities))

    def run(self, stopping: threading.Event) -> None:
        """The keeper's thread: tick whenever something is due, until `stopping`."""
        callers = ThreadPoolExecutor(_CALLERS, "cuesqueue-extend")
        try:
            while not stopping.is_set():
                wait = self.tick(lambda *call: callers.submit(self._guarded, *call))
                with self._changed:
                    self._changed.wait(min(wait, 1.0))
                if self._failure is not None:
                    raise self._failure
        finally:
            callers.shutdown(cancel_futures=True)

    def tick(self, call: Callable[..., object] = lambda work, *arguments: work(*arguments)) -> float:
        """Extend what is due now; returns in how many seconds the next is due.

        `call(work, *arguments)` makes one call to a queue, here or on another thread.
        """
        now = self._clock()
        due: dict[tuple[str, float], list[Receipt]] = {}
        over: list[MessageKey] = []
        with self._changed:
            for key in self._take_due(now):
                task = self._tasks[key]
                lease = min(self._lease(key[0]), task.cap - now)
                blind = task.deadline <= now and not self._queues[key[0]].capabilities.reports_stale
                if lease > task.deadline - now and not blind:
                    due.setdefault((key[0], lease), []).append(key[1])
                elif task.deadline <= now:
                    over.append(key)
                else:  # at its cap: nothing to do but to notice the end
                    heapq.heappush(self._order, (task.deadline, key))
        if over:
            self._end(over)
        for (queue, lease), receipts in due.items():
            for batch in chunks(receipts, self._queues[queue].capabilities.max_batch_size):
                call(self._extend, queue, batch, lease)
        with self._changed:
            return max(0.0, self._order[0][0] - self._clock()) if self._order else self._wanted * _EARLY

    def _take_due(self, now: float) -> list[MessageKey]:
        """What is due, and with it what soon will be. Each task is in the heap once, so no key comes twice."""
        due: list[MessageKey] = []
        while self._order:
            at, key = self._order[0]
            if key in self._tasks and at > now and (not due or at > now + self._lease(key[0]) * _GATHER):
                break
            heapq.heappop(self._order)
            if key in self._tasks:
                due.append(key)
        return due

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - kept, and raised by the keeper's thread
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify()

    def _extend(self, queue: str, receipts: Sequence[Receipt], lease: float) -> None:
        """One call to the queue; what became of it is each message's own fate."""
        asked = self._clock()
        try:
            gone = self._queues[queue].extend(receipts, lease)
        except QueueUnavailable:
            over = self._again(queue, receipts)
        else:
            over = [(queue, receipt) for receipt in gone]
            with self._changed:
                for receipt in receipts:
                    task = self._tasks.get((queue, receipt))
                    if receipt not in gone and task is not None:
                        self._plan((queue, receipt), asked + lease, task.cap)
        if over:
            self._end(over)

    def _again(self, queue: str, receipts: Sequence[Receipt]) -> list[MessageKey]:
        """Plan another try soon for leases that are still alive; returns those that are over."""
        now = self._clock()
        over: list[MessageKey] = []
        with self._changed:
            for receipt in receipts:
                task = self._tasks.get((queue, receipt))
                if task is None:
                    continue
                if task.deadline <= now:
                    over.append((queue, receipt))
                else:
                    heapq.heappush(self._order, (now + min(1.0, self._lease(queue) * _GATHER), (queue, receipt)))
        return over

    def _end(self, keys: Sequence[MessageKey]) -> None:
        """These leases are lost, unless we have let go of them ourselves while the call was under way."""
        with self._changed:
            lost = [key for key in keys if self._tasks.pop(key, None) is not None]
        if lost:
            self._lost(lost)

    def _plan(self, key: MessageKey, deadline: float, cap: float) -> None:
        self._tasks[key] = _Task(deadline, cap)
        heapq.heappush(self._order, (deadline - self._lease(key[0]) * _EARLY, key))

    def _lease(self, queue: str) -> float:
        return longest_lease(self._wanted, self._queues[queue].capabilities)


def by_queue(keys: Iterable[MessageKey]) -> dict[str, list[Receipt]]:
    """The receipts of each queue."""
    grouped: dict[str, list[Receipt]] = {}
    for queue, receipt in keys:
        grouped.setdefault(queue, []).append(receipt)
    return grouped
