"""Spark's rows in a Delta table, also where all processes of a driver are killed at each step of the table."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from shard_store.store import open_store
from support.delta_tables import DeltaLake
from support.engine.queries import Query, described, run_until_settled, start_frame
from support.engine.world import World

pytestmark = pytest.mark.engine

SCHEMA = (
    "id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, "
    "part STRUCT<n: SMALLINT, d: DECIMAL(9,2)>"
)


def feed(world: World, number: int) -> None:
    (world.root / "in").mkdir(exist_ok=True)
    file = world.root / "in" / f"{number}.json"
    row = {
        "id": number,
        "at": "2026-03-29T01:30:00Z",
        "local": "2026-03-29T02:30:00",
        "day": f"2026-03-{1 + number:02}",
    }
    file.write_text(json.dumps({**row, "tags": ["a", None], "part": {"n": 7, "d": "1.25"}}) + "\n")
    world.publish([file.as_uri()])


def test_a_query_fills_a_table_that_it_makes_and_refuses_what_the_table_cannot_hold(
    spark: SparkSession, world: World
) -> None:
    """The hour of the timestamps is one that Berlin does not have, and the session is in New York."""
    query = described(world)
    query["sink_options"] = world.sink(path=None, delta=world.root / "table", partitionBy="day, at")
    stream = spark.readStream.format("cuesqueue").options(**query["source"]).schema(SCHEMA).load()
    for number in range(3):
        feed(world, number)
    start_frame(stream, query).awaitTermination()
    with open_store(world.store_url) as store:
        lake = DeltaLake(store, {"delta": str(world.root / "table")})
        at, local = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc), datetime(2026, 3, 29, 2, 30)
        rows = lake.read()
        assert [row["id"] for row in rows] == [0, 1, 2]
        assert ({row["at"] for row in rows}, {row["local"] for row in rows}) == ({at}, {local})
        assert rows[0]["tags"] == ["a", None]
        assert str(rows[0]["part"]) == "{'n': 7, 'd': Decimal('1.25')}"
        feed(world, 3)
        failing = start_frame(stream.selectExpr("*", "INTERVAL '1' YEAR AS gap"), query)
        with pytest.raises(Exception, match=r"column 'gap' is of type interval year"):
            failing.awaitTermination()
        assert lake.ids() == [0, 1, 2]
        start_frame(stream, query).awaitTermination()  # with the checkpoint that failed
        assert lake.ids() == [0, 1, 2, 3]
    assert world.open_shards() == []  # the message of the batch that failed is acknowledged when its lease has ended


def into_delta(world: World) -> Query:
    query = described(world, trigger={"processingTime": "0 seconds"}, maxFilesPerTrigger=2)
    query["sink_options"] = world.sink(path=None, delta=world.root / "table")
    return query


@pytest.mark.parametrize("place", ["table-files-written", "table-committed"])
def test_a_driver_killed_at_any_step_of_the_table_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    world = World(tmp_path / "world")
    rows = world.feed(0, 5)
    query = into_delta(world)
    driver = new_driver([query], pause_at=place)
    driver.wait_paused(1)
    driver.kill()
    run_until_settled(spark, [(world, query)])
    found = pa.table(DeltaTable(str(world.root / "table")).scan()).to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == sorted(rows)
    assert (world.depth().total, world.open_shards()) == (0, [])
