"""A driver that stood still while another took over publishes nothing, wherever it stood."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from support.engine.queries import described, run_until_settled, settled, start
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}
PLACES = ("plan-made",)
OTHERS = ("before-publish",)
"""The same is in integration/test_takeover_spark.py."""


@pytest.mark.parametrize("place", PLACES)
def test_a_frozen_driver_that_wakes_up_publishes_nothing_and_says_why(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    """`plan-made` is before its sink is planned: there it must not pick up the plan of its replacement."""
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign")}
    rows = {name: world.feed(0, 3) for name, world in worlds.items()}
    queries = {name: described(world, name, trigger=STREAM, maxFilesPerTrigger=2) for name, world in worlds.items()}
    driver = new_driver(list(queries.values()), pause_at=place)
    driver.wait_paused(2)
    driver.freeze_between_writes(*(world.root / name for world in worlds.values() for name in ("store.db", "queue.db")))
    run_until_settled(spark, [(worlds[name], queries[name]) for name in worlds])
    attempts = {name: world.view("attempts") for name, world in worlds.items()}
    driver.go_on()
    driver.thaw()
    ours, foreign = driver.wait_ended()
    assert ours is not None
    assert "was taken over by a newer query" in ours
    assert foreign is not None  # Spark itself may be the first to notice: the offset log has moved on
    for name, world in worlds.items():
        assert world.result(name) == sorted(rows[name]), name
        assert world.view("attempts") == attempts[name], name
        assert world.settled(), name


def test_of_two_queries_with_one_pipeline_name_in_one_driver_the_older_stops_and_says_why(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 2)
    older = start(spark, described(world, trigger=STREAM, checkpoint="older"))
    settled(world, older)
    newer = start(spark, described(world, trigger=STREAM, checkpoint="newer"))
    try:
        error = eventually("the end of the older query", older.exception)
        assert "was taken over by a newer query" in str(error)
        assert "give each running query its own 'pipeline' option" in str(error)
        rows += world.feed(2, 2)
        settled(world, newer)
    finally:
        older.stop()
        newer.stop()
    assert world.published() == sorted(rows)
