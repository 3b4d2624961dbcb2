"""One queue for two sources with a real Spark: receivers and drivers are killed, and each source has each row once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from shard_store.failpoints import VARIABLE
from support.engine.harness import environment
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import PATIENCE, SCHEMA, Row, World, eventually

pytestmark = pytest.mark.engine

SOURCES = ("few", "all")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    routes = [
        {"prefix": f"file://{world.root}/in/", "source": "all"},
        *({"prefix": f"file://{world.root}/in/{number}.json", "source": "few"} for number in range(3)),
    ]
    (tmp_path / "routes.json").write_text(json.dumps(routes))
    return world


@contextmanager
def receiver(world: World, *arguments: str, failpoints: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "queue_source.commands.main", "route", world.queue_url, "--json"]
    command += ["--routes", str(world.root / "routes.json"), "--store", world.store_url, *arguments]
    command += ["--option", "visibilityTimeout=2s"]
    variables = {**os.environ, **environment(), VARIABLE: failpoints}
    process = subprocess.Popen(command, cwd=world.root, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def receive(world: World) -> None:
    """Until the queue is empty; a receiver that was killed has leases that end first."""

    def is_empty() -> bool:
        with receiver(world, "--until-empty") as process:
            assert process.wait(PATIENCE) == 0
        return world.depth().total == 0

    eventually("an empty queue", is_empty)


def query(world: World, source: str) -> Query:
    made = described(
        world, checkpoint=f"checkpoint-{source}", queueUrl="store", source=source, pipeline=source, maxFilesPerTrigger=2
    )
    made["sink_options"] = world.sink(pipeline=source, path=world.root / f"out-{source}")
    return made


def published(world: World, source: str) -> list[Row]:
    rows: list[Row] = []
    for split in world.view("splits"):
        if split["source"] == source:
            path = unquote(urlsplit(split["path"]).path) if "://" in split["path"] else split["path"]
            rows += [(row["id"], row["name"]) for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(rows)


@pytest.mark.parametrize(
    ("step", "place"), [("messages-routed", "split-written"), ("messages-recorded", "recorded-taken")]
)
def test_receivers_and_readers_that_are_killed_lose_and_double_nothing(
    spark: SparkSession, world: World, new_driver: DriverFactory, step: str, place: str
) -> None:
    rows = world.feed(0, 6)
    marker = world.root / "paused"
    with receiver(world, failpoints=f"{step}=pause:{marker}") as process:
        eventually("the receiver's step", lambda: marker.exists() or process.poll() is not None)
        assert process.poll() is None
        process.kill()  # SIGKILL
    assert world.depth().total == 6
    with receiver(world):  # goes on while readers die
        queries = [query(world, source) for source in SOURCES]
        driver = new_driver([{**made, "trigger": {"processingTime": "0 seconds"}} for made in queries], pause_at=place)
        driver.wait_paused(2)
        driver.kill()
        rows += world.feed(6, 2)
        eventually("an empty queue", lambda: world.depth().total == 0)
    receive(world)
    run_until_settled(spark, [(world, made) for made in queries])
    assert published(world, "all") == sorted(rows)
    assert published(world, "few") == sorted(rows[:15])
    assert world.open_shards() == []
    assert world.view("errors") == []


def run_now(spark: SparkSession, made: Query) -> None:
    stream = spark.readStream.format("cuesqueue").schema(SCHEMA).options(**made["source"]).load()
    written = stream.writeStream.format("cuesqueue").options(**made["sink_options"])
    written = written.option("checkpointLocation", made["checkpoint"]).trigger(availableNow=True)
    written.start().awaitTermination()


def test_a_run_with_available_now_reads_all_that_is_recorded(spark: SparkSession, world: World) -> None:
    """The first reader receives for both sources, the second takes what is recorded; then a process receives."""
    rows = world.feed(0, 5)
    first, second = query(world, "all"), query(world, "few")
    receiving = {"queueUrl": world.queue_url, "routes": str(world.root / "routes.json")}
    run_now(spark, {**first, "source": {**first["source"], **receiving}})
    assert (published(world, "all"), world.depth().total) == (sorted(rows), 0)
    run_now(spark, second)
    assert published(world, "few") == sorted(rows[:15])
    rows += world.feed(5, 2)
    receive(world)
    run_now(spark, first)
    assert published(world, "all") == sorted(rows)
    assert world.open_shards() == []
