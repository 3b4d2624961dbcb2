"""The reader process's engine: opens shards, hands out snapshots, confirms, acknowledges.

receivers (threads) -> pen -> opener (thread) -> tracker <- latest / plan / confirm (Spark's calls)
lease keeper (threads): visibility extensions     housekeeper (thread): heartbeats, shards of others, pruning
acknowledger (thread): what needs no batch, since its shards are finished already
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from queue_source.acknowledging import Acknowledger
from queue_source.crew import Crew
from queue_source.errors import QueueError
from queue_source.forwarding import ErrorForwarder
from queue_source.holding_pen import HoldingPen
from queue_source.housekeeping import Housekeeper, stale_after, warn_of_retention
from queue_source.intake import Stat
from queue_source.leases import LeaseKeeper, MessageKey, by_queue, longest_lease
from queue_source.metrics import Metrics
from queue_source.opening import Opener
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from queue_source.receiving import Receivers, with_back_off
from queue_source.shares import shares_of
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import Content, Plan, PublishToken, Range, Shard, ShardKey, ShardState, Snapshot, is_end
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
        self._opener = Opener(
            options,
            store,
            stat,
            self._pen,
            self._receivers,
            self._acknowledger,
            self._forwarder,
            self.metrics,
            clock,
        )
        self._housekeeper = Housekeeper(options, store, queues, self._pen, self.metrics, clock)
        self._token: PublishToken
        self._confirmed = 0
        self._last_seq = 0
        self._logged = 0
        self._asked = False  # whether Spark has asked for new data; a batch of its log it repeats before it does

    # Spark's calls

    def start(self) -> None:
        """Start-up recovery (design.md section 2), then the threads. Idempotent over process deaths."""
        patiently = with_back_off(self._crew.stopping)
        if self._semantics.keeps_shards:
            patiently(warn_of_retention, self._queues, self._options.deduplication.deduplication_window)
        started = self._store.start(
            self._options.source,
            self._options.pipeline,
            driver=self._driver,
            stale_after=stale_after(self._options),
            semantics=self._semantics,
            remembered=_REMEMBERED_LEASES * max(self._lease, stale_after(self._options)),
        )
        self._token = started.token
        self._forwarder.start(started.token)
        if started.previous_alive:
            # Another query of this driver may be between its plan and its sink's planning, where it would find ours.
            # From here on it finds neither, and fails; we plan only after it had the time to.
            self._crew.stopping.wait(_TAKEOVER_PAUSE)
        self._confirmed, self._last_seq = started.confirmed_seq, started.last_seq
        now = self._clock()
        tracker = self._pen.tracker
        tracker.awaited |= started.recent
        for snapshot in started.unconfirmed:
            tracker.plan(snapshot)
        for shard in reversed(started.unfinished):
            tracker.offer(shard, now, first=True)
        self._crew.start("leases", self._leases.run, self._crew.stopping)
        self._crew.start("housekeeping", self._housekeeper.run, self._crew, self._token, self)
        self._crew.start("open", self._opener.run, self._crew, self._token, self)
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
        done = self._logged if start is None else start
        if done > self._last_seq:
            self._adopt(done)
        if self._last_seq > max(done, self._confirmed):  # snapshots that Spark does not know or has not run
            self._confirm(done)
            return self._last_seq
        if self._receivers.draining or self._receivers.hurried:
            self._confirm(done)
            self._gather()
        with self._pen.changed:
            continues = self._pen.tracker.continues(done)
        if continues:  # the next part of a large object is ready when this one is final
            self._confirm(done)
        batches = self._options.batches
        limits = batches.max_files_per_trigger, batches.max_bytes_per_trigger
        with self._pen.changed:
            ranges = self._pen.tracker.take(*limits, self._may_be_cut)
        if not ranges:
            self._confirm(done)
            return self._last_seq if start is None else start
        snapshot = Snapshot(self._last_seq + 1, tuple(ranges))
        self._confirm(done, snapshot)
        return snapshot.seq

    def _may_be_cut(self, content: Content) -> bool:
        # without shards nothing remembers how far an object was read
        return self._semantics.keeps_shards and self._options.content.may_be_cut(content.uri)

    def plan(self, start: int, end: int) -> Plan:
        """The plan of one micro-batch; Spark's call proves that everything up to `start` is done.

        A plan that is published already is read again where Spark repeats the batch of its log: it was killed after
        the publication and has to build the query's state, while the sink knows the hash and drops the rows. A new
        checkpoint may come to the same offsets (from 0): it may give the batch another id, and must not read it.
        """
        self._crew.check()
        reach("offset-logged")
        self._logged = end
        if max(start, end) > self._last_seq:
            self._adopt(max(start, end))
        self._confirm(start)
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
        self._confirm(end)

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
            "seq": self._last_seq,
            "depth": self._housekeeper.depth,
            **state,
            **self.metrics.snapshot(),
        }

    def stop(self) -> None:
        """A graceful end: what is in no plan becomes visible at once, what is planned gets a last extension."""
        self._crew.stop(_STOP_PATIENCE)
        try:
            self._let_go()
        finally:
            for queue in self._queues.values():
                queue.close()
            self._forwarder.close()
            self._store.close()

    # confirming

    def _confirm(self, seq: int, snapshot: Snapshot | None = None) -> None:
        """Make everything up to `seq` final and `snapshot` durable, in one transaction; then acknowledge."""
        if seq <= self._confirmed and snapshot is None:
            return
        with self._pen.changed:
            keys = self._pen.tracker.keys_until(seq)
        confirmed = self._store.advance(
            self._token,
            confirm=seq if seq > self._confirmed else None,
            keys=keys,
            snapshot=None if snapshot is None else (snapshot.seq, snapshot.ranges),
        )
        if snapshot is not None:
            self._begin(snapshot, confirmed.written)
        if seq > self._confirmed:
            reach("confirmed")
            self._forwarder.forward()  # handled is delivered: only then is anything acknowledged
            self._confirmed = seq
            if confirmed.lost:
                self.metrics.add(lostShards=len(confirmed.lost))
                logger.error(
                    "pipeline %s: %d shard(s) passed to another pipeline while their batch ran; with a sink that is "
                    "not cuesqueue's their rows may be published twice; raise 'commitTimeout'",
                    self._token,
                    len(confirmed.lost),
                )
            self._settle(seq, confirmed.finished)

    def _begin(self, snapshot: Snapshot, written: tuple[Range, ...]) -> None:
        """The snapshot is durable, with what was `written`. With at-most-once its messages are done by that."""
        complete: list[MessageKey] = []
        with self._pen.changed:
            tracker = self._pen.tracker
            tracker.plan(Snapshot(snapshot.seq, written))
            self._last_seq = snapshot.seq
            if self._semantics.final_at_snapshot:
                complete = tracker.finish(entry.key for entry in written if is_end(entry.end))
        reach("snapshot-written")
        if self._semantics.final_at_snapshot:
            self._acknowledger.now(complete)
            reach("acknowledged")
        if len(written) < len(snapshot.ranges):  # passed to another pipeline since they were ready
            there = {entry.key for entry in written}
            self.route(self._store.look([r.key for r in snapshot.ranges if r.key not in there]).values(), first=True)

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
            self.route(self._store.look(unfinished).values(), first=True)

    def _adopt(self, seq: int) -> None:
        """Spark knows an offset that the store never gave."""
        if self._options.delivery.fail_on_data_loss:
            raise LostProgress(
                f"pipeline {self._options.pipeline!r}: the checkpoint is at offset {seq}, but the store "
                f"{self._options.store} knows offsets only up to {self._last_seq}: the store was lost or exchanged "
                "under a live checkpoint; restore the store, or name the right one in option 'store', or set "
                "'failOnDataLoss' to false to go on without what is missing"
            )
        logger.warning("pipeline %s: the store knows nothing of offset %d, going on after it", self._token, seq)
        self._store.adopt_offset(self._token, seq)
        with self._pen.changed:
            keys = self._pen.tracker.settle(seq)
        self._confirmed = self._last_seq = seq
        self.route(self._store.look(keys).values())

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

    # owning

    def route(self, shards: Iterable[Shard], *, first: bool = False) -> None:
        """Decide by owner and position (design.md section 4). `first`: what is ready goes before what is new."""
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
            self.metrics.add(acquired=len(won))
            logger.info("pipeline %s: acquired %d shard(s) whose owner's heartbeats stopped", self._token, len(won))
            with self._pen.changed:
                for shard in reversed(shards):
                    if shard.key in won:
                        self._pen.tracker.offer(shard, now, first=True)
                    elif shard.key in stale:
                        self._pen.tracker.watch(shard)
                self._pen.changed.notify_all()

    # letting go

    def replay(self, before: float) -> None:
        """Onyx's replay timer: what is ready but was not planned within `pendingTimeout` is given back."""
        with self._pen.changed:
            if self._receivers.draining:
                return  # AvailableNow will take them; given back, they would only come again
            overdue = self._pen.tracker.overdue(before)
            released = self._pen.tracker.forget(self._pen.leave(overdue))
        if overdue:
            self._store.release(self._token, released)
            self._give_back(overdue)

    def make_room(self) -> None:
        """In a full pen most messages wait for other pipelines: they are given back until those may be done.

        As long as the pen is full of our own work, there will be room by itself, and what is held costs no receive.
        """
        with self._pen.changed:
            idle = self._pen.tracker.idle() if self._pen.full() else []
            if 2 * len(idle) <= self._pen.held():
                idle = []
            self._pen.tracker.unwatch(self._pen.leave(idle))
        if idle:
            self._give_back(idle, stale_after(self._options))

    def _give_back(self, keys: Sequence[MessageKey], delay: float = 0.0) -> None:
        self._leases.stop(keys)
        for name, receipts in by_queue(keys).items():
            queue = self._queues[name]
            queue.give_back(receipts, longest_lease(delay, queue.capabilities) if queue.capabilities.can_delay else 0.0)
        self.metrics.add(givenBack=len(keys))

    def _lost_leases(self, keys: Sequence[MessageKey]) -> None:
        """Messages that will be delivered again. Their shards stay ours by the token, so nothing is published twice."""
        self.metrics.add(lostLeases=len(keys))
        logger.warning("pipeline %s: lost the lease of %d message(s)", self._token, len(keys))
        with self._pen.changed:
            self._pen.tracker.unwatch(self._pen.leave(keys))

    def _let_go(self) -> None:
        """After the threads have ended: give messages back, and release shards that nothing else remembers."""
        try:
            self._acknowledger.rest()
        except QueueError as error:
            logger.warning("%s; what was done will be delivered again, and found done", error)
        with self._pen.changed:
            tracker = self._pen.tracker
            unplanned = tracker.unplanned()
            planned = [key for key in tracker.messages if key not in set(unplanned)]
            released = tracker.forget(self._pen.leave(unplanned))
            unopened = self._pen.empty_out()
        try:
            self._store.release(self._token, released)
            self._store.retire(self._token)
        except ShardStoreError as error:
            logger.warning("pipeline %s: %s", self._options.pipeline, error)  # they go stale by themselves
        try:
            self._give_back([*unopened, *unplanned])
            self._leases.extend_last(planned, stale_after(self._options))
        except QueueError as error:
            logger.warning("%s; its messages become visible when their leases end", error)
