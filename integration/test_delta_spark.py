"""A driver that fills Delta tables over PostgreSQL is killed at each step of it, and another one goes on.

One query writes rows; the other loads the objects by itself.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World
from support.servers.fixtures import postgres_url
from support.servers.postgres import new_database

__all__ = ["new_driver", "postgres_url", "spark"]  # the fixtures


def of_rows(world: World) -> Query:
    query = described(world, trigger={"processingTime": "0 seconds"}, maxFilesPerTrigger=2)
    query["sink_options"] = world.sink(path=None, delta=world.root / "table")
    return query


def of_objects(world: World) -> Query:
    references = described(world, content="reference", maxFilesPerTrigger=2)
    options = world.sink(path=None, delta=world.root / "table", load="json", schema="id BIGINT, name STRING")
    return {**of_rows(world), "source": references["source"], "schema": "", "sink_options": options}


@pytest.mark.parametrize("place", ["table-files-written", "table-committed", "published", "acknowledged"])
def test_a_driver_killed_at_any_step_of_the_table_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, postgres_url: str, place: str
) -> None:
    worlds = [World(tmp_path / name, store=new_database(postgres_url)) for name in ("rows", "objects")]
    rows = [world.feed(0, 5) for world in worlds]
    queries = [of_rows(worlds[0]), of_objects(worlds[1])]
    driver = new_driver(queries, pause_at=place)
    driver.wait_paused(2)
    driver.kill()
    run_until_settled(spark, zip(worlds, queries, strict=True))
    for world, expected in zip(worlds, rows, strict=True):
        found = pa.table(DeltaTable(str(world.root / "table")).scan()).to_pylist()
        assert sorted((row["id"], row["name"]) for row in found) == sorted(expected), world.root.name
        assert (world.depth().total, world.open_shards()) == (0, []), world.root.name
