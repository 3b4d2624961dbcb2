"""A driver that loads objects over PostgreSQL is killed at each step, and at random; another one goes on.

One query loads into files, one into an Iceberg table, one into a Delta table.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from shard_store.store import open_store
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import SCHEMA, World
from support.iceberg_tables import Lake
from support.servers.fixtures import gcs_server, postgres_url
from support.servers.postgres import new_database
from support.store_backends import rows

__all__ = ["gcs_server", "new_driver", "postgres_url", "spark"]  # the fixtures

pytestmark = pytest.mark.engine

OBJECTS = 6
TARGETS = ("path", "table", "delta")
PLACES = (
    "snapshot-written",
    "plan-made",
    "object-read",
    "split-written",
    "table-files-written",
    "before-publish",
    "table-committed",
    "published",
    "confirmed",
    "acknowledged",
)
KILLS = 20


@pytest.fixture
def worlds(tmp_path: Path, postgres_url: str) -> list[World]:
    """Each with a bad object and a bad record among its objects."""
    worlds = [World(tmp_path / target, store=new_database(postgres_url)) for target in TARGETS]
    for world in worlds:
        world.root.joinpath("in").mkdir(parents=True)
        spoiled = world.root / "in" / "spoiled.json"
        spoiled.write_text('{"id": -1, "name": "spoiled"}\n{"id": ', "utf-8")
        world.publish([f"file://{world.root}/in/missing.json", spoiled.as_uri()])
    return worlds


def query_of(world: World) -> Query:
    query = described(world, trigger={"processingTime": "0 seconds"}, content="reference", maxFilesPerTrigger=3)
    places: dict[str, dict[str, object]] = {
        "path": {},
        "table": {"path": None, "table": "db.events", "warehouse": world.root / "lake"},
        "delta": {"path": None, "delta": world.root / "delta"},
    }
    where = places[world.root.name]
    query["sink_options"] = world.sink(load="json", schema=SCHEMA, mode="DROPMALFORMED", **where)
    return {**query, "schema": ""}


def loaded(world: World) -> list[tuple[int, str]]:
    if world.root.name == "delta":
        found = pa.table(DeltaTable(str(world.root / "delta")).scan()).to_pylist()
    else:
        with open_store(world.store_url) as store:
            if world.root.name == "table":
                found = Lake(store, {}, {"type": "sql", "uri": world.store_url}).table().scan().to_arrow().to_pylist()
            else:
                found = [row for split in rows(store, "splits") for row in pq.read_table(split["path"]).to_pylist()]
    return sorted((row["id"], row["name"]) for row in found)


def check(worlds: Sequence[World], expected: Sequence[list[tuple[int, str]]]) -> None:
    for world, own in zip(worlds, expected, strict=True):
        assert loaded(world) == sorted([*own, (-1, "spoiled")]), world.root.name
        assert (world.depth().total, world.open_shards()) == (0, []), world.root.name
        assert {error["cause"] for error in world.view("errors")} == {"bad-record", "missing-object"}, world.root.name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", PLACES)
def test_a_driver_killed_at_any_step_loses_and_doubles_nothing(
    spark: SparkSession, worlds: list[World], new_driver: DriverFactory, place: str
) -> None:
    expected = [world.feed(0, OBJECTS) for world in worlds]
    queries = [query_of(world) for world in worlds]
    driver = new_driver(queries, pause_at=place)
    driver.wait_paused(1)
    driver.kill()
    run_until_settled(spark, zip(worlds, queries, strict=True))
    check(worlds, expected)


@pytest.mark.timeout(1800)
def test_a_driver_killed_at_random_loses_and_doubles_nothing(
    spark: SparkSession, worlds: list[World], new_driver: DriverFactory
) -> None:
    """Objects go on arriving; the seed is in the output of a failure."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    wait = threading.Event().wait  # nobody sets it
    expected: list[list[tuple[int, str]]] = [[] for _ in worlds]
    queries = [query_of(world) for world in worlds]
    for number in range(KILLS):
        for world, own in zip(worlds, expected, strict=True):
            own += world.feed(number * OBJECTS, OBJECTS)
        driver = new_driver(queries)
        wait(chance.uniform(0.0, 8.0))
        driver.kill()
    run_until_settled(spark, zip(worlds, queries, strict=True))
    check(worlds, expected)
