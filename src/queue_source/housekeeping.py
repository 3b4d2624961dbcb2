"""The housekeeper thread: heartbeats, shards that others own, the replay timer, pruning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from queue_source.crew import Crew
from queue_source.holding_pen import HoldingPen
from queue_source.metrics import Metrics
from queue_source.options import ReaderOptions
from shard_store.model import PublishToken, Shard
from shard_store.pruning import RetentionPolicy
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")


class Owner(Protocol):
    """What the housekeeper asks of the coordinator."""

    def route(self, shards: Iterable[Shard]) -> None: ...

    def replay(self, before: float) -> None: ...


class Housekeeper:
    """Everything that happens by the clock, except visibility extensions, which nothing may delay (`leases`)."""

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        pen: HoldingPen,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._store = store
        self._pen = pen
        self._metrics = metrics
        self._clock = clock
        self._heartbeat = options.leases.heartbeat.total_seconds()
        self._stale_after = stale_after(options)

    def run(self, crew: Crew, token: PublishToken, owner: Owner) -> None:
        """The thread. Raises PipelineTakenOver when a newer incarnation runs: the query then stops."""
        pending = self._options.leases.pending_timeout.total_seconds()
        prune_every = self._options.deduplication.prune_interval.total_seconds()
        beat_at, prune_at = self._clock() + self._heartbeat, self._clock()
        while not crew.stopping.wait(min(1.0, self._heartbeat / 2)):
            now = self._clock()
            if now >= beat_at:
                beat_at = now + self._heartbeat
                self._store.heartbeat(token, self._stale_after)
                self._look_again(owner)
            owner.replay(now - pending)
            if now >= prune_at:
                prune_at = now + prune_every
                self._prune(prune_every)

    def _look_again(self, owner: Owner) -> None:
        """One statement for all shards that others own: finished ones end their messages, stale ones are acquired."""
        with self._pen.changed:
            keys = list(self._pen.tracker.foreign)
        if keys:
            owner.route(self._store.look(keys).values())

    def _prune(self, interval: float) -> None:
        """Debounced over all pipelines of the source by a lease row: one winner an interval."""
        source, deduplication = self._options.source, self._options.deduplication
        if not self._store.win_interval(f"prune {source}", interval):
            return
        policy = RetentionPolicy(deduplication.deduplication_window, deduplication.deduplication_max_shards, source)
        result = self._store.prune(policy)
        self._metrics.add(pruned=result.shards)
        if result.total:
            logger.info("source %s: %s", source, result)


def stale_after(options: ReaderOptions) -> float:
    """Seconds after its last heartbeat at which others may take a pipeline's shards: 2 x `commitTimeout`."""
    return 2 * options.leases.commit_timeout.total_seconds()
