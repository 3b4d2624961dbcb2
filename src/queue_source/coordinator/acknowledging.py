"""The end of a delivery: messages are deleted for good or given back, in the queue's batches."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.leases import LeaseKeeper, by_queue, longest_lease
from queue_source.coordinator.session import Session
from queue_source.coordinator.threads import Threads
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt
from shard_store.failpoints import reach

logger = logging.getLogger("cuesqueue")

_BATCHES = 10  # of the queue, in one call of ours: leases of what waits for the next call are still kept
_AGAIN = 5.0  # seconds, at most, between two tries at a queue that is away


@dataclass
class _Line:
    """What is to be acknowledged in one queue."""

    waiting: deque[Receipt] = field(default_factory=deque)
    failed: deque[Receipt] = field(default_factory=deque)  # to be tried again, in this order
    due: float = 0.0  # when, by the session's clock
    under_way: list[Receipt] = field(default_factory=list)  # what the thread asks the queue for

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.failed or self.under_way)


class Acknowledger:
    """Acknowledges what is done (invariant 1). Where a queue is away it is tried again as long as the lease is kept.

    After that redelivery is the retry, and finds the shards at EOF. A lease is kept until its message's turn comes, and
    not while it is deleted: the extension of a message that is gone would look like a lease that was lost. Each queue
    has a thread: none waits for another that is slow, or away.
    """

    def __init__(self, session: Session, in_flight: InFlight, leases: LeaseKeeper) -> None:
        self._session = session
        self._in_flight = in_flight
        self._leases = leases
        self._lines = {name: _Line() for name in session.queues}
        self._changed = threading.Condition()

    def start(self, threads: Threads) -> None:
        for number, name in enumerate(self._lines):
            threads.start(f"acknowledge-{number}", self.run, name)

    def later(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge on the queues' threads: neither Spark nor whoever opens or receives waits for their answers."""
        if keys:
            with self._changed:
                for name, receipts in by_queue(keys).items():
                    self._lines[name].waiting.extend(receipts)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let the threads see that they are to end."""
        with self._changed:
            self._changed.notify_all()

    def run(self, name: str) -> None:
        """The thread of a queue; it ends with the others, after one call at most. What waits then is for `rest`."""
        line = self._lines[name]
        while not self._session.stopping.is_set():
            with self._changed:
                if not line.waiting:
                    self._changed.wait(0.5)
            self.try_again(name)
            self._call(name, line.waiting)

    def finish(self) -> None:
        """Wait until the threads have done what waits for them: AvailableNow's query ends at once after that."""
        with self._changed:
            while not self._session.stopping.is_set() and any(line.busy for line in self._lines.values()):
                self._changed.wait(0.5)

    def rest(self) -> list[MessageKey]:
        """At the end of the threads: what is still to be acknowledged leaves, and is returned for `now`.

        What a thread that was waited for in vain asks its queue for has left, too: it may be deleted already.
        """
        rest: list[MessageKey] = []
        with self._changed:
            for name, line in self._lines.items():
                if line.under_way:
                    logger.warning(
                        "queue %r has not answered yet whether it acknowledges %d messages", name, len(line.under_way)
                    )
                    self._in_flight.leave((name, receipt) for receipt in line.under_way)
                rest += [(name, receipt) for receipt in (*line.failed, *line.waiting)]
                line.failed.clear()
                line.waiting.clear()
        self._in_flight.leave(rest)
        kept = self._leases.kept(rest)
        return [key for key in rest if key in kept]

    def try_again(self, name: str) -> None:
        """What the queue did not take, when it is time."""
        line, session = self._lines[name], self._session
        while line.failed and session.clock() >= line.due and not session.stopping.is_set():
            self._call(name, line.failed, again=True)

    def now(self, keys: Sequence[MessageKey]) -> None:
        """Acknowledge before returning; what a queue that is away does not take is tried again."""
        complete = bool(keys)
        for name, receipts in by_queue(keys).items():
            for first in range(0, len(receipts), self._size(name)):
                if not self._acknowledge(name, receipts[first : first + self._size(name)]):
                    rest = self._put_off(name, receipts[first + self._size(name) :])
                    self._session.metrics.add(acknowledgeFailures=rest)
                    complete = False
                    break
        if complete:
            reach("acknowledged")

    def _size(self, name: str) -> int:
        return self._session.queues[name].capabilities.max_batch_size * _BATCHES

    def _call(self, name: str, waiting: deque[Receipt], *, again: bool = False) -> None:
        """Acknowledge the first of them: as many as the queue takes in one call of ours."""
        line = self._lines[name]
        with self._changed:
            line.under_way = [waiting.popleft() for _ in range(min(self._size(name), len(waiting)))]
        try:
            if (kept := self._kept(name, line.under_way)) and self._acknowledge(name, kept, again=again):
                reach("acknowledged")
        finally:
            with self._changed:
                line.under_way = []
                self._changed.notify_all()

    def _kept(self, name: str, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Those whose leases are kept; the others have left, and are counted."""
        keys = [(name, receipt) for receipt in receipts]
        kept = self._leases.kept(keys)
        if lost := [key for key in keys if key not in kept]:
            self._in_flight.leave(lost)
        return [receipt for receipt in receipts if (name, receipt) in kept]

    def _acknowledge(self, name: str, receipts: Sequence[Receipt], *, again: bool = False) -> bool:
        """One call to the queue. False: it is away, and they are tried again.

        After the store has gone back in time nothing is asked: what it said was done may be undone. They come again.
        """
        keys = [(name, receipt) for receipt in receipts]
        if not self._session.store.is_trusted:
            self._leases.stop(keys)
            self._in_flight.leave(keys)
            return True
        held = self._leases.stop(keys)
        try:
            stale = self._session.queues[name].acknowledge(receipts)
        except QueueUnavailable as error:
            self._leases.resume(held)
            count = self._put_off(name, receipts)
            self._session.metrics.add(acknowledgeFailures=0 if again else count)
            logger.warning("%s; the acknowledgement of %d messages is tried again", error, count)
            return False
        lost = 0 if again else len(stale)  # their leases were kept: the call before had acknowledged them
        self._session.metrics.add(acknowledged=len(receipts) - lost, lostLeases=lost)
        self._in_flight.leave(keys)
        return True

    def _put_off(self, name: str, receipts: Sequence[Receipt]) -> int:
        """These are tried again, and all that waits for the queue: it is not asked for each. Returns how many."""
        line = self._lines[name]
        with self._changed:
            put_off = [*receipts, *line.waiting]
            line.waiting.clear()
            line.failed.extend(put_off)
            line.due = self._session.clock() + min(_AGAIN, self._session.lease / 10)
        return len(put_off)

    def nack(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        """Give messages that have left back to their queues, which deliver them again after `delay` seconds.

        Where a queue can delay, else at once. Raises QueueError; they come again when their leases end then.
        """
        self._leases.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._session.queues[name]
            queue.nack(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self._session.metrics.add(givenBack=len(keys))
