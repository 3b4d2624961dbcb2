"""The Delta sink over stores: what is published is in the table, once, whatever happens in between."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from queue_source.errors import OptionError
from queue_source.sinks.delta.commits import DeltaTarget
from queue_source.sinks.delta.tables import TableMaker
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError
from support.delta_tables import DeltaLake, change_by_hand
from support.iceberg_tables import Query, failing_at, table_of
from support.servers.ministack import REGION, client, new_name
from support.store_backends import BACKENDS, StoreBackend, rows


@pytest.fixture(params=BACKENDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeltaLake]:
    """A table that is yet to be made, and each kind of store."""
    backend = StoreBackend(request.param, f"sqlite:///{tmp_path / 'store.db'}")
    if request.param != "sqlite":
        backend.url = request.getfixturevalue(f"{request.param}_store_url")
        backend.wipe()
    yield DeltaLake(backend.open(), {"store": backend.url, "delta": str(tmp_path / "table")})
    backend.close()


on_sqlite = pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
"""For what is between Delta and the files alone."""


def test_batches_of_several_tasks_are_in_the_table_one_commit_each(lake: DeltaLake) -> None:
    query = Query(lake)
    query.batch(table_of(range(10)), table_of(range(10, 13)), table_of([]))
    query.batch(table_of([13]))
    assert lake.ids() == list(range(14))
    first, second = sorted(rows(lake.store, "attempts"), key=lambda attempt: attempt["end_seq"])
    assert (first["kind"], first["rows"], first["splits"], first["bytes"] > 0) == ("attempt-output", 13, 0, True)
    told = {
        "cuesqueue.source": "source of p",
        "cuesqueue.pipeline": "p",
        "cuesqueue.start-seq": "1",
        "cuesqueue.end-seq": "2",
        "cuesqueue.batch-id": "1",
        "cuesqueue.delivery-hash": second["delivery_hash"],
    }
    assert len(lake.commits()) == 2
    assert told.items() <= lake.commits()[1].items()
    assert lake.table().transaction_version(f"cuesqueue/{lake.store.store_id()}/source of p/p") == 2


def test_a_batch_without_rows_is_an_attempt_and_no_commit(lake: DeltaLake) -> None:
    Query(lake).batch(table_of([]))
    assert [attempt["kind"] for attempt in rows(lake.store, "attempts")] == ["attempt-nil"]
    assert lake.commits() == []


def test_a_second_commit_of_a_batch_does_nothing(lake: DeltaLake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1, 2]))
    query.commit(*written)
    query.commit(*written)
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2], 1)


def test_files_that_are_not_on_the_drivers_machine_are_not_committed(lake: DeltaLake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1, 2]))
    for task in written[1]:
        for file in task.files:
            (lake.folder / file.path).unlink()
    with pytest.raises(OptionError, match=r"option 'path': of 1 local files .* 1 are not on the driver's machine"):
        query.commit(*written)
    assert (lake.commits(), rows(lake.store, "attempts")) == ([], [])


def test_a_batch_without_new_input_is_there_once_though_it_ends_at_the_same_offset(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stateful query brings rows of its state: the plan is the one before, under other numbers of Spark's."""
    query = Query(lake)
    query.batch(table_of([1]))
    batch, written = query.written(table_of([2]))
    query.batch_id += 1
    with failing_at(monkeypatch, "table-committed"):
        query.commit(batch, written)
    query.commit(*query.written(table_of([2])))
    query.batch_id += 1
    query.commit(*query.written(table_of([3])))
    assert lake.ids() == [1, 2, 3]
    assert [commit["cuesqueue.end-seq"] for commit in lake.commits()] == ["1", "1", "1"]
    query.batch(table_of([4]))
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2, 3, 4], 4)


def test_a_driver_that_was_replaced_publishes_nothing(lake: DeltaLake) -> None:
    zombie = Query(lake)
    zombie.begin()
    written = zombie.written(table_of([1]))
    Query(lake)
    with pytest.raises(PipelineTakenOver):
        zombie.commit(*written)
    assert (lake.commits(), rows(lake.store, "attempts")) == ([], [])


def test_a_driver_that_was_replaced_does_not_say_where_the_newer_one_commits(lake: DeltaLake, tmp_path: Path) -> None:
    """It slept between its plan and its table, and would lead astray who takes the objects over."""
    query, rows_of_it = Query(lake), table_of([1])
    query.begin()
    old, sink = query.pipeline.plan().identity, query.sink()
    lake.options["delta"] = str(tmp_path / "another table")
    query.restart()
    query.attempt(rows_of_it)
    noted = lake.store.targets(["p"])
    with pytest.raises(PipelineTakenOver):
        sink.prepare(lake.store, rows_of_it.schema, (old,))
    assert lake.store.targets(["p"]) == noted


