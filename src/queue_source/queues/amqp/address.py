"""The `amqp://` URL taken apart: pika's part says how to connect, ours says which source, pool and filters.

And pika's exceptions, with the brokers' words in them, mapped to our errors.

amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S&pool=P&tags=FILTER,FILTER
amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S&listener=true&tags=FILTER
amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S                              (to send)
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import pika
from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.queues.adapter import Consumers
from queue_source.queues.amqp.link import ABSENT, FORBIDDEN, LOCKED, MISMATCH
from queue_source.queues.urls import checked_parameters, query_of, without_fragment
from queue_source.tags import EVERYTHING
from shard_store.redaction import redact_url, without_password

_PIKAS = (
    "heartbeat",
    "ssl_options",
    "socket_timeout",
    "stack_timeout",
    "blocked_connection_timeout",
    "channel_max",
    "frame_max",
    "client_properties",
    "connection_attempts",
    "retry_delay",
    "locale",
    "tcp_options",
)
_LONGEST_NAME = 255  # bytes of a name in AMQP
_BLOCKED = 60  # seconds for which a broker short of memory or disk may block a connection
_HOLD = 0.9  # of the consumer timeout, which starts a little earlier at the broker
_CONSUMER_TIMEOUT = 1800  # RabbitMQ's default, in seconds


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker is, and what is read or written there."""

    name: str  # the URL for people, without secrets
    connection: str  # the URL for pika
    password: str | None
    source: str
    consumers: Consumers
    queue_type: str | None
    consumer_timeout: float | None

    @property
    def bindings(self) -> tuple[str, ...]:
        return self.consumers.filters or (EVERYTHING,)

    @property
    def longest_hold(self) -> float | None:
        """Seconds for which a delivery may be held; then the broker would end the channel, and all its deliveries."""
        return None if self.consumer_timeout is None else self.consumer_timeout * _HOLD

    def parameters(self) -> Any:
        """Return pika's own form of the address. Trust files named in `ssl_options` are read here."""
        parameters = pika.URLParameters(self.connection)
        if parameters.blocked_connection_timeout is None:
            parameters.blocked_connection_timeout = _BLOCKED
        return parameters


