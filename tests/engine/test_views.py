"""What was published can be read again with Spark: rows, files, shards, attempts and errors."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import cuesqueue
from queue_source.commands.compact import compact
from queue_source.spark.process import arrow_schema
from shard_store import open_store
from support.engine.queries import described, run
from support.engine.world import World

pytestmark = pytest.mark.engine


def view(spark: SparkSession, world: World, name: str, **options: str) -> DataFrame:
    return spark.read.format("cuesqueue").options(store=world.store_url, view=name, **options).load()


def test_views_tell_what_was_published(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    world.publish(["nothing to read"])
    for _ in range(2):  # AvailableNow takes whole batches; before Spark 4.2 one in each run
        run(spark, described(world, maxFilesPerTrigger=2))
    orphan = world.root / "out" / "split-of-a-dead-attempt.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "name": ["orphan"]}), orphan)

    data = view(spark, world, "data")
    assert sorted((row.id, row.name) for row in data.collect()) == sorted(rows)
    assert data.schema.simpleString() == "struct<id:bigint,name:string>"

    splits = view(spark, world, "splits").collect()
    assert sum(split.rows for split in splits) == len(rows)
    assert {split.pipeline for split in splits} == {"files"}

    attempts = view(spark, world, "attempts").orderBy("end_seq").collect()
    assert [(a.kind, a.shards, a.batch_id) for a in attempts if a.shards] == [
        ("attempt-output", 2, 0),
        ("attempt-output", 1, 1),
    ]
    assert {split.delivery_hash for split in splits} <= {attempt.delivery_hash for attempt in attempts}
    now = datetime.now(timezone.utc).replace(tzinfo=None)  # the session's zone is the collecting Python's
    for attempt in attempts:
        assert abs(attempt.published_at.astimezone(timezone.utc).replace(tzinfo=None) - now) < timedelta(minutes=10)

    shards = view(spark, world, "shards").collect()
    assert sorted(shard.shard_id for shard in shards) == sorted(f.as_uri() for f in (world.root / "in").iterdir())
    assert {(shard.state, shard.pipeline, shard.source) for shard in shards} == {("done", "files", "files")}
    assert all(shard.position.startswith("~") for shard in shards)

    (error,) = view(spark, world, "errors").collect()
    assert (error.scope, error.cause, error.final, bytes(error.input)) == (
        "message",
        "malformed-message",
        True,
        b"nothing to read",
    )
    assert view(spark, world, "data", pipeline="files").count() == len(rows)
    first = min((a for a in attempts if a.shards), key=lambda attempt: attempt.end_seq)
    assert view(spark, world, "data", asOfAttempt=first.delivery_hash).count() == first.rows == 10
    assert view(spark, world, "data", asOf="2026-01-01").count() == 0

    files = view(spark, world, "files_state").collect()
    assert sorted(file.path for file in files) == sorted(shard.shard_id for shard in shards)
    assert all(file.discovery_time <= file.processed_time <= file.commit_time for file in files)
    assert sorted((file.rows is None, file.batch_rows) for file in files) == [(False, 5), (True, 10), (True, 10)]
    assert view(spark, world, "shards", pipeline="another").count() == 0


def test_the_view_has_the_same_rows_while_files_are_joined_between_its_planning_and_its_tasks(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 4)
    for _ in range(4):  # a batch in each run before Spark 4.2
        run(spark, described(world, maxFilesPerTrigger=1))
    first, *_ = view(spark, world, "attempts").where("shards > 0").orderBy("end_seq").collect()
    planned = view(spark, world, "data")
    partitions = planned.rdd.getNumPartitions()  # from now on it has its files
    with open_store(world.store_url) as store:
        before = [*cuesqueue.published(store).paths()]
        assert compact(store, smaller_than=1 << 20, target=1 << 30).files == len(before) == 4
    for data in (planned, view(spark, world, "data")):
        assert sorted((row.id, row.name) for row in data.collect()) == sorted(rows)
    assert partitions == 1
    assert view(spark, world, "data", asOfAttempt=first.delivery_hash).count() == first.rows < len(rows)
    assert view(spark, world, "splits").count() == 1


def test_a_view_of_a_store_without_rows_says_so_and_of_no_store_makes_none(spark: SparkSession, world: World) -> None:
    with pytest.raises(PySparkException, match="there is no such file, and so no store"):
        view(spark, world, "shards").count()
    open_store(world.store_url).close()
    with pytest.raises(PySparkException, match="no sink has published rows to this store yet"):
        view(spark, world, "data")
    assert view(spark, world, "shards").count() == 0


def test_what_is_read_without_spark_is_what_the_view_shows(spark: SparkSession, world: World) -> None:
    first = described(world)
    first["schema"] = "id INT, name STRING, score FLOAT"
    world.feed(0, 2)
    run(spark, first)
    second = described(world)
    second["schema"] = (
        "id BIGINT, score DOUBLE, name STRING, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(10,2), "
        "tags ARRAY<STRING>, part STRUCT<a: INT, b: MAP<STRING, DOUBLE>>"
    )
    row = {
        "id": 1 << 40,
        "score": 1e300,
        "at": "2026-11-20T08:30:00Z",
        "local": "2026-11-20T08:30:00",
        "day": "2026-11-20",
        "price": 1.25,
        "tags": ["x", None],
        "part": {"a": 1, "b": {"k": 0.5}},
    }
    file = world.root / "in" / "evolved.json"
    file.write_text(json.dumps(row) + "\n", "utf-8")
    world.publish([file.as_uri()])
    run(spark, second)

    attempts = [a.delivery_hash for a in view(spark, world, "attempts").orderBy("published_at").collect() if a.splits]
    assert len(attempts) == 2
    for options, keywords, count in (
        ({}, {}, 11),
        ({"pipeline": "files"}, {"pipeline": "files"}, 11),
        ({"asOfAttempt": attempts[0]}, {"as_of_attempt": attempts[0]}, 10),
        ({"asOf": "2026-01-01"}, {"as_of": "2026-01-01"}, 0),
    ):
        data = view(spark, world, "data", **options)
        table = cuesqueue.published(world.store_url, **keywords).to_arrow()
        assert table.num_rows == count
        assert table.schema.equals(arrow_schema(data.schema))
        expected = data.toArrow().cast(table.schema)  # Spark hands times in the session's zone
        by_id = [("id", "ascending")]
        assert table.sort_by(by_id).to_pylist() == expected.sort_by(by_id).to_pylist()
