"""What programs get that use a queue by themselves: a cap of what they hold, and a loop that handles messages.

`open_queue(..., max_outstanding=N)` and `queue.work(handler, parallelism=N)`, Mercury's parallelism and worker.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from queue_source.errors import QueueError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues.base import Capabilities, Depth, Payload, Queue
from queue_source.queues.leases import Lease, LeaseOrder, longest_lease, terms_of

logger = logging.getLogger("cuesqueue")

_LOOK = 0.5  # seconds between two looks at what was lost, while there is no room
_WAIT = 1.0  # seconds of a receive, and between two looks at the leases: so long an idle worker takes to end
_AWAY = 10.0  # seconds, at most, between two receives from an unavailable queue
_LONGEST_DELAY = 300.0  # seconds for which a message that failed stays away
_FAILING = 10  # times `parallelism`: so many messages that failed are held, where the queue cannot delay


class CappedQueue(Queue):
    """A queue that gives out no more than `most` messages at a time, to all threads together.

    A message counts until it is acknowledged, returned, rejected or republished, until `extend` reports it as lost, and
    until its lease ends: then it is the queue's again. Where a connection holds messages and no lease does
    (`Capabilities.ends_leases`), it counts until the connection is lost. Everything else is the queue's own.
    """

    def __init__(self, queue: Queue, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = queue
        self._most = most
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[Receipt, float] = {}  # until when it is leased
        self._reserved = 0  # for calls of `receive` that are under way
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        """Return what only some kinds of queues have."""
        return getattr(self.__dict__["_queue"], name)

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def identity(self) -> str:
        return self._queue.identity

    @property
    def capabilities(self) -> Capabilities:
        return self._queue.capabilities

    def outstanding(self) -> int:
        """Return how many messages count now."""
        ends_leases = self._queue.capabilities.ends_leases
        with self._changed:
            receipts = list(self._held)
        lost = set() if ends_leases or not receipts else self._queue.extend(receipts, _LOOK)
        with self._changed:
            now = self._clock()
            for receipt in receipts:
                if receipt in lost or (ends_leases and self._held.get(receipt, now) <= now):
                    self._held.pop(receipt, None)
            return len(self._held)

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive as `Queue.receive`, no more than there is room for; waits up to `wait` seconds for room, too."""
        until = self._clock() + wait
        was_closed = self._closed
        room = 0
        try:
            while True:
                self.outstanding()
                with self._changed:
                    free = min(max_messages, self._most - len(self._held) - self._reserved)
                    remaining = until - self._clock()
                    if free > 0 or max_messages <= 0 or remaining <= 0 or self._closed:
                        room = max_messages if self._closed else max(0, free)  # a closed queue says so itself
                        self._reserved += room
                        break
                    self._changed.wait(min(remaining, _LOOK))
        except QueueError:
            if was_closed or not self._closed:
                raise
        if self._closed and not was_closed:  # while it waited
            self._release(room)
            return []
        if room <= 0 < max_messages:
            return []
        received: list[Received] = []
        try:
            received = self._queue.receive(room, lease, max(0.0, until - self._clock()))
            return received
        finally:
            self._release(room, received)

    def _release(self, room: int, received: Sequence[Received] = ()) -> None:
        """Let others have the room that was reserved, but for what was received."""
        with self._changed:
            self._reserved -= room
            self._held.update({message.receipt: message.lease_until for message in received})
            self._changed.notify_all()

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        until = self._clock() + lease
        lost = self._queue.extend(receipts, lease)
        with self._changed:
            self._held.update({receipt: until for receipt in receipts if receipt in self._held})
        self._forget(lost)
        return lost

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        stale = self._queue.acknowledge(receipts)
        self._forget(receipts)
        return stale

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._queue.nack(receipts, delay)
        self._forget(receipts)

    def reject(self, receipts: Sequence[Receipt]) -> None:
        self._queue.reject(receipts)
        self._forget(receipts)

    def republish(self, message: Received) -> bool:
        was_ours = self._queue.republish(message)
        self._forget([message.receipt])
        return was_ours

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        return self._queue.send(payloads, tag=tag, headers=headers, group=group)

    def depth(self) -> Depth:
        return self._queue.depth()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._queue.close()

    def _forget(self, receipts: Iterable[Receipt]) -> None:
        """Count these no more; after a call that failed they still do, until their leases end."""
        with self._changed:
            for receipt in receipts:
                self._held.pop(receipt, None)
            self._changed.notify_all()


