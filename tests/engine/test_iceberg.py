"""Spark's rows in an Iceberg table, with the table's transaction that of the store."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from pyspark.sql import SparkSession

from shard_store.store import open_store
from support.engine.queries import described, start_frame
from support.engine.world import World
from support.iceberg_tables import Lake

pytestmark = pytest.mark.engine

SCHEMA = "id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, part STRUCT<n: SMALLINT, d: DECIMAL(9,2)>"


def feed(world: World, number: int) -> None:
    (world.root / "in").mkdir(exist_ok=True)
    file = world.root / "in" / f"{number}.json"
    row = {"id": number, "at": "2026-03-29T01:30:00Z", "local": "2026-03-29T02:30:00", "tags": ["a", None]}
    file.write_text(json.dumps({**row, "part": {"n": 7, "d": "1.25"}}) + "\n")
    world.publish([file.as_uri()])


def test_a_query_fills_a_table_that_it_makes_and_refuses_what_the_table_cannot_hold(
    spark: SparkSession, world: World, iceberg_threads: None
) -> None:
    """The hour of the timestamps is one that Berlin does not have, and the session is in New York."""
    options = {"path": None, "table": "db.events", "partitionBy": "day(at), id"}
    query = described(world)
    query["sink_options"] = world.sink(**options, warehouse=world.root / "lake")
    stream = spark.readStream.format("cuesqueue").options(**query["source"]).schema(SCHEMA).load()
    for number in range(3):
        feed(world, number)
    start_frame(stream, query).awaitTermination()
    with open_store(world.store_url) as store:
        lake = Lake(store, {}, {"type": "sql", "uri": world.store_url})
        at, local = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc), datetime(2026, 3, 29, 2, 30)
        rows = lake.read()
        assert [row["id"] for row in rows] == [0, 1, 2]
        assert {row["at"] for row in rows} == {at}
        assert {row["local"] for row in rows} == {local}
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
