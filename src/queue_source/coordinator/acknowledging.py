"""The end of a delivery: messages are deleted for good or given back, in the queue's batches."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.leases import LeaseKeeper, by_queue, longest_lease
from queue_source.coordinator.session import Session
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt
from shard_store.failpoints import reach

logger = logging.getLogger("cuesqueue")

_BATCHES = 10  # of the queue, in one call of ours: leases of what waits for the next call are still kept
_AGAIN = 5.0  # seconds, at most, between two tries at a queue that is away


class Acknowledger:
    """Acknowledges what is done (invariant 1). Where a queue is away it is tried again as long as the lease is kept.

    After that redelivery is the retry, and finds the shards at EOF. A lease is kept until its message's turn comes, and
    not while it is deleted: the extension of a message that is gone would look like a lease that was lost.
    """

    def __init__(self, session: Session, in_flight: InFlight, leases: LeaseKeeper) -> None:
        self._session = session
        self._in_flight = in_flight
        self._leases = leases
        self._waiting: deque[MessageKey] = deque()
        self._failed: deque[MessageKey] = deque()  # to be tried again, in this order
        self._due = 0.0  # when, by the session's clock
        self._under_way: list[MessageKey] = []  # what the thread asks its queue for
        self._changed = threading.Condition()

    def later(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge on the own thread: neither Spark nor whoever opens or receives waits for a queue's answers."""
        if keys:
            with self._changed:
                self._waiting.extend(keys)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let the thread see that it is to end."""
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """The thread; it ends with the others, after one call at most. What waits then is for `rest`."""
        while not self._session.stopping.is_set():
            with self._changed:
                if not self._waiting:
                    self._changed.wait(0.5)
            self.try_again()
            self._call(self._waiting)

    def finish(self) -> None:
        """Wait until the thread has done what waits for it: AvailableNow's query ends at once after that."""
        with self._changed:
            while not self._session.stopping.is_set() and (self._waiting or self._under_way or self._failed):
                self._changed.wait(0.5)

    def rest(self, patience: float = 0.0) -> None:
        """At the end of the threads. What our own has just asked for is waited for, so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, patience)
            under_way = list(self._under_way)
            keys = [*self._failed, *self._waiting]
            self._failed.clear()
            self._waiting.clear()
        if under_way:
            logger.warning("the queue has not answered yet whether it acknowledges %d messages", len(under_way))
            self._in_flight.leave(under_way)  # else they would be given back
        self.now(self._kept(keys))

    def try_again(self) -> None:
        """What a queue did not take, when it is time."""
        while self._failed and self._session.clock() >= self._due and not self._session.stopping.is_set():
            self._call(self._failed, again=True)

    def now(self, keys: Sequence[MessageKey], *, again: bool = False) -> None:
        """Acknowledge before returning; what a queue that is away does not take is tried again."""
        complete = bool(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            size = queue.capabilities.max_batch_size * _BATCHES
            for first in range(0, len(receipts), size):
                chunk = receipts[first : first + size]
                done = [(name, receipt) for receipt in chunk]
                held = self._leases.stop(done)
                try:
                    stale = queue.acknowledge(chunk)
                except QueueUnavailable as error:
                    self._leases.resume(held)
                    self._put_off(name, receipts[first:], error, again=again)
                    complete = False
                    break
                lost = 0 if again else len(stale)  # their leases were kept: the call before had acknowledged them
                self._session.metrics.add(acknowledged=len(chunk) - lost, lostLeases=lost)
                self._in_flight.leave(done)
        if complete:
            reach("acknowledged")

    def _call(self, waiting: deque[MessageKey], *, again: bool = False) -> None:
        """Acknowledge the first of them: as many as their queue takes in one call of ours."""
        with self._changed:
            if not waiting:
                return
            size = self._session.queues[waiting[0][0]].capabilities.max_batch_size * _BATCHES
            self._under_way = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        try:
            self.now(self._kept(self._under_way), again=again)
        finally:
            with self._changed:
                self._under_way = []
                self._changed.notify_all()

    def _kept(self, keys: Sequence[MessageKey]) -> list[MessageKey]:
        """Those whose leases are kept; the others have left, and are counted."""
        kept = self._leases.kept(keys)
        self._in_flight.leave([key for key in keys if key not in kept])
        return [key for key in keys if key in kept]

    def _put_off(self, name: str, receipts: Sequence[Receipt], error: QueueUnavailable, *, again: bool) -> None:
        """These are tried again, and with them whatever else waits for the queue: it is not asked for each."""
        with self._changed:
            waiting = list(self._waiting)
            others = [key for key in waiting if key[0] == name]
            self._waiting.clear()
            self._waiting.extend(key for key in waiting if key[0] != name)
            keys = [*((name, receipt) for receipt in receipts), *others]
            self._failed.extend(keys)
            self._due = self._session.clock() + min(_AGAIN, self._session.lease / 10)
        self._session.metrics.add(acknowledgeFailures=0 if again else len(keys))
        logger.warning("%s; the acknowledgement of %d messages is tried again", error, len(keys))

    def nack(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        """Give messages that have left back to their queues, which deliver them again after `delay` seconds.

        Where a queue can delay, else at once. Raises QueueError; they come again when their leases end then.
        """
        self._leases.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            queue.nack(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self._session.metrics.add(givenBack=len(keys))
