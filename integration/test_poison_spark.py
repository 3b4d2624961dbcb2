"""An object that kills its reader is found among its neighbours and quarantined; they are published."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from shard_store.model import ALONE
from shard_store.sql.schema import pipelines, read_marks
from shard_store.store import open_store
from support.engine.queries import described, read, run_until_settled, start_frame
from support.engine.world import SCHEMA, World, eventually
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark"]  # the fixtures


def test_what_kills_its_reader_is_quarantined_and_its_neighbours_are_published(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory
) -> None:
    """Spark tries a task four times here: two runs of the query fail, and the third finds the culprit by itself."""
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign")}
    rows = {name: world.feed(0, 8) for name, world in worlds.items()}
    for world in worlds.values():
        uris, _ = world.write(99, 1)
        world.publish(uris)
    queries = [described(world, name) for name, world in worlds.items()]
    for attempt in (1, 2, 3):
        driver = new_driver(queries, fail="object-read~99.json=exit", master="local[2,4]")
        errors = driver.wait_ended()
        assert [error is None for error in errors] == [attempt == 3] * 2, errors
        driver.close()
    run_until_settled(spark, [(worlds[name], queries[place]) for place, name in enumerate(worlds)])
    for name, world in worlds.items():
        assert world.result(name) == sorted(rows[name]), name
        assert [
            (shard["shard_id"][-7:], shard["state"]) for shard in world.view("shards") if shard["state"] != "done"
        ] == [("99.json", "quarantined")]
        (error,) = world.view("errors")
        assert (error["cause"], error["subject"][-7:]) == ("kills-its-reader", "99.json")
        assert "maxAttempts" in error["detail"]


@pytest.mark.parametrize(
    ("fail", "bad"),
    [("object-read~99.json=exit", ["99.json"]), ("split-written=exit", [])],
    ids=["while one is read", "while all are written"],
)
def test_loading_quarantines_what_kills_its_reader_and_blames_no_object_where_a_target_dies(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, fail: str, bad: list[str]
) -> None:
    world = World(tmp_path / "world")
    good = world.feed(0, 8)
    uris, others = world.write(99, 1)
    world.publish(uris)
    query: Any = {**described(world, fileFormat=None, content="reference"), "schema": ""}
    query["sink_options"] = world.sink(load="json", schema=SCHEMA)
    for attempt in (1, 2, 3):
        driver = new_driver([query], fail=fail, master="local[2,4]")
        (error,) = driver.wait_ended()
        assert (error is None) is (attempt == 3 and bool(bad)), error
        driver.close()
    run_until_settled(spark, [(world, query)])
    assert world.result("cuesqueue") == sorted(good if bad else [*good, *others])
    assert [(error["cause"], error["subject"][-7:]) for error in world.view("errors")] == [
        ("kills-its-reader", name) for name in bad
    ]


def look(world: World, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
    with open_store(world.store_url) as store:
        return store.database.read(lambda transaction: transaction.execute(query).all())


def test_a_users_own_function_that_fails_leaves_no_mark_and_so_blames_no_object(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The rows of a large object are still on their way when the function fails, at attempt after attempt."""
    world = World(tmp_path / "world")
    rows = [(number, f"row {number}") for number in range(300_000)]
    large = world.root / "large.json"
    large.write_text("".join(json.dumps({"id": i, "name": name}) + "\n" for i, name in rows), "utf-8")
    world.publish([large.as_uri()])
    query = described(world)

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        next(batches)
        raise ValueError("the user's own")

    marks = sa.select(read_marks).where(read_marks.c.task >= ALONE)  # and no traces, which stay with the plan
    for _ in range(4):
        frame = read(spark, query["source"], query).mapInArrow(fails, "id BIGINT, name STRING")
        with pytest.raises(StreamingQueryException, match="the user's own"):
            start_frame(frame, query).awaitTermination()
        # the task that Spark ended removes its mark by itself, perhaps after the query has failed
        eventually("no marks", lambda: not look(world, marks), 20)
        ((attempts,),) = look(world, sa.select(pipelines.c.plan_attempt))
    assert attempts >= 3  # two of them with marks
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)
    assert world.view("errors") == []
