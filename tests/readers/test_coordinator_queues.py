"""What the coordinator does with several queues, ordered groups, full readers and messages that are the content."""

from __future__ import annotations

import itertools
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queue_source.queues import open_queue
from shard_store.model import Plan
from shard_store.upkeep.pruning import RetentionPolicy
from support.coordinator_world import EMPTY, World, assert_published_once, patiently, uris
from support.driver_loop import DriverLoop, published, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def second_queue(world: World) -> str:
    return world.queue_url.replace("queue=files", "queue=others")


def ready(loop: DriverLoop, count: int) -> None:
    until(lambda: loop.coordinator.report()["ready"] == count, lambda: time.sleep(0.02))


def first_plan(loop: DriverLoop) -> Plan:
    return loop.coordinator.plan(0, loop.latest(0))


@pytest.mark.parametrize(
    ("shares", "expected"), [("round-robin", (5, 5)), ("greedy", (10, 0)), ("percentage:80,20", (8, 2))]
)
def test_two_queues_share_a_batch_as_the_option_says(world: World, shares: str, expected: tuple[int, int]) -> None:
    world.publish(*uris(50))
    with open_queue(second_queue(world)) as other:
        other.publish(uris(50, first=1000))
    both = f"{world.queue_url},{second_queue(world)}"
    with world.loop(queueUrl=both, source="files", queueShares=shares, maxFilesPerTrigger="10") as loop:
        ready(loop, 30)
        queues = [r.content.queue for r in first_plan(loop).ranges]
        assert (queues.count(world.queue_url), queues.count(second_queue(world))) == expected
        with open_queue(second_queue(world)) as other:
            until(lambda: world.depth() == other.depth() == EMPTY, patiently(loop))
    assert_published_once(world, [*uris(50), *uris(50, first=1000)])


def test_one_queue_that_is_never_empty_leaves_the_other_its_room(world: World) -> None:
    world.publish(*uris(100))
    both = f"{world.queue_url},{second_queue(world)}"
    with world.loop(queueUrl=both, source="files", maxInFlightMessages="20") as loop:
        ready(loop, 10)
        with open_queue(second_queue(world)) as other:
            other.publish(uris(1, first=1000))
        ready(loop, 11)  # fails when the other queue's message never comes
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, [*uris(100), *uris(1, first=1000)])


def test_an_ordered_group_is_published_in_its_order_whatever_happens_on_the_way(world: World) -> None:
    for number in range(12):
        world.publish(f"s3://bucket/a/{number:02}", group="a")
        world.publish(f"s3://bucket/b/{number:02}", group="b")
    options: dict[str, Any] = {
        "maxFilesPerTrigger": "5",
        "visibilityTimeout": "2s",
        "commitTimeout": "2s",
    }
    with world.loop(**options) as loop:
        loop.batch()
        loop.latest(loop._start)  # a snapshot that is never run by this driver
    with world.loop(**options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        order = [uri for page in store.pages("splits") for row in page for uri in json.loads(Path(row[0]).read_text())]
    for group in "ab":
        assert [uri for uri in order if f"/{group}/" in uri] == [f"s3://bucket/{group}/{n:02}" for n in range(12)]


def test_a_group_waits_for_its_shard_that_another_pipeline_has(world: World) -> None:
    common: dict[str, Any] = {"source": "files", "commitTimeout": "1s"}
    world.publish("s3://bucket/1")
    with world.loop(pipeline="first", checkpoint="first", maxInFlightMessages="1", **common) as first:
        plan = first_plan(first)
        world.publish("s3://bucket/1", group="g")
        with world.loop(pipeline="second", checkpoint="second", **common) as second:
            until(lambda: second.coordinator.report()["held"] == 1, patiently(second))
            world.publish("s3://bucket/2", group="g")
            world.publish("s3://bucket/free")
            until(lambda: len(published(second.coordinator.session.store)) == 1, patiently(second))
            first._deliver(plan, 0)
            first.latest(1)
            steps = itertools.cycle([patiently(first), patiently(second)])  # either may receive what comes free now
            until(lambda: world.depth() == EMPTY, lambda: next(steps)())
    assert_published_once(world, ["s3://bucket/1", "s3://bucket/2", "s3://bucket/free"])


def test_no_more_bytes_than_the_limit_are_held(world: World) -> None:
    world.publish(*uris(100))  # 10 bytes each, by the loop's stat
    with world.loop(maxInFlightBytes="50", receiveThreads="1", maxFilesPerTrigger="3", maxInFlightMessages="5") as loop:
        ready(loop, 5)
        assert world.depth().in_flight == 5
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, uris(100))


def test_a_full_reader_gives_back_what_only_waits_for_others_and_goes_on(world: World) -> None:
    common: dict[str, Any] = {"source": "files", "commitTimeout": "1s"}
    world.publish("s3://bucket/slow")
    with world.loop(pipeline="first", checkpoint="first", maxInFlightMessages="1", **common) as first:
        plan = first_plan(first)
        world.publish(*["s3://bucket/slow"] * 3)
        with world.loop(pipeline="second", checkpoint="second", maxInFlightMessages="3", **common) as second:
            until(lambda: second.coordinator.report()["held"] == 1, patiently(second))
            world.publish(*uris(3))
            until(lambda: len(published(second.coordinator.session.store)) == 3, patiently(second))
            first._deliver(plan, 0)
            first.latest(1)
            until(lambda: world.depth() == EMPTY, patiently(second))
    assert_published_once(world, ["s3://bucket/slow", *uris(3)])


