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
from queue_source.messages import MessageKey
from shard_store.sql.transaction import chunks

logger = logging.getLogger("cuesqueue")

_BATCHES = 10  # of the queue, in one call of ours: leases of what waits for the next call are still kept


class Acknowledger:
    """Acknowledges what is done (invariant 1). Never tried again: redelivery is the retry, and finds the shards at EOF.

    A lease is kept until its message's turn comes, and not while it is deleted: the extension of a message that is gone
    would look like a lease that was lost.
    """

    def __init__(self, session: Session, in_flight: InFlight, leases: LeaseKeeper) -> None:
        self._session = session
        self._in_flight = in_flight
        self._leases = leases
        self._waiting: deque[MessageKey] = deque()
        self._busy = False
        self._changed = threading.Condition()

    def later(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge on the own thread: whoever opens or receives must not wait for a queue's answers."""
        if keys:
            with self._changed:
                self._waiting.extend(keys)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let the thread see that it is to end."""
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """The thread; it ends with the others. What waits then is for `rest`."""
        while not self._session.stopping.is_set():
            with self._changed:
                if not self._waiting:
                    self._changed.wait(0.5)
                keys = list(self._waiting)
                self._waiting.clear()
                self._busy = bool(keys)
            self.now(keys)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until the thread has done what waits for it: AvailableNow's query ends at once after that."""
        with self._changed:
            while not self._session.stopping.is_set() and (self._waiting or self._busy):
                self._changed.wait(0.5)

    def rest(self) -> None:
        """After the thread has ended."""
        keys, self._waiting = list(self._waiting), deque()
        self.now(keys)

    def now(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge before returning."""
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            for chunk in chunks(receipts, queue.capabilities.max_batch_size * _BATCHES):
                done = [(name, receipt) for receipt in chunk]
                self._leases.stop(done)
                try:
                    stale = queue.acknowledge(chunk)
                except QueueUnavailable as error:
                    self._session.metrics.add(acknowledgeFailures=len(chunk))
                    logger.warning("%s; %d messages will be delivered again", error, len(chunk))
                else:
                    self._session.metrics.add(acknowledged=len(chunk) - len(stale), lostLeases=len(stale))
                self._in_flight.leave(done)

    def nack(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        """Give messages that have left back to their queues, which deliver them again after `delay` seconds.

        Where a queue can delay, else at once. Raises QueueError; they come again when their leases end then.
        """
        self._leases.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            queue.nack(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self._session.metrics.add(givenBack=len(keys))
