"""Letting go of what is not done: messages are given back or lost, and shards that nothing else remembers released."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import LeaseKeeper, MessageKey, by_queue, longest_lease
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.receiving import Receivers
from queue_source.errors import QueueError
from queue_source.queues.base import Queue
from shard_store.errors import ShardStoreError
from shard_store.model import PublishToken
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")


class Releaser:
    """Called by the housekeeper by the clock, and at the reader's end. `stale_after` is in seconds."""

    def __init__(
        self,
        store: ShardStore,
        queues: Mapping[str, Queue],
        pen: HoldingPen,
        receivers: Receivers,
        acknowledger: Acknowledger,
        leases: LeaseKeeper,
        metrics: Metrics,
        stale_after: float,
    ) -> None:
        self._store = store
        self._queues = queues
        self._pen = pen
        self._receivers = receivers
        self._acknowledger = acknowledger
        self._leases = leases
        self._metrics = metrics
        self._stale_after = stale_after
        self._token: PublishToken

    def start(self, token: PublishToken) -> None:
        """From here on these are ours."""
        self._token = token

    def replay(self, before: float) -> None:
        """Onyx's replay timer: what is ready but was not planned within `pendingTimeout` is given back."""
        with self._pen.changed:
            if self._receivers.draining:
                return  # AvailableNow will take them; given back, they would only come again
            overdue = self._pen.tracker.overdue(before)
            released = self._pen.tracker.forget(self._pen.leave(overdue))
        if overdue:
            self._store.release(self._token, released)
            self.nack(overdue)

    def make_room(self) -> None:
        """In a full pen most messages wait for other pipelines: they are given back until those may be done.

        As long as the pen is full of our own work, there will be room by itself, and what is held costs no receive.
        """
        with self._pen.changed:
            idle = self._pen.tracker.idle() if self._pen.full() else []
            if 2 * len(idle) <= self._pen.held():
                idle = []
            self._pen.tracker.unwatch(self._pen.leave(idle))
        if idle:
            self.nack(idle, self._stale_after)

    def nack(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        """To their queues, which deliver them again after `delay` seconds, where they can delay."""
        self._leases.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._queues[name]
            queue.nack(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self._metrics.add(givenBack=len(keys))

    def let_go(self) -> None:
        """After the threads have ended: give messages back, and release shards that nothing else remembers."""
        try:
            self._acknowledger.rest()
        except QueueError as error:
            logger.warning("%s; what was done will be delivered again, and found done", error)
        with self._pen.changed:
            tracker = self._pen.tracker
            unplanned = tracker.unplanned()
            planned = list(tracker.messages.keys() - set(unplanned))
            released = tracker.forget(self._pen.leave(unplanned))
            unopened = self._pen.empty_out()
        try:
            self._store.release(self._token, released)
            self._store.retire(self._token)
        except ShardStoreError as error:
            logger.warning("pipeline %s: %s", self._token.pipeline, error)  # they go stale by themselves
        try:
            self.nack([*unopened, *unplanned])
            self._leases.extend_last(planned, self._stale_after)
        except QueueError as error:
            logger.warning("%s; its messages become visible when their leases end", error)
