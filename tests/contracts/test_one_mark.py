"""Contract of every target of rows: a batch is there once, or there is a clear error, whatever dies or is put back.

With real readers, writers, sinks, checkpoints and stores, without Spark. What is put back is as after the first of two
batches; in the first one, where there was none.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from queue_source.foreach_batch import delivery
from queue_source.queues import open_queue
from queue_source.sinks.base import Batch
from queue_source.sinks.delta import log
from queue_source.sinks.iceberg import commits
from queue_source.sinks.marks import Mark
from shard_store.batches.publishing import created_at
from shard_store.completeness.comparing import ListedShard
from shard_store.errors import LostProgress
from shard_store.shards.changes import Audit
from shard_store.sql import schema
from shard_store.store import open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support import put_back
from support.crash_sweep import Outcome, run
from support.delta_tables import DeltaLake
from support.driver_loop import states
from support.iceberg_tables import Lake, Query, failing_at, table_of
from support.store_backends import rows
from support.sweep_sinks import USERS, Cell, catalog, database

STORE, CHECKPOINT, TARGET = "store", "checkpoint", "target"
EVERY = [frozenset(some) for n in range(4) for some in itertools.combinations((STORE, CHECKPOINT, TARGET), n)]
ELSEWHERE = ["Delta", "Iceberg elsewhere", "Iceberg elsewhere, registering", "foreachBatch"]
TABLES = ELSEWHERE[:3]
INSIDE = ["Iceberg", "Iceberg, registering", "queue"]
COMMITTED = dict.fromkeys((*TABLES, *INSIDE[:2]), "table-committed")
COMMITTED |= {"foreachBatch": "output-delivered", "queue": "rows-shown"}


@dataclass(frozen=True)
class World(Cell):
    """A query, whose objects come one by one; each has a row of its name."""

    @classmethod
    def of(cls, column: str, folder: Path) -> World:
        world = cls(column, folder, f"sqlite:///{folder}/store.db", f"sqlite:///{folder}/elsewhere.db")
        (folder / "objects").mkdir()
        for url in (world.store, world.elsewhere):
            with database(url) as engine:
                USERS.create(engine)
        return world

    def put(self, name: str, row: str | None = None, *, announce: bool = True) -> None:
        file = self.folder / "objects" / f"{name}.json"
        if self.sink.registers:
            pq.write_table(pa.table({"value": [row or name]}), file)
        else:
            file.write_text(json.dumps({"value": row or name}))
        if announce:
            with open_queue(f"sql+{self.elsewhere}?queue=files") as queue:
                queue.publish([file.as_uri()])

    def feed(self, *names: str) -> None:
        """Each in a batch of its own."""
        for name in names:
            self.put(name)
            self.works()

    def works(self, **options: str) -> None:
        if failed := run(self, options=options).failed:
            raise failed

    def passes_to(self, column: str) -> World:
        """Another pipeline of the source, of a query with this sink, may take over from now on."""
        (self.folder / "checkpoint").rename(self.folder / "checkpoint.p")
        self.ends_heartbeats()
        self.end_leases()
        return replace(self, column=column)

    def ends_heartbeats(self) -> None:
        with database(self.store) as engine, engine.begin() as connection:
            connection.execute(schema.pipelines.update().values(heartbeat_at=0, stale_at=0))

    def comes_back(self) -> None:
        """The query of the pipeline that has died."""
        (self.folder / "checkpoint").rename(self.folder / "checkpoint.q")
        (self.folder / "checkpoint.p").rename(self.folder / "checkpoint")
        self.end_leases()

    def dies(self, at: str = "") -> None:
        outcome: Outcome = run(self, f"{at or COMMITTED[self.column]}=raise", dies=True)
        assert outcome.failed is not None
        self.end_leases()

    def refuses(self, why: str) -> None:
        for _ in range(2):
            with pytest.raises(LostProgress, match=why):
                self.works()

    def found(self) -> Counter[str]:
        """What the target has; of foreachBatch the output in another database."""
        if self.column != "foreachBatch":
            return self.sink.found(self)
        with database(self.elsewhere) as engine, engine.connect() as connection:
            return Counter(connection.execute(sa.select(USERS.c.value)).scalars())

    def has(self, *names: str) -> None:
        assert self.found() == Counter(names)

    def states(self) -> dict[str, int]:
        with open_store(self.store) as store:
            return dict(states(store))

    # putting back

    def point(self, *, has_target: bool = True) -> Callable[[str], None]:
        """Remember how all is now; returns what puts a part back to it. `has_target`: a batch has come there."""
        store, checkpoint = self.folder / "store.db", self.folder / "checkpoint"
        with closing(sqlite3.connect(store)) as now, closing(sqlite3.connect(self.folder / "backup.db")) as copy:
            now.backup(copy)
        if checkpoint.exists():
            shutil.copytree(checkpoint, self.folder / "checkpoint.then")
        target = self._point_of_target() if has_target else void

        def put_back(part: str) -> None:
            if part == TARGET:
                target()
            elif part == CHECKPOINT:
                shutil.rmtree(checkpoint)
                if (self.folder / "checkpoint.then").exists():
                    shutil.copytree(self.folder / "checkpoint.then", checkpoint)
            else:
                for file in self.folder.glob("store.db*"):
                    file.unlink()
                shutil.copyfile(self.folder / "backup.db", store)

        return put_back

    def _point_of_target(self) -> Callable[[], None]:
        if self.column == "Delta":
            version = self.delta().version()
            return lambda: void(self.delta().restore(version))
        if self.column == "foreachBatch":
            then = {table: self._all(table) for table in (USERS, schema.outputs)}
            return lambda: self._replace(then)
        snapshot = self.table().metadata.current_snapshot_id
        return lambda: self._roll_back(snapshot)

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "delta"))

    def table(self) -> Any:
        opened = catalog(self.store if self.column in INSIDE else self.elsewhere)
        return opened.load_table("db.events")

    def _roll_back(self, snapshot: int) -> None:
        table = self.table()
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(snapshot)
        table.catalog.close()

    def _all(self, table: sa.Table) -> list[dict[str, Any]]:
        with database(self.elsewhere) as engine, engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(table))]

    def _replace(self, then: dict[sa.Table, list[dict[str, Any]]]) -> None:
        with database(self.elsewhere) as engine, engine.begin() as connection:
            for table, kept in then.items():
                connection.execute(table.delete())
                if kept:
                    connection.execute(table.insert(), kept)


def void(_: object = None) -> None:
    """Return nothing."""


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> World:
    return World.of(request.param, tmp_path)


def over(*columns: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", columns, indirect=True)


BEHIND = r"checkpoint is at offset 2, but the store .* knows offsets only up to 1"
AHEAD = r"and the store has not published it: the store was restored from a backup"
PUT_BACK = r"was put back to before the batch"
REFUSED = {
    frozenset({STORE}): BEHIND,
    frozenset({STORE, TARGET}): BEHIND,
    frozenset({STORE, CHECKPOINT}): AHEAD,
    frozenset({TARGET}): PUT_BACK,
    frozenset({CHECKPOINT, TARGET}): PUT_BACK,
}
"""What is put back -> how it is refused. Of all other combinations each row is there once."""


@pytest.mark.parametrize("back", EVERY, ids=lambda back: "+".join(sorted(back)) or "nothing")
@over(*ELSEWHERE)
def test_what_is_put_back_by_one_batch_is_refused_or_its_rows_are_there_once(
    world: World, back: frozenset[str]
) -> None:
    world.feed("first")
    put_back = world.point()
    world.feed("second")
    for part in back:
        put_back(part)
    world.put("third")
    why = REFUSED.get(back)
    if world.column == "foreachBatch" and TARGET in back and STORE not in back:
        why = None  # not noticed, as the page says: an output need not be written in every batch
    second = [] if TARGET in back else ["second"]
    if why is None:
        world.works()
        world.has("first", *second, "third")
        return
    world.refuses(why)
    world.has("first", *second)
    world.works(failOnDataLoss="false")
    world.has("first", *second, "third")
    world.feed("fourth")
    world.has("first", *second, "third", "fourth")


@over("Iceberg", "Iceberg, registering")
def test_a_table_in_the_stores_catalog_goes_back_with_the_store_and_alone_it_is_noticed(world: World) -> None:
    world.feed("first")
    put_back = world.point()
    world.feed("second")
    put_back(TARGET)
    world.put("third")
    world.refuses(PUT_BACK)
    world.works(failOnDataLoss="false")
    world.has("first", "third")
    put_back(STORE)
    world.put("fourth")
    world.refuses(BEHIND.replace("2", "3"))
    put_back(CHECKPOINT)
    world.works()
    world.has("first", "fourth")


@pytest.mark.parametrize(
    ("at", "loses"), [("before-publish", ()), ("the commit", ()), ("the commit", (CHECKPOINT,)), ("published", ())]
)
@over(*ELSEWHERE, *INSIDE)
def test_a_batch_that_dies_before_between_or_after_the_commits_is_there_once(
    world: World, at: str, loses: tuple[str, ...]
) -> None:
    world.feed("first")
    for name in ("second", "also"):
        world.put(name)
    world.dies(COMMITTED[world.column] if at == "the commit" else at)
    if loses:
        shutil.rmtree(world.folder / "checkpoint")
    world.works()
    world.has("first", "second", "also")
    world.feed("third")
    world.has("first", "second", "also", "third")
    assert world.states() == {"done": 4}


@over(*TABLES)
def test_a_batch_whose_commit_was_undone_before_the_next_attempt_is_written_again(world: World) -> None:
    """Application transactions survive a RESTORE, and properties of a table a rollback."""
    world.feed("first")
    put_back = world.point()
    world.put("second")
    world.dies()
    world.has("first", "second")
    put_back(TARGET)
    world.has("first")
    world.works()
    world.feed("third")
    world.has("first", "second", "third")


@pytest.mark.parametrize("others", [pytest.param(0, marks=pytest.mark.thorough), 25])
@pytest.mark.parametrize("spelling", put_back.DELTA)
@over("Delta")
def test_a_delta_table_that_is_put_back_in_any_spelling_is_noticed_any_number_of_commits_later(
    world: World, spelling: str, others: int
) -> None:
    world.feed("first")
    version = world.delta().version()
    world.feed("second")
    put_back.DELTA[spelling](world.folder / "delta", version)
    world.has("first")
    for _ in range(others):
        append_others(world)
    world.put("third")
    world.refuses(PUT_BACK)
    world.has("first", *["other"] * others)
    world.works(failOnDataLoss="false")
    world.feed("fourth")
    world.has("first", "third", "fourth", *["other"] * others)


@pytest.mark.parametrize("spelling", put_back.DELTA)
@over("Delta")
def test_a_batch_that_is_put_back_in_any_spelling_between_two_attempts_is_written_again(
    world: World, spelling: str
) -> None:
    world.feed("first")
    version = world.delta().version()
    world.put("second")
    world.dies()
    put_back.DELTA[spelling](world.folder / "delta", version)
    append_others(world)
    world.works()
    world.feed("third")
    world.has("first", "other", "second", "third")


@pytest.mark.parametrize(
    ("world", "spelling"),
    [
        *(("Delta", spelling) for spelling in put_back.DELTA),
        *((kind, spelling) for kind in ("Iceberg", "Iceberg elsewhere") for spelling in put_back.ICEBERG),
    ],
    indirect=["world"],
)
def test_a_table_that_is_put_back_by_more_than_the_batch_whose_query_died_is_noticed(
    world: World, spelling: str
) -> None:
    """That batch is written again only where the batch before is still there."""
    world.feed("first")
    is_delta = world.column == "Delta"
    before = world.delta().version() if is_delta else world.table().metadata.current_snapshot_id
    world.feed("second")
    world.put("third")
    world.dies()
    if is_delta:
        put_back.DELTA[spelling](world.folder / "delta", before)
    else:
        put_back.ICEBERG[spelling](world.table(), before)
    append_others(world)
    world.refuses(PUT_BACK)


@pytest.mark.parametrize(
    "then",
    [
        "appends",
        "compacts, expires",
        *(pytest.param(then, marks=pytest.mark.thorough) for then in ("", "expires", "appends, expires")),
    ],
)
@pytest.mark.parametrize("spelling", put_back.ICEBERG)
@over("Iceberg elsewhere", "Iceberg")
def test_an_iceberg_table_that_is_put_back_in_any_spelling_is_noticed_also_when_its_snapshots_expire(
    world: World, spelling: str, then: str
) -> None:
    world.feed("first")
    snapshot = world.table().metadata.current_snapshot_id
    world.feed("second")
    put_back.ICEBERG[spelling](world.table(), snapshot)
    world.has("first")
    if "appends" in then:
        append_others(world)
    if "compacts" in then:
        put_back.compact(world.table())
    if "expires" in then:
        put_back.expire(world.table())
    kept = world.found()
    world.put("third")
    world.refuses(PUT_BACK)
    world.works(failOnDataLoss="false")
    world.feed("fourth")
    assert world.found() == kept + Counter(["third", "fourth"])


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("dies", "compacts"), [(False, False), (False, True), (True, False)])
@over("Iceberg elsewhere")
def test_a_batch_whose_snapshot_expires_is_there_also_when_its_files_were_rewritten(
    world: World, dies: bool, compacts: bool, times: int
) -> None:
    """Those of a batch that died: PyIceberg can only overwrite them, which is no rewriting."""
    world.feed("first")
    world.put("second")
    if dies:
        world.dies()
    else:
        world.works()
    for _ in range(times):
        append_others(world)
        if compacts:
            put_back.compact(world.table())
        put_back.expire(world.table())
    world.works()
    world.feed("third")
    world.has("first", "second", *["other"] * times, "third")


def to_what_it_had(world: World) -> None:
    """A foreign row is put back; what a batch has brought stays, or comes back."""
    version = world.delta().version()
    append_others(world)
    folder = world.folder / "delta"
    put_back.DELTA["without information"](folder, version)
    put_back.DELTA["delta-spark, time"](folder, version - 1)  # that of the batch itself
    put_back.DELTA["delta-spark, time"](folder, version)


def forwards(world: World) -> None:
    """By a client that tells nothing: it only adds the files again."""
    version = world.delta().version()
    put_back.DELTA["without information"](world.folder / "delta", version - 1)
    put_back.DELTA["without information"](world.folder / "delta", version)


def compact_and_put_back_to_that(world: World) -> None:
    world.delta().optimize.compact()
    version = world.delta().version()
    append_others(world)
    put_back.DELTA["without information"](world.folder / "delta", version)


def delete_all_without_information(world: World) -> None:
    """Of the files of all batches and of others one stays: that is no earlier version."""
    append_others(world)
    batches = [file for path, file in put_back.files_of(world.delta()).items() if not path.startswith("part-")]
    put_back.commit(world.folder / "delta", [{"remove": {**file, "deletionTimestamp": 1}} for file in batches])


@pytest.mark.parametrize(
    ("change", "left"),
    [(to_what_it_had, ["first", "second"]), (forwards, ["first", "second"]),
     (delete_all_without_information, ["other"]), (compact_and_put_back_to_that, ["first", "second"])],
)  # fmt: skip
@pytest.mark.parametrize("dies", [False, True])
@over("Delta")
def test_what_keeps_the_rows_of_a_batch_or_deletes_them_is_not_taken_for_putting_back(
    world: World, dies: bool, change: Callable[[World], None], left: list[str]
) -> None:
    world.feed("first")
    world.put("second")
    if dies:
        world.dies()
    else:
        world.works()
    change(world)
    world.works()
    world.feed("third")
    world.has(*left, "third")


@pytest.mark.parametrize("at", ["plan-made", "before-publish", "the commit", "published"])
@pytest.mark.parametrize("heir", ["the same", "path"])
@over(*TABLES)
def test_a_batch_that_a_pipeline_has_left_between_the_commits_comes_once_when_another_takes_over(
    world: World, at: str, heir: str
) -> None:
    if world.sink.registers and heir == "path":
        pytest.skip("its objects are of another format")
    world.feed("first")
    for name in ("second", "also"):
        world.put(name)
    world.dies(COMMITTED[world.column] if at == "the commit" else at)
    other = world.passes_to(world.column if heir == "the same" else "path")
    other.works(pipeline="q")
    other.put("third")
    other.works(pipeline="q")
    found = world.found() if heir == "the same" else world.found() + other.found()
    assert found == Counter(["first", "second", "also", "third"])
    assert world.states() == {"done": 4}
    world.comes_back()
    world.feed("fourth")
    found = world.found() if heir == "the same" else world.found() + other.found()
    assert found == Counter(["first", "second", "also", "third", "fourth"])


@over("Delta", "Iceberg elsewhere")
def test_what_another_pipeline_has_read_of_a_batch_that_is_in_the_table_is_told_when_its_query_comes_back(
    world: World,
) -> None:
    """The store goes back to before it knew the table: who takes over then has nowhere to look."""
    world.put("first")
    world.dies("plan-made")
    put_back = world.point(has_target=False)
    world.works()
    world.has("first")
    for part in (CHECKPOINT, STORE):
        put_back(part)
    other = world.passes_to("path")
    other.put("first")  # its first message is acknowledged
    other.works(pipeline="q")
    assert other.found() == Counter(["first"])
    world.comes_back()
    world.refuses("has passed to another pipeline")
    world.works(failOnDataLoss="false")
    world.feed("second")
    world.has("first", "second")


@pytest.mark.parametrize("at", ["plan-made", "output-delivered", "published"])
@over("foreachBatch")
def test_a_batch_with_an_output_elsewhere_waits_for_its_query_and_one_without_passes_to_another(
    world: World, at: str
) -> None:
    """What else belongs to such a batch only the user's own function knows."""
    world.feed("first")
    world.put("second")
    world.dies(at)
    other = world.passes_to("path")
    other.works(pipeline="q")
    assert other.found() == Counter(["second"] if at == "plan-made" else [])
    world.comes_back()
    world.feed("third")
    world.has("first", "third", *([] if at == "plan-made" else ["second"]))


