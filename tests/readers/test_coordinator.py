"""The coordinator on a real SQL queue and a real store, driven as Spark drives it (tests/support/driver_loop.py)."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queue_source.coordinator.in_flight import InFlight
from queue_source.messages import Receipt
from queue_source.options import EVERYTHING
from queue_source.queues import Depth, open_queue
from shard_store.completeness.comparing import ListedShard
from shard_store.errors import LostProgress, PipelineTakenOver, StoreUnavailable
from shard_store.model import ShardKey, Split, shard_key
from shard_store.sql.schema import pipelines
from support.coordinator_world import EMPTY, World, assert_published_once, patiently, uris
from support.driver_loop import DriverLoop, published, states, taken_by_foreign_sink, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_every_object_is_published_once_however_often_it_is_announced(world: World, tells_start: bool) -> None:
    world.publish(*uris(250), *uris(50), *uris(50))
    with world.loop(tells_start=tells_start) as loop:
        until(lambda: world.depth() == EMPTY, loop.batch)
    assert_published_once(world, uris(250))


def test_available_now_ends_and_leaves_nothing_unacknowledged(world: World) -> None:
    world.publish(*uris(250))
    with world.loop() as loop:
        loop.drain()
        assert world.depth() == EMPTY
    assert_published_once(world, uris(250))


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (700, {"maxFilesPerTrigger": "100"}),
        (300, {"maxFilesPerTrigger": "100", "maxInFlightMessages": "130"}),
        (300, {"maxFilesPerTrigger": "100", "maxInFlightMessages": "130", "deliverySemantics": "at-least-once"}),
        (300, {"maxFilesPerTrigger": "100", "maxInFlightMessages": "130", "deliverySemantics": "at-most-once"}),
    ],
)
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_available_now_reads_all_of_an_ordered_group(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int, options: dict[str, Any], seconds: float
) -> None:
    """The queue withholds the rest of a group as long as we have a part of it, and seems to be empty."""
    world.publish(*uris(count), group="g")
    with world.loop(**options) as loop:
        (queue,) = loop.coordinator.session.queues.values()
        at_once = queue.acknowledge

        def slowly(receipts: Sequence[Receipt]) -> set[Receipt]:
            time.sleep(seconds)
            return at_once(receipts)

        monkeypatch.setattr(queue, "acknowledge", slowly)
        loop.drain()
        assert world.depth() == EMPTY
    with world.store() as store:
        read = Counter(shard_id.partition("#")[0] for shard_id in published(store).elements())
    assert read == Counter(uris(count))


def test_available_now_does_not_end_before_what_was_done_already_is_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that need no batch are acknowledged beside: Spark ends our process as soon as the query has ended."""
    world.publish(*uris(3))
    with world.loop() as loop:
        loop.drain()
    world.publish(*uris(3))
    with world.loop() as loop:
        (queue,) = loop.coordinator.session.queues.values()
        at_once = queue.acknowledge

        def slowly(receipts: Sequence[Receipt]) -> set[Receipt]:
            time.sleep(0.5)
            return at_once(receipts)

        monkeypatch.setattr(queue, "acknowledge", slowly)
        loop.drain()
        assert world.depth() == EMPTY


def test_available_now_takes_what_was_there_and_leaves_what_comes_later(world: World) -> None:
    world.publish(*uris(50))
    with world.loop() as loop:
        loop.coordinator.drain()
        time.sleep(0.01)  # SQLite tells milliseconds: what is sent within the same one counts as there
        world.publish(*uris(30, first=50))
        while loop.batch():
            pass
    assert world.depth() == Depth(ready=30, in_flight=0)
    assert_published_once(world, uris(50))


def test_what_ends_the_reader_at_the_start_of_available_now_is_told_and_not_what_fails_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.loop() as loop, ThreadPoolExecutor() as pool:
        (queue,) = loop.coordinator.session.queues.values()
        asked, waiting = threading.Event(), threading.Event()

        def refused(*_: object) -> Any:
            asked.set()
            waiting.wait(30)
            raise PermissionError("no longer allowed")

        def uncounted() -> Any:
            raise ConnectionError("away")

        monkeypatch.setattr(queue, "receive", refused)
        monkeypatch.setattr(queue, "depth", uncounted)
        assert asked.wait(30)
        drain = pool.submit(loop.coordinator.drain)
        until(lambda: bool(loop.in_flight._room.paused), lambda: time.sleep(0.01))
        waiting.set()
        with pytest.raises(PermissionError):
            drain.result(30)


