"""What `deliverySemantics` at-least-once and at-most-once promise, what they do not, and what each leaves in the store.

The sweep over all places where a driver may die is `sweeps/test_semantics.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from queue_source.coordinator import ready
from queue_source.queues import Depth, open_queue
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.model import BEGINNING, Position, end_at, position_at
from support.coordinator_world import EMPTY, World, patiently, uris
from support.driver_loop import published, states, taken_by_foreign_sink, until
from support.store_backends import rows

AT_LEAST: dict[str, Any] = {"deliverySemantics": "at-least-once", "visibilityTimeout": "5m"}  # none comes again unasked
AT_MOST: dict[str, Any] = {"deliverySemantics": "at-most-once"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def read(world: World) -> Counter[str]:
    """How often each object's rows were published."""
    found: Counter[str] = Counter()
    with world.store() as store:
        for shard_id, times in published(store).items():
            found[shard_id.partition("#")[0]] += times
    return found


def attempts(world: World) -> list[tuple[str, int, int]]:
    """(kind, shards, lost) of each, in the order of their ends."""
    with world.store() as store:
        found = sorted(rows(store, "attempts"), key=lambda row: row["end_seq"])
    return [(row["kind"], row["shards"], row["lost"]) for row in found]


# --- at-least-once ---


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_at_least_once_every_announcement_is_read_and_no_shard_row_is_written(world: World, tells_start: bool) -> None:
    world.publish(*uris(30), *uris(10))
    with world.loop(tells_start=tells_start, **AT_LEAST) as loop:
        loop.drain()
        assert world.depth() == EMPTY
    assert read(world) == Counter(uris(30)) + Counter(uris(10))
    with world.store() as store:
        assert states(store) == {}


