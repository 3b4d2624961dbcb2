"""The reader process's engine, as Spark's calls see it: snapshots are handed out, planned and confirmed.

The data goes one way: receiving -> opening -> ownership -> in flight -> here -> acknowledging.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.backfill import Backfill
from queue_source.coordinator.errors import ErrorLog, ErrorQueue
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.maintenance import Maintenance
from queue_source.coordinator.opening import Ownership, Receivers
from queue_source.coordinator.progress import Offsets, Progress
from queue_source.coordinator.receivers import OwnReceivers, Recorded
from queue_source.coordinator.session import Session, Threads
from queue_source.errors import QueueError
from queue_source.formats.base import may_be_cut
from queue_source.messages import by_queue
from queue_source.options import EVERYTHING, BatchLimits
from shard_store.errors import ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import Plan, PlanIdentity, PublishToken, Range

logger = logging.getLogger("cuesqueue")

_FIRST_GATHER = 10.0  # seconds
_STOP_PATIENCE = 5.0  # seconds


@dataclass
class Coordinator:
    """One running pipeline of a source. Spark's calls come from one thread, one at a time.

    Nothing is received before `begin`. A failure on a thread is raised by Spark's next call. `stop` closes the queues
    and the store.

    Attributes:
        offsets: The offsets of Spark's checkpoint, to read as numbers and to write.
        backfill, recorded, own_receivers: None where the options ask for no listing, or for no receiver.
        logged_end: The end of the last batch that Spark's log is known to have.
    """

    session: Session
    threads: Threads
    in_flight: InFlight
    ownership: Ownership
    acknowledger: Acknowledger
    errors: ErrorQueue
    error_log: ErrorLog
    progress: Progress
    offsets: Offsets
    receivers: Receivers
    maintenance: Maintenance
    backfill: Backfill | None
    recorded: Recorded | None
    own_receivers: OwnReceivers | None
    logged_end: int = 0
    _first: PlanIdentity | None = None  # the batch that was planned first, at its last attempt
    _asked: bool = False  # whether Spark asked for new data; it repeats a batch of its log before it does

    def begin(self) -> None:
        """Start the threads. If this fails, `stop` gives back what they have received: the caller holds us by now."""
        self.threads.begin()

    @property
    def token(self) -> PublishToken:
        return self.session.token

    def check(self) -> None:
        """Raise what has ended us, if anything has."""
        self.threads.check()

    def latest(self, start: int | None, limits: BatchLimits | None = None) -> int:
        """Return the offset up to which there is work (Spark's latestOffset).

        All up to `start` is done; None before Spark 4.2. `limits`: None for the options'. Without new shards the result
        is `start`, or the last offset again; but the first offset of a checkpoint that is new, or was put back, is new.
        """
        self.check()
        limits = limits or self.session.options.batches.limits
        if limits == EVERYTHING:
            self.in_flight.lift_limits()
            self.drain()
        first, self._asked = not self._asked, True
        in_flight, progress = self.in_flight, self.progress
        done = self.logged_end if start is None else start
        if first and done == 0:
            self._warn_of_new_checkpoint()
        if done > progress.last_seq:
            progress.adopt(done)
        # the next part of a large object is ready when this one is final
        alone = progress.has_more_than(done) or self._gathers or in_flight.continues(done)
        ranges = () if alone else self._take(limits)
        if not ranges:
            progress.confirm(done)  # else finished work becomes final together with the next snapshot
            if progress.has_more_than(done) and limits != EVERYTHING:
                return progress.last_seq
            self._gather(limits, whole=self.receivers.draining or start is None)
            ranges = self._take(limits)
        is_new = done == 0 and self.token.incarnation > 1
        if ranges or (first and (is_new or done < progress.confirmed)):
            # a new offset: batches without input must not pass for those of another checkpoint, or behind this one
            self.session.batches.begin()
            return progress.begin(ranges, done=done)
        self.session.batches.end()
        if self.receivers.draining:
            self.acknowledger.finish()
            self.check()
        return progress.last_seq if start is None or progress.has_more_than(done) else start

    def _warn_of_new_checkpoint(self) -> None:
        """Say that a new checkpoint reads nothing again, which is not expected after a full refresh."""
        session = self.session
        source, pipeline = session.options.source, session.options.pipeline
        if self.progress.confirmed and session.store.has_finished(source, pipeline):
            logger.warning(
                "pipeline %s: the checkpoint is new, and what the store has as read stays read. If its table was "
                "emptied on purpose (as by spark-pipelines run --full-refresh), it stays empty: stop the query, run "
                "'cuesqueue reset %s' with this store, and announce the objects once more "
                "(docs/how-to/errors.md)",
                session.token.pipeline,
                source,
            )

    def plan(self, start: int, end: int) -> Plan:
        """Return the plan of one micro-batch; Spark's call proves that everything up to `start` is done.

        An already published plan is read again where Spark repeats the batch of its log: it was killed after the
        publication and has to rebuild the query's state, while the sink knows the hash and drops the rows. A new
        checkpoint never comes to the same offsets: its first one is new.
        """
        self.check()
        reach("offset-logged")
        session, progress = self.session, self.progress
        self.logged_end = end
        if max(start, end) > progress.last_seq:
            progress.adopt(max(start, end))
        progress.confirm(start)
        session.batches.begin()
        plan = session.store.plan(session.token, start, end)
        if self._first is None or self._first.end_seq == end:
            self._first = plan.identity
        if plan.lost:
            session.metrics.add(lostShards=len(plan.lost))
            cause = "passed to another pipeline"
            if session.semantics.final_at_snapshot:
                cause = "are given up: an attempt at their batch was begun before, and at-most-once allows but one"
            logger.warning("pipeline %s: %d shard(s) %s", session.token, len(plan.lost), cause)
        reach("plan-made")
        return plan

    def logged(self, end: int) -> None:
        """Note that Spark's log ends with `end`. Before 4.2 Spark says so at a restart, without saying what is done.

        Its next latestOffset then proves it: an unfinished batch of the log is planned again before that call. Raises
        LostProgress where the store has never reached that offset.
        """
        self.logged_end = end
        if end > self.progress.last_seq:
            self.progress.adopt(end)

    def confirm(self, end: int) -> None:
        """Make everything up to `end` final, as Spark says that it is done."""
        self.check()
        self.progress.confirm(end)

    def drain(self) -> None:
        """Take what is in the queues now, and end (AvailableNow). Later messages are left for the next run."""
        self.check()
        self.receivers.drain()
        self.check()
        while self.ownership.take_abandoned():
            pass
        if self.backfill is not None:
            self.backfill.drain()
        if self.own_receivers is not None:
            self.own_receivers.drain()
            self.check()
        if self.recorded is not None:
            self.recorded.drain()

    def report(self) -> dict[str, Any]:
        """Return the counters for the query's progress, with `errors` by cause.

        `depth` is the number of messages in the queues, None while it is unknown. Names that begin with `num`, and
        `approximateQueueSize`, are those of Auto Loader, for dashboards that have them.
        """
        counts = self.in_flight.counts()
        return {
            "pipeline": self.session.options.pipeline,
            "seq": self.progress.last_seq,
            "depth": self.maintenance.depth,
            "inFlight": counts.in_flight,
            "ready": counts.ready,
            "awaitingCommit": counts.planned,
            "held": counts.held,
            "numFilesOutstanding": counts.ready + counts.planned,
            "numBytesOutstanding": counts.bytes,
            "approximateQueueSize": self.maintenance.depth,
            **self.session.metrics.snapshot(),
        }

    def stop(self) -> None:
        """End gracefully: unplanned messages become visible at once, planned ones get a last extension.

        That gives a restart the time to finish its batch. A start that failed gives back everything: its batch may fail
        again, and the messages are needed for it once the cause is repaired.
        """
        session, acknowledger = self.session, self.acknowledger
        failure = self.threads.failure  # before the stop, which may interrupt a call of theirs
        self.threads.stop(_STOP_PATIENCE)
        self.error_log.flush(end=True)
        try:
            session.store.database.limit_patience(_STOP_PATIENCE)  # messages do not wait for an unavailable store
            leftovers = self.in_flight.empty()
            # not given back: the queue may have deleted them already
            for name, receipts in by_queue(leftovers.unanswered).items():
                logger.warning("queue %r has not answered yet whether it acknowledges %d messages", name, len(receipts))
            given_back, planned = leftovers.unplanned, leftovers.planned
            if self._failed_at_start():
                given_back, planned = [*planned, *given_back], []
            try:
                session.store.release(session.token, leftovers.shards)
                session.store.retire(session.token, self.maintenance.report(stopped=True, failure=failure))
                if self.backfill is not None:
                    self.backfill.let_go()
            except ShardStoreError as error:
                logger.warning("pipeline %s: %s", session.token.pipeline, error)  # they go stale by themselves
            for name in session.queues:
                try:
                    acknowledger.nack([key for key in given_back if key[0] == name])
                    acknowledger.extend_last([key for key in planned if key[0] == name], session.stale_after)
                except QueueError as error:
                    logger.warning("%s; its messages become visible when their leases end", error)
            # last: it may take a while, and other readers wait for the returned messages
            acknowledger.end(leftovers.complete)
        finally:
            self.close()

    def close(self) -> None:
        """Close the queues and the store."""
        for queue in self.session.queues.values():
            queue.close()
        if self.own_receivers is not None:
            self.own_receivers.close()
        self.errors.close()
        self.session.store.close()

    @property
    def _gathers(self) -> bool:
        """Tell whether the next batch is waited for: with AvailableNow, and for the first one."""
        return self.receivers.draining or self.receivers.hurry

    def _take(self, limits: BatchLimits) -> tuple[Range, ...]:
        # without shards nothing records how far an object was read
        cuts, options = self.session.semantics.keeps_shards, self.session.options.content
        return self.in_flight.take(limits.files, limits.bytes, lambda c: cuts and may_be_cut(c.uri, options))

    def _gather(self, limits: BatchLimits, *, whole: bool) -> None:
        """Wait until a shard is ready, or a `whole` batch, or the queues gave all they had.

        AvailableNow ends at the first latestOffset without anything new, and Spark 4.0 and 4.1 call it only once,
        without saying so: there a reader's first call waits for a whole batch, for a while. Later Sparks run an empty
        micro-batch where the first call of a new query finds nothing: one shard is enough to avoid that.
        """
        clock = self.session.clock
        if not self._gathers:
            return
        self.session.batches.end()
        deadline = float("inf") if self.receivers.draining else clock() + _FIRST_GATHER
        self.in_flight.wait_for_batch(
            limits.files if whole else 1,
            limits.bytes,
            lambda: self.session.stopping.is_set() or clock() > deadline,
        )
        self.receivers.hurry = False
        self.check()
        if limits == EVERYTHING and not all(map(self.in_flight.proven_empty, self.session.queues)):
            logger.warning(
                "pipeline %s: its one batch takes no more than 'maxInFlightMessages' and 'maxInFlightBytes' allow; the "
                "next run takes what is left in the queues",
                self.session.token.pipeline,
            )

    def _failed_at_start(self) -> bool:
        """Tell whether no batch that was planned here is done; False where the store keeps no shards.

        There only the last extension stops others from reading what a restart repeats. The state of another sink's
        first batch is unknown; then others wait for our shards, and not for the messages.
        """
        session, first = self.session, self._first
        if not session.semantics.keeps_shards or (first and self.progress.confirmed >= first.end_seq):
            return False
        try:
            return first is None or not session.store.is_published(first)
        except ShardStoreError:
            return True  # without the store no batch can end, nor begin again
