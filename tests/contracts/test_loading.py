"""Loading over stores and targets: an object's rows are published once, and a bad one harms only itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from queue_source.errors import BadObject, OptionError, SchemaChanged
from queue_source.sinks.base import Batch
from queue_source.sinks.delta import DeltaSink
from queue_source.sinks.delta.tables import TableMaker
from shard_store.completeness.comparing import ListedShard
from shard_store.model import Reading, ReadMark, shard_key
from shard_store.store import ShardStore
from support.delta_tables import DeltaLake
from support.iceberg_tables import Lake, failing_at, table_of
from support.registering import Loading, bytes_of
from support.store_backends import BACKENDS, StoreBackend, rows

TARGETS = [
    *(f"{store}-path" for store in BACKENDS),
    *(f"{store}-table" for store in BACKENDS),
    "sqlite-elsewhere",
    *(f"{store}-delta" for store in BACKENDS),
]


@pytest.fixture(params=TARGETS)
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake | DeltaLake]:
    kind, _, target = request.param.rpartition("-")
    backend = StoreBackend(kind, f"sqlite:///{tmp_path / 'store.db'}")
    if kind != "sqlite":
        backend.url = request.getfixturevalue(f"{kind}_store_url")
        backend.wipe()
    name = f"n{uuid.uuid4().hex[:8]}.events"
    options, reading = {"store": backend.url}, {"type": "sql", "uri": backend.url}
    if target == "path":
        options["path"] = str(tmp_path / "out")
    else:
        options |= {"table": name, "warehouse": str(tmp_path / "warehouse")}
    if target == "elsewhere":
        reading["uri"] = f"sqlite:///{tmp_path / 'catalog.db'}"
        options |= {f"catalog.{key}": value for key, value in reading.items()}
    if target == "delta":
        yield DeltaLake(backend.open(), {"store": backend.url, "delta": str(tmp_path / "table")})
    else:
        yield Lake(backend.open(), options, reading, name)
    backend.close()


sqlite_only = pytest.mark.parametrize("lake", ["sqlite-path", "sqlite-table", "sqlite-delta"], indirect=True)
path_only = pytest.mark.parametrize("lake", ["sqlite-path"], indirect=True)


def written(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(record if isinstance(record, str) else json.dumps(record) for record in records))
    return path


def objects(folder: Path, *ids: int) -> list[Path]:
    return [written(folder / "in" / f"{id}.json", {"id": id, "name": f"n{id}"}) for id in ids]


def test_objects_of_several_tasks_are_published_at_once_and_a_bad_one_harms_only_itself(
    lake: Lake, tmp_path: Path
) -> None:
    one, two, three = objects(tmp_path, 1, 2, 3)
    spoiled = written(tmp_path / "in" / "spoiled.json", {"id": 4, "name": "n4"}, '{"id": ', {"id": 5, "name": "n5"})
    before = bytes_of(tmp_path / "in")
    query = Loading(lake, options={"mode": "DROPMALFORMED"})
    query.objects([one, tmp_path / "in" / "missing.json"], [two, spoiled])
    query.objects([three])
    assert query.rows() == [{"id": id, "name": f"n{id}"} for id in (1, 2, 3, 4, 5)]
    assert query.causes() == {"missing.json": "missing-object", "spoiled.json": "bad-record"}
    assert query.states() == {
        "1.json": "done",
        "2.json": "done",
        "3.json": "done",
        "spoiled.json": "done",
        "missing.json": "quarantined",
    }
    first, second = sorted(rows(lake.store, "attempts"), key=lambda attempt: attempt["end_seq"])
    assert (first["kind"], first["rows"], first["errors"]) == ("attempt-output", 4, 2)
    assert (second["kind"], second["rows"], second["errors"]) == ("attempt-output", 1, 0)
    assert bytes_of(tmp_path / "in") == before


@pytest.mark.parametrize("point", ["before the commit", "split-written", "table-files-written", "table-committed"])
def test_a_batch_whose_driver_dies_is_published_once(
    lake: Lake, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_path = "path" in lake.options
    if point != "before the commit" and is_path != (point == "split-written"):
        pytest.skip("this target does not come to it")
    query = Loading(lake)
    tasks = [objects(tmp_path, 1), [*objects(tmp_path, 2), tmp_path / "in" / "missing.json"]]
    query.announce(*(one for task in tasks for one in task))
    if point == "before the commit":
        query.written(*map(query.references, tasks))
    else:
        with failing_at(monkeypatch, point):
            query.attempt(*map(query.references, tasks))
    query.restart()
    query.attempt(*map(query.references, tasks))
    query.end()
    query.objects(objects(tmp_path, 3))
    assert query.ids() == [1, 2, 3]
    assert query.states()["missing.json"] == "quarantined"


@pytest.mark.parametrize("lake", [target for target in TARGETS if not target.endswith("path")], indirect=True)
def test_what_an_attempt_in_the_table_has_found_bad_is_not_loaded_by_the_next(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is there by then: its verdict was recorded before anything was shown."""
    query, late = Loading(lake), tmp_path / "in" / "late.json"
    tasks = [[*objects(tmp_path, 1), late]]
    query.announce(*tasks[0])
    with failing_at(monkeypatch, "table-committed"):
        query.attempt(*map(query.references, tasks))
    written(late, {"id": 9, "name": "late"})
    query.restart()
    query.attempt(*map(query.references, tasks))
    query.end()
    assert query.ids() == [1]
    assert query.states()["late.json"] == "quarantined"


