"""What one run takes, how it is cut into batches, and that nothing stays unacknowledged."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.engine.queries import described, run, settled, start
from support.engine.versions import TELLS_START
from support.engine.world import Row, World, eventually

pytestmark = pytest.mark.engine

SINKS = ("cuesqueue", "foreign")
STREAM = {"processingTime": "0 seconds"}


def batches(world: World, sink: str) -> list[int]:
    """How many shards each delivered plan had, in order."""
    return [a["shards"] for a in sorted(world.view("attempts"), key=lambda a: a["end_seq"]) if a["shards"]]


def run_all(spark: SparkSession, world: World, sink: str, **source: object) -> None:
    """AvailableNow runs: one from Spark 4.2 on; before, one for each batch and one that settles the last."""
    query = described(world, sink, **source)
    run(spark, query)
    if TELLS_START:
        assert world.settled(), "one run left something to do or to acknowledge"

    def settled_by_runs() -> bool:
        """The messages of a last batch come again when their last extension has ended, and are known then."""
        if not world.settled() and (world.depth().ready or world.open_shards()):
            run(spark, query)
        return world.settled()

    eventually("an empty queue and no open shard", settled_by_runs)


@pytest.mark.parametrize("sink", SINKS)
def test_available_now_leaves_nothing_unacknowledged(spark: SparkSession, world: World, sink: str) -> None:
    rows = world.feed(0, 5)
    run_all(spark, world, sink, maxFilesPerTrigger=2)
    assert world.result(sink) == sorted(rows)
    assert batches(world, sink) == [2, 2, 1]
    rows += world.feed(5, 1)
    run_all(spark, world, sink, maxFilesPerTrigger=2)
    assert world.result(sink) == sorted(rows)


@pytest.mark.parametrize("sink", SINKS)
def test_the_last_batch_of_an_idle_query_is_settled_by_the_next_trigger(
    spark: SparkSession, world: World, sink: str
) -> None:
    rows = world.feed(0, 3)
    query = start(spark, described(world, sink, trigger=STREAM))
    try:
        settled(world, query)
    finally:
        query.stop()
    assert world.result(sink) == sorted(rows)


def test_bytes_limit_a_batch_and_one_object_is_always_taken(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 4)
    size = (world.root / "in" / "1.json").stat().st_size
    run_all(spark, world, "cuesqueue", maxBytesPerTrigger=2 * size + 3)
    assert batches(world, "cuesqueue") == [2, 2]
    rows += world.feed(4, 2)
    run_all(spark, world, "cuesqueue", maxBytesPerTrigger=1)
    assert batches(world, "cuesqueue") == [2, 2, 1, 1]
    assert world.published() == sorted(rows)


@pytest.mark.skipif(not TELLS_START, reason="Spark gives no limit")
@pytest.mark.parametrize(
    "source",
    [
        {"maxFilesPerTrigger": 5},
        {"maxBytesPerTrigger": 1},
        {"maxFilesPerTrigger": 5, "content": "message", "allowedPrefixes": None},
    ],
    ids=["files", "bytes", "messages"],
)
def test_once_takes_all_that_is_there_in_one_batch_and_other_triggers_keep_the_limits(
    spark: SparkSession, world: World, source: dict[str, Any]
) -> None:
    def feed(first: int, count: int) -> list[Row]:
        if "content" not in source:
            return world.feed(first, count, rows=1)
        rows = [(number, f"message {number}") for number in range(first, first + count)]
        world.publish([{"id": number, "name": name} for number, name in rows])
        return rows

    once = described(world, trigger={"once": True}, **source)
    rows = feed(0, 25)
    run(spark, once)
    assert (batches(world, "cuesqueue"), world.published()) == ([25], rows)
    rows += feed(25, 7)
    query = start(spark, described(world, trigger=STREAM, **source))
    try:
        eventually("all rows", lambda: world.published() == rows)
    finally:
        query.stop()
    assert max(batches(world, "cuesqueue")[1:]) <= source.get("maxFilesPerTrigger", 1)
    run(spark, once)
    assert world.published() == rows, "nothing was there"


@pytest.mark.skipif(not TELLS_START, reason="one batch only: it always ends")
def test_messages_that_keep_arriving_do_not_keep_available_now_from_ending(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    query = start(spark, described(world, maxFilesPerTrigger=1))
    fed = 3

    def ended() -> bool:
        nonlocal fed
        rows.extend(world.feed(fed, 1))  # for as long as it runs: it must not end because this ends
        fed += 1
        return not query.isActive

    eventually("the end of AvailableNow", ended)
    assert query.exception() is None
    first = len(world.published())
    assert 15 <= first < len(rows), "what came after its start was not left for the next run"
    run_all(spark, world, "cuesqueue")
    assert world.published() == sorted(rows)


def test_a_message_that_comes_again_publishes_nothing_again(spark: SparkSession, world: World) -> None:
    uris, rows = world.write(0, 2)
    world.publish([*uris, *uris])
    run_all(spark, world, "cuesqueue")
    world.publish(uris)
    run_all(spark, world, "cuesqueue")
    assert world.published() == sorted(rows)


def test_stopping_gives_back_at_once_what_is_in_no_plan(spark: SparkSession, world: World) -> None:
    """The next trigger is an hour away: what comes after the first one is received ahead, and is in no plan."""
    trigger = {"processingTime": "1 hour"}
    query = start(spark, described(world, trigger=trigger, visibilityTimeout="10m"))
    try:
        eventually("the end of the first trigger", lambda: query.status["message"] == "Waiting for next trigger")
        rows = world.feed(0, 3)
        eventually("messages received ahead", lambda: world.depth().in_flight == 3)
    finally:
        query.stop()
    eventually("all messages to be had again", lambda: world.depth().ready == 3, 30)
    run_all(spark, world, "cuesqueue")
    assert world.published() == sorted(rows)


def test_a_query_starts_on_an_empty_queue(spark: SparkSession, world: World) -> None:
    """Spark runs the first batch of a checkpoint also when there is nothing to read."""
    run(spark, described(world))
    assert world.published() == []
    rows = world.feed(0, 1)
    run_all(spark, world, "cuesqueue")
    assert world.published() == rows
