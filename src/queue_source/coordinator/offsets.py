"""The offsets of a pipeline in Spark's checkpoint: written, and read only where they are ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queue_source.coordinator.progress import Progress
from queue_source.coordinator.session import Session
from shard_store.batches.starting import Started
from shard_store.errors import LostProgress, StoreConfigurationError

Offset = Mapping[str, Any]


@dataclass
class Offsets:
    """An offset is `{"pipeline": name, "seq": number, "store": id}` (invariant 10)."""

    _session: Session
    _progress: Progress
    _store_id: str
    _other_stores: dict[str, int]  # the seqs up to which offsets of these stores are accepted here
    _heard: Offset = field(default_factory=dict)  # the last one that Spark handed to us

    @classmethod
    def of(cls, session: Session, progress: Progress, started: Started) -> Offsets:
        return cls(session, progress, started.store_id, dict(started.other_stores))

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
        self._check_pipeline(offset)
        seq, store_id = int(offset["seq"]), offset["store"]
        if store_id != self._store_id and seq > self._other_stores.get(store_id, 0):
            self._adopt(seq, store_id)
        self._heard = offset
        return seq

    def _check_pipeline(self, offset: Offset) -> None:
        ours = self._session.options.pipeline
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

    def _adopt(self, seq: int, store_id: str) -> None:
        """Continue after the offset of another store, if that is allowed and skips nothing of this one."""
        options, last_seq = self._session.options, self._progress.last_seq
        if options.delivery.fail_on_data_loss or seq <= last_seq:
            further = ""
            if seq > last_seq:
                further = ", or set 'failOnDataLoss' to false to go on without what was in it"
            raise LostProgress(
                f"pipeline {options.pipeline!r}: the checkpoint is at offset {seq} of another store, with the id "
                f"{store_id}; {options.store} has the id {self._store_id}, and knows nothing of that offset. Name the "
                "store of this checkpoint in 'storeUrl', or give the query a checkpoint of its own: what this store "
                f"has as done is not read again. If that store is lost, restore it{further}"
            )
        self._progress.adopt(seq, store_id)
        self._other_stores[store_id] = seq
