"""The record of a message in a reader's hands, with its state and its lease; and when which lease is to be extended.

Pure. Times are those of the reader's clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from enum import Enum
from typing import NamedTuple

from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities
from shard_store.model import ShardKey

_EARLY = 0.5  # an extension is due when this part of the lease is left, so that a failed one can be tried again
_GATHER = 0.1  # and goes out with others that would be due within this part of the lease
_FEW = 64  # entries of the heap, below which it is not worth rebuilding


class State(Enum):
    """The states of a message, in their order."""

    RECEIVED = "its body waits to be opened"
    LATE = "it is left for the next run (AvailableNow)"
    OPENED = "it waits for shards that are ours to read"
    IDLE = "it waits for shards of other pipelines alone"
    COMPLETE = "all that it announced is finished: it waits for its acknowledgement"
    ACKNOWLEDGING = "its queue is asked to delete it"


UNACKNOWLEDGED = frozenset({State.COMPLETE, State.ACKNOWLEDGING})
RESTING = UNACKNOWLEDGED | {State.LATE, State.IDLE}
"""Nothing is left for us to read."""


class Terms(NamedTuple):
    """What a queue offers: `period` seconds with each extension, and `longest` in all (None: no limit).

    `reports_stale`: it reports which leases had ended before they were extended; else only our clock tells.
    """

    period: float
    longest: float | None = None
    reports_stale: bool = True


def terms_of(capabilities: Capabilities, lease: float) -> Terms:
    """Return the terms of a queue for leases of so many seconds, or of as many as one call may ask for."""
    return Terms(longest_lease(lease, capabilities), capabilities.lease_cap, capabilities.reports_stale)


def longest_lease(lease: float, capabilities: Capabilities) -> float:
    """Return `lease`, or the longest that one call to the queue may ask for."""
    return lease if capabilities.max_lease is None else min(lease, capabilities.max_lease)


class Message:
    """One delivery of a message, from its receipt on. `unopened`: the delivery with its body, until it is opened.

    It waits for the shards that are `pending`, of which so many are `foreign`: other pipelines have them. Its lease
    ends at `until`, and may be extended up to `cap`; `entry` is its place among the leases that are kept. `is_delayed`:
    its queue was away when it was to be acknowledged; so it may be deleted already.
    """

    __slots__ = (
        *("cap", "entry", "foreign", "is_delayed", "is_grouped", "key", "pending", "state", "terms", "unopened"),
        "until",
    )

    def __init__(self, received: Received, terms: Terms, state: State) -> None:
        self.key = key_of(received)
        self.state = state
        self.unopened = received if state is State.RECEIVED else None
        self.is_grouped = received.group is not None
        self.terms = terms
        self.until = received.lease_until
        self.cap = math.inf if terms.longest is None else self.until - terms.period + terms.longest
        self.entry: int | None = None
        self.pending: set[ShardKey] = set()
        self.foreign = 0
        self.is_delayed = False

    def extension(self, now: float) -> float:
        """Return the seconds by which to extend its lease; 0 where an extension no longer helps."""
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
        self._heap: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count()
        self._many = _FEW

    def keep(self, message: Message, due: float | None = None) -> None:
        """Keep the lease, to be extended in time, or at `due`."""
        message.entry = next(self._numbers)
        due = message.until - message.terms.period * _EARLY if due is None else due
        heapq.heappush(self._heap, (due, message.entry, message))
        if len(self._heap) > self._many:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapq.heapify(self._heap)
            self._many = 2 * len(self._heap) + _FEW

    def try_again(self, message: Message, now: float) -> None:
        """Plan another extension of the lease soon: one has failed."""
        self.keep(message, now + min(1.0, message.terms.period * _GATHER))

    def stop(self, message: Message) -> None:
        """Stop extending the lease."""
        message.entry = None

    def take_due(self, now: float) -> Due:
        """Take the due leases, and those due soon. The caller asks the queues, and reports the outcome."""
        extensions: dict[tuple[str, float], list[Receipt]] = {}
        ended: list[MessageKey] = []
        for message in self._pop_due(now):
            queue, receipt = message.key
            if seconds := message.extension(now):
                extensions.setdefault((queue, seconds), []).append(receipt)
            elif message.until <= now:
                ended.append(message.key)
            else:  # at its limit: nothing can be done but to notice the end
                self.keep(message, message.until)
        return Due(extensions, ended, self._heap[0][0] if self._heap else None)

    def _pop_due(self, now: float) -> list[Message]:
        taken: list[Message] = []
        while self._heap:
            due, entry, message = self._heap[0]
            is_current = message.entry == entry
            if is_current and due > now and (not taken or due > now + message.terms.period * _GATHER):
                break
            heapq.heappop(self._heap)
            if is_current:
                self.stop(message)
                taken.append(message)
        return taken
