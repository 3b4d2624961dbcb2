"""A reader without a queue: what is in a folder, and what is new in it, each once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from support.engine.queries import Query, described, run
from support.engine.versions import TELLS_START
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine


def test_a_folder_is_read_once_and_what_is_new_in_it_by_the_next_run(spark: SparkSession, world: World) -> None:
    query = described(
        world,
        queueUrl=None,
        allowedPrefixes=None,
        backfillPrefixes=f"file://{world.root}/in/",
        source="files",
        maxFilesPerTrigger=2,
    )
    _, rows = world.write(0, 5)
    run_all(spark, query, world, rows)
    _, more = world.write(5, 2)
    run_all(spark, query, world, rows + more)
    assert {shard["queue"] for shard in world.view("shards")} == {"listing"}
    assert {shard["state"] for shard in world.view("shards")} == {"done"}


def run_all(spark: SparkSession, query: Query, world: World, rows: list[tuple[int, str]]) -> None:
    """AvailableNow runs: one from Spark 4.2 on; before, one for each batch."""
    run(spark, query)
    if TELLS_START:
        assert world.published() == sorted(rows)

    def all_published() -> bool:
        if len(world.published()) < len(rows):
            run(spark, query)
        return len(world.published()) >= len(rows) and not world.open_shards()

    eventually("every row", all_published)
    assert world.published() == sorted(rows)
