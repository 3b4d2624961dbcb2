"""The one small protocol of every queue, and the differences between queues as data (never `isinstance`).

The duties: a queue delivers each message at least once and keeps it invisible to others until its lease ends; the
caller extends the lease, and acknowledges a message only when everything it announced is done (invariant 1). All calls
may come from several threads at once. Errors are `queue_source.errors.QueueError`s.
"""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

from queue_source.messages import REPUBLISH_COUNT, Outgoing, Receipt, Received, republish_count

if TYPE_CHECKING:
    from shard_store.sql.database import Database, Transaction

Self = TypeVar("Self", bound="Queue")

Payload = bytes | str | Mapping[str, object] | Sequence[object]
"""What may be sent: bytes and text as they are, anything else as JSON."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a queue can do. Times are seconds; `max_batch_size` is messages per call of any verb."""

    max_batch_size: int
    max_lease: float | None = None  # longest extension that one call may ask for
    lease_cap: float | None = None  # longest time for which one delivery may be held in all; None = no limit
    ordered_groups: bool = False
    max_wait: float = 20.0  # longest time that a receive may wait; short where it cannot be interrupted
    can_delay: bool = True  # nack(delay) is honoured
    retention: float | None = None  # how long the queue keeps a message, where it reports that
    reports_depth: bool = True  # else `depth` raises: no number is better than a wrong one
    reports_stale: bool = True  # else expired receipts are accepted without an error; only the caller's clock knows
    empty_is_certain: bool = False  # a receive that does not wait and returns nothing proves that nothing was visible
    ends_leases: bool = True  # else a message is held as long as the connection, whatever `lease_until` says
    # messages that arrive while no reader is open are lost: only at-most-once can be promised
    loses_while_closed: bool = False


