"""The `amqp://` URL taken apart: pika's part says how to connect, ours says which source, pool and filters.

amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S&pool=P&tags=FILTER,FILTER
amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S&listener=true&tags=FILTER
amqp://USER:PASSWORD@HOST:PORT/VHOST?source=S                              (to send)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import pika

from queue_source.errors import QueueConfigurationError
from queue_source.queues.urls import checked_parameters, query_of, without_fragment
from queue_source.tags import EVERYTHING, parse_filters
from shard_store.redaction import redact_url

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
    """Where the broker is, and what is read or written there. `filters` is None where the URL names none."""

    name: str  # the URL for people, without secrets
    connection: str  # the URL for pika
    password: str | None
    source: str
    pool: str | None
    listener: bool
    filters: tuple[str, ...] | None
    queue_type: str | None
    consumer_timeout: float | None
    mandatory: bool

    @property
    def bindings(self) -> tuple[str, ...]:
        return self.filters or (EVERYTHING,)

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
        if what in parameters:
            _check_name(what, parameters[what], refused)
    listener = _boolean("listener", parameters.get("listener", "false"), refused)
    if listener and "pool" in parameters:
        raise refused("a listener has a private queue and no pool; leave pool= or listener=true out")
    try:
        filters = parse_filters(parameters["tags"]) if "tags" in parameters else None
    except ValueError as error:
        raise refused(str(error)) from None
    if filters is not None and not listener and "pool" not in parameters:
        raise refused("tags= is the filter of a pool or a listener; add pool=NAME or listener=true")
    if parameters.get("queue_type") not in (None, "classic", "quorum"):
        raise refused(f"queue_type={parameters['queue_type']!r} is not known; write classic or quorum")
    pika_parameters = [(key, value) for key, value in pairs if key in _PIKAS]
    user = parts.username is not None and parts.password is None
    address = Address(
        name=name,
        connection=urlunsplit(
            parts._replace(
                netloc=_with_password(parts.netloc) if user else parts.netloc, query=urlencode(pika_parameters)
            )
        ),
        password=password,
        source=source,
        pool=parameters.get("pool"),
        listener=listener,
        filters=filters,
        queue_type=parameters.get("queue_type"),
        consumer_timeout=_seconds(parameters.get("consumer_timeout", str(_CONSUMER_TIMEOUT)), refused),
        mandatory=_boolean("mandatory", parameters.get("mandatory", "true"), refused),
    )
    try:
        address.parameters()
    except (ValueError, TypeError, SyntaxError, OSError) as error:
        cause = str(error) if isinstance(error, OSError) else type(error).__name__
        names = ", ".join(key for key, _ in pika_parameters) or "the host or port"
        raise refused(f"the broker cannot be reached by this URL ({cause}): check {names}") from None
    return address


def _check_name(what: str, name: str, refused: Any) -> None:
    if not name or len(name.encode()) > _LONGEST_NAME or not name.isprintable():
        raise refused(f"{what}= needs 1 to {_LONGEST_NAME} bytes of printable text")
    if name.startswith("amq."):
        raise refused(f"{what}={name!r}: names that start with 'amq.' are the broker's own; choose another")


def _boolean(what: str, text: str, refused: Any) -> bool:
    if text.lower() not in ("true", "false"):
        raise refused(f"{what}={text!r} is neither true nor false")
    return text.lower() == "true"


def _seconds(text: str, refused: Any) -> float | None:
    if not text.isascii() or not text.isdigit():
        raise refused("consumer_timeout= is a number of seconds, 0 for none: the broker's own consumer_timeout")
    return float(text) or None


def _with_password(netloc: str) -> str:
    """Add an empty password to a user without one, as pika needs it."""
    user, _, host = netloc.rpartition("@")
    return f"{user}:@{host}"
