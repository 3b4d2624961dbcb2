"""Messages in a reader's hands, without a queue."""

from __future__ import annotations

from collections.abc import Sequence

from queue_source.coordinator.in_flight import InFlight
from queue_source.messages import MessageKey, Receipt, Received
from queue_source.queues.leases import Terms

TERMS = Terms(60.0)


def received(key: MessageKey, body: bytes = b"") -> Received:
    name, receipt = key
    return Received(name, receipt, receipt, body, 1, 60.0)


def hold(held: InFlight, messages: Sequence[Received], terms: Terms = TERMS) -> None:
    """As a receiver does with what one receive has brought."""
    for name in {message.queue for message in messages}:
        receive = held.begin_receive(name, 0, len(messages))
        assert receive is not None
        held.end_receive(receive, [message for message in messages if message.queue == name], terms)


def message(name: str) -> MessageKey:
    return ("q", Receipt(name))