def test_pipelines_that_make_one_table_and_commit_to_it_at_once_lose_and_double_nothing(lake: DeltaLake) -> None:
    failures: list[BaseException] = []
    begin = threading.Barrier(3)

    def run(number: int) -> None:
        try:
            query = Query(lake, f"pipeline {number}")
            begin.wait()
            for step in range(3):
                query.batch(table_of([100 * number + step], **{f"column_{number}": pa.array([step])}))
        except BaseException as error:  # noqa: BLE001 -- told below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert lake.ids() == [100 * number + step for number in (1, 2, 3) for step in range(3)]
    assert len(lake.actions("protocol")) == 1, "the table was made more than once"
    assert len(rows(lake.store, "attempts")) == 9


def test_a_table_that_another_query_makes_and_fills_after_the_look_at_its_folder_is_taken(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Query(lake, "first").batch(table_of([1]))
    looks = iter([None])  # the table was not there yet
    look = TableMaker.open
    monkeypatch.setattr(TableMaker, "open", lambda self: next(looks, look(self)))
    Query(lake, "second").batch(table_of([2], more=pa.array(["a column that the other has not"])))
    assert lake.ids() == [1, 2]
    assert [row["more"] for row in lake.read()] == [None, "a column that the other has not"]


def test_the_same_batch_committed_by_another_driver_meanwhile_is_noticed(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a zombie that comes back after the look at the table, and before the commit."""
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    append = DeltaTarget.append
    others: list[DeltaTarget] = []

    def another_first(self: DeltaTarget, mark: Mapping[str, str]) -> None:
        if not others:
            others.append(copy(self))
            others[0].open(cast(Any, None))  # the transaction of a store that this table is not in
            append(others[0], mark)
        append(self, mark)

    monkeypatch.setattr(DeltaTarget, "append", another_first)
    query.attempt(table_of([2]))
    assert (lake.ids(), len(others), len(rows(lake.store, "attempts"))) == ([1, 2], 1, 2)


@pytest.mark.parametrize("error", [CommitFailedError, OSError])
def test_a_commit_whose_answer_is_lost_is_recognised(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The file of the commit was written, and its writer heard of a conflict, or of nothing until its time was up."""
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    create = DeltaTable.create_write_transaction
    calls: list[int] = []

    def lose_answer(self: DeltaTable, *arguments: Any, **more: Any) -> None:
        create(self, *arguments, **more)
        calls.append(self.version())
        if len(calls) == 1:
            raise error("the answer is lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_answer)
    if error is OSError:
        with pytest.raises(OSError, match="the answer is lost"):
            query.attempt(table_of([2]))
    query.attempt(table_of([2]))
    assert (lake.ids(), len(calls), len(rows(lake.store, "attempts"))) == ([1, 2], 1, 2)


@on_sqlite
def test_batches_that_a_restored_store_has_lost_are_in_the_table_once(lake: DeltaLake, tmp_path: Path) -> None:
    """The checkpoint goes back with the store, by more than one batch: each is planned and delivered again."""
    query = Query(lake)
    query.batch(table_of([1]))
    with sqlite3.connect(tmp_path / "store.db") as source, sqlite3.connect(tmp_path / "backup.db") as backup:
        source.backup(backup)
    at = (query.batch_id, query.pipeline.confirmed)
    for number in (2, 3):
        query.batch(table_of([number]))
    with sqlite3.connect(tmp_path / "backup.db") as backup, sqlite3.connect(tmp_path / "store.db") as source:
        backup.backup(source)
    query.restart()
    query.batch_id, query.pipeline.confirmed = at
    for number in (2, 3, 4):
        query.batch(table_of([number]))
    assert (lake.ids(), len(lake.commits())) == ([1, 2, 3, 4], 4)
    assert len(rows(lake.store, "attempts")) == 4


def test_a_new_store_does_not_take_the_rows_of_an_old_one_for_its_own(lake: DeltaLake, tmp_path: Path) -> None:
    Query(lake).batch(table_of([1]))
    fresh = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'fresh.db'}")
    Query(DeltaLake(fresh.open(clock=None), {**lake.options, "store": fresh.url})).batch(table_of([2]))
    assert lake.ids() == [1, 2]
    fresh.close()


def test_a_table_that_was_made_anew_while_the_batch_was_written_is_left_alone(lake: DeltaLake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1]))
    shutil.rmtree(lake.folder / "_delta_log")
    write_deltalake(str(lake.folder), table_of([7]))
    with pytest.raises(ShardStoreError, match="was made anew while the batch was written"):
        query.commit(*written)
    assert (lake.ids(), rows(lake.store, "attempts")) == ([7], [])
    query.attempt(table_of([1]))
    assert lake.ids() == [1, 7]


