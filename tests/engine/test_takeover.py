"""Of two queries with one pipeline the older one stops, and says why. Frozen drivers are in `integration`."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery

from queue_source.foreach_batch import delivery
from shard_store.sql.schema import pipelines
from shard_store.store import open_store
from support.engine.queries import described, read, settled, start, start_frame
from support.engine.upserts import LOG
from support.engine.world import PATIENCE, World, eventually

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


def test_a_newer_query_plans_nothing_while_the_older_one_may_still_deliver_its_batch(
    spark: SparkSession, world: World
) -> None:
    """The older one runs Spark jobs between its plan and its delivery, which takes whatever plan is the current one."""
    rows = world.feed(0, 1)
    with open_store(world.store_url) as store:
        LOG.create(store.database.engine)
    arrived, go_on = threading.Event(), threading.Event()

    def take(frame: DataFrame, batch_id: int) -> None:
        collected = [(row.id, row.name) for row in frame.select("id", "name").collect()]
        if not arrived.is_set():
            arrived.set()
            assert go_on.wait(PATIENCE)
        with delivery(world.store_url, "files", batch_id) as batch:
            if collected and not batch.already:
                batch.connection.execute(LOG.insert(), [{"id": i, "name": n} for i, n in collected])

    def begin(checkpoint: str) -> StreamingQuery:
        query = described(world)
        stream = read(spark, query["source"], query).writeStream.foreachBatch(take).trigger(**STREAM)
        return stream.option("checkpointLocation", str(world.root / checkpoint)).start()

    def pipeline(column: str) -> int:
        with open_store(world.store_url) as store:
            return int(store.database.read(lambda t: t.execute(sa.select(pipelines.c[column])).scalar_one()))

    older = begin("older")
    assert arrived.wait(PATIENCE)
    newer = begin("newer")
    try:
        eventually("the newer query's reader", lambda: pipeline("incarnation") == 2)
        rows += world.feed(1, 1)
        with pytest.raises(AssertionError, match="not within"):  # longer than any start takes
            eventually("a plan of the newer query", lambda: pipeline("plan_incarnation") == 2, patience=4)
        go_on.set()
        assert "was taken over by a newer query" in str(eventually("the older query's end", older.exception))
        settled(world, newer)
    finally:
        go_on.set()
        older.stop()
        newer.stop()
    with open_store(world.store_url) as store, store.database.engine.connect() as connection:
        assert sorted(map(tuple, connection.execute(sa.select(LOG)))) == sorted(rows)


def test_a_stream_that_is_joined_with_itself_is_refused_with_what_to_do(spark: SparkSession, world: World) -> None:
    """Spark reads it by two readers, each of which would have to be the pipeline's only one."""
    world.feed(0, 1)
    query = described(world)
    stream = read(spark, query["source"], query)
    joined = stream.alias("a").join(stream.alias("b"), expr("a.id = b.id")).selectExpr("a.id", "b.name")
    for _ in range(2):  # a second try has a checkpoint
        with pytest.raises(StreamingQueryException, match=r"joins the stream with itself.*join each batch with itself"):
            start_frame(joined, query).awaitTermination()
    assert world.published() == []
