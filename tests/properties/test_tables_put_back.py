"""What happens to a Delta table, in any order: a batch is refused where a putting back has taken the last one's rows.

The oracle knows rows alone: which are there, which were deleted, and which a putting back has taken.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shard_store.errors import LostProgress
from shard_store.store import open_store
from support import put_back
from support.delta_tables import DeltaLake
from support.iceberg_tables import Query, table_of

OTHERS = 1_000
"""From here on are the ids of rows of others."""


def lines_of(ids: list[int]) -> pa.Table:
    """Rows with a text that a commit's statistics hold as it is, and that Python takes for several lines."""
    return table_of(ids, text=pa.array(["a\u2028b\x85c"] * len(ids), pa.string()))


class PutBack(RuleBasedStateMachine):
    """Batches 0, 1, 2... of ours have a row each."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        url = f"sqlite:///{self.folder}/store.db"
        self.store = open_store(url)
        self.table = self.folder / "table"
        self.query = Query(DeltaLake(self.store, {"store": url, "delta": str(self.table)}))
        self.batches = self.others = 0
        self.rows: dict[int, frozenset[int]] = {}
        """By version: the rows."""
        self.is_taken = self.is_deleted = self.is_over = self.log_is_gone = False

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.table))

    @property
    def last(self) -> int:
        return self.batches - 1

    def now(self) -> frozenset[int]:
        return self.rows[max(self.rows)]

    def note(self, rows: frozenset[int]) -> None:
        """Some commands make several commits, of which the last one says what is there."""
        for version in range(max(self.rows, default=-1) + 1, self.delta.version() + 1):
            self.rows[version] = rows
        assert frozenset(pa.table(self.delta.scan()).column("id").to_pylist()) == rows

    @initialize()
    def first_batches(self) -> None:
        self.rows[0] = frozenset()
        for _ in range(2):
            self.query.batch(lines_of([self.batches]))
            self.batches += 1
            self.note(frozenset(range(self.batches)))

    @precondition(lambda self: not self.is_over)
    @rule(rows=st.booleans())
    def batch(self, rows: bool) -> None:
        if self.log_is_gone and (self.is_taken or self.last not in self.now()):
            self.is_over = True  # nothing tells
            return
        try:
            self.query.batch(lines_of([self.batches] if rows else []))
        except LostProgress:
            event("refused")
            assert self.is_taken or self.is_deleted
            self.is_over = True
            return
        event("taken")
        assert not self.is_taken
        if rows:
            self.batches += 1
            self.note(self.now() | {self.last})
            self.is_deleted = self.log_is_gone = False

    @precondition(lambda self: not self.is_over)
    @rule(number=st.integers(1, 3))
    def others_append(self, number: int) -> None:
        for _ in range(number):
            self.others += 1
            write_deltalake(str(self.table), lines_of([OTHERS + self.others]), mode="append")
            self.note(self.now() | {OTHERS + self.others})

    @precondition(lambda self: not self.is_over)
    @rule()
    def compact(self) -> None:
        self.delta.optimize.compact()
        self.note(self.now())

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.now():
            gone = data.draw(st.sampled_from(sorted(self.now())))
            self.delta.delete(f"id = {gone} AND text <> '\u2028'")
            self.is_deleted |= gone == self.last
            self.note(self.now() - {gone})

    @precondition(lambda self: not self.is_over)
    @rule()
    def vacuum(self) -> None:
        """Versions whose files are gone cannot be put back any more."""
        before = set(self.delta.file_uris())
        self.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        self.note(self.now())
        self._forget(lambda version: set(DeltaTable(str(self.table), version=version).file_uris()) <= before)

    @precondition(lambda self: not self.is_over)
    @rule()
    def clean_the_log(self) -> None:
        if self.delta.metadata().configuration.get("delta.logRetentionDuration") is None:
            self.delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        self.note(self.now())
        self.delta.create_checkpoint()
        self.delta.cleanup_metadata()
        kept = min(int(file.stem) for file in (self.table / "_delta_log").glob("*.json"))
        self._forget(lambda version: version >= kept or version == max(self.rows))
        self.log_is_gone = True

    def _forget(self, is_kept: object) -> None:
        self.rows = {v: rows for v, rows in self.rows.items() if v == max(self.rows) or is_kept(v)}  # type: ignore[operator]

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), spelling=st.sampled_from(sorted(put_back.DELTA)))
    def put_back(self, data: st.DataObject, spelling: str) -> None:
        versions = sorted(self.rows)[:-1]
        if not versions:
            return
        version = data.draw(st.sampled_from(versions))
        before, then = self.now(), self.rows[version]
        put_back.DELTA[spelling](self.table, version)
        self.note(then)
        event(f"put back: {spelling}")
        if self.last in before and self.last not in then:
            self.is_taken = True
        elif self.last in then:
            self.is_taken = self.is_deleted = False

    @precondition(lambda self: self.is_over)
    @rule()
    def is_through(self) -> None:
        return


PutBack.TestCase.settings = settings(
    max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
test_a_delta_table_is_put_back = PutBack.TestCase
