"""Leases that are kept: what a queue offers, when which lease is to be extended, and when it has ended.

Pure. Times are those of one clock, `time.monotonic()` unless a test has another.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities

_EARLY = 0.5  # an extension is due when this part of the lease is left, so that a failed one can be tried again
_GATHER = 0.1  # and goes out with others that would be due within this part of the lease
_FEW = 64  # entries of the heap, below which it is not worth rebuilding


class Terms(NamedTuple):
    """What a queue offers: `period` seconds with each extension, and `longest` in all (None: no limit).

    `reports_stale`: it reports which leases had ended before they were extended; else only our clock tells.
    `log_id_header`: the header of its messages that contains the log id.
    """

    period: float
    longest: float | None = None
    reports_stale: bool = True
    log_id_header: str | None = None


def terms_of(capabilities: Capabilities, lease: float, log_id_header: str | None = None) -> Terms:
    """Return the terms of a queue for leases of so many seconds, or of as many as one call may ask for."""
    period = longest_lease(lease, capabilities)
    return Terms(period, capabilities.lease_cap, capabilities.reports_stale, log_id_header)


def longest_lease(lease: float, capabilities: Capabilities) -> float:
    """Return `lease`, or the longest that one call to the queue may ask for."""
    return lease if capabilities.max_lease is None else min(lease, capabilities.max_lease)


class Lease:
    """The lease of one delivery: it ends at `until`, and is extended up to `cap`; `entry` is its place in the order."""

    __slots__ = ("cap", "entry", "key", "terms", "until")

    def __init__(self, received: Received, terms: Terms) -> None:
        self.key = key_of(received)
        self.terms = terms
        self.until = received.lease_until
        self.cap = math.inf if terms.longest is None else self.until - terms.period + terms.longest
        self.entry: int | None = None

    def extension(self, now: float) -> float:
        """Return the seconds by which to extend it; 0 where an extension no longer helps."""
        is_believed = self.until > now or self.terms.reports_stale
        seconds = min(self.terms.period, self.cap - now)
        return seconds if is_believed and seconds > self.until - now else 0.0


class Due(NamedTuple):
    """The extensions to make now, by queue and seconds; the messages whose leases have ended; the next time.

    `next_time` is None where no lease is kept.
    """

    extensions: dict[tuple[str, float], list[Receipt]]
    ended: list[MessageKey]
    next_time: float | None


class LeaseOrder:
    """The leases that are kept, soonest due first. Each has one entry in a heap; its earlier entries are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease]] = []
        self._numbers = itertools.count()
        self._many = _FEW

    def keep(self, message: Lease, due: float | None = None) -> None:
        """Keep the lease, to be extended in time, or at `due`."""
        message.entry = next(self._numbers)
        due = message.until - message.terms.period * _EARLY if due is None else due
        heapq.heappush(self._heap, (due, message.entry, message))
        if len(self._heap) > self._many:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapq.heapify(self._heap)
            self._many = 2 * len(self._heap) + _FEW

    def try_again(self, message: Lease, now: float) -> None:
        """Plan another extension of the lease soon: one has failed."""
        self.keep(message, now + min(1.0, message.terms.period * _GATHER))

    def stop(self, message: Lease) -> None:
        """Stop extending the lease."""
        message.entry = None

    def take_due(self, now: float) -> Due:
        """Take the due leases, and those due soon. The caller asks the queues, and reports the outcome."""
        extensions: dict[tuple[str, float], list[Receipt]] = {}
        ended: list[MessageKey] = []
        taken: list[Lease] = []
        while self._heap:
            due, entry, message = self._heap[0]
            is_current = message.entry == entry
            if is_current and due > now and (not taken or due > now + message.terms.period * _GATHER):
                break
            heapq.heappop(self._heap)
            if is_current:
                self.stop(message)
                taken.append(message)
        for message in taken:
            queue, receipt = message.key
            if seconds := message.extension(now):
                extensions.setdefault((queue, seconds), []).append(receipt)
            elif message.until <= now:
                ended.append(message.key)
            else:  # at its limit: nothing can be done but to notice the end
                self.keep(message, message.until)
        return Due(extensions, ended, self._heap[0][0] if self._heap else None)
