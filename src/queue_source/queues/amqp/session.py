"""The work of an `AmqpQueue` on its connection; every coroutine runs on the I/O thread, so no lock is needed.

A session connects when it is used, and again after the connection was lost. All deliveries belong to one channel; the
*generation* in each receipt names it, so a receipt of an earlier connection can never acknowledge another message.

A source is a durable topic exchange, a pool a durable queue bound to it. They are created when absent, and used as they
are when they exist: a user without the right to configure can work with what an administrator has made.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from queue_source.errors import QueueError, QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues.amqp.address import Address, translated
from queue_source.queues.amqp.link import (
    ABSENT,
    FORBIDDEN,
    MISMATCH,
    Channel,
    Link,
    Outcome,
    Publisher,
    Stopped,
    fail,
    resolve,
    was_closed_for,
)
from queue_source.queues.amqp.messages import Delivery, properties_of_copy, tag_of

_UNROUTED_PAUSES = (0.05, 0.15, 0.3)  # seconds between a queue's declaration and its first binding, at the most
_QUIET = 0.005  # seconds without a delivery after which a queue has sent what it had


class QueueGone(Exception):
    """A queue or an exchange does not exist any more: it was deleted, or its node went away."""


@dataclass(slots=True)
class _Held:
    """A delivery that the broker waits for. `receipt` is None once it was returned, or while it is republished."""

    receipt: Receipt | None
    tag: str
    properties: BasicProperties
    since: float  # by the loop's clock
    timer: asyncio.TimerHandle | None = None


class Session:
    """One connection at a time. `queue` is "" where the URL names only a source.

    `report`: called with what no call waits for: held messages whose connection has gone, or that were held too long.
    """

    def __init__(self, address: Address, report: Callable[[QueueError], None]) -> None:
        self._address = address
        self._report = report
        self._link: Link | None = None
        self._reader: Channel | None = None
        self._publisher: Publisher | None = None
        self._generation = ""
        self._held: dict[int, _Held] = {}  # by delivery tag, rising
        self._longest = address.longest_hold
        self._overdue: asyncio.TimerHandle | None = None  # checks the oldest delivery that is held
        self._consumers: dict[str, asyncio.Future[None]] = {}  # by consumer tag: done at the first delivery
        self._opening = asyncio.Lock()
        self._consuming = asyncio.Lock()
        self._in_place = False  # whether the objects that the URL names exist, as far as this session knows
        self._ended = False
        self.queue = ""

    async def open(self) -> Link:
        """Connect, and create what the URL names. Tries once: the caller waits between tries."""
        async with self._opening:
            if self._ended:
                raise Stopped
            lost = self._reader is not None and not self._reader.alive
            if self._link is None or not self._link.alive or lost:
                await self._disconnect()  # when the broker closes a reader, all its deliveries are lost
                self._link = await Link.open(self._address.parameters())
            if not self._in_place:
                self.queue = await _ensure(self._link, self._address)
                self._in_place = True
            return self._link

    async def end(self) -> None:
        """End the session; messages in flight are back in their queue then, unless the broker does not answer."""
        self._ended = True
        for arrived in self._consumers.values():
            resolve(arrived, None)
        await self._disconnect()

    async def _disconnect(self) -> None:
        for held in self._held.values():
            if held.timer is not None:
                held.timer.cancel()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        link, self._link, self._reader, self._publisher = self._link, None, None, None
        self._held, self._in_place = {}, False
        if link is not None:
            await link.close()

    async def receive(self, max_messages: int, wait: float) -> list[tuple[Receipt, Delivery]]:
        """Receive with a consumer of this call alone, with this prefetch, so that no message is kept from others."""
        link = await self.open()
        async with self._opening:
            if self._reader is None:
                self._generation = secrets.token_hex(6)
                self._reader = await link.channel()
                self._reader.raw.add_on_cancel_callback(self._on_cancel)
                self._reader.raw.add_on_close_callback(self._on_reader_closed)
            channel = self._reader
        taken: list[tuple[Receipt, Delivery]] = []
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def deliver(_: object, method: Any, properties: BasicProperties, body: bytes) -> None:
            delivery = Delivery(method, properties, body)
            receipt = Receipt(f"{self._generation}.{method.delivery_tag}")
            self._held[method.delivery_tag] = _Held(receipt, tag_of(delivery), properties, loop.time())
            if self._longest is not None and self._overdue is None:
                self._overdue = loop.call_later(self._longest, self._release_overdue)
            taken.append((receipt, delivery))
            resolve(arrived, None)

        try:
            async with self._consumer(channel, max_messages, deliver, arrived):
                await self._gather(channel, taken, max_messages)  # what was ready when we came
                if not taken:
                    await asyncio.wait([arrived], timeout=max(0.0, wait))
                    if arrived.done() and not arrived.exception():
                        await self._gather(channel, taken, max_messages)  # what came with the first
        except asyncio.CancelledError:
            await self.nack([receipt for receipt, _ in taken])
            raise
        return taken

    @asynccontextmanager
    async def _consumer(
        self, channel: Channel, max_messages: int, deliver: Callable[..., None], arrived: asyncio.Future[None]
    ) -> AsyncIterator[None]:
        tag = f"cuesqueue-{secrets.token_hex(8)}"
        channel.watch(arrived)
        self._consumers[tag] = arrived
        try:
            async with self._consuming:  # the prefetch is that of the consumers that come after it
                await channel.call("basic_qos", prefetch_count=max_messages)
                with self._gone_if_absent():
                    await channel.call("basic_consume", self.queue, deliver, consumer_tag=tag)
            yield
            # From here on pika returns what arrives. Where the broker has ended the consumer there is no answer.
            if tag in channel.raw.consumer_tags:
                await channel.call("basic_cancel", tag)
        finally:
            del self._consumers[tag]
            resolve(arrived, None)
            if channel.alive and tag in channel.raw.consumer_tags:  # the caller was interrupted
                channel.raw.basic_cancel(tag)
        arrived.result()  # raises the reason why no message will come

    async def _gather(self, channel: Channel, taken: Sequence[object], max_messages: int) -> None:
        """Wait until no more messages are on their way.

        Classic queues have sent all with the answer, quorum queues send on for a moment. Later messages would be
        returned to the queue and be marked as redelivered.
        """
        before = -1
        while before < len(taken) < max_messages:
            before = len(taken)
            await self._confirmed(channel)
            if before == len(taken):
                await asyncio.sleep(_QUIET)

    async def _confirmed(self, channel: Channel) -> None:
        """Wait until the broker has processed all requests on this channel: what it sent before is here by then."""
        async with self._consuming:
            await channel.call("basic_qos", prefetch_count=1)

    def _on_reader_closed(self, raw: Any, reason: Exception) -> None:
        """Report the end of a channel that we have not closed: what it held comes again, to any consumer."""
        if self._reader is not None and self._reader.raw is raw and not self._ended:
            error = translated(reason, self._address)
            lost = f"{error.problem}; {len(self._held)} message(s) in flight come again"
            self._report(type(error)(error.queue, lost))

    def _release_overdue(self) -> None:
        """Return deliveries that are held so long that the broker would take back all of the channel's messages."""
        self._overdue = None
        if self._longest is None or self._reader is None or not self._reader.alive:
            return
        loop = asyncio.get_running_loop()
        before = loop.time() - self._longest
        overdue = list(takewhile(lambda tag: self._held[tag].since <= before, self._held))
        for tag in overdue:
            held = self._held.pop(tag)
            if held.timer is not None:
                held.timer.cancel()
            self._reader.requeue(tag)
        if overdue:
            text = (
                f"{len(overdue)} message(s) were held for {self._longest:.0f} s, nearly the broker's consumer timeout"
            )
            self._report(QueueUnavailable(self._address.name, f"{text}: they were returned, and come again"))
        oldest = next(iter(self._held.values()), None)
        if oldest is not None:
            self._overdue = loop.call_at(oldest.since + self._longest, self._release_overdue)

    def _on_cancel(self, frame: Any) -> None:
        self._in_place = False
        arrived = self._consumers.get(frame.method.consumer_tag)
        if arrived is not None:
            fail(arrived, QueueGone(f"the broker ended the consumer: was queue {self.queue!r} deleted?"))

    # --- ending ------------------------------------------------------------------------------------------------------

    async def stale(self, receipts: Iterable[Receipt]) -> set[Receipt]:
        """Return the receipts that hold no message: the broker would close the channel for them."""
        return {receipt for receipt in receipts if self._find(receipt) is None}

    async def depth(self) -> tuple[int, int, int]:
        """Count the ready messages, and the deliveries that the broker waits for here: leased, and delayed by nack."""
        answer = await (await self.open()).once("queue_declare", queue=self.queue, passive=True)
        delayed = sum(held.timer is not None for held in self._held.values())
        return int(answer.method.message_count), len(self._held) - delayed, delayed

    async def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        """Acknowledge the messages; returns when the broker has seen it."""
        stale = await self.stale(receipts)
        await self._finish(receipts, Channel.acknowledge)
        return stale

    async def reject(self, receipts: Sequence[Receipt]) -> None:
        await self._finish(receipts, Channel.reject)

    async def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Return the messages. AMQP has no delay: until it is over they stay here, or until the connection ends."""
        if delay <= 0:
            await self._finish(receipts, Channel.requeue)
            return
        loop = asyncio.get_running_loop()
        for tag in self._tags(receipts):
            self._held[tag].receipt = None
            self._held[tag].timer = loop.call_later(delay, self._delay_over, tag)

    def _delay_over(self, tag: int) -> None:
        if self._reader is not None and self._reader.alive:
            del self._held[tag]
            self._reader.requeue(tag)

    async def _finish(self, receipts: Sequence[Receipt], say: Callable[[Channel, int, bool], None]) -> None:
        """Answer once for each message; the oldest ones go in one frame, as far as all of them are among these."""
        tags = self._tags(receipts)
        if not tags or self._reader is None:
            return
        channel, delivery_tags = self._reader, set(tags)
        oldest = list(takewhile(delivery_tags.__contains__, self._held))
        for tag in tags:
            del self._held[tag]
        if oldest:
            say(channel, oldest[-1], True)
        for tag in sorted(delivery_tags.difference(oldest)):
            say(channel, tag, False)
        await self._confirmed(channel)

    def _tags(self, receipts: Iterable[Receipt]) -> list[int]:
        tags = (self._find(receipt) for receipt in dict.fromkeys(receipts))
        return [tag for tag in tags if tag is not None]

    def _find(self, receipt: Receipt) -> int | None:
        """Find the delivery tag behind a receipt that still holds its message."""
        generation, _, number = receipt.partition(".")
        alive = self._reader is not None and self._reader.alive and generation == self._generation
        if not alive or not (number.isascii() and number.isdigit() and len(number) < 19):
            return None
        held = self._held.get(int(number))
        return None if held is None or held.receipt != receipt else int(number)

    async def republish(self, receipt: Receipt, body: bytes) -> bool:
        """Publish the copy to the queue and not to the source: other pools must not get it."""
        tag = self._find(receipt)
        if tag is None:
            return False
        held = self._held[tag]
        held.receipt = None  # no other call may end it meanwhile
        try:
            copy = properties_of_copy(held.properties, held.tag)
            outcome = await self.publish("", self.queue, [(body, copy)])
            if outcome.refused or outcome.unrouted:
                raise QueueGone(f"queue {self.queue!r} did not take the copy of a message that was to be republished")
        finally:
            held.receipt = receipt  # which is stale by now if it was held for too long
        return not await self.acknowledge([receipt])

    async def send(self, tag: str, messages: Sequence[tuple[bytes, BasicProperties]]) -> Outcome:
        """Send to the source; shortly again what no queue takes, since its pool may be about to be created."""
        mandatory = self._address.consumers.mandatory
        refused, unrouted = 0, messages
        for pause in (*_UNROUTED_PAUSES, None):
            outcome = await self.publish(self._address.source, tag, unrouted, mandatory=mandatory)
            refused += outcome.refused
            unrouted = [message for message in unrouted if message[1].message_id in outcome.unrouted]
            if not unrouted or pause is None:
                break
            await asyncio.sleep(pause)
        return Outcome(refused, outcome.unrouted)

    async def publish(
        self, exchange: str, key: str, messages: Sequence[tuple[bytes, BasicProperties]], *, mandatory: bool = True
    ) -> Outcome:
        link = await self.open()
        async with self._opening:
            if self._publisher is None or not self._publisher.alive:
                self._publisher = await Publisher.open(link)
            publisher = self._publisher
        with self._gone_if_absent():
            return await publisher.publish(exchange, key, messages, mandatory=mandatory)

    @contextmanager
    def _gone_if_absent(self) -> Iterator[None]:
        """Note that an object was deleted: the next call creates it again."""
        try:
            yield
        except ChannelClosedByBroker as error:
            if not was_closed_for(error, ABSENT):
                raise
            self._in_place = False
            raise QueueGone(error.reply_text) from error


# --- what the URL names ----------------------------------------------------------------------------------------------


async def _ensure(link: Link, address: Address) -> str:
    """Create everything that the URL names; return the name of the queue to read, "" where it names none."""
    try:
        await link.once("exchange_declare", exchange=address.source, exchange_type="topic", durable=True)
    except ChannelClosedByBroker as error:
        as_it_is = was_closed_for(error, FORBIDDEN) or (
            was_closed_for(error, MISMATCH) and not was_closed_for(error, MISMATCH, "'type'")
        )
        if not as_it_is or not await exists(link, address.source, None):
            raise
    pool = address.consumers.pool or ""
    if address.consumers.listener:
        # a queue of this connection alone, deleted with it; not auto-delete, which would end it with each consumer
        pool = str((await link.once("queue_declare", queue="", exclusive=True)).method.queue)
        for tag_filter in address.bindings:
            await link.once("queue_bind", queue=pool, exchange=address.source, routing_key=tag_filter)
        return pool
    if not pool or ((pool_exists := await exists(link, address.source, pool)) and address.consumers.filters is None):
        return pool
    # its filters are added to those that it has; a queue without a binding would never get a message, so its
    # declaration and its first binding go out together
    channel = await link.channel()
    if not pool_exists:
        arguments = {"x-queue-type": address.queue_type} if address.queue_type else None
        channel.raw.queue_declare(queue=pool, durable=True, arguments=arguments)  # without waiting for an answer
    await asyncio.gather(
        *(
            channel.call("queue_bind", queue=pool, exchange=address.source, routing_key=tag_filter)
            for tag_filter in address.bindings  # without filters a new pool takes everything
        )
    )
    await channel.close()
    return pool


async def exists(link: Link, source: str, pool: str | None) -> bool:
    """Tell whether the pool exists; without one, whether the source does."""
    try:
        if pool is None:
            await link.once("exchange_declare", exchange=source, passive=True)
        else:
            await link.once("queue_declare", queue=pool, passive=True)
    except ChannelClosedByBroker as error:
        if was_closed_for(error, ABSENT):
            return False
        raise
    return True