def test_duplicates_held_by_four_pipelines_cost_no_healthy_message_a_receive(world: World) -> None:
    """Dropped until their lease ends, they would be received again and again, up to a dead-letter queue."""
    times = {"commitTimeout": "2s", "visibilityTimeout": "5m"}
    common: dict[str, Any] = {"source": "files", "maxInFlightMessages": "40", "maxFilesPerTrigger": "14", **times}
    world.publish(*uris(160))
    with ExitStack() as stack:
        loops = [stack.enter_context(world.loop(pipeline=f"p{n}", checkpoint=f"p{n}", **common)) for n in range(4)]
        for loop in loops:
            ready(loop, 40)  # a part of the work each
        world.publish(*uris(20))
        with ThreadPoolExecutor(len(loops)) as pool:
            for done in [pool.submit(until, lambda: world.depth() == EMPTY, patiently(loop)) for loop in loops]:
                done.result()
        assert sum(loop.metrics["duplicates"] for loop in loops) == 20
        assert sum(loop.metrics["received"] for loop in loops) == 180
    assert_published_once(world, uris(160))


def test_a_message_that_is_the_content_is_published_once_however_often_it_is_delivered(world: World) -> None:
    with open_queue(world.queue_url) as queue:
        queue.publish([b"\xff\x00 bytes", "text", ""], tag="orders.eu", headers={"a": "1"})
    with world.loop(content="message", fileFormat="") as loop:
        plan = first_plan(loop)
        payloads = [r.content.payload for r in plan.ranges]
        assert [p and p.value for p in payloads] == [b"\xff\x00 bytes", b"text", b""]
        assert {p and (p.tag, p.headers) for p in payloads} == {("orders.eu", (("a", "1"),))}
        again = loop.coordinator.plan(0, 1)
        assert again == plan
        loop._deliver(plan, 0)
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert sorted(published(store).values()) == [1, 1, 1]


def test_a_replay_reads_the_message_from_the_snapshot_though_its_queue_has_lost_it(world: World) -> None:
    world.publish("body")
    with world.loop(content="message", fileFormat="") as loop:
        plan = first_plan(loop)
    with open_queue(world.queue_url) as queue:  # as a queue's retention would do it
        until(lambda: not queue.acknowledge([m.receipt for m in queue.receive(1, 60, 5)]), lambda: None)
        assert queue.depth() == EMPTY
    with world.loop(content="message", fileFormat="") as loop:
        assert loop.latest(0) == 1
        assert loop.coordinator.plan(0, 1).ranges == plan.ranges


def test_a_republished_message_is_another_one(world: World) -> None:
    world.publish("body")
    with world.loop(content="message", fileFormat="") as loop:
        with open_queue(world.queue_url) as queue:
            loop.batch()
            until(lambda: world.depth() == EMPTY, patiently(loop))
            queue.publish(["body"], headers={"Republish-Count": "1"})
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert len(published(store)) == 2


def test_a_message_opened_but_not_planned_by_a_dead_reader_waits_for_its_redelivery(world: World) -> None:
    """Its body is nowhere else: a shard without it must not be handed out."""
    world.publish("first", "second")
    with world.loop(content="message", fileFormat="", maxFilesPerTrigger="1") as loop:
        loop.latest(0)
        ready(loop, 1)
        loop.die()
    with world.loop(content="message", fileFormat="") as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        with world.store() as store:
            assert sorted(published(store).values()) == [1, 1]


@pytest.mark.parametrize("content", [{}, {"content": "message", "fileFormat": ""}], ids=["objects", "messages"])
def test_messages_whose_tag_is_not_wanted_are_acknowledged_and_counted(world: World, content: dict[str, Any]) -> None:
    world.publish("s3://bucket/1", tag="orders.eu")
    world.publish("s3://bucket/2", "s3://bucket/3", tag="returns.eu")
    world.publish("s3://bucket/4")
    with world.loop(tagFilter="orders.*,other", **content) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        assert loop.metrics["ignored"] == 3
        assert len(published(loop.coordinator.session.store)) == 1


def test_a_queue_that_remembers_longer_than_the_store_is_warned_of(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from queue_source.queues.base import Capabilities
    from queue_source.queues.sql import SqlQueue

    monkeypatch.setattr(SqlQueue, "capabilities", Capabilities(max_batch_size=1000, retention=14 * 86_400))
    with caplog.at_level(logging.WARNING, "cuesqueue"), world.loop(deduplicationWindow="7 days"):
        pass
    assert "longer than deduplicationWindow = 7 days" in caplog.text


def test_a_reader_tells_the_store_its_window_for_whoever_prunes(world: World) -> None:
    with world.loop(deduplicationWindow="60 days"):
        pass
    with world.store() as store:
        result = store.prune(RetentionPolicy(timedelta(days=7)))
    assert result.windows == {"files": timedelta(days=60)}


def test_the_progress_tells_where_the_messages_are(world: World) -> None:
    world.publish(*uris(10), "nonsense", uris(1)[0])
    with world.loop(maxFilesPerTrigger="4") as loop:
        ready(loop, 10)
        until(lambda: loop.coordinator.report()["depth"] is not None, lambda: time.sleep(0.02))
        first_plan(loop)
        report = loop.coordinator.report()
    assert {name: report[name] for name in ("ready", "awaitingCommit", "inFlight", "quarantined", "duplicates")} == {
        "ready": 6,
        "awaitingCommit": 4,
        "inFlight": 11,
        "quarantined": 1,
        "duplicates": 1,
    }
    assert report["depth"] in (0, 12)  # looked at before or after they were received
