"""Registering over stores and catalogs: an object is in the table once, and a bad one harms only itself."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from queue_source.commands.vacuum import vacuum
from queue_source.errors import ObjectRefused, ObjectStoreError, OptionError
from queue_source.options import parse_sink_options
from queue_source.sinks.base import Batch, open_sink
from queue_source.sinks.iceberg.tables import TableMaker
from queue_source.storage import fetching, files
from shard_store.errors import PipelineTakenOver, ShardStoreError
from shard_store.model import Split
from shard_store.upkeep import cleaning
from support.iceberg_tables import Lake, Query, failing_at, table_of
from support.registering import Registering, bytes_of, parquet
from support.servers.iceberg_rest import RestCatalogServer, rest_catalog_server
from support.servers.ministack import client, new_name
from support.store_backends import BACKENDS, STALE, Pipeline, StoreBackend, rows

ELSEWHERE = ["other-database", "rest"]


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    folder = tmp_path_factory.mktemp("rest")
    with rest_catalog_server(f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse") as server:
        yield server


@pytest.fixture(params=[*BACKENDS, *ELSEWHERE])
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
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


sqlite_only = pytest.mark.parametrize("lake", ["sqlite"], indirect=True)


def objects(folder: Path, *ids: int) -> list[Path]:
    return [parquet(folder / "in" / f"{id}.parquet", table_of([id])) for id in ids]


def test_objects_of_several_tasks_are_in_the_table_with_one_snapshot_and_the_others_are_bad(
    lake: Lake, tmp_path: Path
) -> None:
    one, two, three = objects(tmp_path, 1, 2, 3)
    (tmp_path / "in" / "bad.parquet").write_text("no parquet")
    before = bytes_of(tmp_path / "in")
    query = Registering(lake)
    query.objects([one, tmp_path / "in" / "bad.parquet"], [two])
    query.objects([three])
    assert lake.ids() == [1, 2, 3]
    assert query.causes() == {"bad.parquet": "corrupt-object"}
    assert query.states() == {
        "1.parquet": "done",
        "2.parquet": "done",
        "3.parquet": "done",
        "bad.parquet": "quarantined",
    }
    first, second = sorted(rows(lake.store, "attempts"), key=lambda attempt: attempt["end_seq"])
    size = sum(file.stat().st_size for file in (one, two))
    assert (first["kind"], first["rows"], first["bytes"], first["errors"]) == ("attempt-output", 2, size, 1)
    snapshots = lake.snapshots()
    assert [s["cuesqueue.registered-objects"] for s in snapshots] == ["2", "1"]
    assert [s["cuesqueue.delivery-hash"] for s in snapshots] == [first["delivery_hash"], second["delivery_hash"]]
    assert bytes_of(tmp_path / "in") == before


def test_a_batch_of_bad_objects_alone_is_an_attempt_and_no_snapshot(lake: Lake, tmp_path: Path) -> None:
    """Also before there is a table."""
    query = Registering(lake)
    query.objects([tmp_path / "missing.parquet"])
    assert [attempt["kind"] for attempt in rows(lake.store, "attempts")] == ["attempt-error"]
    query.objects(objects(tmp_path, 1))
    query.objects([tmp_path / "also missing.parquet"])
    assert (lake.ids(), len(lake.snapshots())) == ([1], 1)


def test_a_file_that_the_table_has_is_refused_by_name(lake: Lake, tmp_path: Path) -> None:
    one, two, three = objects(tmp_path, 1, 2, 3)
    Registering(lake, "first").objects([one, two])
    query = Registering(lake)
    query.announce(one, three)
    query.attempt(query.references([one, three]), query.references([three]))
    query.end()
    assert lake.ids() == [1, 2, 3]
    assert query.causes()["1.parquet"] == "already-registered"
    assert any(f"{one}' is a data file of table {lake.name} already" in detail for detail in query.details())
    assert any("is in this batch twice" in detail for detail in query.details())
    assert query.states() == {"1.parquet": "quarantined", "3.parquet": "done"}, "its second row is rejected alone"


@pytest.mark.parametrize(
    ("place", "restarts"),
    [("table-files-written", True), ("table-committed", True), ("table-committed", False)],
)
def test_a_batch_that_failed_at_any_step_is_there_once_after_the_next_attempt(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, restarts: bool
) -> None:
    one, two, three = objects(tmp_path, 1, 2, 3)
    Registering(lake, "other").objects([one])
    query = Registering(lake)
    query.announce(one, two, three)
    with failing_at(monkeypatch, place):
        query.attempt(query.references([one, two]), query.references([three]))
    if restarts:
        query.restart()
    plan = query.pipeline.plan()
    kept = [Path(entry.content.uri.removeprefix("file://")) for entry in plan.ranges]
    query.attempt(query.references(kept))
    query.end()
    assert lake.ids() == [1, 2, 3]
    assert query.causes() == {"1.parquet": "already-registered"}
    assert (len(lake.snapshots()), len(rows(lake.store, "attempts"))) == (2, 2)
    assert query.states() == {"1.parquet": "quarantined", "2.parquet": "done", "3.parquet": "done"}


def test_a_second_commit_of_a_batch_does_nothing(lake: Lake, tmp_path: Path) -> None:
    query = Registering(lake)
    files = objects(tmp_path, 1, 2)
    query.announce(*files)
    written = query.written(query.references(files))
    query.commit(*written)
    query.commit(*written)
    assert (lake.ids(), len(rows(lake.store, "attempts")), query.causes()) == ([1, 2], 1, {})


def test_a_driver_that_was_replaced_registers_nothing(lake: Lake, tmp_path: Path) -> None:
    zombie = Registering(lake)
    files = objects(tmp_path, 1)
    zombie.announce(*files)
    written = zombie.written(zombie.references(files))
    successor = Registering(lake)
    with pytest.raises(PipelineTakenOver):
        zombie.commit(*written)
    assert (lake.snapshots(), rows(lake.store, "attempts")) == ([], [])
    successor.batch_id = 0
    successor.pipeline.confirmed = 0
    successor.attempt(successor.references(files))
    with pytest.raises(PipelineTakenOver):
        zombie.commit(*written)  # and it finds nothing bad in that the object is there
    assert (lake.ids(), successor.causes()) == ([1], {})


def test_the_same_object_that_another_writer_adds_meanwhile_is_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look for it, and before the commit."""
    zero, one, two = objects(tmp_path, 0, 1, 2)
    query = Registering(lake)
    query.objects([zero])
    publish = lake.store.publish_with
    others: list[Table] = []

    def another_first(*given: Any, **named: Any) -> Any:
        if not others:
            with lake.catalog() as catalog:
                others.append(catalog.load_table(lake.name))
                others[0].add_files([f"file://{one}"])
        return publish(*given, **named)

    monkeypatch.setattr(lake.store, "publish_with", another_first)
    query.objects([one, two])
    assert lake.ids() == [0, 1, 2]
    assert query.causes() == {"1.parquet": "already-registered"}
    assert query.states() == {"0.parquet": "done", "1.parquet": "quarantined", "2.parquet": "done"}


