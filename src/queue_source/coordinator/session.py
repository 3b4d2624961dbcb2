"""What all parts of one reader share: the values that are fixed once the store has started it, and its counters."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import tenacity

from queue_source.coordinator.precedence import Precedence
from queue_source.errors import QueueUnavailable
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from shard_store.model import PublishToken, Semantics
from shard_store.shards.sources import Names
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")


@dataclass(slots=True)
class _Counts:
    received: int = 0  # messages delivered to us, redeliveries included
    ignored: int = 0  # records that announce nothing to read: test events, delete events
    foreign: int = 0  # objects of others, with onForeignObject = ignore
    duplicates: int = 0  # announcements of shards that were known already
    changed: int = 0  # announcements of other versions of what is published, which are not read
    reopened: int = 0  # objects of which nothing is published, and that are read again since they were announced again
    quarantined: int = 0  # messages that were not understood
    acknowledged: int = 0
    acquired: int = 0  # stale shards taken from other pipelines
    acknowledgeFailures: int = 0
    givenBack: int = 0
    lostLeases: int = 0
    lostShards: int = 0
    listed: int = 0  # objects of listings, by this reader
    backfilled: int = 0  # of these, unknown to the store and opened
    beyondMemory: int = 0  # of these, unknown and so old that they may have been read and forgotten
    existing: int = 0  # of these, unknown and there before the first listing (includeExistingFiles=false)
    listingFailures: int = 0
    pruned: int = 0
    errorsDelivered: int = 0  # to the error queue
    cleaned: int = 0  # objects that were deleted or moved after they were read (cleanSource)
    cleaningFailures: int = 0  # tries to do so that failed; the view `cleanings` has their causes
    cleaningsNeeded: int = 0  # objects that waited, since another source or a table needs them; again each hour
    maintenanceFailures: int = 0  # of work by the clock that is tried again; the log has their causes
    errors: Counter[str] = field(default_factory=Counter)  # by cause: bad messages, objects, records and rows


@dataclass(slots=True)
class Metrics:
    """Counters that any thread may raise, shown in the query's progress as numbers since the reader's start."""

    _counts: _Counts = field(default_factory=_Counts)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    def count_errors(self, causes: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.errors.update(causes)

    def snapshot(self) -> dict[str, Any]:
        """Return all counters by name; `errors` are numbers by cause."""
        with self._lock:
            return {**asdict(self._counts), "errors": dict(self._counts.errors)}


@dataclass(frozen=True, slots=True)
class Session:
    """The facts that are fixed for one reader.

    `queues` by name; `names`: how the source names its shards. `stopping` is set when the reader ends; `clock` gives
    seconds of a monotonic clock. `batches` knows whether a micro-batch is under way, for work that can wait.
    """

    options: ReaderOptions
    store: ShardStore
    queues: Mapping[str, Queue]
    token: PublishToken
    metrics: Metrics
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    batches: Precedence = field(default_factory=lambda: Precedence(time.monotonic))
    names: Names = field(default_factory=Names)

    def note_changed(self, number: int) -> None:
        """Count and log shards that were announced in another version while a batch read them, and published."""
        self.metrics.add(changed=number)
        logger.warning(
            "pipeline %s: %d object(s) were announced in another version while they were read; they are not read again",
            self.token,
            number,
        )

    @property
    def semantics(self) -> Semantics:
        return Semantics(self.options.delivery.delivery_semantics)

    @property
    def lease(self) -> float:
        """Seconds for which a message is invisible to others."""
        return self.options.leases.visibility_timeout.total_seconds()

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats."""
        return self.options.leases.heartbeat.total_seconds()

    @property
    def stale_after(self) -> float:
        """Seconds after the last heartbeat at which other pipelines may take our shards."""
        return self.options.leases.stale_after.total_seconds()

    @property
    def patiently(self) -> tenacity.Retrying:
        """The retries for one call to a queue."""
        return with_back_off(self.stopping, self.options.queue.retry_timeout.total_seconds(), self.clock)


def with_back_off(
    stopping: threading.Event,
    seconds: float,
    clock: Callable[[], float],
    is_passing: Callable[[BaseException], bool] = lambda error: isinstance(error, QueueUnavailable),
) -> tenacity.Retrying:
    """Build the retries of a call, for `seconds`, while a queue (or what `is_passing` accepts) is unavailable.

    They end with `stopping`. Waits are 1 s, doubled, at most 30 s, with full jitter; then the error of the last call is
    raised.
    """
    end = clock() + seconds
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_passing),
        wait=tenacity.wait_random_exponential(multiplier=1.0, max=30.0),
        stop=lambda _: stopping.is_set() or clock() >= end,
        sleep=tenacity.sleep_using_event(stopping),
        before_sleep=_log,
        reraise=True,
    )


def _log(state: tenacity.RetryCallState) -> None:
    if state.outcome is not None:
        logger.warning("%s; it is tried again", state.outcome.exception())
