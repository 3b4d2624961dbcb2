"""The frame of the adapters: what a queue of any kind does in the same way.

Closing, leases of no time, log ids, sending, requests side by side, messages that are kept for a dead-letter queue. An
adapter writes the rest: `_receive`, `_send`, and the other verbs.

Log ids are the header by which the log lines of one request are recognised over many services. Received messages have
it among their headers, republished ones keep it, and messages sent inside of `log_id` get it:

    with log_id(message.headers["X-Ascent-Log-Id"]):
        queue.send([...])        # a queue whose URL says log_id_header=X-Ascent-Log-Id
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.base import Administered, Extras, Payload, Queue, Unsendable, encode_payloads, republished
from queue_source.queues.urls import LOG_ID_HEADER, query_of
from queue_source.tags import parse_filters
from shard_store.redaction import redact_url

logger = logging.getLogger("cuesqueue")
T = TypeVar("T")
R = TypeVar("R")

_PEEK_LEASE = 60.0  # seconds after which messages come back by themselves, should this process die
_KEPT_BYTES = 64 << 20  # of messages that are kept for a dead-letter queue


class BaseQueue(Queue, Administered):
    """A queue with a name that can be closed, and created. Adapters write `_receive`, `_send`, and what is abstract."""

    extras = Extras(sends_many=True, administered=True)
    on_error: Callable[[QueueError], None] | None = None
    """Called with what goes wrong while no call waits for it (`open_queue`)."""
    log_id_header: str | None
    """The header that contains the log id, where the URL names one: log lines about a message have it."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self.log_id_header = dict(query_of(redact_url(url))).get(LOG_ID_HEADER) or None
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        return self._name

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        self._refuse_closed()
        check_lease(lease)
        try:
            return self._receive(max_messages, lease, wait) if max_messages > 0 else []
        except QueueError:
            if self._closed.is_set():
                return []
            raise

    @abstractmethod
    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive as `Queue.receive`; errors of a queue that was closed meanwhile do not count."""

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send as `Queue.send`; where there are several requests, one after the other."""
        messages = [Outgoing(body, tag, headers or {}, group) for body in encode_payloads(payloads)]
        return self._send_all(messages, in_order=True)

    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send as `SendsMany.send_messages`; at the same time where no message has a group, whose order that breaks."""
        return self._send_all(messages, in_order=any(message.group for message in messages))

    def _send_all(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        self._refuse_closed()
        return self._send(self._stamped(messages), in_order=in_order) if messages else []

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Delete the messages, where the kind of queue has no dead-letter queue."""
        self.acknowledge(receipts)

    @abstractmethod
    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send as `SendsMany.send_messages`: at least one message. `in_order`: no request begins before the last ended.

        What the queue cannot carry, such as a tag that is not Unicode, raises before anything is sent (`convert_each`).
        """

    def _stamped(self, messages: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Return the messages with the current log id among their headers; a header that has one keeps it."""
        header, value = self.log_id_header, _log_id.get()
        if header is None or value is None:
            return messages
        return [message._replace(headers={header: value, **message.headers}) for message in messages]

    def report(self, error: QueueError) -> None:
        """Tell the program what went wrong in the background, on a thread of the queue's; what it raises is logged."""
        if self.on_error is None or self._closed.is_set():
            return
        try:
            self.on_error(error)
        except (Exception, SystemExit):  # of any kind: the thread serves the connection
            logger.error("on_error of queue %r failed", self.name, exc_info=True)

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise closed(self.name)


def closed(queue: str) -> QueueConfigurationError:
    """Return the error of a call to a queue that was closed."""
    return QueueConfigurationError(queue, "is closed; open it again")


class Consumers(NamedTuple):
    """Who reads a source of RabbitMQ or of the simulator: a pool, or with `listener` a private queue.

    `filters` is None where the URL names none; `mandatory`: sending fails where no queue takes a message.
    """

    pool: str | None
    listener: bool
    filters: tuple[str, ...] | None
    mandatory: bool

    @classmethod
    def of(cls, parameters: Mapping[str, str], refused: Callable[[str], QueueConfigurationError]) -> Consumers:
        """Read the parameters of a URL; raises what `refused` makes of a problem."""
        for name in ("listener", "mandatory"):
            if parameters.get(name, "true").lower() not in ("true", "false"):
                raise refused(f"{name}={parameters[name]!r} is neither true nor false")
        listener = parameters.get("listener", "").lower() == "true"
        if listener and "pool" in parameters:
            raise refused("a listener has a private queue and no pool; leave pool= or listener=true out")
        try:
            filters = parse_filters(parameters["tags"]) if "tags" in parameters else None
        except ValueError as error:
            raise refused(str(error)) from None
        return cls(parameters.get("pool"), listener, filters, parameters.get("mandatory", "true").lower() == "true")


def no_pool_takes(queue: str, source: str, tag: str, count: str) -> QueueConfigurationError:
    """Return the error of messages that no pool of their source takes."""
    return QueueConfigurationError(
        queue,
        f"no pool of source {source!r} takes messages with the tag {tag!r}: {count} were not sent; create a pool whose "
        "filter lets it pass, or add mandatory=false to the URL to drop such messages",
    )


def is_found(question: Callable[[], object]) -> bool:
    """Tell whether what the question is about exists: whether it raises no `QueueNotFound`."""
    try:
        question()
    except QueueNotFound:
        return False
    return True


