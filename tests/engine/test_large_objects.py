"""An object that is larger than a micro-batch is read over several, each record once, wherever the driver dies."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from support.engine.queries import described, run_until_settled
from support.engine.world import World

pytestmark = pytest.mark.engine

ROWS = 70_000  # more than 1 MB: four parts of the least size
STREAM = {"processingTime": "0 seconds"}


def write_large(world: World) -> list[tuple[int, str]]:
    folder = world.root / "in"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "large.csv").write_text("".join(f"{i},row {i:06}\n" for i in range(ROWS)))
    world.publish([(folder / "large.csv").as_uri()])
    return [(i, f"row {i:06}") for i in range(ROWS)]


def test_a_large_object_goes_on_where_its_last_batch_ended(
    spark: SparkSession, world: World, new_driver: DriverFactory
) -> None:
    rows = write_large(world)
    query = described(world, trigger=STREAM, fileFormat="csv", maxBytesPerTrigger="1k")
    driver = new_driver([query], pause_at="published")
    driver.wait_paused(1)
    driver.kill()
    run_until_settled(spark, [(world, query)])
    assert world.published() == rows
    assert len(world.view("attempts")) >= 4
    assert (world.depth().total, world.open_shards()) == (0, [])
