"""A checkpoint or a store is lost: nothing is lost or doubled silently."""

from __future__ import annotations

import json
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from support.engine.queries import combine, described, read, run, run_until_settled, start_frame
from support.engine.world import SCHEMA, World

pytestmark = pytest.mark.engine


def test_a_lost_checkpoint_of_an_idle_pipeline_loses_and_doubles_nothing(spark: SparkSession, world: World) -> None:
    """At every step of a batch: test_crashes, where one of three queries loses its checkpoint."""
    rows = world.feed(0, 3)
    query = described(world)
    run_until_settled(spark, [(world, query)])
    shutil.rmtree(query["checkpoint"])
    run(spark, query)
    rows += world.feed(3, 2)
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)


def test_rows_of_another_source_are_published_with_a_new_checkpoint_too(spark: SparkSession, world: World) -> None:
    """Their batches have no input of ours, and the numbers that those of the checkpoint before had."""
    rows, (folder, beside) = world.feed(0, 1), (world.root / "beside", [(number, "beside") for number in range(3)])
    folder.mkdir()
    for number, name in beside:
        (folder / f"{number}.json").write_text(json.dumps({"id": number, "name": name}), "utf-8")
    query = described(world)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(folder))
    frame = combine(read(spark, query["source"], query), files, "union")
    for _ in range(2):
        start_frame(frame, query).awaitTermination()
        shutil.rmtree(query["checkpoint"])
    assert world.published() == sorted([*rows, *beside, *beside])


def test_a_lost_store_under_a_live_checkpoint_is_refused_with_the_way_out(spark: SparkSession, world: World) -> None:
    query = described(world)
    world.feed(0, 2)
    run_until_settled(spark, [(world, query)])
    before = world.published()
    for file in world.root.glob("store.db*"):
        file.unlink()
    rows = world.feed(2, 2)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, query)
    assert "the checkpoint is at offset 1 of another store" in str(caught.value)
    assert "set 'failOnDataLoss' to false" in str(caught.value)
    query["source"]["failOnDataLoss"] = "false"
    run_until_settled(spark, [(world, query)])
    del query["source"]["failOnDataLoss"]
    rows += world.feed(4, 1)
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)
    assert len(before) == 10


@pytest.mark.parametrize("sink", ["cuesqueue", "appending"])
def test_a_checkpoint_of_another_pipeline_is_refused_and_its_batches_count_for_nothing(
    spark: SparkSession, world: World, sink: str
) -> None:
    world.feed(0, 1)
    other = described(world, sink, pipeline="other")
    other["sink_options"] = world.sink(pipeline="other") if sink == "cuesqueue" else {}
    run(spark, other)
    rows = world.feed(1, 2)
    taken = described(world, sink)
    for lossy in ("true", "false"):
        taken["source"]["failOnDataLoss"] = lossy
        with pytest.raises(StreamingQueryException, match="this checkpoint is of pipeline 'other'"):
            run(spark, taken)
    run_until_settled(spark, [(world, described(world, sink, checkpoint="own"))])
    assert set(rows) <= set(world.result(sink))
