"""All processes of a driver are killed at each named step, under at-least-once and at-most-once, with a real Spark.

`tests/sweeps/test_semantics.py` does the same without Spark; exactly-once is `tests/engine/test_crashes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shard_store.failpoints import POINTS
from support.engine.harness import Driver, environment
from support.engine.queries import Query, build_session, described, run_until_settled
from support.engine.world import World

STREAM = {"processingTime": "0 seconds"}
CASES = (("at-least-once", "cuesqueue"), ("at-most-once", "cuesqueue"), ("at-most-once", "appending"))
LOSING = {"plan-made", "object-read", "split-written", "before-publish"}
"""Where a batch is begun and its rows are nowhere yet."""
OUR_SINK_ONLY = {"split-written"}
PLACES = [p for p in POINTS if not p.startswith(("table-", "rows-", "errors-", "output-"))]  # not of what runs here


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ.update(environment())
    session = build_session()
    yield session
    session.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", PLACES)
def test_a_driver_killed_at_any_step_keeps_the_promise_of_each_semantics(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """Three queries of one driver die at once. The appending sink takes every attempt at a batch anew."""
    worlds: dict[str, World] = {}
    queries: dict[str, Query] = {}
    for semantics, sink in CASES:
        name = f"{semantics} {sink}"
        worlds[name] = World(tmp_path / name.replace(" ", "-"))
        queries[name] = described(
            worlds[name], sink, trigger=STREAM, maxFilesPerTrigger=2, minPartitions=1, deliverySemantics=semantics
        )
    fed = {name: world.feed(0, 5) for name, world in worlds.items()}
    # a task that stands still keeps its core: each query needs one of its own
    driver = Driver(tmp_path / "driver", list(queries.values()), pause_at=place, master="local[3]")
    try:
        driver.wait_paused(2 if place in OUR_SINK_ONLY else 3)
    finally:
        driver.close()
    for name, world in worlds.items():
        fed[name] += world.feed(5, 1)
    run_until_settled(spark, [(worlds[name], queries[name]) for name in worlds])
    for name, world in worlds.items():
        found = world.result(queries[name]["sink"])
        if name.startswith("at-least-once"):
            assert set(found) == set(fed[name]), f"{name}: rows were lost"
            assert world.view("shards") == [], name
        else:
            assert len(found) == len(set(found)), f"{name}: rows came twice"
            paused = not (place in OUR_SINK_ONLY and name.endswith("appending"))
            lost = len(fed[name]) - len(found)
            if paused:
                assert lost == (10 if place in LOSING else 0), name  # two objects of five rows
            told = sum(attempt["lost"] for attempt in world.view("attempts"))
            assert told * 5 >= lost, f"{name}: a loss was not counted"
        assert world.depth().total == 0, name
