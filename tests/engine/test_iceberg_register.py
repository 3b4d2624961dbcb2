"""Announced Parquet objects become data files of a table in a real query; Spark has written them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from shard_store.store import open_store
from support.engine.queries import described, run_until_settled, start
from support.engine.world import World
from support.iceberg_tables import Lake
from support.store_backends import rows

pytestmark = pytest.mark.engine

COLUMNS = (
    "id",
    "CAST(id AS STRING) AS name",
    "TIMESTAMP'2026-03-29 01:30:00' AS at",
    "CAST(id AS DECIMAL(9,2)) AS d",
    "id % 2 AS part",
)


def test_what_spark_has_written_is_registered_and_what_does_not_fit_is_bad(
    spark: SparkSession, world: World, iceberg_threads: None
) -> None:
    """INT96 is what Spark writes for timestamps unless it is told to write microseconds."""
    frame = spark.range(10).selectExpr(*COLUMNS)
    landing = world.root / "in"
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    frame.coalesce(1).write.partitionBy("part").parquet(str(landing / "micros"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    frame.coalesce(1).write.partitionBy("part").parquet(str(landing / "int96"))
    (landing / "bad.parquet").write_text("no Parquet")
    files = sorted(landing.rglob("*.parquet"))
    world.publish([file.as_uri().replace("%3D", "=") for file in files])
    query = {**described(world, fileFormat=None, content="reference"), "schema": ""}
    query["sink_options"] = world.sink(
        path=None,
        table="db.events",
        warehouse=world.root / "lake",
        partitionBy="part",
        register="uri",
    )
    run_until_settled(spark, [(world, query)])  # type: ignore[list-item]
    with open_store(world.store_url) as store:
        lake = Lake(store, {}, {"type": "sql", "uri": world.store_url})
        table = lake.table()
        found = table.scan().to_arrow().to_pylist()
        expected = [(row.id, row.name, row.d, row.part) for row in frame.collect()]
        assert sorted((r["id"], r["name"], r["d"], r["part"]) for r in found) == sorted(expected)
        assert len({r["at"] for r in found}) == 1
        causes = sorted(error["cause"] for error in rows(store, "errors"))
        assert causes == ["corrupt-object", "wrong-columns", "wrong-columns"]
        assert sum(int(snapshot["cuesqueue.registered-objects"]) for snapshot in lake.snapshots()) == 2
        own = {Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()}
        assert own == {file for file in files if "micros" in str(file)}
    assert world.open_shards() == []


def test_a_query_without_the_columns_fails_before_anything_is_read(
    spark: SparkSession, world: World, iceberg_threads: None
) -> None:
    world.publish([f"file://{world.root}/in/x.parquet"])
    query = {**described(world, fileFormat=None, content="reference"), "schema": "uri STRING"}
    query["sink_options"] = world.sink(path=None, table="db.events", warehouse=world.root / "lake", register="uri")
    running = start(spark, query)  # type: ignore[arg-type]
    with pytest.raises(StreamingQueryException, match=r"option 'register': needs a column 'size' of type BIGINT"):
        running.awaitTermination()