@pytest.mark.parametrize("repeats", [False, True])
@over("Delta", "Iceberg elsewhere", "foreachBatch")
def test_where_nobody_can_look_the_objects_wait_for_the_query_that_had_them(
    world: World, repeats: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.feed("first")
    world.put("second")
    world.dies()
    other = world.passes_to("path")
    unknown = "the place cannot be reached"
    with patch("queue_source.sinks.takeover._look", side_effect=OSError(unknown)):
        if repeats:
            other.works(pipeline="q", onUnknownTakeover="repeat")
            assert other.found() == Counter(["second"])
            return
        other.works(pipeline="q")
    assert f"waits for objects of pipeline p: {unknown}" in caplog.text
    assert other.found() == Counter()
    world.comes_back()
    world.works()
    world.has("first", "second")


def compact(world: World) -> None:
    world.delta().optimize.compact()
    world.delta().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def delete_rows(world: World) -> None:
    if world.column == "Delta":
        world.delta().delete("value = 'first'")
    else:
        world.table().delete("value = 'first'")


def append_others(world: World) -> None:
    if world.column == "Delta":
        write_deltalake(str(world.folder / "delta"), pa.table({"value": ["other"]}), mode="append")
    else:
        world.table().append(pa.table({"value": ["other"]}))


def forget_log(world: World) -> None:
    """What tells of the commit itself is gone; its files are there."""
    if world.column == "Delta":
        world.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        world.delta().create_checkpoint()
        world.delta().cleanup_metadata()
    else:
        append_others(world)
        table = world.table()
        kept = table.metadata.current_snapshot_id
        gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != kept]
        table.maintenance.expire_snapshots().by_ids(gone).commit()


