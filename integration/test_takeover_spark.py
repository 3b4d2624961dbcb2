"""What `tests/engine/test_takeover.py` leaves out, so that those tests stay quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine import test_takeover
from engine.conftest import DriverFactory, new_driver, spark, world
from support.engine.queries import described, settled, start
from support.engine.world import World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark", "world"]  # the fixtures

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("place", test_takeover.OTHERS)
def test_a_driver_frozen_elsewhere_that_wakes_up_publishes_nothing_and_says_why(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    test_takeover.test_a_frozen_driver_that_wakes_up_publishes_nothing_and_says_why(spark, tmp_path, new_driver, place)


def test_of_two_queries_with_one_pipeline_name_in_two_drivers_the_older_stops_and_says_why(
    spark: SparkSession, world: World, new_driver: DriverFactory
) -> None:
    rows = world.feed(0, 4)
    driver = new_driver([described(world, trigger=test_takeover.STREAM, checkpoint="older", maxFilesPerTrigger=1)])
    driver.wait_batch()
    newer = start(spark, described(world, trigger=test_takeover.STREAM, checkpoint="newer"))
    try:
        (error,) = driver.wait_ended()
        settled(world, newer)
    finally:
        newer.stop()
    assert error is not None
    assert "was taken over by a newer query" in error
    assert world.published() == sorted(rows)
