"""Log ids: the header by which log lines of one request are found over many services.

    with log_id(message.headers["X-Ascent-Log-Id"]):
        queue.send([...])        # a queue whose URL says log_id_header=X-Ascent-Log-Id

What is received has it among its headers, what is republished keeps it, and what is sent inside gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

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
    """What `log_id` has set here."""
    return _current.get()


def log_id_of(queue: object, headers: Mapping[str, str]) -> str | None:
    """The log id that a message of this queue carries: its queue says which header has it, where one has."""
    header = getattr(queue, "log_id_header", None)
    return headers.get(header) if header else None


def stamped(headers: Mapping[str, str] | None, header: str | None) -> dict[str, str]:
    """The headers with the current log id; one that is given stays."""
    value = _current.get()
    stamp = {header: value} if header and value is not None else {}
    return {**stamp, **(headers or {})}