def check_lease(seconds: float) -> None:
    """Raise ValueError for a lease of no time."""
    if not seconds > 0:
        raise ValueError(f"lease must be more than 0 seconds, not {seconds!r}")


# --- requests ------------------------------------------------------------------------------------------------------


def convert_each(messages: Sequence[Outgoing], make: Callable[[Outgoing], T]) -> list[T]:
    """Make one item of each message; a ValueError of `make` names the message."""
    made = []
    for place, message in enumerate(messages):
        try:
            made.append(make(message))
        except ValueError as error:
            raise Unsendable(place, str(error)) from error
    return made


def copy_of(message: Received) -> Outgoing:
    """Build the message that `republish` puts to the back."""
    return Outgoing(message.body, message.tag, republished(message.headers), message.group)


def in_batches(sizes: Iterable[int], most: int, room: int) -> list[range]:
    """Return ranges of neighbours, one for each request: up to `most`, and up to `room` bytes unless one is larger."""
    batches: list[range] = []
    start = place = taken = 0
    for place, size in enumerate(sizes, 1):
        if place - start > most or (place - start > 1 and taken + size > room):
            batches.append(range(start, place - 1))
            start, taken = place - 1, 0
        taken += size
    return [*batches, range(start, place)] if place else []


def at_once(work: Callable[[T], R], items: Sequence[T], threads: int) -> tuple[list[R], list[QueueError]]:
    """Work on the items, several at once, whatever becomes of the others; return the results, and the errors."""

    def attempt(item: T) -> R | QueueError:
        try:
            return work(item)
        except QueueError as error:
            return error

    if len(items) < 2:
        outcomes = [attempt(item) for item in items]
    else:
        with ThreadPoolExecutor(min(threads, len(items)), "cuesqueue-requests") as pool:
            outcomes = list(pool.map(attempt, items))
    errors = [outcome for outcome in outcomes if isinstance(outcome, QueueError)]
    return [outcome for outcome in outcomes if not isinstance(outcome, QueueError)], errors


def raise_worst(errors: Iterable[QueueError], before: str) -> None:
    """Raise the worst of the errors, if there is one, with a text before it: rather one that waiting does not mend."""
    worst = min(errors, key=lambda error: isinstance(error, QueueUnavailable), default=None)
    if worst is not None:
        raise type(worst)(worst.queue, before + worst.problem) from worst.__cause__  # which an adapter may hide


def peek_by_receiving(queue: Queue, max_messages: int, wait: float = 0.0) -> list[Received]:
    """Peek into a queue that can only deliver: receive up to `max_messages`, and make all of them visible again.

    No other consumer gets them meanwhile. Ends with the first receive that brings nothing in `wait` seconds.
    """
    taken: list[Received] = []
    try:
        while more := queue.receive(max_messages - len(taken), _PEEK_LEASE, wait):
            taken += more
    finally:
        queue.nack([message.receipt for message in taken])
    return taken


class Kept(Generic[T]):
    """The messages in flight, up to 64 MB, for a service that cannot move one to a dead-letter queue by its receipt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: OrderedDict[Receipt, tuple[float, int, T]] = OrderedDict()  # in the order of their last extension
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, receipt: Receipt, until: float, size: int, item: T) -> None:
        """Keep what is leased until then (`time.monotonic()`); what is over, and else the oldest, makes room."""
        with self._lock:
            self._bytes += size - self._items.pop(receipt, (0.0, 0, item))[1]
            self._items[receipt] = until, size, item
            now = time.monotonic()
            while self._items and (self._bytes > _KEPT_BYTES or next(iter(self._items.values()))[0] <= now):
                self._bytes -= self._items.popitem(last=False)[1][1]

    def extend(self, receipts: Iterable[Receipt], until: float) -> None:
        with self._lock:
            for receipt in receipts:
                if receipt in self._items:
                    self._items[receipt] = until, *self._items[receipt][1:]
                    self._items.move_to_end(receipt)

    def find(self, receipts: Iterable[Receipt]) -> dict[Receipt, T]:
        with self._lock:
            return {receipt: self._items[receipt][2] for receipt in receipts if receipt in self._items}

    def forget(self, receipts: Iterable[Receipt]) -> None:
        with self._lock:
            for receipt in receipts:
                if receipt in self._items:
                    self._bytes -= self._items.pop(receipt)[1]


# --- log ids -------------------------------------------------------------------------------------------------------

_log_id: ContextVar[str | None] = ContextVar("cuesqueue_log_id", default=None)


@contextmanager
def log_id(value: str) -> Iterator[None]:
    """Messages that are sent inside the block carry this log id.

    Args:
        value: The id. It is sent in the header that the queue's URL names (`log_id_header=NAME`).

    Yields:
        Nothing.

    Raises:
        Nothing of its own.

    Process:
        Any; it acts on this thread or asyncio task only.
    """
    before = _log_id.set(value)
    try:
        yield
    finally:
        _log_id.reset(before)


def current_log_id() -> str | None:
    """Return the log id that `log_id` has set here."""
    return _log_id.get()


def log_id_of(queue: object, headers: Mapping[str, str]) -> str | None:
    """Return the log id of a message, from the header that its queue names, if it names one."""
    header = getattr(queue, "log_id_header", None)
    return headers.get(header) if header else None
