"""RabbitMQ (AMQP 0-9-1): sources, worker pools, listeners, tags.

`address.py` has the URL, `topology.py` what is created, `session.py` what is done on a connection.
AMQP knows no leases: a delivery is ours until it is ended or the connection is, and then it comes again at once. One
that is held for nearly as long as the broker's consumer timeout is returned to the queue, since the
broker would otherwise take back all of them.
Who calls it: the reader process (many threads), commands, sinks on executors.
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
from queue_source.queues.adapter import BaseQueue, check_lease, convert_each, peek_by_receiving
from queue_source.queues.amqp import topology
from queue_source.queues.amqp.address import Address, parse_address
from queue_source.queues.amqp.errors import translated
from queue_source.queues.amqp.link import IoThread, Link, Stopped
from queue_source.queues.amqp.messages import checked_headers, properties_for, received
from queue_source.queues.amqp.session import QueueGone, Session
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.log_ids import stamped
from queue_source.queues.urls import canonical
from queue_source.tags import check_tag

LARGEST_BATCH = 1000

_Result = TypeVar("_Result")


class AmqpQueue(BaseQueue):
    """The pool, the listener or only the source that an `amqp://` URL names, created when absent by the first use.

    A lost connection raises `QueueUnavailable`, and the next call connects again; what was in flight is then stale here
    and delivered again, to whomever. Acknowledging returns when the broker has seen it.
    """

    def __init__(self, url: str) -> None:
        self._address = address = parse_address(url)
        super().__init__(address.name)
        self._capabilities = Capabilities(
            max_batch_size=LARGEST_BATCH,
            lease_cap=address.longest_hold,
            reports_depth=address.pool is not None or address.listener,
            loses_while_closed=address.listener,
        )
        self._session = Session(address)
        self._thread = IoThread(f"amqp {address.source}")

    @property
    def identity(self) -> str:
        """By host, virtual host and pool. Two names of one host cannot be recognised."""
        return canonical(self.name)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def log_id_header(self) -> str | None:
        """The header that contains the log id, where the URL names one: log lines about a message have it."""
        return self._address.log_id_header

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """`lease` only sets `lease_until`: the delivery is ours as long as the connection lives."""
        check_lease(lease)
        self._needs_queue("receive")
        if max_messages <= 0:
            return []
        started = time.monotonic()
        taken = self._run(self._session.receive(min(max_messages, LARGEST_BATCH), wait))
        if self._closed.is_set():
            return []
        return [received(delivery, self.name, receipt, started + lease) for receipt, delivery in taken]

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Returns which deliveries are no longer ours; sends nothing, since no lease ends by time."""
        check_lease(lease)
        return self._run(self._session.stale(receipts))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        return self._run(self._session.acknowledge(receipts))

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """With a delay the messages stay with this connection until it is over, and come back early if it ends."""
        self._run(self._session.nack(receipts, delay))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """To the dead-letter exchange that the queue or a policy names; else they are gone."""
        self._run(self._session.reject(receipts))

    def republish(self, message: Received) -> bool:
        return self._run(self._session.republish(message.receipt, message.body))

    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """To the source, which gives each of its pools and listeners a copy whose filter lets the tag pass.

        Raises when no queue takes them, as they would be lost; with `mandatory=false` in the URL that is fine.
        """
        made = convert_each(messages, self._properties)
        by_tag: dict[str, list[tuple[bytes, BasicProperties]]] = {}
        for message, properties in zip(messages, made, strict=True):
            by_tag.setdefault(message.tag, []).append((message.body, properties))
        for tag, some in by_tag.items():
            self._send(tag, some)
        return [str(properties.message_id) for properties in made]

    def _properties(self, message: Outgoing) -> BasicProperties:
        check_tag(message.tag)
        if message.group is not None:
            raise ValueError("RabbitMQ has no ordered groups; leave group out")
        return properties_for(checked_headers(stamped(message.headers, self._address.log_id_header)))

    def _send(self, tag: str, messages: Sequence[tuple[bytes, BasicProperties]]) -> None:
        outcome = self._run(self._session.send(tag, messages))
        if outcome.refused:
            raise QueueUnavailable(self.name, f"the broker refused {outcome.refused} of {len(messages)} messages")
        if outcome.unrouted:
            raise QueueConfigurationError(
                self.name,
                f"no pool of source {self._address.source!r} takes messages with the tag {tag!r}: "
                f"{len(outcome.unrouted)} of {len(messages)} were not sent; create a pool whose filter lets it pass, "
                "or add mandatory=false to the URL to drop such messages",
            )

    def depth(self) -> Depth:
        """What is ready, and what this connection holds: AMQP does not report what others hold."""
        self._needs_queue("report its depth")
        return self._run(self._depth())

    def close(self) -> None:
        """Also ends a `receive` that waits in another thread. Messages in flight are to be had again at once."""
        self._closed.set()
        self._thread.stop(self._session.end())

    # --- for people and commands: the pool that the URL names, else the source --------------------------------------

    def exists(self) -> bool:
        return self._look(topology.exists)

    def create(self) -> None:
        """The source, and the pool with its filters; what is there already is used as it is."""
        self._run(self._session.open())

    def delete(self) -> None:
        self._look(topology.delete)

    def purge(self) -> int:
        """Delete what is ready; what consumers hold is not touched. Returns how many there were."""
        return self._look(topology.purge) if self._needs_queue("be emptied") else 0

    def peek(self, max_messages: int) -> list[Received]:
        """The next messages, received and returned: RabbitMQ marks them as redelivered."""
        return peek_by_receiving(self, max_messages)

    # --- on the I/O thread -------------------------------------------------------------------------------------------

    async def _depth(self) -> Depth:
        link = await self._session.open()
        return Depth(await topology.ready_messages(link, self._session.queue), *self._session.own_depth())

    def _look(self, work: Callable[[Link, Address], Awaitable[_Result]]) -> _Result:
        """On a connection for this alone, which creates nothing."""

        async def looking() -> _Result:
            link = await Link.open(self._address.parameters())
            try:
                return await work(link, self._address)
            finally:
                await link.close()

        return self._run(looking())

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Pika's errors become ours here, and nowhere else."""
        try:
            return self._thread.run(work)
        except (AMQPError, AMQPConnectorException, OSError, QueueGone) as error:
            self._refuse_closed()
            raise translated(error, self._address) from error
        except (Stopped, CancelledError):
            raise QueueConfigurationError(self.name, "is closed; open it again") from None

    def _needs_queue(self, what: str) -> str:
        if self._address.pool is None and not self._address.listener:
            raise QueueConfigurationError(
                self.name, f"names only a source, which cannot {what}; add pool=NAME or listener=true to the URL"
            )
        return self._address.pool or ""
