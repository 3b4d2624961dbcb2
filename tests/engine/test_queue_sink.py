"""The sink with `queueUrl` under a real Spark: what reaches the queue, and when wrong columns are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queue_source.queues import open_queue
from queue_source.queues.sql import SqlQueue
from queue_source.sinks.queue import HASH_HEADER, INDEX_HEADER
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine


def messages(spark: SparkSession, world: World) -> DataFrame:
    options = world.source(fileFormat=None, allowedPrefixes=None, content="message", pipeline="files")
    return spark.readStream.format("cuesqueue").options(**options).load()


def run(frame: DataFrame, world: World, **options: Any) -> StreamingQuery:
    sink = {"store": world.store_url, "pipeline": "files", **options}
    query = frame.writeStream.format("cuesqueue").options(**sink).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_rows_become_messages_of_a_queue_in_the_stores_database(spark: SparkSession, world: World) -> None:
    """Over a shuffle, and with a checkpoint that the session names, so that the sink is not told of it."""
    bodies = [f"number {n % 30}".encode() for n in range(40)]
    with open_queue(world.queue_url) as queue:
        queue.publish(bodies, tag="orders.eu", headers={"trace": "1"})
    url = f"sql+{world.store_url}?queue=out"
    frame = messages(spark, world).repartition(3)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(world.root / "checkpoints"))
    try:
        with pytest.raises(Exception, match="a message has no place for the column 'id'"):
            run(frame.withColumnRenamed("key", "id"), world, queueUrl=url)
        # what the refused run had planned is leased to it for a while, and is acknowledged when it comes again
        eventually("an empty queue", lambda: run(frame, world, queueUrl=url) and world.settled())
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    with SqlQueue(url) as queue:
        found = queue.peek(100)
    assert Counter(message.body for message in found) == Counter(bodies)
    assert {(message.tag, message.headers["trace"]) for message in found} == {("orders.eu", "1")}
    (attempt,) = world.view("attempts")
    assert (attempt["kind"], attempt["rows"], attempt["bytes"]) == ("attempt-output", 40, sum(map(len, bodies)))
    assert {message.headers[HASH_HEADER] for message in found} == {attempt["delivery_hash"]}
    assert len({message.headers[INDEX_HEADER] for message in found}) == 40
