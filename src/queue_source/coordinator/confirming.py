"""What Spark has proved to be done becomes final, and the next snapshot durable; then messages are acknowledged."""

from __future__ import annotations

import logging

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.forwarding import ErrorForwarder
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import MessageKey
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.routing import Router
from queue_source.options import ReaderOptions
from shard_store.failpoints import reach
from shard_store.model import PublishToken, Range, ShardKey, Snapshot, is_end
from shard_store.offsets import lost_progress
from shard_store.semantics import Semantics
from shard_store.starting import Started
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")


class Confirmer:
    """The pipeline's progress: `confirmed` and `last_seq` are seqs of snapshots. On the thread of Spark's calls."""

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        pen: HoldingPen,
        router: Router,
        acknowledger: Acknowledger,
        forwarder: ErrorForwarder,
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._semantics = Semantics(options.delivery.delivery_semantics)
        self._store = store
        self._pen = pen
        self._router = router
        self._acknowledger = acknowledger
        self._forwarder = forwarder
        self._metrics = metrics
        self._token: PublishToken
        self.confirmed = 0
        self.last_seq = 0

    def start(self, started: Started) -> None:
        """Go on where the incarnation before stood."""
        self._token = started.token
        self.confirmed, self.last_seq = started.confirmed_seq, started.last_seq

    def confirm(self, seq: int, snapshot: Snapshot | None = None) -> None:
        """Make everything up to `seq` final and `snapshot` durable, in one transaction; then acknowledge."""
        if seq <= self.confirmed and snapshot is None:
            return
        with self._pen.changed:
            keys = self._pen.tracker.keys_until(seq)
        confirmed = self._store.advance(
            self._token,
            confirm=seq if seq > self.confirmed else None,
            keys=keys,
            snapshot=None if snapshot is None else (snapshot.seq, snapshot.ranges),
        )
        if snapshot is not None:
            self._begin(snapshot, confirmed.written)
        if seq > self.confirmed:
            reach("confirmed")
            self._forwarder.forward()  # handled is delivered: only then is anything acknowledged
            self.confirmed = seq
            if confirmed.lost:
                self._metrics.add(lostShards=len(confirmed.lost))
                logger.error(
                    "pipeline %s: %d shard(s) passed to another pipeline while their batch ran; with a sink that is "
                    "not cuesqueue's their rows may be published twice; raise 'commitTimeout'",
                    self._token,
                    len(confirmed.lost),
                )
            self._settle(seq, confirmed.finished)

    def adopt(self, seq: int) -> None:
        """Spark knows an offset that the store never gave."""
        if self._options.delivery.fail_on_data_loss:
            raise lost_progress(str(self._options.store), self._options.pipeline, seq, self.last_seq)
        logger.warning("pipeline %s: the store knows nothing of offset %d, going on after it", self._token, seq)
        self._store.adopt_offset(self._token, seq)
        with self._pen.changed:
            keys = self._pen.tracker.settle(seq)
        self.confirmed = self.last_seq = seq
        self._router.route(self._store.look(keys).values())

    def _begin(self, snapshot: Snapshot, written: tuple[Range, ...]) -> None:
        """The snapshot is durable, with what was `written`. With at-most-once its messages are done by that."""
        complete: list[MessageKey] = []
        with self._pen.changed:
            tracker = self._pen.tracker
            tracker.plan(Snapshot(snapshot.seq, written))
            self.last_seq = snapshot.seq
            if self._semantics.final_at_snapshot:
                complete = tracker.finish(entry.key for entry in written if is_end(entry.end))
        reach("snapshot-written")
        if self._semantics.final_at_snapshot:
            self._acknowledger.now(complete)
            reach("acknowledged")
        if len(written) < len(snapshot.ranges):  # passed to another pipeline since they were ready
            there = {entry.key for entry in written}
            passed = [entry.key for entry in snapshot.ranges if entry.key not in there]
            self._router.route(self._store.look(passed).values(), first=True)

    def _settle(self, seq: int, finished: frozenset[ShardKey]) -> None:
        with self._pen.changed:
            keys = self._pen.tracker.settle(seq)
            if not self._semantics.keeps_shards:
                self._pen.tracker.await_messages(keys)
            complete = self._pen.tracker.finish(finished)
        self._acknowledger.now(complete)
        reach("acknowledged")
        unfinished = [key for key in keys if key not in finished]
        if unfinished:  # lost to another pipeline, or to be continued
            self._router.route(self._store.look(unfinished).values(), first=True)