def restore_to_now(world: World) -> None:
    append_others(world)
    world.delta().restore(world.delta().version() - 1)


@pytest.mark.parametrize(
    ("change", "left"),
    [(compact, ["first", "second"]), (delete_rows, ["second"]), (append_others, ["first", "second", "other"]),
     (forget_log, ["first", "second"]), (restore_to_now, ["first", "second"])],
)  # fmt: skip
@over("Delta", "Iceberg elsewhere")
def test_a_batch_is_recognised_whatever_else_happened_to_the_table_in_between(
    world: World, change: Callable[[World], None], left: list[str]
) -> None:
    if world.column != "Delta" and change in (compact, restore_to_now):
        pytest.skip("PyIceberg has no such command")
    world.feed("first")
    world.put("second")
    world.dies()
    change(world)
    other = ["other"] if change is forget_log and world.column != "Delta" else []
    world.works()
    world.feed("third")
    world.has(*left, *other, "third")


@pytest.mark.parametrize("forgets", [False, True])
@over("Delta", "Iceberg elsewhere")
def test_where_nothing_tells_whether_the_rows_are_there_the_batch_is_refused(world: World, forgets: bool) -> None:
    world.feed("first")
    world.put("second")
    world.dies()
    other = pa.table({"value": ["other"]})
    if world.column == "Delta":
        write_deltalake(str(world.folder / "delta"), other, mode="overwrite")
    else:
        world.table().overwrite(other)
    if forgets:
        forget_log(world)
    kept = world.found()
    world.refuses("nothing tells whether its rows are there: look for them, and delete them if they are")
    assert world.found() == kept
    world.works(failOnDataLoss="false")
    assert world.found() == kept + Counter(["second"])


