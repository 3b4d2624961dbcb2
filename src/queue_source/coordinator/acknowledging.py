"""How messages are kept while they are in flight, and how they leave: acknowledged for good, or given back.

Each message has its own deadline, and is extended in the queue's batches together with those that are due soon: 10,000
messages in flight cost 1,000 calls in a period, and no more threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.messages import UNACKNOWLEDGED
from queue_source.coordinator.session import Session, Threads
from queue_source.errors import QueueError, QueueUnavailable
from queue_source.messages import MessageKey, Receipt, by_queue
from queue_source.queues.leases import longest_lease
from shard_store.failpoints import reach
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

    def run(self) -> None:
        """Extend leases on the keeper's thread whenever some are due, until the reader ends."""
        failures: list[BaseException] = []

        def guarded(work: Callable[..., None], *arguments: object) -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by the keeper's thread
                failures.append(error)

        callers = ThreadPoolExecutor(_CALLERS, "cuesqueue-extend")
        try:
            while not self._session.stopping.is_set():
                pause = self.tick(lambda *call: callers.submit(guarded, *call))
                if failures:
                    raise failures[0]
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


# batches of the queue in one call of ours; the leases of messages that wait for the next call are still kept
_BATCHES = 10
_AGAIN = 5.0  # seconds, at most, between two tries at a queue that is unavailable


class Acknowledger:
    """Acknowledges complete messages (invariant 1). An unavailable queue is tried again as long as leases are kept.

    After that redelivery is the retry, and the shards are at EOF by then. A lease is kept until its message is
    acknowledged, and not while it is deleted: extending a message that is gone would look like a lost lease. Each queue
    has a thread, so none waits for another that is slow or unavailable. Neither Spark's calls nor the threads that open
    and receive wait.
    """

    def __init__(self, session: Session, in_flight: InFlight) -> None:
        self._session = session
        self._in_flight = in_flight
        self._due = dict.fromkeys(session.queues, 0.0)  # when an unavailable queue is asked again

    def start(self, threads: Threads) -> None:
        for number, name in enumerate(self._session.queues):
            threads.start(f"acknowledge-{number}", self.run, name)

    def run(self, name: str) -> None:
        """Acknowledge the messages of one queue, on its thread. `end` handles those that wait when it stops."""
        while not self._session.stopping.is_set():
            self.acknowledge(name, 0.5)

    def acknowledge(self, name: str, seconds: float = 0.0) -> bool:
        """Acknowledge the next messages of a queue, up to `_BATCHES` of its batches.

        Waits up to `seconds` for the first. Returns False if there was nothing to acknowledge, or the queue is
        unavailable.
        """
        session, in_flight = self._session, self._in_flight
        if self._is_away(name):
            in_flight.wait(seconds)
            return False
        is_delayed = in_flight.begin_acknowledging(name, self._size(name), seconds)
        keys = list(is_delayed)
        if not keys:
            return False
        try:
            self._ask(name, is_delayed)
        except QueueUnavailable as error:
            self._due[name] = session.clock() + min(_AGAIN, session.lease / 10)
            session.metrics.add(acknowledgeFailures=in_flight.put_off(name, keys))
            logger.warning("%s; the acknowledgement of %d messages is tried again", error, len(keys))
        except BaseException:
            in_flight.put_off(name, keys)
            raise
        else:
            reach("acknowledged")  # before those continue that wait for it
            in_flight.leave(keys)
        return True

    def finish(self) -> None:
        """Wait until all complete messages are acknowledged: AvailableNow's query ends at once after that."""
        self._wait_while(lambda: self._in_flight.has(UNACKNOWLEDGED))

    def wait_for_answers(self, keys: Iterable[MessageKey]) -> None:
        """Wait until the queues of these complete messages have answered, or are unavailable."""
        waiting = list(keys)
        self._wait_while(
            lambda: self._in_flight.has(UNACKNOWLEDGED, (key for key in waiting if not self._is_away(key[0])))
        )

    def end(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge complete messages that have left, after the threads have ended. None is tried again."""
        for name, receipts in by_queue(keys).items():
            try:
                for batch in chunks(receipts, self._size(name)):
                    self._ask(name, {(name, receipt): False for receipt in batch})
                reach("acknowledged")
            except QueueError as error:
                logger.warning("%s; what was done will be delivered again, and found done", error)

    def nack(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        """Give messages that have left back to their queues, which deliver them again after `delay` seconds.

        A queue that cannot delay delivers them at once. Raises QueueError; then they come again when their leases end.
        """
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            queue.nack(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self._session.metrics.add(givenBack=len(keys))

    def extend_last(self, keys: Sequence[MessageKey], seconds: float) -> None:
        """Extend the leases of messages that have left, once, so that another reader has time to finish their work.

        Raises QueueError; then the messages become visible when their leases end.
        """
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            queue.extend(receipts, longest_lease(seconds, queue.capabilities))

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        stopping = self._session.stopping
        self._in_flight.wait(condition=lambda: stopping.is_set() or not condition())

    def _is_away(self, name: str) -> bool:
        """Tell whether the queue failed so recently that it is not asked again yet."""
        return self._session.clock() < self._due[name]

    def _size(self, name: str) -> int:
        return self._session.queues[name].capabilities.max_batch_size * _BATCHES

    def _ask(self, name: str, is_delayed: Mapping[MessageKey, bool]) -> None:
        """Ask the queue to delete these messages, and count them. Raises QueueError.

        Delayed messages were asked for before, and their leases were kept: one that is stale now was deleted by that
        call. Once the store has gone back in time nothing is deleted, since finished work may be undone; the messages
        come again.
        """
        if not self._session.store.is_trusted:
            return
        stale = self._session.queues[name].acknowledge([receipt for _, receipt in is_delayed])
        lost = sum(receipt in stale and not delayed for (_, receipt), delayed in is_delayed.items())
        self._session.metrics.add(acknowledged=len(is_delayed) - lost, lostLeases=lost)
