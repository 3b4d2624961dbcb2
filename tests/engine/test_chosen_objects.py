"""With a real Spark: objects are chosen by the times that their store knows, in the zone that the session has."""

from __future__ import annotations

import os
from datetime import datetime, timezone

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from support.engine.queries import described, run
from support.engine.world import World

pytestmark = pytest.mark.engine

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc).timestamp()


def modified(world: World, number: int, seconds: float) -> None:
    """Since noon."""
    os.utime(world.root / "in" / f"{number}.json", (NOON + seconds, NOON + seconds))


def test_objects_are_chosen_by_when_they_were_modified_and_the_others_are_acknowledged(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 4)
    for number, seconds in enumerate((-1.0, 0.0, 1.0, 7200.0)):
        modified(world, number, seconds)
    between = {"modifiedAfter": "2026-11-20T13:00:00+01:00", "modifiedBefore": "2026-11-20T13:00:00", "timeZone": "UTC"}
    run(spark, described(world, **between))
    chosen = {shard["shard_id"].rpartition("/")[2] for shard in world.view("shards")}
    assert chosen == {"2.json"}
    assert world.published() == rows[10:15]
    assert world.depth().total == 0
    assert world.view("errors") == []


def test_a_time_without_a_zone_fails_where_the_session_has_another_one_than_the_machine(
    spark: SparkSession, world: World
) -> None:
    world.feed(0, 1)
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Pacific/Marquesas")
    with pytest.raises(StreamingQueryException, match=r"modifiedAfter.*write the zone"):
        run(other, described(world, modifiedAfter="2001-01-01T00:00:00"))
    run(other, described(world, modifiedAfter="2001-01-01T00:00:00Z"))
    assert len(world.view("shards")) == 1