@over("Delta", "Iceberg elsewhere")
def test_the_marks_of_version_0_3_0_are_known(world: World) -> None:
    """They name no store; its Iceberg tables have the time at which the pipeline was made, and no property."""
    with open_store(world.store) as store:
        store.start("s", "p", settings={})
        created = store.database.read(lambda t: created_at(t, "p"))

    def as_before(mark: Mark, *_: object) -> dict[str, str]:
        plan = mark.first
        values = {"source": "s", "pipeline": "p", "start-seq": plan.start_seq, "end-seq": plan.end_seq}
        values |= {"delivery-hash": mark.delivery_hash, "batch-id": mark.batch_id, "pipeline-created": created}
        return {f"cuesqueue.{name}": str(value) for name, value in values.items()}

    with (
        patch.object(Mark, "properties", as_before),
        patch.object(commits, "json", SimpleNamespace(dumps=lambda _: "")),
    ):
        world.feed("zeroth", "first")
        world.put("second")
        world.dies()
    append_others(world)
    world.works()
    world.feed("third")
    world.has("zeroth", "first", "second", "other", "third")


@over("Delta", "Iceberg elsewhere")
def test_what_a_later_attempt_finds_of_an_object_is_no_verdict_on_rows_that_are_there(world: World) -> None:
    """It was overwritten after the first attempt has committed its rows."""
    world.feed("first")
    for name in ("second", "also"):
        world.put(name)
    world.dies()
    world.put("second", "another content, which is longer", announce=False)
    world.works()
    world.has("first", "second", "also")
    assert world.states() == {"done": 3}


