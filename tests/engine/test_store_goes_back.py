"""The store goes back under a running query. What its reader notices by itself: `contracts/test_store_goes_back.py`."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from queue_source.foreach_batch import delivery
from shard_store.sql.schema import attempts, pipelines
from shard_store.store import open_store
from support.engine.queries import Query, combine, described, read, start_frame
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine

NAMES = ("files", "payments")


def forget_publication(world: World, pipeline: str) -> None:
    """As after a failover to a replica that lacks it."""
    with open_store(world.store_url) as store, store.database.engine.begin() as connection:
        connection.execute(attempts.delete().where(attempts.c.pipeline == pipeline))
        connection.execute(pipelines.update().where(pipelines.c.pipeline == pipeline).values(confirmed_seq=0))


@pytest.mark.parametrize("sink", ["cuesqueue", "delivery"])
def test_a_batch_of_another_source_is_not_published_as_the_batch_that_is_lost(
    spark: SparkSession, world: World, sink: str
) -> None:
    payments = World(world.root / "payments", store=world.store_url)
    settings = {"commitTimeout": "10min", "visibilityTimeout": "30min"}  # no heartbeat notices it earlier
    query: Query = described(world, **settings)
    query["trigger"] = {"processingTime": "0 seconds"}
    second = payments.source(pipeline="payments", source="payments", **settings)
    frame = combine(read(spark, query["source"], query), read(spark, second, query), "union")

    def take(batch: DataFrame, batch_id: int) -> None:
        with delivery(world.store_url, NAMES, batch_id):
            batch.count()

    def published(pipeline: str) -> int:
        with open_store(world.store_url) as store:
            query = sa.select(sa.func.count()).select_from(attempts).where(attempts.c.pipeline == pipeline)
            return int(store.database.read(lambda t: t.execute(query.where(attempts.c.shards > 0)).scalar_one()))

    world.feed(0, 1)
    if sink == "delivery":
        writer = frame.writeStream.foreachBatch(take).trigger(**query["trigger"])
        running = writer.option("checkpointLocation", query["checkpoint"]).start()
    else:
        query["sink_options"]["pipeline"] = ",".join(NAMES)
        running = start_frame(frame, query)
    try:
        eventually("the batch of the first source", lambda: published("files") == 1 or not running.isActive)
        payments.feed(1, 1)
        eventually("the batch of the second one", lambda: published("payments") == 1 or not running.isActive)
        assert running.isActive, running.exception()
        forget_publication(world, "files")
        payments.feed(2, 1)
        error = str(eventually("the query's end", running.exception))
    finally:
        running.stop()
    assert "has lost that the plan up to offset 1 is published" in error
    assert published("payments") == 1
