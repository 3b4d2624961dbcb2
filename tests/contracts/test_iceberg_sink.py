"""The Iceberg sink over stores and catalogs: what is published is in the table, once, whatever happens in between."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from queue_source.errors import OptionError
from queue_source.sinks.iceberg.commits import IcebergTarget
from shard_store.errors import PipelineTakenOver, ShardStoreError
from support.iceberg_tables import Lake, Query, failing_at, table_of
from support.servers.iceberg_rest import RestCatalogServer, rest_catalog_server
from support.store_backends import BACKENDS, StoreBackend, rows

LAKES = [*BACKENDS, "rest"]
ELSEWHERE = ["other-database", "rest"]


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    folder = tmp_path_factory.mktemp("rest")
    with rest_catalog_server(f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse") as server:
        yield server


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
    """A table in the catalog of each kind of store, and in catalogs elsewhere."""
    kind = request.param
    backend = StoreBackend(kind, f"sqlite:///{tmp_path / 'store.db'}")
    if kind in BACKENDS and kind != "sqlite":
        backend.url = request.getfixturevalue(f"{kind}_store_url")
        backend.wipe()
    name = f"n{uuid.uuid4().hex[:8]}.events"
    options = {"store": backend.url, "table": name, "warehouse": str(tmp_path / "warehouse")}
    reading = {"type": "sql", "uri": backend.url}
    if kind == "other-database":
        reading["uri"] = f"sqlite:///{tmp_path / 'catalog.db'}"
    elif kind == "rest":
        reading = {"type": "rest", "uri": request.getfixturevalue("rest_server").url}
        del options["warehouse"]
    if kind not in BACKENDS:
        options |= {f"catalog.{key}": value for key, value in reading.items()}
    yield Lake(backend.open(), options, reading, name)
    backend.close()


elsewhere = pytest.mark.parametrize("lake", ELSEWHERE, indirect=True)
"""Only for catalogs that are not in the store's database."""
in_stores = pytest.mark.parametrize("lake", BACKENDS, indirect=True)


def test_batches_of_several_tasks_are_in_the_table_one_snapshot_each(lake: Lake) -> None:
    query = Query(lake)
    query.batch(table_of(range(10)), table_of(range(10, 13)), table_of([]))
    query.batch(table_of([13]))
    assert lake.ids() == list(range(14))
    assert len(lake.snapshots()) == 2
    first, second = sorted(rows(lake.store, "attempts"), key=lambda attempt: attempt["end_seq"])
    assert (first["kind"], first["rows"], first["splits"], first["bytes"] > 0) == ("attempt-output", 13, 0, True)
    assert (
        lake.snapshots()[1]
        | {
            "cuesqueue.source": "source of p",
            "cuesqueue.pipeline": "p",
            "cuesqueue.start-seq": "1",
            "cuesqueue.end-seq": "2",
            "cuesqueue.batch-id": "1",
            "cuesqueue.delivery-hash": second["delivery_hash"],
        }
        == lake.snapshots()[1]
    )


def test_a_batch_without_rows_is_an_attempt_and_no_snapshot(lake: Lake) -> None:
    query = Query(lake)
    query.batch(table_of([]))
    assert [attempt["kind"] for attempt in rows(lake.store, "attempts")] == ["attempt-nil"]
    assert lake.snapshots() == []


def test_a_second_commit_of_a_batch_does_nothing(lake: Lake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1, 2]))
    query.commit(*written)
    query.commit(*written)
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2], 1)