@dataclass(frozen=True, slots=True)
class Extras:
    """Which methods a kind of queue has in addition to those of `Queue`.

    Known without a connection, unlike `Capabilities`. An adapter declares them in its attribute `extras`; one without
    that attribute has none of them.
    """

    sends_many: bool = False  # it is a `SendsMany`
    transactional: bool = False  # it is a `Transactional`
    administered: bool = False  # it is an `Administered`


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages that can be received now (`ready`), are leased (`in_flight`), or wait for a nack's delay (`delayed`).

    Approximate where the queue itself is; a queue that cannot count delayed ones separately counts them as `in_flight`.
    """

    ready: int
    in_flight: int
    delayed: int = 0

    @property
    def total(self) -> int:
        return self.ready + self.in_flight + self.delayed


@runtime_checkable
class Queue(Protocol):
    """Eight verbs and a depth: all that the reader needs of a queue.

    A class of your own inherits `work` and use in a `with` statement, and cannot be made while it lacks another verb.
    """

    @property
    def name(self) -> str:
        """The queue's name for people and snapshots: its URL without secrets."""

    @property
    def identity(self) -> str:
        """A text that is the same however the queue's URL is written, and another for every other queue.

        The service may be asked for it.
        """
        return self.name

    @property
    def capabilities(self) -> Capabilities:
        """What the queue can do, as data."""

    @abstractmethod
    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Take up to `max_messages`, invisible to others for `lease` seconds; wait up to `wait` seconds for the first.

        Returns early with what there is, the longest visible first if the queue keeps an order. Empty: nothing was
        visible during the wait, or the queue was closed. A slow service may be waited for longer than `wait`.
        """

    @abstractmethod
    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Make the leases of `receipts` end `lease` seconds from now; returns those whose lease was already lost.

        Lost for certain: delivered again, returned by `nack`, or done. A lease that has run out may be found alive or
        lost, depending on the queue: never let it run out.
        """

    @abstractmethod
    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        """Delete the messages of `receipts` for good; returns those that were stale. A second time is harmless.

        A stale receipt never deletes a message that is leased to another consumer, where the queue can tell. A second
        acknowledgement may be reported as stale. Never retried: redelivery is the retry.
        """

    @abstractmethod
    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Make the messages of `receipts` visible again now, or after `delay` seconds. Stale receipts are ignored.

        Near the place they had before, not at the back (that is `republish`). The receipts are stale from here on, and
        the receive count stays.
        """

    @abstractmethod
    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Drop the messages of `receipts`: they can never succeed. To the dead-letter queue, where there is one."""

    @abstractmethod
    def republish(self, message: Received) -> bool:
        """Copy `message` to the *back* with `Republish-Count` + 1, same body, tag, group, headers; then acknowledge it.

        The copy is a new message with its own id, confirmed before the original is deleted. False: the receipt was
        stale, and nothing was copied.
        """

    @abstractmethod
    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send one message for each of `payloads`; all are confirmed when this returns.

        Args:
            payloads: Bytes are sent as they are, text as UTF-8, all else as JSON.
            tag: Words separated by dots, which filters match.
            headers: Names and values, where the queue has headers.
            group: Messages of one group stay in order, where the queue has groups.

        Returns:
            The message ids, in order.

        Raises:
            TypeError, ValueError: A payload is not Unicode or not JSON; nothing was sent.
            QueueError: The queue failed; some of the messages may have been sent.
        """

    def publish(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send messages as `send` does: its earlier name, kept for existing code."""
        return self.send(payloads, tag=tag, headers=headers, group=group)

    def work(
        self,
        handler: Callable[[Received], object],
        *,
        parallelism: int = 1,
        lease: float = 60.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Receive messages, and call `handler` with each, until `stop` is set.

        A message is acknowledged when the handler returns; its lease is extended until then. If the handler raises an
        exception, it is logged, and the message comes again: after a second, and after twice the time with each
        delivery that the queue counts, up to five minutes. Delivery is at least once.

        Args:
            handler: Called with one message at a time on each of the threads.
            parallelism: Number of threads, and of messages that are taken at once.
            lease: Seconds for which a message stays away from others if this process dies.
            stop: Set it, in a handler or elsewhere, to end: no other message is begun, and the call returns when the
                running handlers have returned.

        Raises:
            ValueError: `parallelism` or `lease` is no number from 1 on, or above 0.
            QueueError: The queue refused a call. An unavailable one is asked again, for as long as it takes.

        Process:
            Any.
        """
        from queue_source.queues.programs import Worker  # it needs this module

        Worker(self, handler, parallelism, lease, stop or threading.Event()).run()

    @abstractmethod
    def depth(self) -> Depth:
        """Count the messages. Raises `QueueConfigurationError` where `capabilities.reports_depth` is False."""

    @abstractmethod
    def close(self) -> None:
        """End what runs, and what waits in other threads, and free connections; may be called again.

        Messages in flight stay leased until their leases end: call `nack` first.
        """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SendsMany(Protocol):
    """A queue that sends many messages in one call, each with its own tag, headers and group."""

    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send them, all confirmed when this returns, those of one group in their order; returns their message ids.

        A message that cannot be sent raises `Unsendable` before anything is sent. After a `QueueError` some may be
        sent.
        """


class Unsendable(ValueError):
    """A message that this kind of queue cannot carry; `place` is its place among those that were to be sent."""

    def __init__(self, place: int, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(problem)


def send_messages(queue: Queue, messages: Sequence[Outgoing]) -> None:
    """Send as `SendsMany.send_messages`; a queue without it sends one by one, and ignores deduplication ids."""
    if _extras(queue).sends_many:
        cast(SendsMany, queue).send_messages(messages)
        return
    for place, message in enumerate(messages):
        try:
            queue.send([message.body], tag=message.tag, headers=message.headers, group=message.group)
        except (TypeError, ValueError) as error:
            raise Unsendable(place, str(error)) from error


def send_possible(queue: Queue, messages: Sequence[Outgoing]) -> dict[int, str]:
    """Send those that the queue can carry, as `send_messages`; return for the places of the others why it cannot."""
    places, problems = list(range(len(messages))), dict[int, str]()
    while places:
        try:
            send_messages(queue, [messages[place] for place in places])
            break
        except Unsendable as error:
            problems[places[error.place]] = str(error)
            # where messages go one by one, those before it are sent
            places = ([] if not _extras(queue).sends_many else places[: error.place]) + places[error.place + 1 :]
    return problems


class Transactional(Protocol):
    """A queue in a SQL database: its sending can be part of a transaction of that database."""

    def joins(self, database: Database) -> bool:
        """Tell whether the queue is in this database, as far as the URLs show; then create its tables there."""

    def send_in_transaction(self, transaction: Transaction, messages: Sequence[Outgoing]) -> None:
        """Send as `SendsMany.send_messages`, but as part of this transaction: the messages are sent when it commits.

        The transaction is in a database that the queue `joins`.
        """


def transactional(queue: Queue) -> Transactional | None:
    """Return the queue as `Transactional`, if it has those methods."""
    return cast(Transactional, queue) if _extras(queue).transactional else None


class Administered(Protocol):
    """What some kinds of queues can do in addition to the verbs, for people and the commands `cuesqueue queue ...`."""

    @abstractmethod
    def exists(self) -> bool:
        """Tell whether it exists; creates nothing."""

    @abstractmethod
    def create(self) -> None:
        """Create it as its URL says; an existing one is left as it is."""

    @abstractmethod
    def delete(self) -> None:
        """Remove it with all its messages; does nothing where it is absent."""

    @abstractmethod
    def purge(self) -> int | None:
        """Delete its messages; return how many there were, as `depth` reports it, or None without a count.

        Consumers may keep the messages that they hold.
        """

    @abstractmethod
    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages, which stay in the queue; their receipts cannot be used.

        Where a service shows messages only to those who take them, this counts as a delivery (`peek_by_receiving`).
        """


def administered(queue: Queue) -> Administered | None:
    """Return the queue as `Administered`, if it has those methods."""
    return cast(Administered, queue) if _extras(queue).administered else None


def identity_of(queue: Queue) -> str:
    """Return the queue's identity, or its name, where a queue of a user's own does not inherit from `Queue`."""
    return getattr(queue, "identity", queue.name)


def _extras(queue: Queue) -> Extras:
    return getattr(queue, "extras", Extras())


def encode_payloads(payloads: Sequence[Payload]) -> list[bytes]:
    """Encode the bodies of what is to be sent; raises TypeError or ValueError before anything is sent."""
    if isinstance(payloads, str | bytes | bytearray | Mapping):
        raise TypeError("a queue sends a list of payloads: write [payload] for a single one")
    return [encode_payload(payload) for payload in payloads]


def encode_payload(payload: Payload) -> bytes:
    """Encode a payload: bytes and text as they are (text as UTF-8), anything else as compact JSON."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        return payload.encode()
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    return text.encode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON: {value!r:.100}")


def republished(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the copy that `republish` makes."""
    return {**headers, REPUBLISH_COUNT: str(republish_count(headers) + 1)}
