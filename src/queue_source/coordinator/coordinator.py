"""The reader process's engine, as Spark's calls see it: snapshots are handed out, planned and confirmed.

receivers (threads) -> pen -> opener (thread) -> router -> tracker <- latest / plan / confirm (Spark's calls)
lease keeper (threads): visibility extensions     housekeeper (thread): heartbeats, shards of others, pruning
acknowledger (thread): what needs no batch, since its shards are finished already

What several threads know stands in the pen, behind its lock; leases, acknowledger, forwarder and metrics guard what
is theirs. What is confirmed and planned belongs to the thread of Spark's calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from queue_source.announcements.intake import Stat
from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.confirming import Confirmer
from queue_source.coordinator.crew import Crew
from queue_source.coordinator.forwarding import ErrorForwarder
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.housekeeping import Housekeeper
from queue_source.coordinator.leases import LeaseKeeper, MessageKey
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.opening import Opener
from queue_source.coordinator.receiving import Receivers, with_back_off
from queue_source.coordinator.releasing import Releaser
from queue_source.coordinator.routing import Router
from queue_source.coordinator.shares import shares_of
from queue_source.formats.base import may_be_cut
from queue_source.options import ReaderOptions
from queue_source.options.queue_checks import warn_of_retention
from queue_source.queues.base import Queue
from shard_store.failpoints import reach
from shard_store.model import Content, Plan, PublishToken, Snapshot
from shard_store.semantics import Semantics
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_TAKEOVER_PAUSE = 2.0  # see start(): longer than any planning of a micro-batch stands still in a live driver
_FIRST_GATHER = 10.0
_STOP_PATIENCE = 5.0
_REMEMBERED_LEASES = 3.0  # after a reader's end its messages come again within one lease, to whoever runs by then


class Coordinator:
    """One running pipeline of a source. Spark's calls come from one thread, one at a time.

    `queues` by name, `store` already open, `error_queue`: all are closed by `stop`. `driver` identifies the driver
    that runs us. A failure on a thread is raised by Spark's next call.
    """

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        queues: Mapping[str, Queue],
        stat: Stat,
        *,
        driver: str = "",
        error_queue: Queue | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._semantics = Semantics(options.delivery.delivery_semantics)
        self._store = store
        self._queues = queues
        self._driver = driver
        self._clock = clock
        self.metrics = Metrics()
        self._lease = lease = options.leases.visibility_timeout.total_seconds()
        self._pen = HoldingPen(
            options.queue.max_in_flight_messages,
            options.queue.max_in_flight_bytes,
            shares_of(options.queue.queue_shares, queues),
        )
        self._leases = LeaseKeeper(queues, lease, self._lost_leases, clock)
        self._receivers = Receivers(queues, options.queue, lease, self._pen, self._leases, self.metrics)
        self._acknowledger = Acknowledger(queues, self._leases, self._pen, self.metrics)
        self._crew = Crew(self._pen.wake, self._leases.wake, self._acknowledger.wake)
        self._forwarder = ErrorForwarder(error_queue, store, options.source, self.metrics, self._crew.stopping)
        self._router = Router(store, self._pen, self._acknowledger, self.metrics, clock)
        self._releaser = Releaser(
            store,
            queues,
            self._pen,
            self._receivers,
            self._acknowledger,
            self._leases,
            self.metrics,
            options.leases.stale_after.total_seconds(),
        )
        self._confirmer = Confirmer(
            options, store, self._pen, self._router, self._acknowledger, self._forwarder, self.metrics
        )
        self._opener = Opener(
            options,
            store,
            stat,
            self._pen,
            self._receivers,
            self._router,
            self._acknowledger,
            self._forwarder,
            self.metrics,
            clock,
        )
        self._housekeeper = Housekeeper(
            options, store, queues, self._pen, self._router, self._releaser, self.metrics, clock
        )
        self._token: PublishToken
        self._logged = 0
        self._asked = False  # whether Spark has asked for new data; a batch of its log it repeats before it does

    def start(self) -> None:
        """Start-up recovery (design.md section 2), then the threads. Idempotent over process deaths."""
        patiently = with_back_off(self._crew.stopping)
        if self._semantics.keeps_shards:
            patiently(warn_of_retention, self._queues.values(), self._options.deduplication.deduplication_window)
        stale_after = self._options.leases.stale_after.total_seconds()
        started = self._store.start(
            self._options.source,
            self._options.pipeline,
            driver=self._driver,
            stale_after=stale_after,
            semantics=self._semantics,
            remembered=_REMEMBERED_LEASES * max(self._lease, stale_after),
        )
        self._token = started.token
        self._forwarder.start(started.token)
        if started.previous_alive:
            # Another query of this driver may be between its plan and its sink's planning, where it would find ours.
            # From here on it finds neither, and fails; we plan only after it had the time to.
            self._crew.stopping.wait(_TAKEOVER_PAUSE)
        self._router.start(started.token)
        self._releaser.start(started.token)
        self._confirmer.start(started)
        now = self._clock()
        tracker = self._pen.tracker
        tracker.awaited |= started.recent
        for snapshot in started.unconfirmed:
            tracker.plan(snapshot)
        for shard in reversed(started.unfinished):
            tracker.offer(shard, now, first=True)
        self._crew.start("leases", self._leases.run, self._crew.stopping)
        self._crew.start("housekeeping", self._housekeeper.run, self._crew, started.token)
        self._crew.start("open", self._opener.run, self._crew, started.token)
        self._crew.start("acknowledge", self._acknowledger.run, self._crew)
        self._receivers.start(self._crew)

    def check(self) -> None:
        """Raise what has ended us, if anything has."""
        self._crew.check()

    def latest(self, start: int | None) -> int:
        """The offset up to which there is work (Spark's latestOffset). All up to `start` is done; None before 4.2.

        Without new shards it is `start`, or the last offset again.
        """
        self._crew.check()
        self._asked = True
        confirmer = self._confirmer
        done = self._logged if start is None else start
        if done > confirmer.last_seq:
            confirmer.adopt(done)
        if confirmer.last_seq > max(done, confirmer.confirmed):  # snapshots that Spark does not know or has not run
            confirmer.confirm(done)
            return confirmer.last_seq
        if self._receivers.draining or self._receivers.hurried:
            confirmer.confirm(done)
            self._gather()
        with self._pen.changed:
            continues = self._pen.tracker.continues(done)
        if continues:  # the next part of a large object is ready when this one is final
            confirmer.confirm(done)
        batches = self._options.batches
        limits = batches.max_files_per_trigger, batches.max_bytes_per_trigger
        with self._pen.changed:
            ranges = self._pen.tracker.take(*limits, self._may_be_cut)
        if not ranges:
            confirmer.confirm(done)
            if self._receivers.draining:
                self._acknowledger.finish(self._crew)
                self._crew.check()
            return confirmer.last_seq if start is None else start
        snapshot = Snapshot(confirmer.last_seq + 1, tuple(ranges))
        confirmer.confirm(done, snapshot)
        return snapshot.seq

    def plan(self, start: int, end: int) -> Plan:
        """The plan of one micro-batch; Spark's call proves that everything up to `start` is done.

        A plan that is published already is read again where Spark repeats the batch of its log: it was killed after
        the publication and has to build the query's state, while the sink knows the hash and drops the rows. A new
        checkpoint may come to the same offsets (from 0): it may give the batch another id, and must not read it.
        """
        self._crew.check()
        reach("offset-logged")
        self._logged = end
        if max(start, end) > self._confirmer.last_seq:
            self._confirmer.adopt(max(start, end))
        self._confirmer.confirm(start)
        plan = self._store.plan(self._token, start, end)
        if plan.published and start == 0 and self._asked:
            plan = replace(plan, ranges=())
        if plan.lost:
            self.metrics.add(lostShards=len(plan.lost))
            cause = "passed to another pipeline"
            if self._semantics.final_at_snapshot:
                cause = "are given up: an attempt at their batch was begun before, and at-most-once allows but one"
            logger.warning("pipeline %s: %d shard(s) %s", self._token, len(plan.lost), cause)
        reach("plan-made")
        return plan

    def logged(self, end: int) -> None:
        """Spark's log ends with `end`. Before 4.2 it says so at a restart, and not what is done.

        Its next latestOffset then proves it: a logged batch that is not done is planned again before that call.
        """
        self._logged = end

    def confirm(self, end: int) -> None:
        """Spark says that everything up to `end` is done."""
        self._crew.check()
        self._confirmer.confirm(end)

    def drain(self) -> None:
        """AvailableNow: take what is there now, and end. Later messages are left for the next run."""
        self._crew.check()
        self._receivers.drain()

    def report(self) -> dict[str, int | str | None]:
        """Counters for the query's progress; `depth` is what waits in the queues, None while that is not known."""
        with self._pen.changed:
            tracker = self._pen.tracker
            state = {
                "inFlight": self._pen.held(),
                "ready": len(tracker.ready),
                "awaitingCommit": len(tracker.planned),
                "held": len(tracker.foreign),
            }
        return {
            "pipeline": self._options.pipeline,
            "seq": self._confirmer.last_seq,
            "depth": self._housekeeper.depth,
            **state,
            **self.metrics.snapshot(),
        }

    def stop(self) -> None:
        """A graceful end: what is in no plan becomes visible at once, what is planned gets a last extension."""
        self._crew.stop(_STOP_PATIENCE)
        try:
            self._releaser.let_go()
        finally:
            for queue in self._queues.values():
                queue.close()
            self._forwarder.close()
            self._store.close()

    def _may_be_cut(self, content: Content) -> bool:
        # without shards nothing remembers how far an object was read
        return self._semantics.keeps_shards and may_be_cut(content.uri, self._options.content)

    def _gather(self) -> None:
        """Wait until a whole batch is ready or the queues gave all they had.

        AvailableNow ends at the first latestOffset that brings nothing new, and on Spark 4.0 and 4.1 has but one: so
        the first one of a reader waits as well, for a while.
        """
        deadline = None if self._receivers.draining else self._clock() + _FIRST_GATHER
        batches = self._options.batches
        with self._pen.changed:
            tracker = self._pen.tracker
            while self._crew.working:
                if len(tracker.ready) >= batches.max_files_per_trigger:
                    break
                if 0 < (batches.max_bytes_per_trigger or 0) <= tracker.ready_bytes():
                    break
                if self._receivers.dry() or (deadline is not None and self._clock() > deadline):
                    break
                self._pen.changed.wait(0.1)
        self._receivers.hurried = False
        self._crew.check()

    def _lost_leases(self, keys: Sequence[MessageKey]) -> None:
        """Messages that will be delivered again. Their shards stay ours by the token, so nothing is published twice."""
        self.metrics.add(lostLeases=len(keys))
        logger.warning("pipeline %s: lost the lease of %d message(s)", self._token, len(keys))
        with self._pen.changed:
            self._pen.tracker.unwatch(self._pen.leave(keys))
