"""The one small protocol of every queue, and what differs between queues as data (never `isinstance`).

Who owes what: a queue delivers each message at least once and keeps it invisible to others until its lease ends;
the caller extends the lease, and acknowledges a message only when everything it announced is done (invariant 1).
All calls may come from several threads at once. Errors are `queue_source.errors.QueueError`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, runtime_checkable

from queue_source.messages import Receipt, Received

Payload = bytes | str | Mapping[str, object] | Sequence[object]
"""What may be published: bytes and text as they are, anything else as JSON."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a queue can do. Times are seconds; `largest_batch` is messages per call of any verb."""

    largest_batch: int
    longest_lease: float | None = None  # longest extension one call may ask for
    lease_cap: float | None = None  # longest time one delivery may be held in all, None = no cap
    ordered_groups: bool = False
    can_delay: bool = True  # give_back(delay) is honoured
    tells_sent_at: bool = True
    retention: float | None = None  # how long the queue keeps a message, where it says so


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages waiting (`ready`) and leased to somebody (`in_flight`); approximate where the queue says so."""

    ready: int
    in_flight: int


@runtime_checkable
class Queue(Protocol):
    """Eight verbs and a depth; from Quickwit's `Queue` (receive, extend, acknowledge) and Mercury's operations."""

    @property
    def name(self) -> str:
        """The queue's name for people and snapshots: its URL without secrets."""

    @property
    def capabilities(self) -> Capabilities: ...

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        """Take up to `most` messages, invisible to others for `lease` seconds; wait up to `wait` s for the first.

        Returns early with what there is. An empty list means that nothing was visible during the wait.
        """

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Make the leases end `lease` seconds from now; returns the receipts whose lease was already lost."""

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        """Delete the messages for good; returns the receipts that were stale. A second time is harmless.

        Never retried by callers: redelivery is the retry.
        """

    def give_back(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Make the messages visible again now, or after `delay` seconds (nack). Stale receipts are ignored."""

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Drop the messages: they can never succeed. To the dead-letter place, where the queue has one."""

    def republish(self, message: Received) -> None:
        """Copy to the *back* with `Republish-Count` + 1, same body, tag and headers; confirmed, then acknowledged."""

    def publish(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send one message a payload, all confirmed when this returns; returns their message ids."""

    def depth(self) -> Depth: ...

    def close(self) -> None:
        """Free connections. Messages in flight stay leased until their leases end; give back first."""

    def __enter__(self) -> Queue: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