@over(*TABLES)
def test_the_verdicts_of_the_attempt_whose_rows_are_there_count_also_in_a_store_that_has_lost_them(
    world: World,
) -> None:
    """The object is there by now, and readable; the batch is in the table without it."""
    world.feed("first")
    for name in ("second", "late"):
        world.put(name)
    (world.folder / "objects" / "late.json").unlink()
    world.dies("plan-made")
    put_back = world.point()
    world.dies()
    put_back(STORE)
    world.put("late", announce=False)
    world.works()
    world.has("first", "second")
    assert world.states() == {"done": 2, "quarantined": 1}
    with open_store(world.store) as store:
        assert [error["cause"] for error in rows(store, "errors")] == ["missing-object"]


@over(*TABLES, "Iceberg", "Iceberg, registering")
def test_a_transaction_of_the_store_that_runs_again_finds_its_own_commit(world: World) -> None:
    world.feed("first")
    for name in ("second", "bad"):
        world.put(name)
    if world.sink.registers:
        (world.folder / "objects" / "bad.json").write_text("no Parquet: the commit records it")
    else:
        (world.folder / "objects" / "bad.json").unlink()
    runs: list[str] = []

    def trouble(place: str, *about: str) -> None:
        if place == "table-committed":
            runs.append(place)
            if len(runs) == 1:
                raise sa.exc.OperationalError("COMMIT", {}, sqlite3.OperationalError("database is locked"))

    with patch("queue_source.sinks.marks.reach", trouble):
        world.works()
    world.feed("third")
    world.has("first", "second", "third")
    assert world.states() == {"done": 3, "quarantined": 1}
    assert len(runs) == 2


