"""RabbitMQ (AMQP 0-9-1, pika): sources, worker pools, listeners, tags.

AMQP knows no leases: a delivery is ours until it is ended or the connection is, and then it comes again at once. A
delivery that is held for nearly the broker's consumer timeout is returned to the queue: the broker would otherwise take
back all of them.

`address.py` has the URL, `link.py` the connection, `session.py` what is done on it.

Used by the reader process (many threads), commands, and sinks on executors.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from pika import BasicProperties
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, check_lease, closed, convert_each, no_pool_takes, peek_by_receiving
from queue_source.queues.amqp.address import parse_address, translated
from queue_source.queues.amqp.link import IoThread, Link, Stopped
from queue_source.queues.amqp.messages import checked_headers, properties_for, received
from queue_source.queues.amqp.session import QueueGone, Session, exists
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.urls import canonical
from queue_source.tags import check_tag

LARGEST_BATCH = 1000

_Result = TypeVar("_Result")


class AmqpQueue(BaseQueue):
    """The pool, the listener or only the source of an `amqp://` URL, created by the first use where it is absent.

    A lost connection raises `QueueUnavailable`, and the next call connects again; receipts of the lost connection are
    then stale, and their messages are delivered again, to any consumer. Acknowledging returns when the broker has seen
    it.
    """

    def __init__(self, url: str) -> None:
        self._address = address = parse_address(url)
        super().__init__(address.name, url)
        self._capabilities = Capabilities(
            max_batch_size=LARGEST_BATCH,
            lease_cap=address.longest_hold,
            reports_depth=address.consumers.pool is not None or address.consumers.listener,
            ends_leases=False,
            loses_while_closed=address.consumers.listener,
        )
        self._session = Session(address, self.report)
        self._thread = IoThread(f"amqp {address.source}")

    @property
    def identity(self) -> str:
        """An id from host, virtual host and pool. Two names of one host cannot be recognised."""
        return canonical(self.name)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive; `lease` only sets `lease_until`: the delivery is ours as long as the connection lives."""
        self._needs_queue("receive")
        started = time.monotonic()
        taken = self._run(self._session.receive(min(max_messages, LARGEST_BATCH), wait))
        if self._closed.is_set():
            return []
        return [received(delivery, self.name, receipt, started + lease) for receipt, delivery in taken]

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Return the deliveries that are no longer ours; sends nothing, since no lease ends by time."""
        check_lease(lease)
        return self._run(self._session.stale(receipts))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        return self._run(self._session.acknowledge(receipts))

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Return the messages; with a delay they stay with this connection until it is over, or the connection ends."""
        self._run(self._session.nack(receipts, delay))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Reject the messages to the dead-letter exchange that the queue or a policy names; else drop them."""
        self._run(self._session.reject(receipts))

    def republish(self, message: Received) -> bool:
        return self._run(self._session.republish(message.receipt, message.body))

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send to the source, which gives a copy to each of its pools and listeners with a filter that matches the tag.

        Raises when no queue takes them, as they would be lost; with `mandatory=false` in the URL that is accepted.
        """

        def properties_of(message: Outgoing) -> BasicProperties:
            check_tag(message.tag)
            if message.group is not None:
                raise ValueError("RabbitMQ has no ordered groups; leave group out")
            return properties_for(checked_headers(message.headers))

        made = convert_each(messages, properties_of)
        by_tag: dict[str, list[tuple[bytes, BasicProperties]]] = {}
        for message, properties in zip(messages, made, strict=True):
            by_tag.setdefault(message.tag, []).append((message.body, properties))
        for tag, some in by_tag.items():
            outcome = self._run(self._session.send(tag, some))
            if outcome.refused:
                raise QueueUnavailable(self.name, f"the broker refused {outcome.refused} of {len(some)} messages")
            if outcome.unrouted:
                count = f"{len(outcome.unrouted)} of {len(some)}"
                raise no_pool_takes(self.name, self._address.source, tag, count)
        return [str(properties.message_id) for properties in made]

    def depth(self) -> Depth:
        """Count the ready messages, and those that this connection holds: AMQP does not report what others hold."""
        self._needs_queue("report its depth")
        return Depth(*self._run(self._session.depth()))

    def close(self) -> None:
        """Close the connection, which ends a `receive` in another thread, and frees messages in flight at once."""
        self._closed.set()
        self._thread.stop(self._session.end())

    # --- for people and commands: the pool that the URL names, else the source --------------------------------------

    def exists(self) -> bool:
        return self._run(self._looking(lambda link: exists(link, self._address.source, self._address.consumers.pool)))

    def create(self) -> None:
        """Create the source, and the pool with its filters; those that exist are used as they are."""
        self._run(self._session.open())

    def delete(self) -> None:
        """Delete the pool with all its messages; without one the source, whose pools then get no more."""
        source, pool = self._address.source, self._address.consumers.pool
        method, named = ("exchange_delete", {"exchange": source}) if pool is None else ("queue_delete", {"queue": pool})
        self._run(self._looking(lambda link: link.once(method, **named)))

    def purge(self) -> int:
        """Delete the ready messages, not those that consumers hold. Returns how many there were."""
        if not self._needs_queue("be emptied"):
            return 0
        answer = self._run(self._looking(lambda link: link.once("queue_purge", queue=self._address.consumers.pool)))
        return int(answer.method.message_count)

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages, received and given back: RabbitMQ marks them as redelivered."""
        return peek_by_receiving(self, max_messages)

    async def _looking(self, work: Callable[[Link], Awaitable[_Result]]) -> _Result:
        """Do `work` on a new connection of its own, which creates nothing."""
        link = await Link.open(self._address.parameters())
        try:
            return await work(link)
        finally:
            await link.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work`, and map pika's errors to ours; this happens nowhere else."""
        try:
            return self._thread.run(work)
        except (AMQPError, AMQPConnectorException, OSError, QueueGone) as error:
            self._refuse_closed()
            raise translated(error, self._address) from error
        except (Stopped, CancelledError):
            raise closed(self.name) from None

    def _needs_queue(self, what: str) -> str:
        if self._address.consumers.pool is None and not self._address.consumers.listener:
            raise QueueConfigurationError(
                self.name, f"names only a source, which cannot {what}; add pool=NAME or listener=true to the URL"
            )
        return self._address.consumers.pool or ""
