"""Log ids: the header by which the log lines of one request are recognised over many services.

    with log_id(message.headers["X-Ascent-Log-Id"]):
        queue.send([...])        # a queue whose URL says log_id_header=X-Ascent-Log-Id

Received messages have it among their headers, republished ones keep it, and messages sent inside the block get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from queue_source.messages import Outgoing

_current: ContextVar[str | None] = ContextVar("cuesqueue_log_id", default=None)


@contextmanager
def log_id(value: str) -> Iterator[None]:
    """Messages that are sent inside the block carry this log id.

    Args:
        value: The id. It is sent in the header that the queue's URL names (`log_id_header=NAME`).

    Yields:
        Nothing.

    Raises:
        Nothing of its own.

    Process:
        Any; it acts on this thread or asyncio task only.
    """
    before = _current.set(value)
    try:
        yield
    finally:
        _current.reset(before)


def current_log_id() -> str | None:
    """Return the log id that `log_id` has set here."""
    return _current.get()


def log_id_of(queue: object, headers: Mapping[str, str]) -> str | None:
    """Return the log id of a message, from the header that its queue names, if it names one."""
    header = getattr(queue, "log_id_header", None)
    return headers.get(header) if header else None


def stamped_messages(messages: Sequence[Outgoing], header: str | None) -> Sequence[Outgoing]:
    """Return the messages with the current log id among their headers."""
    if header is None or _current.get() is None:
        return messages
    return [message._replace(headers=stamped(message.headers, header)) for message in messages]


def stamped(headers: Mapping[str, str] | None, header: str | None) -> dict[str, str]:
    """Return the headers with the current log id; a header that has one already keeps it."""
    value = _current.get()
    stamp = {header: value} if header and value is not None else {}
    return {**stamp, **(headers or {})}
