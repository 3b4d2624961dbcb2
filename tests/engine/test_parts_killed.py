"""Single processes of a driver are killed: what is left ends by itself, and another run completes exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from support.engine.queries import described, run_until_settled
from support.engine.world import World

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}
PARTS = ("reader",)
OTHERS = ("jvm", "script")
"""The same is in integration/test_parts_killed_spark.py: with its script a driver loses its JVM."""


@pytest.mark.parametrize("part", PARTS)
def test_a_driver_that_loses_one_process_ends_and_the_next_completes(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, part: str
) -> None:
    worlds = {name: World(tmp_path / name) for name in ("cuesqueue", "foreign")}
    rows = {name: world.feed(0, 8) for name, world in worlds.items()}
    queries = {name: described(world, name, trigger=STREAM, maxFilesPerTrigger=1) for name, world in worlds.items()}
    driver = new_driver(list(queries.values()))
    driver.wait_batch()
    driver.kill_part(part)
    if part == "reader":
        errors = driver.wait_ended()
        assert all(errors), "a query went on without its reader"
    driver.wait_gone()  # the readers too: they notice that nobody calls any more, and stop
    run_until_settled(spark, [(worlds[name], queries[name]) for name in worlds])
    for name, world in worlds.items():
        assert world.result(name) == sorted(rows[name]), name


def test_a_worker_killed_after_writing_leaves_an_orphan_file_and_spark_tries_again_without_what_was_bad(
    world: World, new_driver: DriverFactory
) -> None:
    """What the killed attempt found bad is quarantined: the next attempt does not read it, though now it could."""
    rows = world.feed(0, 3)
    late = world.root / "in" / "late.json"
    late.write_text('{"id": 7, "name": "whole by now"\n\n', "utf-8")  # as long as it will be
    world.publish([late.as_uri()])
    query = described(world, minPartitions=1, mode="FAILFAST")  # a bad record makes the object bad
    driver = new_driver([query], pause_at="split-written", once=True, master="local[2,3]")
    (worker,) = driver.wait_paused()
    late.write_text('{"id": 7, "name": "whole by now"}\n', "utf-8")
    driver.kill_process(worker)
    assert driver.wait_ended() == [None]
    files = list((world.root / "out").iterdir())
    assert len(files) > len(world.view("splits")), "the split of the killed attempt is gone"
    states = {Path(shard["shard_id"]).name: shard["state"] for shard in world.view("shards")}
    assert states == {"0.json": "done", "1.json": "done", "2.json": "done", "late.json": "quarantined"}
    assert world.published() == sorted(rows), "the shard is quarantined, so none of its rows may be there"
    assert all(attempt["kind"] == "attempt-output" for attempt in world.view("attempts"))
