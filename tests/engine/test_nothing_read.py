"""Queries for which Spark reads nothing, since no row can come of them: their objects are done, as anywhere."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from support.engine.queries import described, read, start_frame
from support.engine.versions import TELLS_START
from support.engine.world import World

pytestmark = pytest.mark.engine


def run(spark: SparkSession, world: World, *, nothing: bool) -> None:
    query = described(world)
    stream: DataFrame = read(spark, query["source"], query)
    for _ in range(1 if TELLS_START else 2):
        start_frame(stream.limit(0) if nothing else stream.filter(lit(True)), query).awaitTermination()


def test_a_query_with_limit_0_runs_on_and_so_does_the_one_without_it_after_it(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 1)
    run(spark, world, nothing=False)
    for number in (1, 2):
        world.feed(2 * number, 2)
        run(spark, world, nothing=True)
        assert world.open_shards() == []
    rows += world.feed(9, 1)
    run(spark, world, nothing=False)
    assert world.published() == sorted(rows)
    assert world.settled()