@pytest.mark.parametrize("empties", ["deletes", "puts back"])
@over("Delta", "Iceberg elsewhere", "foreachBatch")
def test_a_source_that_is_reset_begins_anew_however_its_table_was_emptied(world: World, empties: str) -> None:
    world.feed("first")
    put_back = world.point()
    world.feed("second")
    if empties == "deletes":
        world.put("third")
        world.dies()
        if world.column == "foreachBatch":
            world._replace({USERS: []})
        else:
            (world.delta() if world.column == "Delta" else world.table()).delete()
    else:
        put_back(TARGET)
    shutil.rmtree(world.folder / "checkpoint")
    with open_store(world.store) as store:
        with store.database.engine.begin() as connection:
            connection.execute(schema.pipelines.update().values(heartbeat_at=0, stale_at=0))  # it is dead
        store.reset(["s"], Audit("me", "the table is loaded anew"), message_uri="")
    world.feed("second", "third")
    world.has(*(["first"] if empties == "puts back" else []), "second", "third")


@over(*ELSEWHERE)
def test_a_new_checkpoint_is_not_taken_for_a_restored_store_once_the_attempts_before_it_are_pruned(
    world: World,
) -> None:
    world.feed("first", "second", "third")
    shutil.rmtree(world.folder / "checkpoint")
    world.feed("fourth", "fifth")
    with open_store(world.store) as store:
        assert store.prune(RetentionPolicy(), datetime.now(timezone.utc) + timedelta(days=60)).attempts
    world.feed("sixth")
    world.has("first", "second", "third", "fourth", "fifth", "sixth")


