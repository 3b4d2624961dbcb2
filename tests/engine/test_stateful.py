"""Queries with state: rows that come in a batch without new data are published like all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, window

from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, splits
from shard_store.store import open_store
from support.engine.queries import Query, described, start_frame
from support.engine.world import PATIENCE, World, eventually

pytestmark = pytest.mark.engine

SCHEMA = "id BIGINT, name STRING, at TIMESTAMP"


def counts(spark: SparkSession, world: World, query: Query) -> DataFrame:
    """Rows a minute, each told when its minute is over: append mode."""
    stream = spark.readStream.format("cuesqueue").schema(SCHEMA).options(**query["source"]).load()
    minutes = stream.withWatermark("at", "0 seconds").groupBy(window("at", "1 minute"))
    return minutes.agg(count("*").alias("rows")).selectExpr("minute(window.start) AS minute", "rows")


def feed(world: World, number: int, minutes: list[int]) -> None:
    folder = world.root / "in"
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.json"
    lines = [f'{{"id": {i}, "name": "n", "at": "2026-01-01T00:{m:02d}:00Z"}}\n' for i, m in enumerate(minutes)]
    file.write_text("".join(lines))
    world.publish([file.as_uri()])


def published(spark: SparkSession, world: World) -> list[tuple[Any, ...]]:
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    return sorted(tuple(row) for row in data.collect())


def logged(query: Query, log: str) -> list[int]:
    return sorted(int(file.name) for file in (Path(query["checkpoint"]) / log).glob("[0-9]*"))


def run_until(spark: SparkSession, world: World, query: Query, rows: int) -> None:
    """Run as a stream until so many rows are published."""
    running = start_frame(counts(spark, world, query), query)
    try:

        def there() -> bool:
            if (error := running.exception()) is not None:
                raise error
            return sum(split["rows"] for split in world.view("splits")) >= rows and world.settled()

        eventually(f"{rows} rows", there)
        eventually("what Spark logs after a publication", lambda: logged(query, "offsets") == logged(query, "commits"))
    finally:
        running.stop()


def test_rows_of_a_batch_without_new_data_are_published_once(spark: SparkSession, world: World) -> None:
    query = described(world, trigger={"processingTime": "0 seconds"})
    feed(world, 0, [1, 1, 2, 5])  # the watermark passes minutes 1 and 2 only after the batch: they come in the next
    run_until(spark, world, query, 2)
    assert published(spark, world) == [(1, 2), (2, 1)]
    feed(world, 1, [6, 6, 9])
    run_until(spark, world, query, 4)
    assert published(spark, world) == [(1, 2), (2, 1), (5, 1), (6, 2)]


def test_complete_mode_is_refused_since_all_results_would_be_appended_with_each_batch(
    spark: SparkSession, world: World
) -> None:
    query = described(world)
    feed(world, 0, [1, 1, 2])
    stream = spark.readStream.format("cuesqueue").schema(SCHEMA).options(**query["source"]).load()
    running = start_frame(stream.groupBy("name").count(), query, "complete")
    with pytest.raises(StreamingQueryException, match="complete gives all results with each batch"):
        running.awaitTermination(int(PATIENCE))


@pytest.mark.parametrize("published_before", [False], ids=["not published"])  # True: integration/test_left_out_spark.py
def test_a_batch_without_new_data_that_was_not_finished_is_completed_at_the_restart(
    spark: SparkSession, world: World, published_before: bool
) -> None:
    """As if killed in the batch that tells what the watermark moved past, after or before its publication."""
    query = described(world, trigger={"processingTime": "0 seconds"})
    feed(world, 0, [1, 1, 2, 5])
    run_until(spark, world, query, 2)
    assert logged(query, "commits") == [0, 1], "the second batch is not the one without new data"
    commits = Path(query["checkpoint"]) / "commits"
    (commits / "1").unlink()
    (commits / ".1.crc").unlink(missing_ok=True)
    if not published_before:
        with open_store(world.store_url) as store:
            store.database.write(forget_what_brought_no_shard)
    run_until(spark, world, query, 2)
    feed(world, 1, [6, 6, 9])
    run_until(spark, world, query, 4)
    assert published(spark, world) == [(1, 2), (2, 1), (5, 1), (6, 2)]


def forget_what_brought_no_shard(transaction: Transaction) -> None:
    empty = sa.select(attempts.c.delivery_hash).where(attempts.c.shards == 0)
    transaction.execute(splits.delete().where(splits.c.delivery_hash.in_(empty)))
    transaction.execute(attempts.delete().where(attempts.c.shards == 0))