def test_pipelines_that_register_and_write_into_one_table_lose_and_double_nothing(lake: Lake, tmp_path: Path) -> None:
    Query(lake, "zero").batch(table_of([0]))
    shared = objects(tmp_path, 1)
    failures: list[BaseException] = []
    queries: list[Registering] = []

    def run(number: int) -> None:
        try:
            query = Registering(lake, f"pipeline {number}")
            queries.append(query)
            for step in range(3):
                own = parquet(
                    tmp_path / "in" / f"{number}-{step}.parquet",
                    table_of([100 * number + step], **{f"c{step}": pa.array([step])}),
                )
                query.objects([own, *(shared if step == 1 else [])])
        except BaseException as error:  # noqa: BLE001 -- told below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert lake.ids() == [0, 1, *(100 * number + step for number in (1, 2, 3) for step in range(3))]
    assert sorted(len(query.causes()) for query in queries) == [0, 1, 1]


def test_a_table_that_was_partitioned_anew_while_footers_were_read_is_left_alone(lake: Lake, tmp_path: Path) -> None:
    query = Registering(lake)
    zero, one = objects(tmp_path, 0, 1)
    query.objects([zero])
    query.announce(one)
    written = query.written(query.references([one]))
    with lake.catalog() as catalog, catalog.load_table(lake.name).update_spec() as update:
        update.add_identity("name")
    with pytest.raises(ShardStoreError, match="partitioned in another way"):
        query.commit(*written)
    assert len(lake.snapshots()) == 1
    query.attempt(query.references([one]))
    assert next(iter(lake.table().scan(row_filter="id = 1").plan_files())).file.partition[0] == "n1"