@on_sqlite
@pytest.mark.parametrize("change", ["a constraint", "a column that must not be null", "a column"])
def test_a_table_that_was_changed_while_the_batch_was_written_takes_what_still_fits_it(
    lake: DeltaLake, change: str
) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1]))
    if change == "a constraint":
        lake.table().alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(OptionError, match=r"option 'delta': .* has the constraint 'positive'"):
            query.commit(*written)
    elif change == "a column":
        write_deltalake(str(lake.folder), table_of([7], more=pa.array([1])), mode="append", schema_mode="merge")
        query.commit(*written)
        assert lake.ids() == [1, 7]
    else:
        change_by_hand(lake.folder, {"name": "must", "type": "long", "nullable": False, "metadata": {}})
        with pytest.raises(ShardStoreError, match="got a column that must not be null, 'must'"):
            query.commit(*written)


@on_sqlite
def test_files_and_commits_are_flushed_to_disk_before_the_store_names_them(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[Path] = set()
    for module in ("tables", "files"):
        monkeypatch.setattr(import_module(f"queue_source.sinks.delta.{module}"), "make_durable", flushed.add)
    lake.options["partitionBy"] = "name"
    query = Query(lake)
    for number in range(2):
        query.batch(table_of([number], **{f"new_{number}": pa.array([1])}))
    log = set((lake.folder / "_delta_log").glob("*.json"))
    assert len(log) == 4
    assert flushed == log | set(lake.folder.rglob("name=*")) | set(lake.folder.rglob("*.parquet"))


@on_sqlite
def test_files_of_attempts_that_were_not_committed_are_invisible_and_vacuum_removes_them(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    with failing_at(monkeypatch, "table-files-written"):
        query.attempt(table_of([2]))
    query.attempt(table_of([2]))
    assert (lake.ids(), len(list(lake.folder.glob("*.parquet")))) == ([1, 2], 3)
    lake.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(list(lake.folder.glob("*.parquet"))) == 2
    assert len(lake.table().file_uris()) == 2


@on_sqlite
def test_a_table_in_s3_is_made_and_filled_with_the_storage_options_of_the_sink(
    lake: DeltaLake, ministack_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = new_name("delta")
    client(ministack_url, "s3").create_bucket(Bucket=bucket)
    lake.options |= {
        "delta": f"s3://{bucket}/orders",
        "partitionBy": "name",
        "s3.endpointUrl": ministack_url,
        "s3.region": REGION,
        **{f"s3.{name}": "test" for name in ("accessKeyId", "secretAccessKey")},
    }
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable, raising=False)
    query = Query(lake)
    query.batch(table_of([1, 2]))
    query.begin()
    with failing_at(monkeypatch, "table-committed"):
        query.attempt(table_of([3]))
    query.attempt(table_of([3]))
    query.end()
    storage = {"aws_endpoint_url": ministack_url, "aws_region": REGION, "aws_allow_http": "true"}
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    table = DeltaTable(f"s3://{bucket}/orders", storage_options=storage | keys)
    query.batch(table_of([4]))
    once = CommitProperties(max_commit_retries=0)
    with pytest.raises(CommitFailedError):  # a commit never takes the place of another one
        table.create_write_transaction([], "append", table.schema(), commit_properties=once)
    table.update_incremental()
    assert sorted(pa.table(table.scan()).column("id").to_pylist()) == [1, 2, 3, 4]
    assert table.metadata().partition_columns == ["name"]


@on_sqlite
@pytest.mark.parametrize("text", ["a\u2028b", "a\u0085b"], ids=["U+2028", "U+0085"])
def test_a_log_with_what_python_takes_for_line_ends_is_read(lake: DeltaLake, text: str) -> None:
    """The statistics of a file have its texts, and a deletion its condition."""
    query = Query(lake)
    for number in range(3):
        query.batch(table_of([number], text=pa.array([text])))
    lake.table().delete(f"text = '{text}' AND id = 0")
    query.batch(table_of([3]))
    assert lake.ids() == [1, 2, 3]
    lake.table().restore(lake.table().version() - 1)
    with pytest.raises(LostProgress, match="was put back to before the batch"):
        query.batch(table_of([4]))
