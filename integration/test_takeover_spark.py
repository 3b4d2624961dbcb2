"""A driver that stood still while another took over publishes nothing, wherever it stood."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark, world
from support.engine.queries import described, run_until_settled, settled, start
from support.engine.world import World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark", "world"]  # the fixtures

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}


@pytest.mark.parametrize("place", ["plan-made", "before-publish"])
def test_a_frozen_driver_that_wakes_up_publishes_nothing_and_says_why(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    """`plan-made` is before its sink is planned: there it must not pick up the plan of its replacement."""
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign")}
    rows = {name: its.feed(0, 3) for name, its in worlds.items()}
    queries = {name: described(its, name, trigger=STREAM, maxFilesPerTrigger=2) for name, its in worlds.items()}
    driver = new_driver(list(queries.values()), pause_at=place)
    driver.wait_paused(2)
    driver.freeze_between_writes(*(its.root / name for its in worlds.values() for name in ("store.db", "queue.db")))
    run_until_settled(spark, [(worlds[name], queries[name]) for name in worlds])
    attempts = {name: its.view("attempts") for name, its in worlds.items()}
    driver.go_on()
    driver.thaw()
    ours, foreign = driver.wait_ended()
    assert ours is not None
    assert "was taken over by a newer query" in ours
    assert foreign is not None  # Spark itself may be the first to notice: the offset log has moved on
    for name, its in worlds.items():
        assert its.result(name) == sorted(rows[name]), name
        assert its.view("attempts") == attempts[name], name
        assert its.settled(), name


def test_of_two_queries_with_one_pipeline_name_in_two_drivers_the_older_stops_and_says_why(
    spark: SparkSession, world: World, new_driver: DriverFactory
) -> None:
    rows = world.feed(0, 4)
    driver = new_driver([described(world, trigger=STREAM, checkpoint="older", maxFilesPerTrigger=1)])
    driver.wait_batch()
    newer = start(spark, described(world, trigger=STREAM, checkpoint="newer"))
    try:
        (error,) = driver.wait_ended()
        settled(world, newer)
    finally:
        newer.stop()
    assert error is not None
    assert "was taken over by a newer query" in error
    assert world.published() == sorted(rows)
