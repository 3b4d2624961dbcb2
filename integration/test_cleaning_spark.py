"""All processes of a driver are killed while it deletes or moves what was read, and another driver goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark, world
from shard_store.failpoints import CLEANING_POINTS
from shard_store.sql.schema import leases, shards
from shard_store.store import open_store
from support.engine.queries import described, run, start
from support.engine.world import World, eventually
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark", "world"]  # the fixtures

STREAM = {"processingTime": "200 milliseconds"}
DAY = 86_400_000_000
CELLS = [
    *((place, "move") for place in CLEANING_POINTS),
    *((p, "delete") for p in CLEANING_POINTS if p != "object-copied"),
]
"""Nothing is copied where objects are deleted."""


def age(world: World) -> None:
    """Nothing is waited for: what was read has been so for a day."""
    with open_store(world.store_url) as store, store.database.engine.begin() as connection:
        done = shards.c.finished_at.is_not(None)
        connection.execute(shards.update().where(done).values(finished_at=shards.c.finished_at - DAY))


def end_round(world: World) -> None:
    """The round that those who died had won is over."""
    with open_store(world.store_url) as store, store.database.engine.begin() as connection:
        connection.execute(sa.delete(leases))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("place", "action"), CELLS)
def test_a_driver_killed_while_it_cleans_leaves_each_object_in_one_place(
    spark: SparkSession, world: World, new_driver: DriverFactory, place: str, action: str
) -> None:
    cleaning: dict[str, Any] = {
        "allowedPrefixes": f"file://{world.root}/in/",
        "cleanSource": action,
        "cleanSource.retentionDuration": "1 hour",
    }
    if action == "move":
        cleaning["cleanSource.moveDestination"] = f"file://{world.root}/archive/"
    rows = world.feed(0, 5)
    run(spark, described(world))
    read = contents(world.root / "in")
    age(world)
    end_round(world)

    driver = new_driver([described(world, trigger=STREAM, **cleaning)], pause_at=place)
    driver.wait_paused()
    driver.kill()

    assert contents(world.root / "in") | contents(world.root / "archive") == (
        read if action == "move" or place == "cleanings-planned" else {}
    )
    end_round(world)
    rows += world.feed(5, 2)
    young = {f"{number}.json" for number in (5, 6)}
    running = start(spark, described(world, trigger=STREAM, **cleaning))
    try:
        eventually("what was read is gone", lambda: running.exception() or contents(world.root / "in").keys() == young)
        eventually("the new ones are read", lambda: running.exception() or world.settled())
        eventually("all is written down", lambda: running.exception() or ended(world) == 5)
    finally:
        running.stop()
    assert running.exception() is None
    assert world.published() == sorted(rows)
    assert contents(world.root / "archive") == (read if action == "move" else {})
    assert world.view("errors") == []


def ended(world: World) -> int:
    return sum(one["ended_at"] is not None and one["outcome"] == "cleaned" for one in world.view("cleanings"))