def test_an_idle_query_has_its_last_batch_confirmed_by_the_next_trigger(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        assert loop.batch()
        assert world.depth() == Depth(ready=0, in_flight=5)
        assert not loop.batch()
        assert world.depth() == EMPTY


def test_spark_does_not_wait_for_a_queue_that_takes_its_time_to_acknowledge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        assert loop.batch()
        (queue,) = loop.coordinator.session.queues.values()
        at_once, returned = queue.acknowledge, threading.Event()
        in_time: list[bool] = []

        def slowly(receipts: Sequence[Receipt]) -> set[Receipt]:
            in_time.append(returned.wait(1))  # shorter than a lease
            return at_once(receipts)

        monkeypatch.setattr(queue, "acknowledge", slowly)
        loop.coordinator.latest(1)
        returned.set()
        loop.wait_for_acknowledgements()
        assert in_time == [True]
        assert world.depth() == EMPTY


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_with_another_sink_the_confirm_advances_the_shards(world: World, tells_start: bool) -> None:
    world.publish(*uris(5))
    with world.loop(publishes=False, tells_start=tells_start) as loop:
        loop.batch()
        with world.store() as store:
            assert states(store) == {"open": 5}
        loop.batch()
        with world.store() as store:
            assert states(store) == {"done": 5}
    assert taken_by_foreign_sink(world.folder / "output") == dict.fromkeys(uris(5), 1)


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_a_restart_settles_the_last_batch_of_another_sink_and_reads_nothing_twice(
    world: World, tells_start: bool
) -> None:
    world.publish(*uris(5))
    with world.loop(publishes=False, tells_start=tells_start) as loop:
        loop.batch()
    with world.loop(publishes=False, tells_start=tells_start) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        listed = [ListedShard(uri, None, None, 0) for uri in uris(5)]
        found = Counter(finding.category.value for finding in store.compare(loop.options.source, listed))
        assert found == {"published": 5}, "it was the first batch, and its reader was stopped"
    assert taken_by_foreign_sink(world.folder / "output") == dict.fromkeys(uris(5), 1)


def test_a_lost_checkpoint_loses_and_doubles_nothing(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        loop.batch()  # published, not confirmed
    world.publish(*uris(5, first=5))
    with world.loop(checkpoint="another") as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, uris(10))


def test_a_message_that_is_ready_waits_for_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.coordinator.coordinator._FIRST_GATHER", 3600.0)
    monkeypatch.setattr(InFlight, "_drained", lambda self: False)  # a queue that never says that it is empty
    world.publish(*uris(1))
    with world.loop() as loop, ThreadPoolExecutor(1) as thread:
        until(lambda: loop.in_flight.counts().ready == 1, partial(time.sleep, 0.05))
        assert thread.submit(loop.coordinator.latest, 0).result(timeout=60) == 1


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_a_published_batch_is_read_again_when_spark_repeats_it_but_not_by_a_new_checkpoint(
    world: World, tells_start: bool
) -> None:
    """Spark was killed before it knew of the publication: what it reads again builds the state of the query."""
    world.publish(*uris(5))
    with world.loop() as loop:
        loop.batch()
    with world.loop() as loop:
        repeated = loop.coordinator.plan(0, 1)
        assert (repeated.published, len(repeated.ranges)) == (True, 5)
    with world.loop(checkpoint="another") as loop:
        assert loop.latest(0 if tells_start else None) == 2
        plan = loop.coordinator.plan(0, 2)
        assert (plan.published, plan.ranges) == (False, ())


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
@pytest.mark.parametrize("objects", [0, 5])
def test_batches_without_input_of_a_new_checkpoint_are_not_those_of_the_one_before(
    world: World, objects: int, tells_start: bool
) -> None:
    """They may have rows, of a state or of another source, and the same number."""
    world.publish(*uris(objects))
    for name in ("first", "second", "third"):
        with world.loop(checkpoint=name, tells_start=tells_start) as loop, world.store() as store:
            loop.batch()
            for _ in range(2):
                published = store.publish(
                    [store.current_plan(loop.options.pipeline)], [Split(f"/{name}", 1, 1)], batch_id=1
                )
            assert published.already
    with world.store() as store:
        paths = [path for page in store.pages("splits", columns=["path"]) for (path,) in page]
    assert [path for path in paths if path in ("/first", "/second", "/third")] == ["/first", "/second", "/third"]


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_batches_without_input_of_a_checkpoint_that_was_put_back_are_not_those_of_before(
    world: World, tells_start: bool
) -> None:
    """They have the numbers of batches that came after the backup."""

    def publish_without_input(path: str, number: int) -> None:
        for _ in range(2):
            with world.store() as store:
                plan = store.current_plan(loop.options.pipeline)
                published = store.publish([plan], [Split(path, 1, 1)], batch_id=number)
        assert published.already

    world.publish(*uris(5))
    with world.loop(tells_start=tells_start) as loop:
        loop.batch()
    shutil.copytree(world.folder / "checkpoint", world.folder / "backup")
    world.publish(*uris(5, first=5))
    with world.loop(tells_start=tells_start) as loop:
        loop.batch()
        publish_without_input("/before", 2)
    with world.loop(checkpoint="backup", tells_start=tells_start) as loop:
        loop.batch()
        publish_without_input("/after", 2)
        assert not loop.batch()
    with world.store() as store:
        paths = [path for page in store.pages("splits", columns=["path"]) for (path,) in page]
    assert [path for path in paths if path in ("/before", "/after")] == ["/before", "/after"]


def test_a_checkpoint_that_has_begun_has_no_offset_without_objects_after_a_restart(world: World) -> None:
    world.publish(*uris(1))
    for _ in range(3):
        with world.loop() as loop:
            loop.batch()
            assert loop.latest(1) == 1


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2+", "spark 4.0"])
def test_a_snapshot_that_spark_never_logged_is_handed_out_again_first(world: World, tells_start: bool) -> None:
    world.publish(*uris(5))
    with world.loop(tells_start=tells_start) as loop:
        assert loop.latest(0 if tells_start else None) == 1  # durable, but Spark dies before logging it
    world.publish(*uris(5, first=5))
    with world.loop(tells_start=tells_start) as loop:
        for _ in range(3):  # however often Spark asks: it has not said that it knows this offset
            assert loop.latest(0 if tells_start else None) == 1
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, uris(10))


