"""Makes final what Spark has proved to be done, and the next snapshot durable; then acknowledges messages."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from queue_source.coordinator.ending.acknowledging import Acknowledger
from queue_source.coordinator.ending.error_log import ErrorLog
from queue_source.coordinator.ending.error_queue import ErrorQueue
from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.intake.routing import Ownership
from queue_source.coordinator.session import Session
from shard_store.batches.progress import Confirmed, lost_progress
from shard_store.failpoints import reach
from shard_store.model import Range, Snapshot, is_end

logger = logging.getLogger("cuesqueue")


@dataclass
class Progress:
    """The progress of the pipeline: `confirmed` and `last_seq` are seqs of snapshots.

    Runs on the thread of Spark's calls.
    """

    _session: Session
    _in_flight: InFlight
    _ownership: Ownership
    _acknowledger: Acknowledger
    _errors: ErrorQueue
    _error_log: ErrorLog
    confirmed: int
    last_seq: int

    def has_more_than(self, seq: int) -> bool:
        """Tell whether there are snapshots after `seq`, which Spark does not know or has not run."""
        return self.last_seq > max(seq, self.confirmed)

    def confirm(self, seq: int) -> None:
        """Make everything up to `seq` final; then acknowledge."""
        if seq > self.confirmed:
            self._conclude(seq, self._advance(seq, None))

    def begin(self, ranges: tuple[Range, ...], *, done: int) -> int:
        """Make the next snapshot durable and everything up to `done` final, in one transaction; return its seq.

        If it cannot be stored, its shards are ready again.
        """
        snapshot = Snapshot(self.last_seq + 1, ranges)
        try:
            confirmed = self._advance(done, snapshot)
        except BaseException:
            self._in_flight.put_back()
            raise
        self._plan(snapshot, confirmed.written)
        if done > self.confirmed:
            self._conclude(done, confirmed)
        return snapshot.seq

    def adopt(self, seq: int, store_id: str | None = None) -> None:
        """Continue from an offset of Spark's that the store never gave; `store_id`: the store that did."""
        session, options = self._session, self._session.options
        if options.delivery.fail_on_data_loss:
            raise lost_progress(str(options.store), options.pipeline, seq, self.last_seq)
        logger.warning("pipeline %s: the store knows nothing of offset %d, going on after it", session.token, seq)
        session.store.adopt_offset(session.token, seq, store_id)
        self.confirmed = self.last_seq = seq
        self._ownership.get_again(self._in_flight.confirm(seq))

    def _advance(self, seq: int, snapshot: Snapshot | None) -> Confirmed:
        return self._session.store.advance(
            self._session.token,
            confirm=seq if seq > self.confirmed else None,
            keys=self._in_flight.planned_until(seq),
            snapshot=None if snapshot is None else (snapshot.seq, snapshot.ranges),
            fail_on_data_loss=self._session.options.delivery.fail_on_data_loss,
        )

    def _plan(self, snapshot: Snapshot, written: tuple[Range, ...]) -> None:
        """Note that the snapshot is durable, with the ranges `written`.

        With at-most-once that finishes its messages.
        """
        self.last_seq = snapshot.seq
        self._in_flight.plan(Snapshot(snapshot.seq, written))
        reach("snapshot-written")
        if self._session.semantics.final_at_snapshot:
            complete = self._in_flight.finish(entry.key for entry in written if is_end(entry.end))
            self._acknowledger.wait_for_answers(complete)
        written_keys = {entry.key for entry in written}
        # the others have passed to another pipeline since they were ready
        self._ownership.get_again([entry.key for entry in snapshot.ranges if entry.key not in written_keys])

    def _conclude(self, seq: int, confirmed: Confirmed) -> None:
        reach("confirmed")
        self._error_log.of_plans(confirmed.with_errors)
        self._errors.forward()  # errors are delivered before any message is acknowledged
        self.confirmed = seq
        if confirmed.changed:
            self._session.note_changed(confirmed.changed)
        if confirmed.lost:
            self._session.metrics.add(lostShards=len(confirmed.lost))
            logger.error(
                "pipeline %s: %d shard(s) passed to another pipeline while their batch ran; with a sink that is "
                "not cuesqueue's their rows may be published twice; raise 'commitTimeout'",
                self._session.token,
                len(confirmed.lost),
            )
        keys = self._in_flight.confirm(seq)
        if not self._session.semantics.keeps_shards:
            self._in_flight.remember_done(keys)
        self._in_flight.finish(confirmed.finished)
        # lost to another pipeline, or to be continued
        self._ownership.get_again([key for key in keys if key not in confirmed.finished])
