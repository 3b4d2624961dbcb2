"""An object that kills its reader is found among its neighbours and quarantined; they are published."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from support.engine.queries import described, run_until_settled
from support.engine.world import World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark"]  # the fixtures


def test_what_kills_its_reader_is_quarantined_and_its_neighbours_are_published(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory
) -> None:
    """Spark tries a task four times here: two runs of the query fail, and the third finds the culprit by itself."""
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign")}
    rows = {name: world.feed(0, 8) for name, world in worlds.items()}
    for world in worlds.values():
        uris, _ = world.write(99, 1)
        world.publish(uris)
    queries = [described(world, name) for name, world in worlds.items()]
    for attempt in (1, 2, 3):
        driver = new_driver(queries, fail="object-read~99.json=exit", master="local[2,4]")
        errors = driver.wait_ended()
        assert [error is None for error in errors] == [attempt == 3] * 2, errors
        driver.close()
    run_until_settled(spark, [(worlds[name], queries[place]) for place, name in enumerate(worlds)])
    for name, world in worlds.items():
        assert world.result(name) == sorted(rows[name]), name
        assert [
            (shard["shard_id"][-7:], shard["state"]) for shard in world.view("shards") if shard["state"] != "done"
        ] == [("99.json", "quarantined")]
        (error,) = world.view("errors")
        assert (error["cause"], error["subject"][-7:]) == ("kills-its-reader", "99.json")
        assert "maxAttempts" in error["detail"]
