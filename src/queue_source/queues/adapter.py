"""The code that the adapters of this package share."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from queue_source.errors import QueueConfigurationError, QueueError
from queue_source.messages import Outgoing, Received
from queue_source.queues.base import Extras, Payload, Queue, Unsendable, encode_payloads, republished

logger = logging.getLogger("cuesqueue")
T = TypeVar("T")

_PEEK_LEASE = 60.0  # seconds after which messages come back by themselves, should this process die


class BaseQueue(Queue):
    """A queue with a name that can be closed. Adapters write `_receive` and `send_messages`."""

    extras = Extras(sends_many=True, administered=True)
    on_error: Callable[[QueueError], None] | None = None
    """Called with what goes wrong while no call waits for it (`open_queue`)."""
    log_id_header: str | None = None
    """The header that contains the log id, where the URL names one: log lines about a message have it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        return self._name

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        self._refuse_closed()
        try:
            return self._receive(max_messages, lease, wait)
        except QueueError:
            if self._closed.is_set():
                return []
            raise

    @abstractmethod
    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive as `Queue.receive`; errors of a queue that was closed meanwhile do not count."""

    @abstractmethod
    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send as `SendsMany.send_messages`."""

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send as `Queue.send`, in the batches of `send_messages`."""
        return self.send_messages([Outgoing(body, tag, headers or {}, group) for body in encode_payloads(payloads)])

    def report(self, error: QueueError) -> None:
        """Tell the program what went wrong in the background, on a thread of the queue's; what it raises is logged."""
        if self.on_error is None or self._closed.is_set():
            return
        try:
            self.on_error(error)
        except (Exception, SystemExit):  # of any kind: the thread serves the connection
            logger.error("on_error of queue %r failed", self.name, exc_info=True)

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise QueueConfigurationError(self.name, "is closed; open it again")


def check_lease(seconds: float) -> None:
    """Raise ValueError for a lease of no time."""
    if not seconds > 0:
        raise ValueError(f"lease must be more than 0 seconds, not {seconds!r}")


def convert_each(messages: Sequence[Outgoing], make: Callable[[Outgoing], T]) -> list[T]:
    """Make one item of each message; a ValueError of `make` names the message."""
    made = []
    for place, message in enumerate(messages):
        try:
            made.append(make(message))
        except ValueError as error:
            raise Unsendable(place, str(error)) from error
    return made


def copy_of(message: Received) -> Outgoing:
    """Build the message that `republish` puts to the back."""
    return Outgoing(message.body, message.tag, republished(message.headers), message.group)


def peek_by_receiving(queue: Queue, max_messages: int, wait: float = 0.0) -> list[Received]:
    """Peek into a queue that can only deliver: receive up to `max_messages`, and make all of them visible again.

    No other consumer gets them meanwhile. Ends with the first receive that brings nothing in `wait` seconds.
    """
    taken: list[Received] = []
    try:
        while more := queue.receive(max_messages - len(taken), _PEEK_LEASE, wait):
            taken += more
    finally:
        queue.nack([message.receipt for message in taken])
    return taken
