"""What the options do not choose, in a running reader: its messages are acknowledged, and what was begun goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_store.store import ShardStore
from support.coordinator_world import EMPTY, World, assert_published_once, patiently
from support.driver_loop import a_moment, published, states, until

LONG_AGO = "2001-01-01T00:00:00.000Z"
BEFORE: dict[str, Any] = {"modifiedBefore": "2000-01-01T00:00:00Z"}
AFTER: dict[str, Any] = {"modifiedAfter": "2026-01-01T00:00:00Z"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def event(*keys: str, time: str = LONG_AGO) -> str:
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "eventTime": time,
            "s3": {"bucket": {"name": "bucket"}, "object": {"key": key, "size": 10}},
        }
        for key in keys
    ]
    return json.dumps({"Records": records})


def known(store: ShardStore) -> int:
    return sum(states(store).values())


def test_of_one_message_only_our_objects_are_read_and_then_it_is_acknowledged(world: World) -> None:
    world.publish('["s3://bucket/1", "s3://theirs/2", "s3://bucket/3"]', '["s3://theirs/4", "s3://other/5"]')
    with world.loop(allowedPrefixes="s3://bucket/", onForeignObject="ignore", maxFilesPerTrigger="1") as loop:
        loop.batch()
        until(lambda: loop.metrics["acknowledged"] == 1, a_moment)  # that with none of ours
        assert world.depth().in_flight == 1  # the other one waits for its second object
        loop.drain()
        assert (loop.metrics["foreign"], loop.metrics["ignored"], loop.metrics["quarantined"]) == (3, 0, 0)
    assert world.depth() == EMPTY
    assert_published_once(world, ["s3://bucket/1", "s3://bucket/3"])


def test_two_streams_share_a_queues_announcements_and_each_reads_its_own(world: World) -> None:
    """Each has a copy of every message, as from a topic."""
    message = '["s3://bucket/a/1", "s3://bucket/b/1", "s3://bucket/c/1"]'
    for name in "ab":
        world.publish(message)
        options: dict[str, Any] = {
            "source": name,
            "allowedPrefixes": f"s3://bucket/{name}/",
            "onForeignObject": "ignore",
        }
        with world.loop(checkpoint=name, **options) as loop:
            loop.drain()
            assert loop.metrics["foreign"] == 2
        assert world.depth() == EMPTY
    assert_published_once(world, ["s3://bucket/a/1", "s3://bucket/b/1"])


def test_what_climbs_goes_to_the_error_table_whatever_is_ignored(world: World) -> None:
    world.publish("s3://theirs/../bucket/1", "no notification", "s3://theirs/1")
    with world.loop(allowedPrefixes="s3://bucket/", onForeignObject="ignore") as loop:
        loop.drain()
        assert (loop.metrics["quarantined"], loop.metrics["foreign"]) == (2, 1)
    assert world.depth() == EMPTY


def test_messages_of_which_no_object_is_chosen_are_acknowledged_and_counted(world: World) -> None:
    world.publish(event("1", "2"), event("3", time="2026-06-01T00:00:00Z"), "s3://bucket/time-not-known")
    with world.loop(**AFTER) as loop:
        loop.drain()
        assert loop.metrics["ignored"] == 2
    assert world.depth() == EMPTY
    assert_published_once(world, ["s3://bucket/3", "s3://bucket/time-not-known"])


@pytest.mark.parametrize("dies", [False, True], ids=["stopped", "killed"])
def test_what_was_begun_is_read_to_its_end_and_only_that(world: World, dies: bool) -> None:
    """An object grows too old while the query stands still, or its owner changes the options."""
    world.publish(event("1", "2"), event("3"))
    options: dict[str, Any] = {"visibilityTimeout": "1s", "commitTimeout": "1s", "waitTime": "100ms"}
    with world.loop(maxFilesPerTrigger="1", **options) as loop:
        loop.batch()
        with world.store() as store:
            until(lambda: known(store) == 3, a_moment)
        if dies:
            loop.die()
    world.publish(event("4"), event("1", "5"))
    with world.loop(**BEFORE, **options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, ["s3://bucket/1", "s3://bucket/2", "s3://bucket/3"])


def test_another_pipeline_goes_on_with_what_was_begun_though_it_would_not_choose_it(world: World) -> None:
    world.publish(event("1", "2"))
    with world.loop(pipeline="one"), world.store() as store:
        until(lambda: known(store) == 2, a_moment)
    with world.loop(pipeline="two", checkpoint="two", **BEFORE) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, ["s3://bucket/1", "s3://bucket/2"])


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_the_other_semantics_leave_the_same_objects_out(world: World, semantics: str) -> None:
    world.publish(event("1"), event("2", time="2026-06-01T00:00:00Z"), '["s3://theirs/1"]')
    options: dict[str, Any] = {
        "deliverySemantics": semantics,
        "allowedPrefixes": "s3://bucket/",
        "onForeignObject": "ignore",
    }
    with world.loop(**AFTER, **options) as loop:
        loop.drain()
        assert (loop.metrics["ignored"], loop.metrics["foreign"]) == (1, 1)
    assert world.depth() == EMPTY
    with world.store() as store:
        assert [name.partition("#")[0] for name in published(store)] == ["s3://bucket/2"]


def test_what_is_listed_is_left_out_by_its_time_too_and_what_was_begun_goes_on(world: World) -> None:
    listing: dict[str, Any] = {"backfillPrefixes": "s3://bucket/", "backfillGrace": "0s", "commitTimeout": "1s"}
    world.bucket.put("s3://bucket/1", "s3://bucket/2", "s3://bucket/3", age=60.0)
    with world.loop(pipeline="one", **listing), world.store() as store:
        until(lambda: known(store) == 3, a_moment)
    world.bucket.put("s3://bucket/4", age=60.0)
    again = {**listing, "backfillInterval": "50ms"}
    with world.loop(pipeline="two", checkpoint="two", **again, **BEFORE) as loop, world.store() as store:
        until(lambda: states(store) == {"done": 3}, patiently(loop))
        listed = loop.metrics["listed"]
        until(lambda: loop.metrics["listed"] >= listed + 8, patiently(loop))  # two listings more
    assert_published_once(world, ["s3://bucket/1", "s3://bucket/2", "s3://bucket/3"])
