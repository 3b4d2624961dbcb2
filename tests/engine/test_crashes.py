"""All processes of a driver are killed at each named step, and another driver goes on: each row is there once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World

pytestmark = pytest.mark.engine

PLACES = ("split-written",)  # rows are in files, and nowhere else
OTHERS = ("snapshot-written", "offset-logged", "plan-made", "before-publish", "published", "confirmed", "acknowledged")
"""The same with a real Spark is in integration/test_crashes_spark.py; `sweeps/test_crashes.py` has all of them."""
STREAM = {"processingTime": "0 seconds"}


@pytest.mark.parametrize("place", PLACES)
def test_a_driver_killed_at_any_step_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    """Three queries of one driver die at once: with our sink, with a foreign one, and one that loses its checkpoint."""
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign", "lost-checkpoint")}
    rows = {name: world.feed(0, 5) for name, world in worlds.items()}
    queries: dict[str, Query] = {
        name: described(world, "foreign" if name == "foreign" else "cuesqueue", trigger=STREAM, maxFilesPerTrigger=2)
        for name, world in worlds.items()
    }
    driver = new_driver(list(queries.values()), pause_at=place)
    driver.wait_paused(2 if place == "split-written" else 3)  # the foreign sink writes no splits
    driver.kill()
    shutil.rmtree(queries["lost-checkpoint"]["checkpoint"])
    for name, world in worlds.items():
        rows[name] += world.feed(5, 1)
    run_until_settled(spark, [(worlds[name], queries[name]) for name in worlds])
    for name, world in worlds.items():
        assert world.result(queries[name]["sink"]) == sorted(rows[name]), name
        assert (world.depth().total, world.open_shards()) == (0, []), name