def test_without_a_limit_one_batch_takes_what_spark_never_logged_and_all_that_is_there(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(maxFilesPerTrigger="2") as loop:
        assert loop.latest(0) == 1
    world.publish(*uris(5, first=5))
    with world.loop(maxFilesPerTrigger="2") as loop:
        plan = loop.coordinator.plan(0, loop.coordinator.latest(0, EVERYTHING))
        assert {entry.content.uri for entry in plan.ranges} == set(uris(10))


def test_without_a_limit_a_batch_ends_at_what_may_be_in_flight_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(*uris(25))
    with world.loop(maxInFlightMessages="10", maxFilesPerTrigger="2") as loop:
        plan = loop.coordinator.plan(0, loop.coordinator.latest(0, EVERYTHING))
        assert len(plan.ranges) == 10
    assert "one batch takes no more than 'maxInFlightMessages'" in caplog.text


def test_a_lost_store_under_a_live_checkpoint_is_a_clear_error(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        loop.drain()
    for file in world.folder.glob("store.db*"):
        file.unlink()
    with world.loop() as loop, pytest.raises(LostProgress, match="'failOnDataLoss'"):
        loop.batch()


def test_an_older_store_is_noticed_before_spark_repeats_a_batch_without_input(world: World) -> None:
    """Of that batch nothing is planned, and what a sink gets of it (of a state) it would publish once more."""
    world.publish(*uris(5))
    with world.loop() as loop:
        with pytest.raises(LostProgress, match="'failOnDataLoss'"):
            loop.coordinator.logged(1)
        loop.drain()
        loop.coordinator.logged(1)


def test_without_fail_on_data_loss_a_lost_store_is_gone_on_from(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as loop:
        loop.drain()
    for file in world.folder.glob("store.db*"):
        file.unlink()
    world.publish(*uris(5, first=5))
    with world.loop(failOnDataLoss="false") as loop:
        loop.drain()
    assert world.depth() == EMPTY
    assert_published_once(world, uris(5, first=5))


def test_the_older_of_two_queries_with_one_pipeline_name_stops_with_an_error(world: World) -> None:
    with world.loop(commitTimeout="1s") as older, world.loop(checkpoint="other") as newer:
        newer.batch()

        def call() -> None:
            older.latest(0)
            time.sleep(0.05)

        with pytest.raises(PipelineTakenOver, match="taken over by a newer query"):
            until(lambda: False, call)


def test_a_zombie_publishes_nothing_after_its_replacement_has_started(world: World) -> None:
    world.publish(*uris(5))
    with world.loop() as zombie:
        end = zombie.latest(0)
        plan = zombie.coordinator.plan(0, end)
        with world.loop(checkpoint="other") as replacement:
            until(lambda: not replacement.batch(), lambda: None)
            with pytest.raises(PipelineTakenOver):
                zombie._deliver(plan, 0)
            until(lambda: world.depth().ready == 0, replacement.batch)
    assert_published_once(world, uris(5))


def test_a_graceful_stop_gives_unplanned_messages_back_at_once_and_keeps_planned_ones(world: World) -> None:
    world.publish(*uris(10))
    with world.loop(maxFilesPerTrigger="4", visibilityTimeout="5m") as loop:
        loop.batch()
        assert world.depth() == Depth(ready=0, in_flight=10)
    assert world.depth() == Depth(ready=6, in_flight=4)


def test_leases_are_extended_while_a_batch_takes_longer_than_the_visibility_timeout(world: World) -> None:
    world.publish(*uris(3))
    with world.loop(visibilityTimeout="900ms", commitTimeout="1s") as loop:
        end = loop.latest(0)
        loop.coordinator.plan(0, end)
        with open_queue(world.queue_url) as other:
            assert other.receive(10, 1.0, 2.5) == []


SHORT: dict[str, Any] = {"visibilityTimeout": "3s", "commitTimeout": "2s"}


@pytest.mark.parametrize(
    ("messages", "files", "seconds"), [(300, "20", 3.0), (5, "1", 600.0)], ids=["a backlog", "long triggers"]
)
def test_however_long_messages_are_held_each_is_received_once(
    world: World, messages: int, files: str, seconds: float
) -> None:
    world.publish(*uris(messages))
    with world.loop(skewed=True, maxFilesPerTrigger=files, **SHORT) as loop:
        loop.work = lambda: loop.advance(seconds)
        until(lambda: world.depth() == EMPTY, loop.batch)
        assert (loop.metrics["received"], loop.metrics["givenBack"], loop.metrics["lostLeases"]) == (messages, 0, 0)
    assert_published_once(world, uris(messages))


def test_no_more_is_received_than_a_few_triggers_can_take_and_the_rest_is_for_other_pipelines(world: World) -> None:
    world.publish(*uris(100))
    with world.loop(maxFilesPerTrigger="5", visibilityTimeout="5m") as loop:
        until(lambda: loop.in_flight.counts().ready == 15, lambda: loop.in_flight.wait(0.1))
        loop.batch()
        assert world.depth() == Depth(ready=85, in_flight=15)
        loop.drain()
    assert_published_once(world, uris(100))


def test_what_is_taken_stays_ours_while_its_snapshot_waits_for_a_lock_and_when_that_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(*uris(5))
    with world.loop(visibilityTimeout="5m") as loop:
        store, held = loop.coordinator.session.store, []

        def locked(*_: object, **__: object) -> None:
            held.append(loop.in_flight.counts().ready)
            loop.in_flight.make_room()
            raise StoreUnavailable("locked by somebody else")

        with monkeypatch.context() as patched:
            patched.setattr(store, "advance", locked)
            with pytest.raises(StoreUnavailable):
                loop.batch()
        assert held == [0]
        assert loop.in_flight.counts() == (5, 5, 0, 0, 50)
        assert [r.content.uri for r in loop.coordinator.plan(0, loop.latest(0)).ranges] == uris(5)
        assert loop.metrics["lostShards"] == 0


def test_a_graceful_stop_extends_what_is_planned_until_others_may_take_it_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(*uris(10))
    with world.loop(maxFilesPerTrigger="4", visibilityTimeout="5m", commitTimeout="7s") as loop:
        loop.batch()
        (queue,) = loop.coordinator.session.queues.values()
        extended: list[tuple[int, float]] = []
        extend = queue.extend

        def noted(receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
            extended.append((len(receipts), lease))
            return extend(receipts, lease)

        monkeypatch.setattr(queue, "extend", noted)
    assert extended == [(4, 14.0)]
    assert world.depth() == Depth(ready=6, in_flight=4)


def test_a_running_reader_prunes_what_is_older_than_the_window_on_its_timer(world: World) -> None:
    world.publish(*uris(5))
    options: dict[str, Any] = {"pruneInterval": "1h", "deduplicationWindow": "30 days", "visibilityTimeout": "5m"}
    with world.loop(skewed=True, **options) as loop:
        until(lambda: world.depth() == EMPTY, loop.batch)
        with world.store() as store:
            assert states(store) == {"done": 5}
        loop.advance(31 * 86_400)

        def wait() -> None:
            loop.advance(13 * 3600)  # where a pruning came before the jump, the jump has to last
            loop.in_flight.wait(0.1)

        until(lambda: loop.metrics["pruned"] == 5, wait)
        with world.store() as store:
            assert states(store) == {}


def test_what_another_pipeline_finished_and_pruned_between_two_looks_ends_its_message_here(world: World) -> None:
    world.publish("s3://bucket/1")
    common: dict[str, Any] = {"source": "files", "commitTimeout": "1s", "visibilityTimeout": "5m"}
    with world.loop(pipeline="first", checkpoint="first", maxInFlightMessages="1", **common) as first:
        plan = first.coordinator.plan(0, first.latest(0))
        world.publish("s3://bucket/1")
        with world.loop(pipeline="second", checkpoint="second", **common) as second:
            until(lambda: second.coordinator.report()["held"] == 1, lambda: second.in_flight.wait(0.1))
            look = second.coordinator.session.store.look
            second.coordinator.session.store.look = lambda keys: {}  # type: ignore[method-assign]
            first._deliver(plan, 0)
            first.latest(1)
            until(lambda: world.depth() == EMPTY, lambda: second.in_flight.wait(0.1))
            second.coordinator.session.store.look = look  # type: ignore[method-assign]
            assert second.metrics["received"] == 1
    assert_published_once(world, ["s3://bucket/1"])


def test_a_store_that_was_emptied_is_not_taken_for_one_in_which_all_is_finished(world: World) -> None:
    with world.loop(visibilityTimeout="5m") as loop:
        with world.store() as store, store.database.engine.begin() as connection:
            connection.execute(pipelines.delete())
        with pytest.raises(LostProgress, match="does not know this pipeline"):
            loop.coordinator.ownership.get_again([ShardKey(b"x" * 32)])


def test_malformed_messages_are_quarantined_with_their_cause_and_the_rest_goes_on(world: World) -> None:
    world.publish("no notification at all", *uris(3), '{"Records": [{}]}')
    with world.loop() as loop:
        loop.drain()
        assert loop.metrics["quarantined"] == 2
    assert world.depth() == EMPTY
    assert_published_once(world, uris(3))
    with world.store() as store:
        errors = [row for page in store.pages("errors") for row in page]
    assert sorted(row[3] for row in errors) == ["malformed-message", "malformed-message"]
    assert {bytes(row[9]) for row in errors} == {b"no notification at all", b'{"Records": [{}]}'}


def test_a_uri_outside_the_allowed_prefixes_is_quarantined_not_read(world: World) -> None:
    world.publish("file:///etc/passwd", "s3://bucket/1")
    with world.loop(allowedPrefixes="s3://bucket/") as loop:
        loop.drain()
    with world.store() as store:
        (error,) = [row for page in store.pages("errors") for row in page]
        assert "allowedPrefixes" in error[4]
        assert published(store) == {"s3://bucket/1": 1}


def test_messages_of_which_the_glob_leaves_nothing_are_acknowledged_and_counted(world: World) -> None:
    world.publish("s3://bucket/_SUCCESS", "s3://bucket/1.csv", '["s3://bucket/2.csv", "s3://bucket/2.crc"]')
    with world.loop(pathGlobFilter="*.csv") as loop:
        loop.drain()
        assert loop.metrics["ignored"] == 2
    assert world.depth() == EMPTY
    assert_published_once(world, ["s3://bucket/1.csv", "s3://bucket/2.csv"])


def test_no_more_than_the_limit_is_in_flight(world: World) -> None:
    world.publish(*uris(100))
    with world.loop(maxInFlightMessages="10", maxFilesPerTrigger="5") as loop:
        loop.batch()
        depth = world.depth()
        assert depth.in_flight <= 10
        until(lambda: world.depth() == EMPTY, loop.batch)
    assert_published_once(world, uris(100))


def test_several_messages_for_one_shard_are_all_acknowledged_when_it_ends(world: World) -> None:
    world.publish(*["s3://bucket/same"] * 20)
    with world.loop() as loop:
        loop.batch()
        assert world.depth().in_flight == 20
        loop.batch()
    assert world.depth() == EMPTY
    assert_published_once(world, ["s3://bucket/same"])


def test_a_duplicate_of_a_shard_that_another_live_pipeline_owns_is_held_until_it_ends(world: World) -> None:
    world.publish("s3://bucket/1")

    def loop(pipeline: str, most: int) -> AbstractContextManager[DriverLoop]:
        return world.loop(
            checkpoint=pipeline, pipeline=pipeline, source="files", commitTimeout="1s", maxInFlightMessages=str(most)
        )

    with loop("first", 1) as first:
        first.coordinator.plan(0, first.latest(0))
        world.publish("s3://bucket/1")
        with loop("second", 10) as second:
            until(lambda: second.coordinator.report()["held"] == 1, patiently(second))
            plan = first.coordinator.plan(0, 1)
            first._deliver(plan, 0)
            first.latest(1)
            until(lambda: world.depth() == EMPTY, patiently(second))
            assert second.metrics["received"] == 1  # held, not given back and received again
    assert_published_once(world, ["s3://bucket/1"])


def test_shards_of_a_pipeline_whose_heartbeats_stopped_are_acquired_by_another(world: World) -> None:
    world.publish(*uris(5))
    with world.loop(pipeline="first", source="files", commitTimeout="1s", visibilityTimeout="5s") as first:
        end = first.latest(0)
        plan = first.coordinator.plan(0, end)
        first.freeze()
        with world.loop(pipeline="second", source="files", checkpoint="second", commitTimeout="1s") as second:
            until(lambda: world.depth() == EMPTY, patiently(second))
        with pytest.raises(Exception, match="lost 5 shard"):
            first._deliver(plan, 0)
    assert_published_once(world, uris(5))


def test_shards_that_two_threads_see_stale_are_counted_as_acquired_once(world: World) -> None:
    common: dict[str, Any] = {"source": "files", "commitTimeout": "1s", "visibilityTimeout": "5m"}
    world.publish(*uris(5))
    with world.loop(pipeline="first", **common) as first:
        until(lambda: first.coordinator.report()["ready"] == 5, lambda: time.sleep(0.02))
        first.freeze()
        with world.loop(pipeline="second", checkpoint="second", **common) as second, world.store() as store:
            keys = [shard_key("files", uri) for uri in uris(5)]
            until(lambda: all(shard.stale for shard in store.look(keys).values()), lambda: time.sleep(0.05))
            seen = store.look(keys).values()  # as the opener and the maintenance may see them at the same time
            resolve, look = second.coordinator.ownership.resolve, second.coordinator.in_flight.look()
            threads = [threading.Thread(target=resolve, args=(seen, look)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert second.metrics["acquired"] == 5
            assert second.coordinator.report()["ready"] == 5