@sqlite_only
def test_a_table_that_was_partitioned_anew_between_two_objects_of_a_task_is_left_alone(
    lake: Lake, tmp_path: Path
) -> None:
    """The second one has a new column, for which the task looks at the table again."""
    zero, one = objects(tmp_path, 0, 1)
    two = parquet(tmp_path / "in" / "2.parquet", table_of([2], more=["x"]))
    query = Registering(lake)
    query.objects([zero])
    query.announce(one, two)

    class Between(TableMaker):
        def ready(self, store: Any, wanted: Any) -> Table:
            if wanted is not None:
                with lake.catalog() as catalog, catalog.load_table(lake.name).update_spec() as update:
                    update.add_identity("name")
            return super().ready(store, wanted)

    with patch("queue_source.sinks.iceberg.register.TableMaker", Between):
        written = query.written(query.references([one, two]))
    with pytest.raises(ShardStoreError, match="partitioned in another way"):
        query.commit(*written)
    query.attempt(query.references([one, two]))
    assert lake.ids() == [0, 1, 2]


def test_a_query_of_two_pipelines_records_what_is_bad_of_both(lake: Lake, tmp_path: Path) -> None:
    one, two = Registering(lake, "one"), Registering(lake, "two")
    files = objects(tmp_path, 1, 2)
    one.announce(files[0], tmp_path / "x.parquet")
    two.announce(files[1], tmp_path / "y.parquet")
    batch, written = one.written(
        one.references([files[0], tmp_path / "x.parquet", tmp_path / "made up.parquet"]),
        two.references([files[1], tmp_path / "y.parquet"]),
    )
    one.commit(Batch((*batch.plans, two.pipeline.plan().identity)), written)
    assert lake.ids() == [1, 2]
    assert one.states() == {"1.parquet": "done", "x.parquet": "quarantined"}
    assert two.states() == {"2.parquet": "done", "y.parquet": "quarantined"}
    assert two.causes() == {"y.parquet": "missing-object"}
    made_up = [row for row in rows(lake.store, "errors") if row["scope"] == "row"]
    assert [row["cause"] for row in made_up] == ["missing-object"]


def test_a_shard_that_is_lost_after_it_was_refused_is_judged_by_its_new_owner(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 1_800_000_000.0}
    monkeypatch.setattr(lake.store.database, "_clock", lambda: clock["now"])
    one, two = objects(tmp_path, 1, 2)
    query = Registering(lake)
    query.announce(one, two)
    query.restart()
    clock["now"] += STALE * 10
    other = Registering(lake, "other")
    other.pipeline.source = query.pipeline.source
    lost = other.pipeline.look(f"file://{one}")[f"file://{one}"]
    assert other.pipeline.store.acquire(other.pipeline.token, {lost.key: lost.token}) == {lost.key}
    query.attempt(query.references([two]))
    assert lake.ids() == [2]


# what never happens to a user's own objects


@sqlite_only
def test_nothing_deletes_a_registered_object(lake: Lake, tmp_path: Path) -> None:
    """Not `vacuum`, though objects may have names like those of splits; and engines are told that they must not."""
    folder = tmp_path / "in"
    name = f"split-{'a' * 12}-{'b' * 32}.parquet"
    query = Registering(lake)
    query.objects([*objects(tmp_path, 1), parquet(folder / name, table_of([2]))])
    other = Query(lake, "splits")  # the path sink of another pipeline writes into the same folder
    other.begin("x")
    plan = other.pipeline.plan()
    own = f"split-{'c' * 12}-{'d' * 32}.parquet"
    (folder / own).write_bytes(b"a split")
    other.pipeline.publish(plan, Split(f"{folder}/{own}", 1, 7))
    before = bytes_of(folder)
    result = vacuum(lake.store, str(folder), older_than=timedelta(0))
    assert (result.announced, result.removed, bytes_of(folder)) == (1, 0, before)
    assert lake.ids() == [1, 2]
    assert lake.table().properties["gc.enabled"] == "false"


@sqlite_only
def test_a_registered_object_is_cleaned_by_no_source(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "SETTLED", timedelta(0))
    one, two = objects(tmp_path, 1, 2)
    query = Registering(lake)
    query.announce(one)
    query.attempt(query.references([one]))
    other = Pipeline.start(lake.store, "cleaner", "other")
    other.deliver(f"file://{one}", f"file://{two}")
    for source in ("other", query.pipeline.source):
        lake.store.plan_cleanings(source, timedelta(0), lambda _, uri: cleaning.Planned(uri, None), 10)
    query.pipeline.confirm()
    found = {due.uri: due.needed for due in lake.store.due_cleanings("other", 10).cleanings}
    assert found == {f"file://{one}": "it is a data file of a table, where it is (register)", f"file://{two}": None}
    (own,) = lake.store.due_cleanings(query.pipeline.source, 10).cleanings
    assert own.needed == found[f"file://{one}"]


