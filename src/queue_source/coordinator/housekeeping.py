"""The housekeeper thread: heartbeats, shards that others own, the replay timer, pruning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from queue_source.coordinator.crew import Crew
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.releasing import Releaser
from queue_source.coordinator.routing import Router
from queue_source.errors import QueueUnavailable
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from shard_store.model import PublishToken
from shard_store.pruning import RetentionPolicy
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_DEPTH_EVERY = 10.0  # seconds; a call to each queue's service


class Housekeeper:
    """Everything that happens by the clock, except visibility extensions, which nothing may delay (`leases`)."""

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        queues: Mapping[str, Queue],
        pen: HoldingPen,
        router: Router,
        releaser: Releaser,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._store = store
        self._queues = queues
        self._pen = pen
        self._router = router
        self._releaser = releaser
        self._metrics = metrics
        self._clock = clock
        self._heartbeat = options.leases.heartbeat.total_seconds()
        self._stale_after = options.leases.stale_after.total_seconds()
        self.depth: int | None = None  # of all queues that tell, by the last look; None: not known

    def run(self, crew: Crew, token: PublishToken) -> None:
        """The thread. Raises PipelineTakenOver when a newer incarnation runs: the query then stops."""
        pending = self._options.leases.pending_timeout.total_seconds()
        prune_every = self._options.deduplication.prune_interval.total_seconds()
        pruning = False
        beat_at, prune_at, look_at = self._clock() + self._heartbeat, self._clock(), self._clock()
        while not crew.stopping.wait(min(1.0, self._heartbeat / 2)):
            now = self._clock()
            if now >= beat_at:
                beat_at = now + self._heartbeat
                self._store.heartbeat(token, self._stale_after)
                self._look_again()
                self._releaser.make_room()
            self._releaser.replay(now - pending)
            if now >= prune_at:
                prune_at = now + prune_every
                pruning = self._wins_pruning(prune_every)
            pruning = pruning and self._prune(min(1.0, self._heartbeat / 2))
            if now >= look_at:
                look_at = now + _DEPTH_EVERY
                self._look_at_queues()

    def _look_again(self) -> None:
        """One statement for all shards that others own: finished ones end their messages, stale ones are acquired."""
        with self._pen.changed:
            keys = list(self._pen.tracker.foreign)
        if keys:
            self._router.route(self._store.look(keys).values())

    def _look_at_queues(self) -> None:
        """For the query's progress only: a queue that cannot tell now is no reason to stop."""
        try:
            depths = [queue.depth() for queue in self._queues.values() if queue.capabilities.reports_depth]
        except QueueUnavailable as error:
            logger.info("%s; its depth is not known", error)
            self.depth = None
        else:
            self.depth = sum(depth.ready for depth in depths) if depths else None

    def _wins_pruning(self, interval: float) -> bool:
        """Debounced over all pipelines of the source by a lease row: one winner an interval."""
        return self._store.win_interval(f"prune {self._options.source}", interval)

    def _prune(self, seconds: float) -> bool:
        """Prune for so long at most, since heartbeats wait for it; returns whether more is left."""
        source, deduplication = self._options.source, self._options.deduplication
        policy = RetentionPolicy(deduplication.deduplication_window, deduplication.deduplication_max_shards, source)
        result = self._store.prune(policy, time_out=seconds)
        self._metrics.add(pruned=result.shards)
        if result.total:
            logger.info("source %s: %s", source, result)
        return result.timed_out
