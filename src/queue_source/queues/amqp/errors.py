"""Maps pika's exceptions, and the brokers' words in them, to our errors.

Ours say whether waiting helps, and what to do next.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

from pika import exceptions as pika
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.queues.amqp.address import Address
from queue_source.queues.amqp.link import ABSENT, FORBIDDEN, LOCKED, MISMATCH
from shard_store.redaction import without_password

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
    if isinstance(last, pika.ChannelClosedByBroker) and _HELD_TOO_LONG in last.reply_text:
        return QueueUnavailable(
            address.name,
            "the broker took all messages back because one was held longer than its consumer_timeout: raise that "
            "above the longest time from receipt to commit, and say so in the URL (consumer_timeout=SECONDS)",
        )
    return QueueUnavailable(address.name, f"the connection failed: {_without_secrets(last, address)}")


def _configuration(error: BaseException, address: Address) -> str | None:
    """Describe an error that waiting does not solve, with the next step; None for any other."""
    said = _without_secrets(error, address)
    if isinstance(error, pika.AuthenticationError | pika.ProbableAuthenticationError):
        return "the broker refused the user or the password; check them (@ is written as %40, / as %2F)"
    if isinstance(error, pika.ProbableAccessDeniedError) or (
        isinstance(error, pika.ConnectionClosedByBroker) and error.reply_code == _NOT_ALLOWED
    ):
        return f"the virtual host does not exist or is closed to the user: {said}; the URL names it, as in amqp://HOST/VHOST"
    if isinstance(error, pika.IncompatibleProtocolError):
        return f"no AMQP 0-9-1 is spoken there ({said}); check the port, and amqp:// or amqps://"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {said}; name the broker's authority in ssl_options"
    if not isinstance(error, pika.ChannelClosedByBroker):
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
    if inner is None and isinstance(error, pika.AMQPConnectionError) and error.args:
        inner = error.args[0]
    if isinstance(inner, BaseException):
        yield from _causes(inner)


def _without_secrets(error: BaseException, address: Address) -> str:
    text = getattr(error, "reply_text", "") or str(error) or type(error).__name__
    quoted = _REPLY.search(text)
    return without_password(" ".join((quoted[1] if quoted else text).split()), address.password)