@sqlite_only
def test_rows_that_were_repeated_are_loaded_once_in_a_task_and_refused_in_two(lake: Lake, tmp_path: Path) -> None:
    one, two = objects(tmp_path, 1, 2)
    query = Loading(lake)
    query.announce(one, two)
    query.attempt(query.references([one, two, one]))
    query.end()
    assert query.ids() == [1, 2]
    three, four = objects(tmp_path, 3, 4)
    query.announce(three, four)
    with pytest.raises(OptionError, match=r"was given 'file://.*/3.json' by two tasks of a batch"):
        query.attempt(query.references([three]), query.references([four, three]))
    query.attempt(query.references([three]), query.references([four]))
    assert query.ids() == [1, 2, 3, 4]


@path_only
def test_rows_that_name_what_is_not_in_the_batch_are_refused(lake: Lake, tmp_path: Path) -> None:
    one, other = objects(tmp_path, 1, 2)
    query = Loading(lake)
    query.announce(one)
    with pytest.raises(OptionError, match=r"which is no object of this batch as it was announced"):
        query.attempt(query.references([other]))
    changed = query.references([one]).set_column(2, "etag", pa.array(["other"]))
    with pytest.raises(OptionError, match=r"which is no object of this batch as it was announced"):
        query.attempt(changed)
    nobody = query.references([one]).set_column(0, "uri", pa.array([None], pa.string()))
    with pytest.raises(OptionError, match="column 'uri' is null"):
        query.attempt(nobody)
    query.attempt(query.references([one]))
    assert query.ids() == [1]


def test_objects_whose_rows_a_query_has_filtered_are_left_out_and_not_published(lake: Lake, tmp_path: Path) -> None:
    one, two = objects(tmp_path, 1, 2)
    query = Loading(lake)
    query.announce(one, two)
    query.attempt(query.references([two]))
    query.end()
    assert query.ids() == [2]
    assert set(query.states().values()) == {"done"}
    query.announce(three := objects(tmp_path, 3)[0])
    query.attempt(query.references([]))
    query.end()
    listed = [ListedShard(f"file://{path}", None, None, 0) for path in (one, two, three)]
    found = [finding.category.value for finding in lake.store.compare(query.pipeline.source, listed)]
    assert found == ["left_out", "published", "left_out"]
    states = {row["path"]: (row["state"], row["commit_time"] is None) for row in rows(lake.store, "files_state")}
    assert states == {
        f"file://{one}": ("left-out", True),
        f"file://{two}": ("done", False),
        f"file://{three}": ("left-out", True),
    }
    story = lake.store.shard_story(shard_key(query.pipeline.source, f"file://{one}"))
    assert story.outcome.startswith("left out: its query has filtered its row")


@path_only
def test_columns_are_needed_for_new_files(lake: Lake, tmp_path: Path) -> None:
    query = Loading(lake)
    del query.options["schema"]
    with pytest.raises(OptionError, match="declare the columns, as in 'id BIGINT, name STRING'"):
        query.sink()


