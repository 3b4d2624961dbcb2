"""The offsets of Spark, and the progress that the store confirms for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.errors import ErrorLog, ErrorQueue
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.opening import Ownership
from queue_source.coordinator.session import Session
from shard_store.batches.progress import Confirmed, lost_progress
from shard_store.errors import LostProgress, StoreConfigurationError
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
            look = self._in_flight.look()
            self._conclude(seq, self._advance(seq, None), look)

    def begin(self, ranges: tuple[Range, ...], *, done: int) -> int:
        """Make the next snapshot durable and everything up to `done` final, in one transaction; return its seq.

        If it cannot be stored, its shards are ready again.
        """
        snapshot, look = Snapshot(self.last_seq + 1, ranges), self._in_flight.look()
        try:
            confirmed = self._advance(done, snapshot)
        except BaseException:
            self._in_flight.put_back()
            raise
        self.last_seq = snapshot.seq
        self._in_flight.plan(Snapshot(snapshot.seq, confirmed.written))
        reach("snapshot-written")
        if self._session.semantics.final_at_snapshot:  # that finishes its messages
            finished = self._in_flight.finish((r.key for r in confirmed.written if is_end(r.end)), look)
            self._acknowledger.wait_for_answers(finished.complete)
            self._ownership.get_again(finished.again)
        written_keys = {entry.key for entry in confirmed.written}
        # the others have passed to another pipeline since they were ready
        self._ownership.get_again([entry.key for entry in ranges if entry.key not in written_keys])
        if done > self.confirmed:
            self._conclude(done, confirmed, look)
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

    def _conclude(self, seq: int, confirmed: Confirmed, look: int) -> None:
        """Acknowledge what is finished. That takes time, in which another thread may open some of it again."""
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
            return
        self._ownership.finish(confirmed.finished, look)
        # lost to another pipeline, or to be continued
        self._ownership.get_again([key for key in keys if key not in confirmed.finished])


Offset = Mapping[str, Any]


@dataclass
class Offsets:
    """An offset is `{"pipeline": name, "seq": number, "store": id}` (decision 0065)."""

    _session: Session
    _progress: Progress
    _store_id: str
    _other_stores: dict[str, int]  # the seqs up to which offsets of these stores are accepted here
    _heard: Offset = field(default_factory=dict)  # the last one that Spark handed to us

    def write(self, seq: int) -> dict[str, Any]:
        """Return the offset for `seq`, exactly as Spark has it, if it does.

        Spark compares texts: another text would be new data.
        """
        if self._heard.get("seq") == seq:
            return dict(self._heard)
        return {"pipeline": self._session.options.pipeline, "seq": seq, "store": self._store_id}

    def read(self, offset: Offset) -> int:
        """Return the seq of an offset of ours.

        Raises StoreConfigurationError for that of another pipeline, and LostProgress for that of another store, before
        anything relies on it.
        """
        options, ours = self._session.options, self._session.options.pipeline
        if not (isinstance(offset, Mapping) and {"pipeline", "seq"} <= offset.keys()):
            raise StoreConfigurationError(
                f"pipeline {ours!r}: this checkpoint is of another source: its offset {str(offset)[:200]} is none of "
                "cuesqueue; give the query a checkpoint of its own"
            )
        if offset["pipeline"] != ours:
            raise StoreConfigurationError(
                f"pipeline {ours!r}: this checkpoint is of pipeline {offset['pipeline']!r}, and says nothing of what "
                f"{ours!r} has delivered: set option 'pipeline' to {offset['pipeline']!r}, also where the query was "
                "renamed; or give the query a new checkpoint: what the store has as done is not read again, and what "
                f"{offset['pipeline']!r} has begun passes to {ours!r} when its heartbeats have stopped. A query over "
                "several sources keeps their order"
            )
        if "store" not in offset:
            raise StoreConfigurationError(
                f"pipeline {ours!r}: a version before 0.3 made this checkpoint; run the query with 0.3 first until it "
                "has read a new batch, or give it a new checkpoint: what the store has as done is not read again"
            )
        seq, store_id = int(offset["seq"]), offset["store"]
        if store_id != self._store_id and seq > self._other_stores.get(store_id, 0):
            # going on after the offset of another store is allowed by an option, and where it skips nothing of this one
            skips_nothing = seq > self._progress.last_seq
            if options.delivery.fail_on_data_loss or not skips_nothing:
                further = ", or set 'failOnDataLoss' to false to go on without what was in it" if skips_nothing else ""
                raise LostProgress(
                    f"pipeline {ours!r}: the checkpoint is at offset {seq} of another store, with the id "
                    f"{store_id}; {options.store} has the id {self._store_id}, and knows nothing of that offset. Name "
                    "the store of this checkpoint in 'storeUrl', or give the query a checkpoint of its own: what this "
                    f"store has as done is not read again. If that store is lost, restore it{further}"
                )
            self._progress.adopt(seq, store_id)
            self._other_stores[store_id] = seq
        self._heard = offset
        return seq
