"""A query that uses one streaming DataFrame twice: Spark asks for the partitions of each batch twice."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from shard_store.sql.schema import pipelines
from shard_store.store import open_store
from support.engine.queries import described, read, start_frame
from support.engine.world import Row, World

pytestmark = pytest.mark.engine

APART = 500_000


def test_both_readings_are_one_attempt_and_each_row_comes_once_by_each(spark: SparkSession, world: World) -> None:
    query = described(world)
    expected: list[Row] = []
    for number in range(2):  # the second run goes on from the checkpoint
        rows = world.feed(3 * number, 3)
        expected += [*rows, *((id + APART, name) for id, name in rows)]
        stream = read(spark, query["source"], query)
        start_frame(stream.union(stream.selectExpr(f"id + {APART} AS id", "name")), query).awaitTermination()
        assert world.published() == sorted(expected)
        with open_store(world.store_url) as store:
            made = store.database.read(lambda t: t.execute(sa.select(pipelines.c.plan_attempt)).scalar_one())
        assert made == 1
    assert world.settled()