@sqlite_only
def test_rows_that_do_not_say_which_object_they_are_are_refused_at_planning(lake: Lake) -> None:
    for columns, told in (
        ({"id": [1]}, "needs a column 'uri' of type STRING, and the rows have none"),
        ({"uri": ["x"], "size": ["1"], "etag": ["e"]}, "needs a column 'size' of type BIGINT"),
        ({"uri": ["x"], "size": [1]}, "needs a column 'etag' of type STRING"),
    ):
        sink = open_sink(parse_sink_options({"pipeline": "p", **lake.options, "register": "uri"}))
        with pytest.raises(OptionError, match=told):
            sink.prepare(lake.store, pa.table(columns).schema, ())


@sqlite_only
def test_a_new_table_needs_a_warehouse_before_anything_is_read(lake: Lake, tmp_path: Path) -> None:
    del lake.options["warehouse"]
    query = Registering(lake)
    query.announce(*objects(tmp_path, 1))
    with pytest.raises(OptionError, match="'warehouse': is required"):
        query.attempt(query.references(objects(tmp_path, 1)))


@sqlite_only
@pytest.mark.parametrize("own", [True, False])
def test_an_object_that_its_store_refuses_is_bad_and_a_bucket_that_is_refused_fails_the_task(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    one, two = objects(tmp_path, 1, 2)
    refused = {str(one)}
    opened = files.open_version

    def open_version(uri: str, *arguments: Any) -> Any:
        if uri.removeprefix("file://") in refused:
            raise ObjectRefused(f"{uri!r} is refused", own=own)
        return opened(uri, *arguments)

    monkeypatch.setattr(files, "open_version", open_version)
    monkeypatch.setattr(fetching, "open_version", open_version)
    monkeypatch.setattr("queue_source.read.objects.PAUSES", ())
    query = Registering(lake)
    query.objects([one, two])
    assert (query.causes(), lake.ids()) == ({"1.parquet": "forbidden-object"}, [2])
    three, four = objects(tmp_path, 3, 4)
    refused |= {str(three), str(four)}
    query.announce(three, four)
    if own:
        query.attempt(query.references([three, four]))
        assert set(query.causes().values()) == {"forbidden-object"}
        return
    with pytest.raises(ObjectStoreError, match="nothing else of file:/// could be read"):
        query.attempt(query.references([three, four]))
    refused.clear()
    query.attempt(query.references([three, four]))
    assert lake.ids() == [2, 3, 4]


@sqlite_only
def test_objects_on_s3_are_compared_by_etag_and_read_where_they_are(
    lake: Lake, tmp_path: Path, ministack_url: str
) -> None:
    bucket = new_name("lake")
    s3 = client(ministack_url, "s3")
    s3.create_bucket(Bucket=bucket)
    uris = [f"s3://{bucket}/in/{name}.parquet" for name in ("a b", "replaced", "#1")]
    query = Registering(lake)
    for uri, id in zip(uris, (1, 2, 3), strict=True):
        data = parquet(tmp_path / "local.parquet", table_of([id])).read_bytes()
        key = uri.removeprefix(f"s3://{bucket}/")
        query.etags[uri] = s3.put_object(Bucket=bucket, Key=key, Body=data)["ETag"].strip('"')
        query.announced[uri] = len(data)
    replaced = bytearray(data)
    s3.put_object(Bucket=bucket, Key="in/replaced.parquet", Body=bytes(replaced))
    s3.close()
    keys = {"s3.region": "us-east-1"}
    secret = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test"}
    lake.options |= {**keys, **secret, "s3.endpointUrl": ministack_url, "warehouse": f"s3://{bucket}/warehouse"}
    lake.reading |= {**keys, "s3.endpoint": ministack_url, "s3.access-key-id": "test", "s3.secret-access-key": "test"}
    query.objects(uris)
    assert query.causes() == {"replaced.parquet": "object-changed", "#1.parquet": "unsupported-key"}
    assert [row["id"] for row in lake.table().scan().to_arrow().to_pylist()] == [1]
