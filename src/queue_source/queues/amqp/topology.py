"""Sources and pools on a broker: a source is a durable topic exchange, a pool a durable queue bound to it.

They are created when absent, and used as they are when they exist: a user without the right to configure can work with
what an administrator has made.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from queue_source.queues.amqp.address import Address
from queue_source.queues.amqp.link import ABSENT, FORBIDDEN, MISMATCH, Link, was_closed_for


async def ensure(link: Link, address: Address) -> str:
    """Create everything that the URL names; return the name of the queue to read, "" where it names none."""
    await _ensure_source(link, address)
    if address.listener:
        return await _listen(link, address)
    if address.pool is not None:
        await _ensure_pool(link, address, address.pool)
    return address.pool or ""


async def _ensure_source(link: Link, address: Address) -> None:
    try:
        await link.once("exchange_declare", exchange=address.source, exchange_type="topic", durable=True)
    except ChannelClosedByBroker as error:
        as_it_is = was_closed_for(error, FORBIDDEN) or (
            was_closed_for(error, MISMATCH) and not was_closed_for(error, MISMATCH, "'type'")
        )
        if not as_it_is or not await _source_exists(link, address):
            raise


async def exists(link: Link, address: Address) -> bool:
    """Tell whether the pool exists; for a URL without one, whether the source does."""
    return await (_source_exists(link, address) if address.pool is None else _pool_exists(link, address.pool))


async def delete(link: Link, address: Address) -> None:
    """Delete the pool with all its messages, those in flight too.

    Without a pool it is the source, whose pools then get no more messages.
    """
    if address.pool is None:
        await link.once("exchange_delete", exchange=address.source)
    else:
        await link.once("queue_delete", queue=address.pool)


async def ready_messages(link: Link, queue: str) -> int:
    answer = await link.once("queue_declare", queue=queue, passive=True)
    return int(answer.method.message_count)


async def purge(link: Link, address: Address) -> int:
    answer = await link.once("queue_purge", queue=address.pool)
    return int(answer.method.message_count)


async def _source_exists(link: Link, address: Address) -> bool:
    return await _exists(link, "exchange_declare", exchange=address.source, passive=True)


async def _pool_exists(link: Link, queue: str) -> bool:
    return await _exists(link, "queue_declare", queue=queue, passive=True)


async def _ensure_pool(link: Link, address: Address, pool: str) -> None:
    """Create the pool, or add the filters of the URL to those that it has; without filters a new pool takes everything.

    A queue without a binding would never get a message, so its declaration and its first binding go out together.
    """
    pool_exists = await _pool_exists(link, pool)
    if pool_exists and address.filters is None:
        return
    channel = await link.channel()
    if not pool_exists:
        arguments = {"x-queue-type": address.queue_type} if address.queue_type else None
        channel.raw.queue_declare(queue=pool, durable=True, arguments=arguments)  # without waiting for an answer
    await asyncio.gather(
        *(
            channel.call("queue_bind", queue=pool, exchange=address.source, routing_key=tag_filter)
            for tag_filter in address.bindings
        )
    )
    await channel.close()


async def _listen(link: Link, address: Address) -> str:
    """Declare a queue of this connection alone, deleted with it.

    Not auto-delete: that would end it with each consumer.
    """
    answer = await link.once("queue_declare", queue="", exclusive=True)
    queue = str(answer.method.queue)
    for tag_filter in address.bindings:
        await link.once("queue_bind", queue=queue, exchange=address.source, routing_key=tag_filter)
    return queue


async def _exists(link: Link, method: str, **arguments: Any) -> bool:
    try:
        await link.once(method, **arguments)
    except ChannelClosedByBroker as error:
        if was_closed_for(error, ABSENT):
            return False
        raise
    return True
