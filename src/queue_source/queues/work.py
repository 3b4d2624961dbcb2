"""A program that handles the messages of a queue: `queue.work(handler, parallelism=N)`, Mercury's worker."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from queue_source.errors import QueueError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues.base import Queue
from queue_source.queues.leases import Lease, LeaseOrder, longest_lease, terms_of
from shard_store.sql.transaction import chunks

logger = logging.getLogger("cuesqueue")

_WAIT = 1.0  # seconds of a receive, and between two looks at the leases: so long an idle worker takes to end
_AWAY = 10.0  # seconds, at most, between two receives from an unavailable queue
_LONGEST_DELAY = 300.0  # seconds for which a message that failed stays away
_FAILING = 10  # times `parallelism`: so many messages that failed are held, where the queue cannot delay


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
            except Exception as error:  # noqa: BLE001 - of any kind: it is the program's
                self._fail(message, error)
            else:
                self._let_go([message.receipt])
                self._queue.acknowledge([message.receipt])
        except QueueUnavailable as error:
            logger.warning("%s; message %r was handled, and comes again", error, message.message_id)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _fail(self, message: Received, error: Exception) -> None:
        """Give the message back, so that it comes again after a time that doubles with each delivery."""
        delay = min(_LONGEST_DELAY, 2.0 ** min(message.receive_count - 1, 20))
        where = message.queue, message.message_id, delay
        logger.warning("queue %r: message %r failed, and comes again in %.0f s", *where, exc_info=error)
        if self._capabilities.can_delay:
            self._give_back(self._let_go([message.receipt]), delay)
        else:
            with self._changed:
                self._later[message.receipt] = time.monotonic() + delay

    def _let_go(self, receipts: Iterable[Receipt]) -> list[Receipt]:
        """Keep these leases no longer; return those that were kept."""
        with self._changed:
            kept = [lease for receipt in receipts if (lease := self._held.pop(receipt, None)) is not None]
            for lease in kept:
                self._leases.stop(lease)
            return [lease.key[1] for lease in kept]

    def _give_back(self, receipts: Iterable[Receipt], delay: float = 0.0) -> None:
        for batch in chunks(receipts, self._capabilities.max_batch_size):
            try:
                self._queue.nack(batch, longest_lease(delay, self._capabilities))
            except QueueError as error:
                logger.warning("%s; %d message(s) come again when their leases end", error, len(batch))

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
                for batch in chunks(receipts, self._capabilities.max_batch_size):
                    self._extend(batch, seconds)
            with self._changed:
                wait = _WAIT if due.next_time is None else min(_WAIT, due.next_time - time.monotonic())
                if wait > 0 and not self._ended:
                    self._changed.wait(wait)

    def _extend(self, receipts: list[Receipt], seconds: float) -> None:
        asked, until = time.monotonic(), 0.0
        try:
            self._let_go(self._queue.extend(receipts, seconds))
            until = asked + seconds
        except QueueUnavailable as error:
            logger.warning("%s; it is tried again", error)
        with self._changed:
            for lease in [self._held[receipt] for receipt in receipts if receipt in self._held]:
                lease.until = max(lease.until, until)
                self._leases.keep(lease, None if until else time.monotonic() + _WAIT)
