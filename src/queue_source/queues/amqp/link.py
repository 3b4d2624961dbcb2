"""pika as coroutines: a thread with an event loop, a connection on it, channels whose methods are awaited, confirms.

pika's connections belong to one thread. Here that thread runs an asyncio loop; heartbeats, deliveries and confirms
are served there whatever the caller does, and other threads hand in coroutines (`IoThread.run`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from pika import BasicProperties
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker

T = TypeVar("T")

# without a logging configuration pika's lines would go to standard error, in addition to the error that we raise
logging.getLogger("pika").addHandler(logging.NullHandler())

FORBIDDEN, ABSENT, LOCKED, MISMATCH = 403, 404, 405, 406
"""Reply codes with which a broker closes a channel: no permission, absent, exclusive to another, of another form."""

_CLOSING = 5.0  # seconds for the broker to agree to the end
_AT_ONCE = 200  # messages between two turns of the loop, which sends, reads, and serves others


class Stopped(Exception):
    """The thread takes no more work."""


class IoThread:
    """A thread that runs coroutines for others. Started by the first use; `stop` ends and joins it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; when this thread is interrupted meanwhile, the coroutine is cancelled.

        Raises RuntimeError on the thread itself, where `on_error` runs: it would wait for itself, for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("on_error runs on the queue's own thread, and cannot use the queue; tell another thread")
        with self._lock:
            if self._stopped:
                work.close()
                raise Stopped
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, then end the thread. Other coroutines that still run are cancelled after it. Called once."""
        with self._lock:
            stopped, self._stopped = self._stopped, True
            loop, thread = self._loop, self._thread
        if stopped or loop is None or thread is None:
            last.close()
            return
        ended = asyncio.run_coroutine_threadsafe(last, loop)
        if threading.current_thread() is thread:  # closed by `on_error`: it cannot wait for itself
            ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
            return
        ended.result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())  # names are resolved on its threads
    finally:
        loop.close()


class Link:
    """An open connection. Everything here runs on the loop's thread."""

    def __init__(self, connection: AsyncioConnection, closed: asyncio.Future[BaseException]) -> None:
        self._connection = connection
        self._closed = closed

    @classmethod
    async def open(cls, parameters: Any) -> Link:
        """Connect with one try; raise the error that pika reports."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[AsyncioConnection] = loop.create_future()
        closed: asyncio.Future[BaseException] = loop.create_future()
        connection = AsyncioConnection(
            parameters,
            on_open_callback=lambda connection: resolve(opened, connection),
            on_open_error_callback=lambda _, error: fail(opened, error),
            on_close_callback=lambda _, reason: resolve(closed, reason),
            custom_ioloop=loop,
        )
        try:
            return cls(await opened, closed)
        except asyncio.CancelledError:
            with suppress(AMQPError):
                connection.close()
            raise

    @property
    def alive(self) -> bool:
        return bool(self._connection.is_open)

    async def channel(self) -> Channel:
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        raw = self._connection.channel(on_open_callback=lambda raw: resolve(opened, raw))
        channel = Channel(raw)
        channel.watch(opened)
        await opened
        return channel

    async def once(self, method: str, **arguments: Any) -> Any:
        """Call a method on a channel of its own, because a refusal closes the channel; returns the answer."""
        channel = await self.channel()
        answer = await channel.call(method, **arguments)
        await channel.close()
        return answer

    async def close(self) -> None:
        """Close the connection; unacknowledged messages go back to their queues."""
        if self._connection.is_open:
            self._connection.close()
        with suppress(asyncio.TimeoutError):  # a broker that does not answer notices by itself
            await asyncio.wait_for(asyncio.shield(self._closed), _CLOSING)


class Channel:
    """One channel. After it was closed, from either side, every use raises the reason."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._failure: BaseException | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._on_close)

    @property
    def alive(self) -> bool:
        return self._failure is None and bool(self.raw.is_open)

    async def call(self, method: str, /, *positional: Any, **arguments: Any) -> Any:
        """Call a method that the broker answers; return the answer's frame."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.watch(answer)
        if not answer.done():
            getattr(self.raw, method)(*positional, callback=lambda frame: resolve(answer, frame), **arguments)
        return await answer

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Let the future fail when the channel does."""
        if self._failure is not None:
            fail(future, self._failure)
            return
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)

    def acknowledge(self, tag: int, multiple: bool = False) -> None:
        self.raw.basic_ack(tag, multiple)

    def reject(self, tag: int, multiple: bool = False) -> None:
        self.raw.basic_nack(tag, multiple, requeue=False)

    def requeue(self, tag: int, multiple: bool = False) -> None:
        self.raw.basic_nack(tag, multiple, requeue=True)

    async def close(self) -> None:
        if self.alive:
            closed = asyncio.get_running_loop().create_future()
            self.raw.add_on_close_callback(lambda *_: resolve(closed, None))
            self.raw.close()
            await closed

    def _on_close(self, _: Any, reason: BaseException) -> None:
        self._failure = reason
        for future in list(self._waiting):
            fail(future, reason)


def resolve(future: asyncio.Future[Any], result: Any) -> None:
    """Give the future its result; does nothing when it is done already."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # the caller may have stopped waiting for it: no warning about that


def was_closed_for(error: BaseException, code: int, text: str = "") -> bool:
    """Tell whether the broker closed the channel with this reply code, and with `text` in its message."""
    return isinstance(error, ChannelClosedByBroker) and error.reply_code == code and text in error.reply_text


# --- sending with publisher confirms: many messages at once, one wait for all of them ---------------------------------


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
        """Publish, and return when the broker has answered for all of them; raise when the channel ends before that."""
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