@pytest.mark.parametrize("lake", ["sqlite-table", "sqlite-elsewhere"], indirect=True)
def test_a_new_table_gets_the_columns_of_the_first_batch_and_keeps_them(lake: Lake, tmp_path: Path) -> None:
    query = Loading(lake)
    del query.options["schema"]
    query.objects([])
    query.options["mode"] = "DROPMALFORMED"
    query.objects([written(tmp_path / "in" / "bad.json", "{"), *objects(tmp_path, 1)])
    query.objects([written(tmp_path / "in" / "more.json", {"id": 2, "more": 1})])
    assert query.rows() == [{"id": 1, "name": "n1"}, {"id": 2, "name": None}]
    assert query.causes() == {"bad.json": "bad-record"}


@pytest.mark.parametrize(
    "lake", ["sqlite-table", "postgresql-table", "sqlite-elsewhere", "sqlite-delta"], indirect=True
)
def test_a_table_says_which_columns_are_loaded(lake: Lake, tmp_path: Path) -> None:
    Loading(lake, "maker").objects(objects(tmp_path, 1))
    query = Loading(lake)
    del query.options["schema"]
    query.objects([written(tmp_path / "in" / "more.json", {"id": 2, "name": "n2", "more": 1})])
    assert query.rows() == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]