class Worker:
    """One call of `Queue.work`, whose thread receives; another keeps the leases, and each handler has its own."""

    def __init__(
        self, queue: Queue, handler: Callable[[Received], object], parallelism: int, lease: float, stop: threading.Event
    ) -> None:
        if parallelism < 1:
            raise ValueError(f"parallelism={parallelism!r}; write a number from 1 on")
        self._queue, self._handler, self._parallelism, self._stop = queue, handler, parallelism, stop
        self._capabilities = queue.capabilities
        self._terms = terms_of(self._capabilities, lease)
        self._changed = threading.Condition()
        self._leases = LeaseOrder()
        self._held: dict[Receipt, Lease] = {}
        self._running = 0
        self._later: dict[Receipt, float] = {}  # when they are given back, where the queue cannot delay
        self._failure: BaseException | None = None
        self._ended = False

    def run(self) -> None:
        """Work until `stop` is set, or something fails, which is raised; end when the handlers have ended."""
        keeper = threading.Thread(target=self._guarded, args=(self._keep,), name="cuesqueue-work-leases", daemon=True)
        keeper.start()
        try:
            with ThreadPoolExecutor(self._parallelism, "cuesqueue-work") as handlers:
                while not self._is_ending:
                    try:
                        self._receive(handlers)
                    except QueueUnavailable as error:
                        logger.warning("%s; it is tried again", error)
                        self._stop.wait(random.uniform(1.0, _AWAY))
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            keeper.join()
            self._give_back(list(self._held))
        if self._failure is not None:
            raise self._failure

    @property
    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._failure is not None

    def _receive(self, handlers: ThreadPoolExecutor) -> None:
        """Receive as much as the handlers can begin at once; without room wait for some."""
        with self._changed:
            room = min(self._parallelism - self._running, self._capabilities.max_batch_size)
            if room <= 0 or len(self._later) >= _FAILING * self._parallelism:
                self._changed.wait(_WAIT)
                return
        messages = self._queue.receive(room, self._terms.period, min(_WAIT, self._capabilities.max_wait))
        with self._changed:
            self._running += len(messages)
            for message in messages:
                lease = self._held[message.receipt] = Lease(message, self._terms)
                self._leases.keep(lease)
            self._changed.notify_all()
        for message in messages:
            handlers.submit(self._guarded, self._handle, message)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - kept, and raised by `run`
            self._failure = self._failure or error

    def _handle(self, message: Received) -> None:
        try:
            if self._is_ending:
                return  # `run` gives it back
            try:
                self._handler(message)
            except Exception as error:
                # it comes again after a time that doubles with each delivery
                delay = min(_LONGEST_DELAY, 2.0 ** min(message.receive_count - 1, 20))
                where = message.queue, message.message_id, delay
                logger.warning("queue %r: message %r failed, and comes again in %.0f s", *where, exc_info=error)
                if self._capabilities.can_delay:
                    self._give_back(self._let_go([message.receipt]), delay)
                else:
                    with self._changed:
                        self._later[message.receipt] = time.monotonic() + delay
            else:
                self._let_go([message.receipt])
                self._queue.acknowledge([message.receipt])
        except QueueUnavailable as error:
            logger.warning("%s; message %r was handled, and comes again", error, message.message_id)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _let_go(self, receipts: Iterable[Receipt]) -> list[Receipt]:
        """Keep these leases no longer; return those that were kept."""
        with self._changed:
            kept = [lease for receipt in receipts if (lease := self._held.pop(receipt, None)) is not None]
            for lease in kept:
                self._leases.stop(lease)
            return [lease.key[1] for lease in kept]

    def _give_back(self, receipts: Iterable[Receipt], delay: float = 0.0) -> None:
        for batch in self._batches(receipts):
            try:
                self._queue.nack(batch, longest_lease(delay, self._capabilities))
            except QueueError as error:
                logger.warning("%s; %d message(s) come again when their leases end", error, len(batch))

    def _batches(self, receipts: Iterable[Receipt]) -> list[list[Receipt]]:
        receipts, most = list(receipts), self._capabilities.max_batch_size
        return [receipts[start : start + most] for start in range(0, len(receipts), most)]

    def _keep(self) -> None:
        """Extend the leases that are due, and give back what has waited, until `run` ends."""
        while not self._ended:
            with self._changed:
                now = time.monotonic()
                due = self._leases.take_due(now)
                over = [receipt for receipt, at in self._later.items() if at <= now]
                self._later = {receipt: at for receipt, at in self._later.items() if at > now}
            self._let_go(receipt for _, receipt in due.ended)
            self._give_back(self._let_go(over))
            for (_, seconds), receipts in due.extensions.items():
                for batch in self._batches(receipts):
                    asked, until = time.monotonic(), 0.0
                    try:
                        self._let_go(self._queue.extend(batch, seconds))
                        until = asked + seconds
                    except QueueUnavailable as error:
                        logger.warning("%s; it is tried again", error)
                    with self._changed:
                        for lease in [self._held[receipt] for receipt in batch if receipt in self._held]:
                            lease.until = max(lease.until, until)
                            self._leases.keep(lease, None if until else time.monotonic() + _WAIT)
            with self._changed:
                wait = _WAIT if due.next_time is None else min(_WAIT, due.next_time - time.monotonic())
                if wait > 0 and not self._ended:
                    self._changed.wait(wait)
