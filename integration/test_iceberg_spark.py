"""All processes of a driver that fills Iceberg tables are killed at each step of it, and another driver goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World
from support.registering import bytes_of
from support.servers.fixtures import gcs_server, iceberg_threads

__all__ = ["gcs_server", "iceberg_threads", "new_driver", "spark"]  # the fixtures


def catalog_options(world: World) -> dict[str, str]:
    """Where the table of a world is: in its store's database, or in another one."""
    place = world.store_url if world.root.name == "store" else f"sqlite:///{world.root}/catalog.db"
    return {"type": "sql", "uri": place}


def query_of(world: World) -> Query:
    query = described(world, trigger={"processingTime": "0 seconds"}, maxFilesPerTrigger=2)
    options: dict[str, Any] = {"path": None, "table": "db.events", "warehouse": world.root / "lake"}
    if world.root.name != "store":
        options |= {f"catalog.{name}": value for name, value in catalog_options(world).items()}
    query["sink_options"] = world.sink(**options)
    return query


def result(world: World) -> list[tuple[int, str]]:
    catalog = load_catalog("cuesqueue", **catalog_options(world))
    try:
        found = catalog.load_table("db.events").scan().to_arrow().to_pylist()
    finally:
        catalog.close()
    return sorted((row["id"], row["name"]) for row in found)


def registering(world: World) -> Query:
    """The same of objects that are registered where they are."""
    query = query_of(world)
    references = described(world, fileFormat=None, content="reference", maxFilesPerTrigger=2)
    return {
        **query,
        "source": references["source"],
        "schema": "",
        "sink_options": {**query["sink_options"], "register": "uri"},
    }


def feed_parquet(world: World, objects: int) -> list[tuple[int, str]]:
    folder = world.root / "in"
    folder.mkdir(parents=True)
    rows = [[(10 * number + i, f"row {i} of {number}") for i in range(5)] for number in range(objects)]
    for number, own in enumerate(rows):
        ids, names = zip(*own, strict=True)
        pq.write_table(pa.table({"id": ids, "name": names}), folder / f"{number}.parquet")
    world.publish([f"file://{folder}/{number}.parquet" for number in range(objects)])
    return [row for own in rows for row in own]


@pytest.mark.parametrize("place", ["table-files-written", "table-committed", "published"])
def test_a_driver_that_registers_and_is_killed_at_any_step_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    worlds = [World(tmp_path / name) for name in ("store", "elsewhere")]
    rows = [feed_parquet(world, 5) for world in worlds]
    before = [bytes_of(world.root / "in") for world in worlds]
    queries = [registering(world) for world in worlds]
    driver = new_driver(queries, pause_at=place)
    driver.wait_paused(2)
    driver.kill()
    run_until_settled(spark, zip(worlds, queries, strict=True))
    for world, expected, objects in zip(worlds, rows, before, strict=True):
        assert result(world) == sorted(expected), world.root.name
        assert (world.depth().total, world.open_shards()) == (0, []), world.root.name
        assert bytes_of(world.root / "in") == objects, world.root.name


@pytest.mark.parametrize("place", ["table-files-written", "table-committed", "published"])
def test_a_driver_killed_at_any_step_of_the_table_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    worlds = [World(tmp_path / name) for name in ("store", "elsewhere")]
    rows = [world.feed(0, 5) for world in worlds]
    queries = [query_of(world) for world in worlds]
    driver = new_driver(queries, pause_at=place)
    driver.wait_paused(2)
    driver.kill()
    run_until_settled(spark, zip(worlds, queries, strict=True))
    for world, expected in zip(worlds, rows, strict=True):
        assert result(world) == sorted(expected), world.root.name
        assert (world.depth().total, world.open_shards()) == (0, []), world.root.name
