"""Deleting messages for good, in the queue's batches, on the caller's thread or behind its back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from queue_source.coordinator.crew import Crew
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import LeaseKeeper, MessageKey, by_queue
from queue_source.coordinator.metrics import Metrics
from queue_source.errors import QueueUnavailable
from queue_source.queues.base import Queue

logger = logging.getLogger("cuesqueue")

_BATCHES = 10  # of the queue, in one call of ours: leases of what waits for the next call are still kept


class Acknowledger:
    """Acknowledges what is done (invariant 1). Never tried again: redelivery is the retry, and finds the shards at EOF.

    A lease is kept until its message's turn comes, and not while it is deleted: the extension of a message that is gone
    would look like a lease that was lost.
    """

    def __init__(self, queues: Mapping[str, Queue], leases: LeaseKeeper, pen: HoldingPen, metrics: Metrics) -> None:
        self._queues = queues
        self._leases = leases
        self._pen = pen
        self._metrics = metrics
        self._waiting: deque[MessageKey] = deque()
        self._busy = False
        self._filled = threading.Condition()  # also told when what waited is done

    def later(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge on the own thread: whoever opens or receives must not wait for a queue's answers."""
        if keys:
            with self._filled:
                self._waiting.extend(keys)
                self._filled.notify_all()

    def wake(self) -> None:
        """Let the thread look whether it is to end."""
        with self._filled:
            self._filled.notify_all()

    def run(self, crew: Crew) -> None:
        """The thread; it ends with the crew. What waits then is for `rest`."""
        while crew.working:
            with self._filled:
                if not self._waiting:
                    self._filled.wait(0.5)
                keys = list(self._waiting)
                self._waiting.clear()
                self._busy = bool(keys)
            self.now(keys)
            with self._filled:
                self._busy = False
                self._filled.notify_all()

    def finish(self, crew: Crew) -> None:
        """Wait until the thread has done what waits for it: AvailableNow's query ends at once after that."""
        with self._filled:
            while crew.working and (self._waiting or self._busy):
                self._filled.wait(0.5)

    def rest(self) -> None:
        """After the thread has ended."""
        keys, self._waiting = list(self._waiting), deque()
        self.now(keys)

    def now(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge before returning."""
        for name, receipts in by_queue(keys).items():
            queue = self._queues[name]
            size = queue.capabilities.max_batch_size * _BATCHES
            for start in range(0, len(receipts), size):
                chunk = receipts[start : start + size]
                done = [(name, receipt) for receipt in chunk]
                self._leases.stop(done)
                try:
                    stale = queue.acknowledge(chunk)
                except QueueUnavailable as error:
                    self._metrics.add(acknowledgeFailures=len(chunk))
                    logger.warning("%s; %d messages will be delivered again", error, len(chunk))
                else:
                    self._metrics.add(acknowledged=len(chunk) - len(stale), lostLeases=len(stale))
                with self._pen.changed:
                    self._pen.leave(done)
