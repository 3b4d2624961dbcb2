"""Spark's own sinks: what holds when a batch is repeated, and what does not (docs/reference/sinks.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from engine.conftest import spark, world
from support.engine.queries import Query, described, read, run, start_frame
from support.engine.world import Row, World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "spark", "world"]  # the fixtures

DERBY = "org.apache.derby.jdbc.EmbeddedDriver"


def forget_last_commit(query: Query) -> None:
    """As if Spark had been killed when its sink was done and its log was not: the batch is repeated."""
    commits = Path(query["checkpoint"]) / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_spark_s_file_sink_has_each_row_once_and_a_new_checkpoint_needs_a_new_folder(
    spark: SparkSession, world: World
) -> None:
    """The sink skips the batches of a new checkpoint whose numbers its folder knows, and Spark calls them done."""
    rows = world.feed(0, 3)
    query = described(world, "parquet")
    query["sink_options"] = {"path": f"{world.root}/out"}

    def there() -> list[Row]:
        found = spark.read.parquet(query["sink_options"]["path"]).collect()
        return sorted((row.id, row.name) for row in found)

    def run_twice() -> None:
        for _ in range(2):  # Spark 4.0 and 4.1 find out at the second start only
            run(spark, query)

    run(spark, query)
    forget_last_commit(query)
    rows += world.feed(3, 1)
    run(spark, query)
    run(spark, query)  # Spark 4.0 and 4.1: the first one only repeats
    assert there() == sorted(rows)
    shutil.rmtree(query["checkpoint"])
    skipped = world.feed(4, 1)
    with pytest.raises(StreamingQueryException, match="nobody can have read it"):
        run_twice()
    assert there() == sorted(rows)
    shutil.rmtree(query["checkpoint"])
    query["sink_options"] = {"path": f"{world.root}/new"}
    run_twice()
    assert there() == skipped
    assert world.open_shards() == []


def test_rows_appended_over_jdbc_are_there_twice_when_their_batch_is_repeated(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 2)
    query = described(world)
    jdbc = {"url": f"jdbc:derby:{world.root}/derby;create=true", "dbtable": "taken", "driver": DERBY}

    fails = iter([True])

    def append(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("jdbc").mode("append").options(**jdbc).save()
        if next(fails, False):
            raise RuntimeError("after the rows are there, before Spark notes it")

    def there() -> list[Row]:
        table = spark.read.format("jdbc").options(**jdbc).load()
        return sorted((row.id, row.name) for row in table.collect())

    def run_once() -> None:
        frame = read(spark, query["source"], query)
        frame.writeStream.foreachBatch(append).option("checkpointLocation", query["checkpoint"]).trigger(
            availableNow=True
        ).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="before Spark notes it"):
        run_once()
    assert there() == sorted(rows)
    run_once()
    assert there() == sorted(rows * 2)


def test_the_memory_sink_has_each_row_once_while_its_query_runs(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    query = described(world, "memory")
    query["sink_options"] = {"queryName": "rows_in_memory"}
    start_frame(read(spark, query["source"], query), query).awaitTermination()
    assert sorted((row.id, row.name) for row in spark.table("rows_in_memory").collect()) == sorted(rows)