def test_files_that_are_not_on_the_drivers_machine_are_not_committed(lake: Lake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1, 2]))
    for task in written[1]:
        for file in task.files:
            Path(file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(OptionError, match=r"option 'path': of 1 local files .* 1 are not on the driver's machine"):
        query.commit(*written)
    assert (lake.snapshots(), rows(lake.store, "attempts")) == ([], [])


def test_a_driver_that_was_replaced_publishes_nothing(lake: Lake) -> None:
    zombie = Query(lake)
    zombie.begin()
    written = zombie.written(table_of([1]))
    Query(lake)
    with pytest.raises(PipelineTakenOver):
        zombie.commit(*written)
    assert (lake.snapshots(), rows(lake.store, "attempts")) == ([], [])


def test_pipelines_that_commit_to_one_table_at_once_lose_and_double_nothing(lake: Lake) -> None:
    Query(lake, "zero").batch(table_of([0]))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            query = Query(lake, f"pipeline {number}")
            for step in range(3):
                query.batch(table_of([100 * number + step]))
        except BaseException as error:  # noqa: BLE001 -- told below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert lake.ids() == [0, *(100 * number + step for number in (1, 2, 3) for step in range(3))]
    assert len(rows(lake.store, "attempts")) == 10


def test_what_the_database_undid_within_the_publish_runs_again_as_a_whole(lake: Lake) -> None:
    """As the victim of a deadlock."""
    expect_one_commit_though_undone_at("INSERT INTO cuesqueue_attempts", lake)


@in_stores
def test_what_the_database_undid_within_the_tables_commit_runs_again_as_a_whole(lake: Lake) -> None:
    expect_one_commit_though_undone_at("UPDATE iceberg_tables", lake)


def expect_one_commit_though_undone_at(place: str, lake: Lake) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    written = query.written(table_of([2]), table_of([3]))
    with undone_once(lake.store.database.engine, place) as undone:
        query.commit(*written)
    query.end()
    assert len(undone) == 1
    assert (len(lake.snapshots()), len(rows(lake.store, "attempts"))) == (2, 2)
    query.batch(table_of([4]))
    assert lake.ids() == [1, 2, 3, 4]


@contextmanager
def undone_once(engine: sa.Engine, place: str) -> Iterator[list[str]]:
    """The first statement that begins so fails as in a transaction that the database has undone."""
    undone: list[str] = []

    def undo(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(place) and not undone:
            undone.append(statement)
            if engine.name == "sqlite":
                raise sa.exc.OperationalError(statement, None, sqlite3.OperationalError("database is locked"))
            connection.exec_driver_sql(_DEADLOCK[engine.name])

    sa.event.listen(engine, "before_cursor_execute", undo)
    try:
        yield undone
    finally:
        sa.event.remove(engine, "before_cursor_execute", undo)


_DEADLOCK = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock'",
}


@elsewhere
def test_the_same_batch_committed_by_another_driver_meanwhile_is_noticed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a zombie that comes back after the look for the hash, and before the commit."""
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    append = IcebergTarget.append
    others: list[IcebergTarget] = []

    def another_first(self: IcebergTarget, mark: Mapping[str, str]) -> None:
        if not others:
            others.append(copy(self))
            others[0].open(cast(Any, None))  # the transaction of a store that this table is not in
            append(others[0], mark)
        append(self, mark)

    monkeypatch.setattr(IcebergTarget, "append", another_first)
    query.attempt(table_of([2]))
    assert (lake.ids(), len(others), len(rows(lake.store, "attempts"))) == ([1, 2], 1, 2)


@elsewhere
def test_a_new_store_does_not_take_the_rows_of_an_old_one_for_its_own(lake: Lake, tmp_path: Path) -> None:
    Query(lake).batch(table_of([1]))
    fresh = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'fresh.db'}")
    Query(Lake(fresh.open(clock=None), {**lake.options, "store": fresh.url}, lake.reading, lake.name)).batch(
        table_of([2])
    )
    assert lake.ids() == [1, 2]
    fresh.close()


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_a_commit_whose_answer_is_lost_is_found_by_its_hash(lake: Lake, rest_server: RestCatalogServer) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    rest_server.lose_answers = 1
    with pytest.raises(Exception, match="nobody is told"):
        query.attempt(table_of([2]))
    query.attempt(table_of([2]))
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2], 2)


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
@pytest.mark.parametrize("code", [401, 403, 419, 429, 500, 502, 503, 504])
def test_a_commit_that_a_catalog_refuses_is_made_once_by_a_later_attempt(
    lake: Lake, rest_server: RestCatalogServer, code: int
) -> None:
    """An expired token, a right that was taken away, an outage: with or without a retry of the client's own."""
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    rest_server.refusals = [code] * 20
    with pytest.raises(Exception, match=r"(?i)refused|token|authori|forbidden|expired"):
        query.attempt(table_of([2]))
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1], 1)
    rest_server.refusals = []
    query.attempt(table_of([2]))
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2], 2)


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_a_commit_that_loses_against_another_is_repeated(lake: Lake, rest_server: RestCatalogServer) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    rest_server.refusals = [409, 409]
    query.attempt(table_of([2]))
    assert (lake.ids(), len(rows(lake.store, "attempts"))) == ([1, 2], 2)


def test_a_table_that_was_partitioned_anew_while_the_batch_was_written_is_left_alone(lake: Lake) -> None:
    query = Query(lake)
    query.begin()
    written = query.written(table_of([1]))
    with lake.catalog() as catalog, catalog.load_table(lake.name).update_spec() as update:
        update.add_identity("name")
    with pytest.raises(ShardStoreError, match="partitioned in another way"):
        query.commit(*written)
    assert (lake.snapshots(), rows(lake.store, "attempts")) == ([], [])
    query.attempt(table_of([1, 2]))
    assert [len(files) for files in partitions(lake)] == [1, 1]


@in_stores
def test_metadata_files_are_kept_to_a_number_and_never_deleted_by_what_is_rolled_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(lake)
    query.batch(table_of([0]))
    with lake.catalog() as catalog, catalog.load_table(lake.name).transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    for number in (1, 2):
        query.batch(table_of([number]))
    before = metadata_files(lake)
    query.begin()
    with failing_at(monkeypatch, "table-committed"):
        query.attempt(table_of([3]))
    assert before <= metadata_files(lake)
    query.attempt(table_of([3]))
    query.end()
    assert lake.ids() == [0, 1, 2, 3]
    named = {Path(entry.metadata_file).name for entry in lake.table().metadata.metadata_log}
    assert len(named) == 1
    left = metadata_files(lake) - named - {Path(lake.table().metadata_location).name}
    assert len(left) <= 2, "more than the two of the attempt that was rolled back, and of the change above"


@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
def test_manifests_are_merged_when_they_are_many(lake: Lake) -> None:
    query = Query(lake)
    query.batch(table_of([0]))
    with lake.catalog() as catalog, catalog.load_table(lake.name).transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for number in range(1, 8):
        query.batch(table_of([number]))
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(lake.table().io)) <= 3
    assert lake.ids() == list(range(8))


def metadata_files(lake: Lake) -> set[str]:
    folder = Path(lake.table().metadata_location[len("file://") :]).parent
    return {file.name for file in folder.glob("*.metadata.json")}


def partitions(lake: Lake) -> list[list[str]]:
    """The data files of each partition."""
    found: dict[str, list[str]] = {}
    for task in lake.table().scan().plan_files():
        found.setdefault(repr(task.file.partition), []).append(task.file.file_path)
    return list(found.values())
