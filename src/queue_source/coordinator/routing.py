"""What becomes of shards as they stand in the store, by owner and position (design.md section 4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.metrics import Metrics
from shard_store.model import PublishToken, Shard, ShardKey, ShardState
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")


class Router:
    """Finished: its messages are acknowledged. Ours: ready. Stale: acquired. Another's: watched. On any thread."""

    def __init__(
        self,
        store: ShardStore,
        pen: HoldingPen,
        acknowledger: Acknowledger,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._pen = pen
        self._acknowledger = acknowledger
        self._metrics = metrics
        self._clock = clock
        self._token: PublishToken

    def start(self, token: PublishToken) -> None:
        """From here on these are ours."""
        self._token = token

    def route(self, shards: Iterable[Shard], *, first: bool = False) -> None:
        """`first`: what is ready goes before what is new."""
        stale: dict[ShardKey, PublishToken | None] = {}
        finished: list[ShardKey] = []
        now = self._clock()
        shards = list(shards)
        with self._pen.changed:
            for shard in reversed(shards) if first else shards:
                if shard.state is not ShardState.OPEN:
                    finished.append(shard.key)
                elif shard.token == self._token:
                    self._pen.tracker.offer(shard, now, first=first)
                elif shard.stale:
                    stale[shard.key] = shard.token
                else:
                    self._pen.tracker.watch(shard)
            complete = self._pen.tracker.finish(finished)
            self._pen.changed.notify_all()
        self._acknowledger.later(complete)
        if stale:
            won = self._store.acquire(self._token, stale)
            self._metrics.add(acquired=len(won))
            logger.info("pipeline %s: acquired %d shard(s) whose owner's heartbeats stopped", self._token, len(won))
            with self._pen.changed:
                for shard in reversed(shards):
                    if shard.key in won:
                        self._pen.tracker.offer(shard, now, first=True)
                    elif shard.key in stale:
                        self._pen.tracker.watch(shard)
                self._pen.changed.notify_all()