def test_at_least_once_a_message_is_acknowledged_when_its_batch_is_confirmed(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(**AT_LEAST) as loop:
        loop.batch()
        assert world.depth() == Depth(ready=0, in_flight=5)
        assert not loop.batch()
        assert world.depth() == EMPTY


def test_at_least_once_a_message_is_acknowledged_when_all_its_objects_are_read(world: World) -> None:
    with open_queue(world.queue_url) as queue:
        queue.publish([uris(5)])
    with world.loop(maxFilesPerTrigger="2", **AT_LEAST) as loop:
        for _ in range(3):
            loop.batch()
            assert world.depth() == Depth(ready=0, in_flight=1)
        loop.batch()
    assert world.depth() == EMPTY
    assert read(world) == Counter(uris(5))


def test_at_least_once_with_another_sink_and_messages_as_content(world: World) -> None:
    world.publish("a", "b", "c")
    with world.loop(publishes=False, content="message", fileFormat="", allowedPrefixes="", **AT_LEAST) as loop:
        loop.drain()
    assert world.depth() == EMPTY
    assert sorted(taken_by_foreign_sink(world.folder / "output").values()) == [1, 1, 1]
    with world.store() as store:
        assert states(store) == {}


def test_at_least_once_a_snapshot_that_is_not_confirmed_is_replayed_with_the_same_hash(world: World) -> None:
    world.publish("a", "b", "c")
    options: dict[str, Any] = {"content": "message", "fileFormat": "", "allowedPrefixes": "", **AT_LEAST}
    with world.loop(**options) as loop:
        before = loop.coordinator.plan(0, loop.latest(0))
        loop.die()
    with open_queue(world.queue_url) as queue:
        queue.purge()  # type: ignore[attr-defined]  # from here on only the snapshot knows what they said
    with world.loop(**options) as loop:
        after = loop.coordinator.plan(0, 1)
        assert after.identity.delivery_hash == before.identity.delivery_hash
        assert [r.content.payload.value for r in after.ranges if r.content.payload] == [b"a", b"b", b"c"]
        assert after.attempt == 2


def test_at_least_once_short_runs_in_a_row_acknowledge_what_they_read_and_do_not_repeat_it(world: World) -> None:
    """Before 4.2 an AvailableNow run has one batch, of which only the next run learns that it is done."""
    world.publish(*uris(5))
    times = {"visibilityTimeout": "20s", "commitTimeout": "300ms"}  # what is planned is kept 600 ms after the end
    for _ in range(2):
        with world.loop(tells_start=False, **{**AT_LEAST, **times}) as loop:
            loop.batch()
    assert world.depth().total == 5
    until(lambda: world.depth().ready == 5, lambda: time.sleep(0.05))
    with world.loop(tells_start=False, **{**AT_LEAST, **times}) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        loop.batch()
    assert read(world) == Counter(uris(5))


def test_at_least_once_what_was_read_is_acknowledged_when_its_lost_message_comes_again(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(**AT_LEAST) as loop:
        loop.batch()
        parts = loop.coordinator
        held = parts.in_flight._messages.keys()
        parts.in_flight.leave(held)  # as when their leases are lost
        loop.batch()
        parts.acknowledger.nack(held)  # as the queue does at the end of their leases
        until(lambda: world.depth() == EMPTY, patiently(loop))
        loop.batch()
    assert read(world) == Counter(uris(5))


def test_at_least_once_a_large_object_is_read_whole_in_one_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would remember how far it was read; tasks still share it."""
    monkeypatch.setattr(ready, "LEAST_PART", 3)  # the loop's objects have 10 bytes
    world.publish("s3://bucket/large")
    with world.loop(maxBytesPerTrigger="1b", **AT_LEAST) as loop:
        [entry] = loop.coordinator.plan(0, loop.latest(0)).ranges
        assert (entry.start, entry.end) == (BEGINNING, end_at(10))


def test_at_least_once_a_zombie_of_the_pipeline_can_publish_nothing(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(**AT_LEAST) as zombie:
        plan = zombie.coordinator.plan(0, zombie.latest(0))
        with world.loop(checkpoint="other", **AT_LEAST) as replacement:
            replacement.batch()
            with pytest.raises(PipelineTakenOver):
                zombie._deliver(plan, 0)
    assert read(world) == Counter(uris(5))


# --- at-most-once ---


def test_at_most_once_a_message_is_acknowledged_before_spark_sees_the_offset(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(maxFilesPerTrigger="3", **AT_MOST) as loop:
        until(lambda: loop.coordinator.report()["ready"] == 5, lambda: time.sleep(0.02))
        assert loop.latest(0) == 1
        assert world.depth() == Depth(ready=0, in_flight=2)
        with world.store() as store:
            assert states(store) == {"done": 3, "open": 2}


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
@pytest.mark.parametrize("publishes", [True, False], ids=["cuesqueue", "foreign"])
def test_at_most_once_without_a_failure_every_object_is_read_once(
    world: World, publishes: bool, tells_start: bool
) -> None:
    world.publish(*uris(30), *uris(10))
    how: dict[str, Any] = {"publishes": publishes, "idempotent": False, "tells_start": tells_start, **AT_MOST}
    with world.loop(maxFilesPerTrigger="7", **how) as loop:
        loop.drain()
        assert loop.metrics["lostShards"] == 0
    assert world.depth() == EMPTY
    found = read(world) if publishes else taken_by_foreign_sink(world.folder / "output")
    assert found == Counter(uris(30))
    assert sum(lost for _, _, lost in attempts(world)) == 0


def test_at_most_once_a_batch_that_was_begun_is_empty_at_every_later_attempt_and_its_loss_is_counted(
    world: World,
) -> None:
    world.publish(*uris(5))
    with world.loop(**AT_MOST) as loop:
        assert len(loop.coordinator.plan(0, loop.latest(0)).ranges) == 5
        loop.die()
    for attempt in (2, 3):
        with world.loop(**AT_MOST) as loop:
            plan = loop.coordinator.plan(0, 1)
            assert (plan.ranges, len(plan.lost), plan.attempt) == ((), 5, attempt)
            assert loop.metrics["lostShards"] == 5
            loop.die()
    world.publish(*uris(5, first=5))
    with world.loop(**AT_MOST) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert read(world) == Counter(uris(5, first=5))
    assert attempts(world) == [("attempt-nil", 0, 5), ("attempt-output", 5, 0)]


def test_at_most_once_a_snapshot_that_was_never_begun_is_not_lost(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(**AT_MOST) as loop:
        loop.latest(0)  # acknowledged, and Spark dies before it logs the offset
        loop.die()
    assert world.depth() == EMPTY
    with world.loop(**AT_MOST) as loop:
        loop.drain()
    assert read(world) == Counter(uris(5))


def test_at_most_once_a_message_that_is_acknowledged_lives_on_in_its_snapshot(world: World) -> None:
    world.publish("a", "b", "c")
    options: dict[str, Any] = {"content": "message", "fileFormat": "", "allowedPrefixes": "", **AT_MOST}
    with world.loop(**options) as loop:
        loop.latest(0)
        loop.die()
    assert world.depth() == EMPTY
    with world.loop(**options) as loop:
        plan = loop.coordinator.plan(0, 1)
        assert [r.content.payload.value for r in plan.ranges if r.content.payload] == [b"a", b"b", b"c"]


def test_at_most_once_a_plan_made_twice_by_one_reader_is_the_same_plan(world: World) -> None:
    """Also when a commit whose outcome nobody knows is tried again: that is no other attempt."""
    world.publish(*uris(5))
    with world.loop(**AT_MOST) as loop:
        end = loop.latest(0)
        first = loop.coordinator.plan(0, end)
        assert loop.coordinator.plan(0, end) == first


def test_at_most_once_a_lost_checkpoint_repeats_nothing(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(publishes=False, idempotent=False, **AT_MOST) as loop:
        loop.batch()  # the sink has it, and nobody has said so
        loop.die()
    world.publish(*uris(5, first=5))
    with world.loop(checkpoint="another", publishes=False, idempotent=False, **AT_MOST) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        loop.batch()
    assert taken_by_foreign_sink(world.folder / "output") == Counter(uris(10))


def test_at_most_once_a_large_object_goes_on_after_the_part_that_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "LEAST_PART", 4)
    world.publish("s3://bucket/large")
    times = {"visibilityTimeout": "900ms", "commitTimeout": "1s"}
    options: dict[str, Any] = {"maxBytesPerTrigger": "1b", **times, **AT_MOST}

    def parts(kill: bool) -> list[tuple[Position, Position]]:
        with world.loop(**options) as loop:
            found = [(r.start, r.end) for r in loop.coordinator.plan(0, loop.latest(0)).ranges]
            if kill:
                loop.die()
            else:
                loop.drain()
        return found

    assert parts(kill=True) == [(BEGINNING, position_at(4))]
    assert parts(kill=False) == []
    with world.loop(**options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert [row for row in attempts(world) if row[0] == "attempt-output"] == [("attempt-output", 1, 0)] * 2


def test_at_most_once_two_pipelines_share_a_source_and_read_nothing_twice(world: World) -> None:
    world.publish(*uris(40), *uris(40))
    common: dict[str, Any] = {"source": "files", "maxInFlightMessages": "10", **AT_MOST}
    with (
        world.loop(pipeline="a", checkpoint="a", **common) as first,
        world.loop(pipeline="b", checkpoint="b", **common) as second,
    ):

        def both() -> None:
            first.batch()
            second.batch()

        until(lambda: world.depth() == EMPTY, both)
        both()
    assert read(world) == Counter(uris(40))


def test_at_most_once_what_passed_to_another_pipeline_is_not_in_the_snapshot(world: World) -> None:
    world.publish(*uris(5))
    common: dict[str, Any] = {"source": "files", "commitTimeout": "1s", "visibilityTimeout": "5s", **AT_MOST}
    with world.loop(pipeline="a", checkpoint="a", **common) as slow:
        until(lambda: slow.coordinator.report()["ready"] == 5, lambda: time.sleep(0.02))
        slow.freeze()
        with world.loop(pipeline="b", checkpoint="b", **common) as quick:
            until(lambda: quick.metrics["acquired"] == 5, patiently(quick))
            slow.coordinator.session.stopping.clear()
            assert slow.latest(0) == 1
            assert slow.coordinator.plan(0, 1).ranges == ()
            until(lambda: world.depth() == EMPTY, patiently(quick))
            quick.batch()
    assert read(world) == Counter(uris(5))


def test_at_most_once_a_listener_reads_what_it_hears_and_no_more(world: World) -> None:
    """Mercury's private listener: what is sent while it is away is lost, and nothing is left behind."""
    url = f"sim://uploads?dir={world.folder}"
    options: dict[str, Any] = {"queueUrl": f"{url}&listener=true", "source": "files", **AT_MOST}
    with open_queue(f"{url}&mandatory=false") as sender:
        for heard in (5, 10):
            sender.publish(uris(5, first=100 + heard))  # nobody listens
            with world.loop(**options) as loop:
                assert not loop.batch()  # from here on it listens
                sender.publish(uris(heard) * 2)
                until(lambda: len(read(world)) == heard, patiently(loop))  # noqa: B023 - called at once
                loop.batch()
    assert read(world) == Counter(uris(10))


# --- changing ---


def test_semantics_change_only_when_what_was_begun_is_finished(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        loop.latest(0)
        loop.die()
    with (
        pytest.raises(StoreConfigurationError, match=r"run with exactly-once.* 1 snapshot.* 5 shard.*availableNow"),
        world.loop(**AT_MOST),
    ):
        pass
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    world.publish(*uris(10))
    with world.loop(**AT_LEAST) as loop:
        loop.drain()
    assert read(world) == Counter(uris(5)) + Counter(uris(10))
