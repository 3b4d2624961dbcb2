"""What `tests/engine/test_parts_killed.py` leaves out, so that those tests stay quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine import test_parts_killed
from engine.conftest import DriverFactory, new_driver, spark, world
from support.engine.queries import described, run_until_settled
from support.engine.world import World, eventually
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark", "world"]  # the fixtures

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("part", test_parts_killed.OTHERS)
def test_a_driver_that_loses_another_process_ends_and_the_next_completes(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, part: str
) -> None:
    test_parts_killed.test_a_driver_that_loses_one_process_ends_and_the_next_completes(
        spark, tmp_path, new_driver, part
    )


def test_a_script_that_stops_its_query_gives_back_what_is_in_no_plan(
    spark: SparkSession, world: World, new_driver: DriverFactory
) -> None:
    """The second batch stands still in its sink: a stop in the first one, which may fail again, gives back all."""
    rows = world.feed(0, 8)
    query = described(world, trigger=test_parts_killed.STREAM, maxFilesPerTrigger=2, visibilityTimeout="60s")
    driver = new_driver([query], pause_at="before-publish@2")
    driver.wait_paused()
    driver.say("stop")
    depth = eventually("messages to be had again", lambda: (d := world.depth()).ready == 4 and d)
    assert depth.in_flight == 2, "a planned message became visible"
    driver.kill()
    query["source"] |= {"visibilityTimeout": "5s"}
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)
