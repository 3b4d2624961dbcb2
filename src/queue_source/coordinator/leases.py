"""Extends each message's lease from its receipt on, with few threads, in batches.

Each message has its own deadline; due extensions go out in the queue's batch size, so ten thousand messages cost ten
thousand divided by that many calls a period, and no more threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.session import Session
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt
from shard_store.sql.database import chunks

logger = logging.getLogger("cuesqueue")

_CALLERS = 2  # threads that wait for answers to extensions: one slow queue does not delay the others
_LONGEST_PAUSE = 1.0  # seconds


class LeaseKeeper:
    """Keeps the messages in flight invisible, except those that are being acknowledged. In the reader process.

    Messages whose leases end against our will leave, and are counted once. Their shards stay ours by the token, so
    nothing is published twice.
    """

    def __init__(self, session: Session, in_flight: InFlight) -> None:
        self._session = session
        self._in_flight = in_flight
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Extend leases on the keeper's thread whenever some are due, until the reader ends."""
        callers = ThreadPoolExecutor(_CALLERS, "cuesqueue-extend")
        try:
            while not self._session.stopping.is_set():
                pause = self.tick(lambda *call: callers.submit(self._guarded, *call))
                if self._failure is not None:
                    raise self._failure
                self._in_flight.wait(pause)  # a message that comes meanwhile may be due sooner
        finally:
            callers.shutdown(cancel_futures=True)

    def tick(self, call: Callable[..., object] = lambda work, *arguments: work(*arguments)) -> float:
        """Extend the leases that are due now; return the seconds until the next check.

        `call(work, *arguments)` makes one call to a queue, here or on another thread.
        """
        session, in_flight = self._session, self._in_flight
        due = in_flight.begin_extending(session.clock())
        self._tell_lost(due.ended)
        for (name, lease), receipts in due.extensions.items():
            for batch in chunks(receipts, session.queues[name].capabilities.max_batch_size):
                call(self._extend, name, batch, lease)
        if due.next_time is None:
            return _LONGEST_PAUSE
        return min(_LONGEST_PAUSE, max(0.0, due.next_time - session.clock()))

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - kept, and raised by the keeper's thread
            self._failure = self._failure or error

    def _extend(self, name: str, receipts: Sequence[Receipt], lease: float) -> None:
        """Make one call to the queue, and record for each message what became of it."""
        clock, keys = self._session.clock, [(name, receipt) for receipt in receipts]
        asked = clock()
        try:
            gone = self._session.queues[name].extend(receipts, lease)
        except QueueUnavailable:
            self._tell_lost(self._in_flight.fail_extending(keys, clock()))
        else:
            lost = {(name, receipt) for receipt in gone}
            self._tell_lost(self._in_flight.end_extending(keys, asked + lease, lost))

    def _tell_lost(self, keys: Sequence[MessageKey]) -> None:
        if keys:
            self._session.metrics.add(lostLeases=len(keys))
            logger.warning("pipeline %s: lost the lease of %d message(s)", self._session.token, len(keys))
