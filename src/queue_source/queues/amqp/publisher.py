"""Sending with publisher confirms: many messages at once, one wait for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from pika import BasicProperties

from queue_source.queues.amqp.link import Channel, Link, resolve

_AT_ONCE = 200  # messages between two turns of the loop, which sends, reads, and serves others


class Outcome(NamedTuple):
    """How many messages the broker refused, and the ids of those that no queue accepted (they are gone)."""

    refused: int
    unrouted: frozenset[str]


@dataclass(slots=True)
class _Batch:
    unconfirmed: int
    done: asyncio.Future[None]
    refused: int = 0


class Publisher:
    """A channel in confirm mode. Runs on the loop's thread; calls may overlap."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sent = 0
        self._unconfirmed: dict[int, _Batch] = {}  # by delivery tag, rising
        self._returned: set[str] = set()  # message ids

    @classmethod
    async def open(cls, link: Link) -> Publisher:
        channel = await link.channel()
        made = cls(channel)
        channel.raw.add_on_return_callback(made._on_return)
        await channel.call("confirm_delivery", made._on_confirm)
        return made

    @property
    def alive(self) -> bool:
        return self._channel.alive

    async def publish(
        self, exchange: str, key: str, messages: Sequence[tuple[bytes, BasicProperties]], *, mandatory: bool = True
    ) -> Outcome:
        """Publish the messages, and return when the broker has answered for all of them.

        Raises when the channel ends before that.
        """
        batch = _Batch(len(messages), asyncio.get_running_loop().create_future())
        self._channel.watch(batch.done)
        for number, (body, properties) in enumerate(messages, 1):
            if batch.done.done():  # the channel failed meanwhile
                break
            self._sent += 1
            self._unconfirmed[self._sent] = batch
            self._channel.raw.basic_publish(exchange, key, body, properties, mandatory)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await batch.done
        if not self._returned:
            return Outcome(batch.refused, frozenset())
        returned = self._returned.intersection(properties.message_id for _, properties in messages)
        self._returned -= returned
        return Outcome(batch.refused, frozenset(returned))

    def _on_confirm(self, frame: Any) -> None:
        """Count the confirm of one message, or of all up to it."""
        tag, refused = frame.method.delivery_tag, frame.method.NAME == "Basic.Nack"
        tags = list(takewhile(lambda sent: sent <= tag, self._unconfirmed)) if frame.method.multiple else [tag]
        for sent in tags:
            batch = self._unconfirmed.pop(sent)
            batch.unconfirmed -= 1
            batch.refused += refused
            if batch.unconfirmed == 0:
                resolve(batch.done, None)

    def _on_return(self, _channel: Any, _method: Any, properties: BasicProperties, _body: bytes) -> None:
        """Note a message that no queue accepts; the broker returns it before its confirm."""
        self._returned.add(properties.message_id)
