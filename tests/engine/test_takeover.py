"""Of two queries with one pipeline the older one stops, and says why. Frozen drivers are in `integration`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from support.engine.queries import described, settled, start
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}


def test_of_two_queries_with_one_pipeline_name_in_one_driver_the_older_stops_and_says_why(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 2)
    older = start(spark, described(world, trigger=STREAM, checkpoint="older"))
    settled(world, older)
    newer = start(spark, described(world, trigger=STREAM, checkpoint="newer"))
    try:
        error = eventually("the end of the older query", older.exception)
        assert "was taken over by a newer query" in str(error)
        assert "give each running query its own 'pipeline' option" in str(error)
        rows += world.feed(2, 2)
        settled(world, newer)
    finally:
        older.stop()
        newer.stop()
    assert world.published() == sorted(rows)
