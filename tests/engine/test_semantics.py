"""at-least-once and at-most-once with a real Spark; drivers are killed in `integration/test_semantics_spark.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.engine.queries import Query, described, run_until_settled, start_all
from support.engine.versions import TELLS_START
from support.engine.world import SCHEMA, World

pytestmark = pytest.mark.engine

METADATA = "_metadata STRUCT<shard_id: STRING, delivery_hash: STRING>"


def test_available_now_leaves_nothing_unacknowledged_under_either_semantics(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Six objects, one of them announced twice and one missing."""
    worlds = {name: World(tmp_path / name) for name in ("at-least-once", "at-most-once")}
    queries: list[Query] = []
    rows = {}
    for name, world in worlds.items():
        rows[name] = world.feed(0, 5)
        uris, twice = world.write(5, 1)
        world.publish([*uris * 2, "file://" + str(world.root / "in" / "missing.json")])
        rows[name] += twice * (2 if name == "at-least-once" else 1)
        query = described(world, deliverySemantics=name)
        query["schema"] = f"{SCHEMA}, {METADATA}"
        queries.append(query)
    for running in start_all(spark, queries):
        running.awaitTermination()
    if not TELLS_START:  # the last batch is settled by the next run
        run_until_settled(spark, zip(worlds.values(), queries, strict=True))
    for name, world in worlds.items():
        assert world.published() == sorted(rows[name]), name
        assert (world.depth().total, world.unconfirmed()) == (0, 0), name
        assert [error["cause"] for error in world.view("errors")] == ["missing-object"], name
    assert worlds["at-least-once"].view("shards") == []
    assert sorted(shard["state"] for shard in worlds["at-most-once"].view("shards")) == ["done"] * 6 + ["quarantined"]
    ids = spark.read.format("cuesqueue").option("store", worlds["at-least-once"].store_url).load()
    assert ids.select("_metadata.shard_id").distinct().count() == 7  # each announcement is a shard of its own