@over(*ELSEWHERE)
def test_what_a_restored_store_reads_again_of_the_middle_of_a_batch_comes_twice_as_the_error_and_the_log_say(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.feed("first")
    world.put("second")
    world.dies("plan-made")
    put_back = world.point()
    world.works()
    put_back(STORE)
    world.refuses("its rows come twice where they are in a table of their own or in another database")
    world.works(failOnDataLoss="false")
    world.has("first", "second", *([] if world.sink.registers else ["second"]))  # a file of the table is refused
    assert AHEAD in caplog.text


@pytest.mark.parametrize("idle", [None, "one", "two"])
@pytest.mark.parametrize("target", ["Delta", "Iceberg elsewhere", "delivery"])
def test_a_batch_of_several_pipelines_is_the_same_in_whichever_order_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iceberg_threads: None, target: str, idle: str | None
) -> None:
    """A query is killed between the commits, and started again with its pipelines in another order."""
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    with open_store(f"sqlite:///{tmp_path}/store.db") as store, database(elsewhere) as engine:
        options = {"store": f"sqlite:///{tmp_path}/store.db"}
        to_iceberg = {"table": "db.t", "warehouse": str(tmp_path), "catalog.type": "sql", "catalog.uri": elsewhere}
        lake: Any = DeltaLake(store, {**options, "delta": str(tmp_path / "table")})
        if target == "Iceberg elsewhere":
            lake = Lake(store, {**options, **to_iceberg}, {"type": "sql", "uri": elsewhere}, "db.t")
        USERS.create(engine)
        one, two = Query(lake, "one"), Query(lake, "two")

        def attempt(number: int, row: int, *queries: Query) -> None:
            plans = tuple(query.pipeline.plan().identity for query in queries)
            if target == "delivery":
                with delivery(store, [query.name for query in queries], number) as batch:
                    with batch.output("o", engine) as output:
                        if not output.already:
                            output.connection.execute(USERS.insert(), [{"value": str(row)}])
                return
            one.batch_id = number
            _, written = queries[0].written(table_of([row]))
            one.commit(Batch(plans), written)

        def found() -> list[int]:
            if target != "delivery":
                return list(lake.ids())
            with engine.connect() as connection:
                return sorted(map(int, connection.execute(sa.select(USERS.c.value)).scalars()))

        for query in (one, two):
            query.begin("first")
        attempt(0, 1, one, two)
        for query in (one, two):
            query.end()
            if query.name != idle:
                query.begin("second")
        with failing_at(monkeypatch, "output-delivered" if target == "delivery" else "table-committed"):
            attempt(1, 2, one, two)
        attempt(1, 2, two, one)
        for query in (one, two):
            query.end()
            query.begin("third")
        attempt(2, 3, two, one)
        assert found() == [1, 2, 3]


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[DeltaLake | Lake]:
    store_url, elsewhere = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db"
    with open_store(store_url) as store:
        if request.param == "Delta":
            yield DeltaLake(store, {"store": store_url, "delta": str(tmp_path / "table")})
        else:
            options = {"table": "db.t", "warehouse": str(tmp_path), "catalog.type": "sql", "catalog.uri": elsewhere}
            yield Lake(store, {"store": store_url, **options}, {"type": "sql", "uri": elsewhere}, "db.t")