def parse_address(url: str) -> Address:
    """Parse the URL, without connecting. Raises `QueueConfigurationError` for whatever is wrong with it."""
    name = redact_url(url)

    def refused(problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(name, problem)

    try:
        parts = urlsplit(without_fragment(url))
        pairs = query_of(url)
        password = parts.password
        _ = parts.port
    except ValueError:  # from None, here and below: the texts hold the URL, with its password
        raise refused("not a URL of RabbitMQ; write amqp://USER:PASSWORD@HOST/VHOST?source=S&pool=P") from None
    parameters = checked_parameters(name, pairs, _PIKAS)
    if "/" in parts.path[1:]:
        raise refused("the URL has a / in the name of the virtual host; write it as %2F")
    source = parameters.get("source", "")
    if not source:
        raise refused("the URL needs source=NAME (a topic exchange) and pool=NAME (a queue), or listener=true")
    for what in ("source", "pool"):
        text = parameters.get(what, "default")
        if not text or len(text.encode()) > _LONGEST_NAME or not text.isprintable():
            raise refused(f"{what}= needs 1 to {_LONGEST_NAME} bytes of printable text")
        if text.startswith("amq."):
            raise refused(f"{what}={text!r}: names that start with 'amq.' are the broker's own; choose another")
    seconds = parameters.get("consumer_timeout", str(_CONSUMER_TIMEOUT))
    if not seconds.isascii() or not seconds.isdigit():
        raise refused("consumer_timeout= is a number of seconds, 0 for none: the broker's own consumer_timeout")
    consumers = Consumers.of(parameters, refused)
    if consumers.filters is not None and not consumers.listener and consumers.pool is None:
        raise refused("tags= is the filter of a pool or a listener; add pool=NAME or listener=true")
    if parameters.get("queue_type") not in (None, "classic", "quorum"):
        raise refused(f"queue_type={parameters['queue_type']!r} is not known; write classic or quorum")
    pika_parameters = [(key, value) for key, value in pairs if key in _PIKAS]
    netloc = parts.netloc
    if parts.username is not None and password is None:  # pika needs one, if only an empty one
        user, _, host = netloc.rpartition("@")
        netloc = f"{user}:@{host}"
    address = Address(
        name=name,
        connection=urlunsplit(parts._replace(netloc=netloc, query=urlencode(pika_parameters))),
        password=password,
        source=source,
        consumers=consumers,
        queue_type=parameters.get("queue_type"),
        consumer_timeout=float(seconds) or None,
    )
    try:
        address.parameters()
    except (ValueError, TypeError, SyntaxError, OSError) as error:
        cause = str(error) if isinstance(error, OSError) else type(error).__name__
        names = ", ".join(key for key, _ in pika_parameters) or "the host or port"
        raise refused(f"the broker cannot be reached by this URL ({cause}): check {names}") from None
    return address


# --- errors ----------------------------------------------------------------------------------------------------------

_REPLY = re.compile(r"\(\d{3}\) '([^']+)'")  # the broker's words inside pika's
_NOT_ALLOWED = 530  # reply code of a connection: the virtual host is absent or closed to us
_HELD_TOO_LONG = "delivery acknowledgement"  # with MISMATCH, the broker's consumer_timeout


def translated(error: BaseException, address: Address) -> QueueError:
    """Map pika's exception to the error to raise; its text holds no secret."""
    causes = list(_causes(error))
    for cause in causes:
        problem = _configuration(cause, address)
        if problem is not None:
            return QueueConfigurationError(address.name, problem)
    last = causes[-1]
    if isinstance(last, exceptions.ChannelClosedByBroker) and _HELD_TOO_LONG in last.reply_text:
        return QueueUnavailable(
            address.name,
            "the broker took all messages back because one was held longer than its consumer_timeout: raise that "
            "above the longest time from receipt to commit, and say so in the URL (consumer_timeout=SECONDS)",
        )
    return QueueUnavailable(address.name, f"the connection failed: {_without_secrets(last, address)}")


def _configuration(error: BaseException, address: Address) -> str | None:
    """Describe an error that waiting does not solve, with the next step; None for any other."""
    said = _without_secrets(error, address)
    if isinstance(error, exceptions.AuthenticationError | exceptions.ProbableAuthenticationError):
        return "the broker refused the user or the password; check them (@ is written as %40, / as %2F)"
    if isinstance(error, exceptions.ProbableAccessDeniedError) or (
        isinstance(error, exceptions.ConnectionClosedByBroker) and error.reply_code == _NOT_ALLOWED
    ):
        return f"the virtual host does not exist or is closed to the user: {said}; the URL names it, as in amqp://HOST/VHOST"
    if isinstance(error, exceptions.IncompatibleProtocolError):
        return f"no AMQP 0-9-1 is spoken there ({said}); check the port, and amqp:// or amqps://"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {said}; name the broker's authority in ssl_options"
    if not isinstance(error, exceptions.ChannelClosedByBroker):
        return None
    if error.reply_code == FORBIDDEN:
        return f"the user lacks a permission (configure, write or read): {said}"
    if error.reply_code == LOCKED:
        return f"another connection has exclusive use of it: {said}; choose another name"
    if error.reply_code == ABSENT:
        return f"does not exist: {said}"
    if error.reply_code == MISMATCH and _HELD_TOO_LONG not in error.reply_text:
        return f"exists in another form: {said}; choose another name, or delete what is there"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside pika's wrappers, from the outermost to the last try."""
    yield error
    inner = error.exceptions[-1] if isinstance(error, AMQPConnectionWorkflowFailed) else None
    inner = inner or getattr(error, "exception", None)
    if inner is None and isinstance(error, exceptions.AMQPConnectionError) and error.args:
        inner = error.args[0]
    if isinstance(inner, BaseException):
        yield from _causes(inner)


def _without_secrets(error: BaseException, address: Address) -> str:
    text = getattr(error, "reply_text", "") or str(error) or type(error).__name__
    quoted = _REPLY.search(text)
    return without_password(" ".join((quoted[1] if quoted else text).split()), address.password)
