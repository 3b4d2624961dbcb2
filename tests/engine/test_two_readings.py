"""With a real Spark: a batch that is read twice, where one reading finds an object missing and the other reads it.

Whatever the query makes of both, its rows come once, or the object stays in quarantine and nothing opens it by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from support.engine.queries import described, read, run, start_frame
from support.engine.world import SCHEMA, Row, World, take_batch

pytestmark = pytest.mark.engine

LATE: Row = (1, "late")


def after_each_reading(happens: Callable[[], None]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: hand on the rows of a task, and do this when it has read all of its objects."""

    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        happens()

    return hand_on


def appears(file: Path) -> Callable[[], None]:
    text = json.dumps({"id": LATE[0], "name": LATE[1]}) + "\n"

    def write() -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")

    return write


def vanishes(file: Path) -> Callable[[], None]:
    return lambda: file.unlink(missing_ok=True)


class Late:
    """An object that only one of two readings of its batch finds, and what is there besides."""

    def __init__(self, world: World, first_found: bool) -> None:
        self.file = world.root / "in" / "late.json"
        self.rows = world.feed(0, 1)
        if first_found:
            appears(self.file)()
        self.then = (vanishes if first_found else appears)(self.file)
        world.publish([self.file.as_uri()])


@pytest.fixture(params=["first verdict", "first rows"])
def late(request: pytest.FixtureRequest, world: World) -> Late:
    return Late(world, request.param == "first rows")


def check(world: World, late: Late, found: list[Row]) -> None:
    """No row twice; and what is not there is in quarantine, where everybody sees it."""
    assert found in (sorted(late.rows), sorted([*late.rows, LATE]))
    (shard,) = [s for s in world.view("shards") if s["shard_id"] == late.file.as_uri()]
    assert shard["state"] == "quarantined"
    assert [(e["cause"], e["scope"], e["state"]) for e in world.view("errors")] == [
        ("missing-object", "part", "recorded")
    ]
    assert world.depth().total == 0


@pytest.mark.parametrize("again", ["announced", "listed"])
def test_what_range_partitioning_reads_in_another_way_than_its_sample_is_not_opened_again(
    spark: SparkSession, world: World, late: Late, again: str
) -> None:
    query = described(world, minPartitions=1)
    stream = read(spark, query["source"], query).mapInArrow(after_each_reading(late.then), SCHEMA)
    start_frame(stream.repartitionByRange(2, "id"), query).awaitTermination()
    appears(late.file)()
    if again == "announced":
        world.publish([late.file.as_uri()])
        run(spark, described(world))
    else:
        run(spark, described(world, backfillPrefixes=f"file://{world.root}/in/"))
    check(world, late, world.published())


def test_what_foreach_batch_counts_in_another_way_than_it_delivers_is_not_opened_again(
    spark: SparkSession, world: World, late: Late
) -> None:
    query = described(world, "foreign", minPartitions=1)

    def count_and_deliver(batch: DataFrame, batch_id: int) -> None:
        batch.count()
        late.then()
        take_batch(world.foreign, batch_id, [(row["id"], row["name"]) for row in batch.collect()])

    stream = read(spark, query["source"], query)
    writer = stream.writeStream.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True)
    writer.foreachBatch(count_and_deliver).start().awaitTermination()
    appears(late.file)()
    world.publish([late.file.as_uri()])
    run(spark, described(world, "foreign"))
    check(world, late, world.taken())


def test_what_a_cartesian_product_reads_in_another_way_for_one_part_of_the_other_side_is_not_opened_again(
    spark: SparkSession, world: World, late: Late
) -> None:
    """Each task of the stream is read once for each partition of the other side, all in one stage.

    In one task here, one after the other: of two at once, neither may find the object missing.
    """
    query = described(world, minPartitions=1)
    names = spark.createDataFrame([(1,), (2,)], "part INT").repartition(2).hint("shuffle_replicate_nl")
    stream = read(spark, query["source"], query).mapInArrow(after_each_reading(late.then), SCHEMA)
    pairs = stream.crossJoin(names).selectExpr("id * 10 + part AS id", "name")
    start_frame(pairs.coalesce(1), query).awaitTermination()
    before = world.published()
    appears(late.file)()
    world.publish([late.file.as_uri()])
    again = read(spark, query["source"], query).crossJoin(names).selectExpr("id * 10 + part AS id", "name")
    start_frame(again.coalesce(1), query).awaitTermination()
    assert world.published() == before
    assert [(e["cause"], e["scope"]) for e in world.view("errors")] == [("missing-object", "part")]


def lose_shuffle_files(
    once: Path, then: Callable[[], None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` behind a shuffle: the first task that ends takes along what the others have not fetched."""

    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return
        for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(folder).glob("*/shuffle_*"):
                file.unlink(missing_ok=True)
        then()

    return hand_on


def test_what_a_stage_reads_in_another_way_that_runs_again_for_lost_shuffle_files_is_published_once_or_not_opened(
    spark: SparkSession, world: World, late: Late
) -> None:
    """Spark 4.3 notices that the stage's output is another one, and fails the batch where it cannot take rows back."""
    query = described(world)
    stream = read(spark, query["source"], query).repartition(12, "id")
    again = stream.mapInArrow(lose_shuffle_files(world.root / "lost", late.then), SCHEMA)
    running = start_frame(again, query)
    with suppress(StreamingQueryException):
        running.awaitTermination()
    fails = "indeterminate" in str(running.exception())
    assert fails or running.exception() is None
    assert (world.root / "lost").exists()
    appears(late.file)()
    if fails:
        run(spark, described(world))  # without what was found bad
    world.publish([late.file.as_uri()])
    run(spark, described(world))
    if fails:
        assert world.published() == sorted([*late.rows, LATE])
        assert world.open_shards() == []
    else:
        check(world, late, world.published())


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("sink", ["cuesqueue", "foreign"])
def test_what_one_reading_found_missing_is_read_once_it_is_announced_again(
    spark: SparkSession, world: World, sink: str, shuffled: bool
) -> None:
    rows = world.feed(0, 3)
    file = world.root / "in" / "late.json"
    world.publish([file.as_uri()])
    query = described(world, sink)
    stream = read(spark, query["source"], query)
    start_frame(stream.repartition(2) if shuffled else stream, query).awaitTermination()
    appears(file)()
    world.publish([file.as_uri()])
    run(spark, query)
    assert world.result(sink) == sorted([*rows, LATE])
    assert [(e["cause"], e["state"]) for e in world.view("errors")] == [("missing-object", "reopened")]