@pytest.mark.parametrize(("dies", "then"), [("one two", "two"), ("two", "one two"), ("one", "one two")])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("lake", ["Delta", "Iceberg elsewhere"], indirect=True)
def test_what_died_between_the_commits_is_not_committed_again_by_a_query_of_other_pipelines(
    lake: DeltaLake | Lake, monkeypatch: pytest.MonkeyPatch, is_first: bool, dies: str, then: str
) -> None:
    queries = {name: Query(lake, name) for name in ("one", "two")}

    def attempt(number: int, names: str) -> None:
        plans = tuple(queries[name].pipeline.plan().identity for name in names.split())
        query = queries[names.split()[0]]
        query.batch_id = number
        _, written = query.written(table_of([number]))
        query.commit(Batch(plans), written)

    if not is_first:
        for query in queries.values():
            query.batch(table_of([0]))
    for query in queries.values():
        query.begin("next")
    with failing_at(monkeypatch, "table-committed"):
        attempt(1, dies)
    with pytest.raises(LostProgress, match=AHEAD):
        attempt(2, then)


@pytest.mark.parametrize("lake", ["Delta"], indirect=True)
def test_a_batch_without_input_does_not_read_the_whole_log(lake: DeltaLake) -> None:
    """It ends where the batch before ended, which has been there: a restored store does not come to mind."""
    query = Query(lake)
    for number in range(9):
        query.batch(table_of([number]))
    query.batch_id += 1
    with patch.object(log, "LoggedCommit", side_effect=log.LoggedCommit) as read:
        query.attempt(table_of([9]))
    assert 0 < read.call_count < 4
    assert lake.ids() == list(range(10))


@pytest.mark.parametrize("lake", ["Delta"], indirect=True)
def test_what_others_have_committed_is_looked_at_once(lake: DeltaLake) -> None:
    query = Query(lake)
    query.batch(table_of([0]))
    counts = []
    for batch in range(4):
        for _ in range(10):
            write_deltalake(str(lake.folder), table_of([100 + batch]), mode="append")
        with patch.object(log, "LoggedCommit", side_effect=log.LoggedCommit) as read:
            query.batch(table_of([]))
        counts.append(read.call_count)
    assert max(counts) <= 13


@pytest.mark.parametrize("column", ["foreachBatch", "foreign"])
def test_where_nothing_tells_who_took_the_very_first_batch_its_objects_are_not_called_published(
    tmp_path: Path, column: str
) -> None:
    """The store was put back behind it: a sink of ours has made itself known in what is lost, another one never has."""
    world = World.of(column, tmp_path)
    world.put("first")
    world.dies("plan-made")
    put_back = world.point(has_target=False)
    world.works()
    put_back(STORE)
    world.put("second")
    world.works()
    with open_store(world.store) as store:
        objects = [world.folder / "objects" / f"{name}.json" for name in ("first", "second")]
        listed = [ListedShard(file.as_uri(), None, None, 0) for file in objects]
        assert [finding.category.value for finding in store.compare("s", listed)] == ["given_up", "published"]


@pytest.mark.parametrize("lake", ["Delta", "Iceberg elsewhere"], indirect=True)
def test_a_table_that_was_put_back_after_a_reset_is_told_though_one_of_its_pipelines_is_idle_since(
    lake: DeltaLake | Lake,
) -> None:
    def attempt(number: int, new: str, *queries: Query) -> None:
        for query in queries:
            if query.name in new:
                query.begin(f"{query.name} {number}")
        plans = tuple(query.pipeline.plan().identity for query in queries)
        queries[0].batch_id = number
        _, written = queries[0].written(table_of([number]))
        queries[0].commit(Batch(plans), written)
        for query in queries:
            query.end()

    attempt(0, "one two", *(Query(lake, name) for name in ("one", "two")))
    with lake.store.database.engine.begin() as connection:
        connection.execute(schema.pipelines.update().values(heartbeat_at=0, stale_at=0))
    lake.store.reset(["source of one", "source of two"], Audit("me", "anew"), message_uri="")
    one, two = Query(lake, "one"), Query(lake, "two")
    if isinstance(lake, DeltaLake):
        version = lake.table().version()
        attempt(1, "one", one, two)
        lake.table().restore(version)
    else:
        snapshot = lake.table().metadata.current_snapshot_id or 0
        attempt(1, "one", one, two)
        with lake.table().manage_snapshots() as manage:
            manage.rollback_to_snapshot(snapshot)
    with pytest.raises(LostProgress, match="was put back to before the batch"):
        attempt(2, "one", one, two)
    assert list(lake.ids()) == [0]
