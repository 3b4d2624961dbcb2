"""What is fixed for one start of one reader, from the moment at which the store has said who we are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tenacity

from queue_source.coordinator.metrics import Metrics
from queue_source.errors import QueueUnavailable
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from shard_store.model import PublishToken
from shard_store.semantics import Semantics
from shard_store.store import ShardStore

_TRIES = 6  # in a row: with waits of at most 1, 2, 4, 8 and 16 s, half of it on average


@dataclass(frozen=True, slots=True)
class Session:
    """`queues` by name. `stopping` is set when the reader ends; `clock` gives seconds of a monotonic clock."""

    options: ReaderOptions
    store: ShardStore
    queues: Mapping[str, Queue]
    token: PublishToken
    metrics: Metrics
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic

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
        return with_back_off(self.stopping)


def with_back_off(stopping: threading.Event) -> tenacity.Retrying:
    """Calls that wait longer and longer while a queue is unavailable, until `stopping`.

    Base 1 s, doubled, at most 30 s, full jitter; then the error of the last call, which names the queue.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(QueueUnavailable),
        wait=tenacity.wait_random_exponential(multiplier=1.0, max=30.0),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(_TRIES), tenacity.stop_when_event_set(stopping)),
        sleep=tenacity.sleep_using_event(stopping),
        reraise=True,
    )
