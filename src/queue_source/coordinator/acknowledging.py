"""The end of a delivery: messages are deleted for good or given back, in the queue's batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.messages import UNACKNOWLEDGED
from queue_source.coordinator.session import Session
from queue_source.coordinator.threads import Threads
from queue_source.errors import QueueError, QueueUnavailable
from queue_source.messages import MessageKey, by_queue
from queue_source.queues.leases import longest_lease
from shard_store.failpoints import reach
from shard_store.sql.database import chunks

logger = logging.getLogger("cuesqueue")

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
