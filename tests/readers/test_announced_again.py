"""Objects that were announced too early, or overwritten before they were read: announced again, each is read once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from queue_source.queues import open_queue
from shard_store.model import Plan
from support.coordinator_world import EMPTY, World, assert_published_once, patiently
from support.driver_loop import DriverLoop, published, states, until

LATE = "s3://bucket/late.json"
OTHER = "s3://bucket/other.json"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def event(key: str, size: int, etag: str, sequencer: str) -> dict[str, object]:
    item = {"key": key, "size": size, "eTag": etag, "sequencer": sequencer}
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "bucket"}, "object": item}}
    return {"Records": [record]}


def send(world: World, *bodies: object) -> None:
    with open_queue(world.queue_url) as queue:
        queue.send(list(bodies))  # type: ignore[arg-type]


def is_quarantined(world: World) -> bool:
    with world.store() as store:
        return states(store)["quarantined"] == 1


def reads(loop: DriverLoop) -> list[Plan]:
    """The plans that the loop makes from now on."""
    made: list[Plan] = []
    plan = loop.coordinator.plan

    def noted(start: int, end: int) -> Plan:
        made.append(plan(start, end))
        return made[-1]

    loop.coordinator.plan = noted  # type: ignore[method-assign]
    return made


def settle(world: World, loop: DriverLoop) -> None:
    until(lambda: world.depth() == EMPTY, patiently(loop))


@pytest.mark.parametrize("cause", ["missing-object", "object-changed", "forbidden-object"])
@pytest.mark.parametrize("publishes", [True, False], ids=["our sink", "another sink"])
def test_an_object_that_was_announced_too_early_is_read_once_when_it_is_announced_again(
    world: World, cause: str, publishes: bool
) -> None:
    world.publish(LATE, OTHER)
    with world.loop(publishes=publishes) as loop:
        loop.bad = {LATE: cause}
        settle(world, loop)
        assert is_quarantined(world)
        loop.bad = {}
        made = reads(loop)
        world.publish(LATE, LATE, OTHER)
        settle(world, loop)
        assert [r.content.shard_id for plan in made for r in plan.ranges] == [LATE]
        assert loop.metrics["reopened"] == 1
    with world.store() as store:
        assert states(store) == {"done": 2}
        if publishes:
            assert published(store) == {LATE: 1, OTHER: 1}


def test_an_announcement_that_comes_while_the_object_is_found_missing_is_not_lost(world: World) -> None:
    world.publish(LATE)
    with world.loop() as loop:
        loop.bad = {LATE: "missing-object"}

        def work() -> None:
            """Between the reading that finds nothing and the publication."""
            loop.work = lambda: None
            world.publish(LATE)
            before = loop.metrics["duplicates"]
            until(lambda: loop.metrics["duplicates"] > before, lambda: time.sleep(0.01))

        loop.work = work
        until(lambda: loop.work is not work, patiently(loop))
        loop.bad = {}
        settle(world, loop)
    assert_published_once(world, [LATE])


def test_an_object_that_is_still_missing_is_tried_once_for_each_announcement(world: World) -> None:
    with world.loop() as loop:
        made = reads(loop)
        loop.bad = {LATE: "missing-object"}
        for _ in range(3):
            world.publish(LATE)
            settle(world, loop)
            assert is_quarantined(world)
        for _ in range(10):
            loop.batch()
    assert sum(bool(plan.ranges) for plan in made) == 3


def test_the_other_pipeline_may_get_the_second_announcement(world: World) -> None:
    world.publish(LATE)
    with world.loop() as first:
        first.bad = {LATE: "missing-object"}
        settle(world, first)
        first.freeze()
        world.publish(LATE)
        with world.loop(pipeline="second", checkpoint="second") as second:
            settle(world, second)
            assert second.metrics["reopened"] == 1
    assert_published_once(world, [LATE])


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one after the other"])
@pytest.mark.parametrize("late", [False, True], ids=["in order", "the old one late"])
def test_an_object_that_was_overwritten_before_it_was_read_is_read_in_its_newest_version(
    world: World, together: bool, late: bool
) -> None:
    events = [event("late.json", 8, "old", "0A1"), event("late.json", 16, "new", "0A2")]
    if late:
        events.reverse()
    with world.loop() as loop:
        made = reads(loop)
        if not together:
            send(world, events.pop(0))
            until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.01))
        send(world, *events)
        until(lambda: loop.metrics["duplicates"] == 1, lambda: time.sleep(0.01))
        settle(world, loop)
    (plan,) = [plan for plan in made if plan.ranges]
    assert [(r.content.size, r.content.etag) for r in plan.ranges] == [(16, "new")]
    assert_published_once(world, [LATE])


def test_the_newest_version_counts_after_a_restart(world: World) -> None:
    send(world, event("late.json", 8, "old", "0A1"))
    with world.loop() as loop:
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.01))
        loop.die()
    send(world, event("late.json", 16, "new", "0A2"))
    with world.loop() as loop:
        made = reads(loop)
        until(lambda: loop.metrics["duplicates"] > 0, lambda: time.sleep(0.01))
        settle(world, loop)
    assert [(r.content.size, r.content.etag) for plan in made for r in plan.ranges] == [(16, "new")]
    assert_published_once(world, [LATE])


def test_a_version_that_only_the_other_pipeline_was_told_of_is_read_by_the_owner(world: World) -> None:
    send(world, event("late.json", 8, "old", "0A1"))
    with world.loop() as owner:
        until(lambda: owner.in_flight.counts().ready == 1, lambda: time.sleep(0.01))
        no_receive = owner.in_flight.pausing(owner.coordinator.session.queues, until=lambda: False)
        with no_receive, world.loop(pipeline="second", checkpoint="second") as other:
            send(world, event("late.json", 16, "new", "0A2"))
            until(lambda: other.in_flight.counts().held == 1, lambda: time.sleep(0.01))
            # with a heartbeat its own memory has it too
            until(lambda: owner.in_flight.counts().bytes == 16, lambda: time.sleep(0.01))
            made = reads(owner)
            until(lambda: world.depth() == EMPTY, patiently(owner))
    assert [(r.content.size, r.content.etag) for plan in made for r in plan.ranges] == [(16, "new")]
    assert_published_once(world, [LATE])