@pytest.mark.parametrize("lake", ["sqlite-delta"], indirect=True)
def test_a_delta_table_is_opened_once_where_a_batch_is_planned_and_once_at_its_commit(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it says which columns are loaded, and gets another one from another writer meanwhile."""
    Loading(lake, "maker").objects(objects(tmp_path, 1))
    query = Loading(lake)
    del query.options["schema"]
    opened: list[str] = []
    open_table, own_columns = TableMaker.open, DeltaSink.own_columns

    def opening(maker: TableMaker) -> Any:
        opened.append("now")
        return open_table(maker)

    def changed_after(sink: DeltaSink, store: ShardStore) -> Any:
        columns = own_columns(sink, store)
        write_deltalake(str(lake.folder), pa.table({"id": [7], "more": [1]}), mode="append", schema_mode="merge")
        return columns

    monkeypatch.setattr(TableMaker, "open", opening)
    monkeypatch.setattr(DeltaSink, "own_columns", changed_after)
    query.announce(*(found := objects(tmp_path, 2)))
    done = query.written(query.references(found))
    assert len(opened) == 1
    query.commit(*done)
    assert len(opened) == 2
    assert lake.ids() == [1, 2, 7]


@sqlite_only
def test_inferred_columns_are_kept_and_new_ones_come_with_the_next_start(lake: Lake, tmp_path: Path) -> None:
    query = Loading(lake, options={"schemaLocation": str(tmp_path / "schemas")})
    del query.options["schema"]
    query.objects([])  # nothing to infer from, and no table yet
    query.objects(objects(tmp_path, 1))
    wider = written(tmp_path / "in" / "wider.json", {"id": 2, "name": "n2", "price": 1.5})
    query.announce(wider)
    with pytest.raises(SchemaChanged, match="price DOUBLE"):
        query.attempt(query.references([wider]))
    query.restart()
    query.attempt(query.references([wider]))
    query.end()
    assert [row.get("price") for row in query.rows()] == [None, 1.5]
    assert [row["name"] for row in query.rows()] == ["n1", "n2"]


@pytest.mark.parametrize("lake", ["sqlite-table", "sqlite-delta"], indirect=True)
def test_inferred_columns_have_the_names_of_the_table_where_only_case_differs(lake: Lake, tmp_path: Path) -> None:
    maker = Loading(lake, "maker", options={"schema": "id BIGINT, Name STRING, Part STRUCT<Kind: STRING>"})
    maker.objects(objects(tmp_path, 1))
    query = Loading(lake, options={"schemaLocation": str(tmp_path / "schemas")})
    del query.options["schema"]
    wider = written(tmp_path / "in" / "2.json", {"ID": 2, "name": "n2", "part": {"kind": "k"}})
    query.objects([wider])
    assert query.rows()[1] == {"id": 2, "Name": "n2", "Part": {"Kind": "k"}, "_rescued_data": None}
    again = written(tmp_path / "in" / "3.json", {"iD": 3, "NAME": "n3", "Price": 1.5})
    query.announce(again)
    with pytest.raises(SchemaChanged, match="lacks: Price DOUBLE; version 1"):
        query.attempt(query.references([again]))
    query.restart()
    query.attempt(query.references([again]))
    query.end()
    assert query.rows()[2] == {"id": 3, "Name": "n3", "Part": None, "_rescued_data": None, "Price": 1.5}


@sqlite_only
def test_an_object_that_kills_its_task_is_found_and_the_others_are_loaded(lake: Lake, tmp_path: Path) -> None:
    """The marks of tasks that died stand for their deaths."""
    paths = objects(tmp_path, 1, 2, 3)
    query = Loading(lake, options={"maxAttempts": "2"})
    query.announce(*paths)
    for place, unended in ((None, 0), (1, 2)):
        query.written(query.references(paths))
        assert query.plan is not None
        if place is not None:
            query.pipeline.store.begin_read(query.plan.identity, ReadMark(place, place + 1, -1, unended))
        query.restart()
    query.attempt(query.references(paths))
    query.end()
    assert query.ids() == [1, 3]
    assert query.causes() == {"2.json": "kills-its-reader"}


@path_only
def test_a_policy_of_failing_fails_the_batch(lake: Lake, tmp_path: Path) -> None:
    query = Loading(lake, options={"onMissingObject": "fail"})
    query.announce(tmp_path / "in" / "missing.json")
    with pytest.raises(BadObject, match=r"missing.json"):
        query.attempt(query.references([tmp_path / "in" / "missing.json"]))


@sqlite_only
def test_a_plan_that_is_published_is_not_read_again(lake: Lake, tmp_path: Path) -> None:
    """Spark repeats a batch of which it did not note that it was committed; its objects may be gone."""
    (one,) = objects(tmp_path, 1)
    query = Loading(lake)
    query.announce(one)
    done = query.written(query.references([one]))
    query.commit(*done)
    one.unlink()
    again = query.written(query.references([one]))
    assert again[1][0].pieces == []
    query.commit(*again)
    query.end()
    assert (query.ids(), query.causes()) == ([1], {})


@path_only
def test_a_verdict_of_a_task_whose_rows_another_attempt_brings_counts_for_nothing(lake: Lake, tmp_path: Path) -> None:
    """Two copies of a task run; the one that finds the object missing is not the one that Spark takes."""
    one = tmp_path / "in" / "1.json"
    query = Loading(lake)
    query.announce(one)
    query.announced[f"file://{one}"] = None
    query.plan = query.pipeline.plan()
    sink = query.sink()
    rows_of_reader = query.references([one])
    sink.prepare(lake.store, rows_of_reader.schema, (query.plan.identity,))

    def run(task: int) -> Any:
        batch = Batch((query.plan.identity,), reading=Reading(1, 0, task, repeated=task > 0))  # type: ignore[union-attr]
        return sink.write(iter(rows_of_reader.to_batches()), rows_of_reader.schema, batch)

    lost = run(0)
    objects(tmp_path, 1)
    won = run(1)
    assert [verdict.cause for verdict in lost.verdicts] == ["missing-object"]
    query.commit(Batch((query.plan.identity,), winners=frozenset({1})), [won])
    query.end()
    assert (query.ids(), query.causes(), query.states()) == ([1], {}, {"1.json": "done"})


@pytest.mark.parametrize("lake", ["sqlite-table", "sqlite-delta"], indirect=True)
def test_a_table_of_other_types_refuses_the_columns_before_anything_is_read(lake: Lake, tmp_path: Path) -> None:
    Loading(lake, "maker").objects(objects(tmp_path, 1))
    query = Loading(lake, options={"schema": "id STRING, name STRING"})
    query.announce(*objects(tmp_path, 2))
    with pytest.raises(OptionError, match=r"column 'id' of .* is of type (long|BIGINT), and the rows have (str|STR)"):
        query.attempt(query.references(objects(tmp_path, 2)))
    assert lake.read() == [{"id": 1, "name": "n1"}]


@path_only
def test_rows_that_are_no_references_are_refused(lake: Lake, tmp_path: Path) -> None:
    query = Loading(lake)
    query.begin()
    with pytest.raises(OptionError, match="needs a column 'uri' of type STRING"):
        query.attempt(table_of([1]))
