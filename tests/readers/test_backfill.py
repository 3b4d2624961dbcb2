"""Listings beside a queue and alone, driven as Spark drives the reader (tests/support/driver_loop.py)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_source.coordinator import prepare
from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError, OptionError
from queue_source.options import EVERYTHING
from queue_source.storage.buckets import open_bucket
from shard_store import failpoints
from shard_store.completeness import listing
from shard_store.failpoints import FailpointReached
from shard_store.model import LISTING
from shard_store.sql.database import Again, Transaction
from shard_store.sql.schema import listings
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.coordinator_world import EMPTY, World, assert_published_once, uris
from support.driver_loop import DriverLoop, published, reader_options, states, until
from support.store_backends import rows

PREFIX = "s3://bucket/"
LIST: dict[str, Any] = {"backfillPrefixes": PREFIX, "backfillGrace": "0s"}
OFTEN: dict[str, Any] = {**LIST, "backfillInterval": "50ms"}
ALONE: dict[str, Any] = {**LIST, "queueUrl": "", "source": "files"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def slowly(*loops: DriverLoop) -> Callable[[], None]:
    """A trigger of each, and a moment in which their threads may work."""

    def step() -> None:
        for loop in loops:
            loop.batch()
        time.sleep(0.02)

    return step


def drain(world: World, **options: Any) -> dict[str, Any]:
    """An AvailableNow run; its counters."""
    with world.loop(**{**LIST, **options}) as loop:
        loop.drain()
        return loop.metrics


# --- alone ---


def test_without_a_limit_one_batch_takes_a_whole_listing(world: World) -> None:
    world.bucket.put(*uris(250))
    with world.loop(**ALONE, maxFilesPerTrigger="10") as loop:
        assert len(loop.coordinator.plan(0, loop.coordinator.latest(0, EVERYTHING)).ranges) == 250


def test_what_is_there_is_read_once_and_what_is_new_in_the_next_run(world: World) -> None:
    world.bucket.put(*uris(250))
    assert drain(world, **ALONE)["backfilled"] == 250
    assert_published_once(world, uris(250))
    world.bucket.put(*uris(5, first=250))
    counts = drain(world, **ALONE)
    assert (counts["listed"], counts["backfilled"], counts["received"]) == (255, 5, 0)
    assert_published_once(world, uris(255))


def test_a_running_reader_finds_what_comes_at_each_interval(world: World) -> None:
    world.bucket.put(*uris(3))
    with world.loop(**{**ALONE, "backfillInterval": "50ms"}) as loop:
        until(lambda: _published(world) == 3, slowly(loop))
        world.bucket.put(*uris(3, first=3))
        until(lambda: _published(world) == 6, slowly(loop))
        until(lambda: states_of(world) == {"done": 6}, slowly(loop))
    assert_published_once(world, uris(6))


def test_a_run_ends_though_a_listing_comes_due_again_while_it_lists(world: World) -> None:
    world.bucket.put(*uris(250))
    counts = drain(world, **{**ALONE, "backfillInterval": "1ms"})
    assert counts["backfilled"] == 250


def _published(world: World) -> int:
    with world.store() as store:
        return published(store).total()


def states_of(world: World) -> Counter[str]:
    with world.store() as store:
        return states(store)


# --- beside a queue ---


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_existing_objects_and_their_late_announcements_meet_and_are_read_once(world: World, when: str) -> None:
    world.bucket.put(*uris(120))
    if when == "before":
        world.publish(*uris(120))
    with world.loop(**OFTEN) as loop:
        if when == "between":
            loop.batch()
            world.publish(*uris(120))
        until(lambda: _published(world) == 120, slowly(loop))
        if when == "after":
            until(lambda: states_of(world) == {"done": 120}, slowly(loop))
            world.publish(*uris(120))
        until(lambda: world.depth() == EMPTY, slowly(loop))
    assert_published_once(world, uris(120))


def test_existing_objects_may_be_left_to_their_messages(world: World) -> None:
    world.bucket.put(*uris(10))
    options = {**OFTEN, "includeExistingFiles": "false"}
    with world.loop(**options) as loop:
        until(lambda: loop.metrics["listed"] > 10, slowly(loop))
        assert states_of(world) == {}
        world.bucket.put(*uris(5, first=10), age=-1.0)
        world.publish("s3://bucket/0")
        until(lambda: states_of(world) == {"done": 6}, slowly(loop))
    assert_published_once(world, ["s3://bucket/0", *uris(5, first=10)])
    counts = drain(world, backfillInterval="1ms")
    assert counts["backfilled"] == 0, "for ever, also when the option is set otherwise later"


def test_young_objects_are_left_to_their_messages_at_first(world: World) -> None:
    world.bucket.put("s3://bucket/young", age=30.0)
    world.bucket.put("s3://bucket/old", age=700.0)
    counts = drain(world, backfillGrace="10m")
    assert counts["backfilled"] == 1
    assert_published_once(world, ["s3://bucket/old"])


def test_available_now_waits_for_a_listing_that_is_due_and_for_none_that_is_not(world: World) -> None:
    world.publish(*uris(3))
    world.bucket.put(*uris(250))
    world.bucket.page_size = 10
    world.bucket.before_page = lambda prefix, cursor: time.sleep(0.02)
    assert drain(world)["backfilled"] + 3 >= 250
    assert_published_once(world, uris(250))
    before = len(world.bucket.calls)
    assert drain(world)["listed"] == 0
    assert len(world.bucket.calls) == before


def test_available_now_does_not_wait_for_the_listing_of_another_pipeline(world: World) -> None:
    world.bucket.put(*uris(20))
    world.publish(*uris(3))
    blocked, go_on = threading.Event(), threading.Event()

    def block(prefix: str, cursor: str | None) -> None:
        blocked.set()
        assert go_on.wait(30)

    world.bucket.before_page = block
    with world.loop(**ALONE, pipeline="other", checkpoint="other") as other:
        assert blocked.wait(30)
        counts = drain(world, source="files", pipeline="ours", checkpoint="ours")
        assert counts["listed"] == 0
        assert _published(world) == 3
        go_on.set()
        until(lambda: _published(world) == 20, slowly(other))
        until(lambda: states_of(world) == {"done": 20}, slowly(other))
    assert_published_once(world, uris(20))


def test_a_listing_only_run_ends_while_another_pipeline_lists(world: World) -> None:
    world.bucket.put(*uris(20))
    blocked, go_on = threading.Event(), threading.Event()

    def block(prefix: str, cursor: str | None) -> None:
        blocked.set()
        assert go_on.wait(30)

    world.bucket.before_page = block
    with world.loop(**ALONE, pipeline="other", checkpoint="other"):
        assert blocked.wait(30)
        assert drain(world, **ALONE, pipeline="ours", checkpoint="ours")["listed"] == 0
        go_on.set()


def test_what_listings_find_takes_its_turn_with_the_queues(world: World) -> None:
    world.publish(*uris(100))
    world.bucket.put(*(f"s3://bucket/listed/{number}" for number in range(100)))
    found: list[list[str]] = []
    with world.loop(**LIST, maxFilesPerTrigger="20") as loop:
        until(lambda: loop.in_flight.counts().ready >= 150, lambda: time.sleep(0.01))
        batches = loop.coordinator.session.options.batches
        ranges = loop.in_flight.take(batches.max_files_per_trigger, None)
        found.append([entry.content.queue for entry in ranges])
        loop.in_flight.put_back()
    assert Counter(queue == LISTING for queue in found[0]) == {True: 10, False: 10}


def test_neither_the_queue_nor_the_listing_fills_the_room_of_the_other(world: World) -> None:
    world.publish(*uris(150))
    world.bucket.page_size = 10
    world.bucket.put(*(f"s3://bucket/listed/{number}" for number in range(150)))
    with world.loop(**LIST, maxFilesPerTrigger="10") as loop:
        until(lambda: loop.in_flight.counts().ready >= 60, lambda: time.sleep(0.01))
        time.sleep(0.3)
        assert loop.in_flight.counts().ready <= 2 * (30 + 10)
        until(lambda: _all_done(world, 300), slowly(loop))


def _all_done(world: World, count: int) -> bool:
    return states_of(world) == {"done": count}


# --- kills ---


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def arm(text: str) -> None:
        monkeypatch.setattr(failpoints, "_armed", failpoints._parse(text))
        monkeypatch.setattr(failpoints, "_reached", {})

    yield arm
    arm("")


def run_to_death(world: World, pipeline: str, **options: Any) -> None:
    with world.loop(**{**ALONE, **options}, pipeline=pipeline, checkpoint=pipeline) as loop:
        with pytest.raises(FailpointReached):
            drain_to_death(loop)
        loop.die()


def drain_to_death(loop: DriverLoop) -> None:
    loop.drain()
    while True:  # the thread may die after the last batch
        loop.coordinator.check()
        time.sleep(0.01)


@pytest.mark.parametrize("point", ["page-listed", "page-opened"])
@pytest.mark.parametrize("page", range(1, 6))
@pytest.mark.parametrize("successor", ["same", "another"])
def test_a_listing_that_dies_at_any_page_goes_on_there_and_nothing_is_lost_or_doubled(
    world: World, dying: Any, point: str, page: int, successor: str
) -> None:
    world.bucket.page_size = 10
    world.bucket.put(*uris(50))
    fast = {"commitTimeout": "200ms"}
    dying(f"{point}@{page}=raise")
    run_to_death(world, "same", **fast)
    dying("")
    calls = len(world.bucket.calls)
    with world.loop(**{**ALONE, **fast, "backfillInterval": "1h"}, pipeline=successor, checkpoint=successor) as loop:
        missing = (5 - page + (point == "page-listed")) or 5
        until(lambda: _all_done(world, 50) and len(world.bucket.calls) - calls >= missing, slowly(loop))
    pages = [cursor for _, cursor in world.bucket.calls[calls:]]
    assert len(pages) == missing, "it went on after the last page that was committed"
    assert_published_once(world, uris(50))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a queue"])
@pytest.mark.parametrize("page", [2, 5])
def test_available_now_lists_what_came_before_the_place_at_which_the_run_before_was_killed(
    world: World, dying: Any, page: int, alone: bool
) -> None:
    world.bucket.page_size = 10
    world.bucket.put(*uris(50, first=1))
    options = {**(ALONE if alone else {**LIST, "source": "files"}), "backfillInterval": "1h" if alone else "1s"}
    dying(f"page-listed@{page}=raise")
    run_to_death(world, "same", **options)
    dying("")
    time.sleep(1)
    world.bucket.put("s3://bucket/0")
    assert drain(world, **options, pipeline="same", checkpoint="same")["listed"] == 10 * (6 - page) + 51
    assert_published_once(world, ["s3://bucket/0", *uris(50, first=1)])


# --- several pipelines ---


def test_of_two_pipelines_one_lists_and_both_read(world: World) -> None:
    world.bucket.put(*uris(300))
    world.publish(*uris(300))
    with (
        world.loop(**LIST, pipeline="a", checkpoint="a") as one,
        world.loop(**LIST, pipeline="b", checkpoint="b") as other,
    ):
        until(lambda: _all_done(world, 300), slowly(one, other))
        until(lambda: world.depth() == EMPTY, slowly(one, other))
        assert len(world.bucket.calls) == 1
        assert sorted([one.metrics["listed"], other.metrics["listed"]]) == [0, 300]
    assert_published_once(world, uris(300))


def test_what_a_dead_pipeline_found_by_listing_is_read_by_another_without_any_message(world: World) -> None:
    world.bucket.put(*uris(30))
    fast = {"commitTimeout": "200ms", "backfillInterval": "1h"}
    with world.loop(**{**ALONE, **fast}, pipeline="a", checkpoint="a") as one:
        until(lambda: one.metrics["backfilled"] == 30, lambda: time.sleep(0.01))
        one.die()
    with world.loop(**{**LIST, **fast}, pipeline="b", checkpoint="b", source="files") as other:
        until(lambda: _all_done(world, 30), slowly(other))
        assert other.metrics["acquired"] == 30
    assert_published_once(world, uris(30))


def test_what_a_stopped_pipeline_had_found_is_read_by_another(world: World) -> None:
    world.bucket.put(*uris(30))
    fast = {"commitTimeout": "200ms", "backfillInterval": "1h"}
    with world.loop(**{**ALONE, **fast}, pipeline="a", checkpoint="a") as one:
        until(lambda: one.metrics["backfilled"] == 30, lambda: time.sleep(0.01))
    with world.loop(**{**LIST, **fast}, pipeline="b", checkpoint="b", source="files") as other:
        until(lambda: _all_done(world, 30), slowly(other))
    assert_published_once(world, uris(30))


def test_what_was_opened_by_a_commit_without_an_answer_is_read_though_the_listing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.bucket.put(*uris(5))
    compare, runs = listing.compare, list[None]()

    def losing(transaction: Transaction, *of: Any, **how: Any) -> Any:
        runs.append(None)
        compared = compare(transaction, *of, **how)
        if len(runs) > 1:
            return compared
        transaction.execute(listings.delete())  # as `cuesqueue reset` of another pipeline does in between
        transaction.connection.commit()
        raise Again("the answer is lost")

    monkeypatch.setattr(listing, "compare", losing)
    with world.loop(**ALONE) as loop:
        until(lambda: _published(world) == 5, slowly(loop))
    assert len(runs) == 2


# --- memory, clocks, and objects that change ---


def test_what_was_forgotten_is_never_read_again_by_a_listing(world: World) -> None:
    world.bucket.put(*uris(20), age=7200.0)
    drain(world, **ALONE)
    with world.store() as store:
        assert store.prune(RetentionPolicy(max_shards=5)).shards == 15
    counts = drain(world, **ALONE)
    assert (counts["backfilled"], counts["beyondMemory"]) == (0, 15)
    assert _published(world) == 20


def rows_of(world: World) -> list[dict[str, Any]]:
    with world.store() as store:
        return rows(store, "shards")


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0], ids=["an hour behind", "an hour ahead"])
def test_clocks_an_hour_off_lose_and_double_nothing(world: World, ahead: float) -> None:
    world.bucket.ahead = ahead
    world.bucket.put(*uris(20))
    with world.loop(**ALONE, backfillInterval="50ms") as loop:
        until(lambda: _all_done(world, 20), slowly(loop))
        with world.store() as store:
            assert store.prune(RetentionPolicy(max_shards=5)).shards == 15
        assert len(rows_of(world)) == 5
        listed = loop.metrics["listed"]
        until(lambda: loop.metrics["listed"] > listed + 40, slowly(loop))
        assert loop.metrics["beyondMemory"] > 0
    assert _published(world) == 20


def test_a_page_is_as_old_as_the_question_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    compare, said = ShardStore.compare_listed, list[int]()

    def noting(*of: Any, at_most: int, **how: Any) -> Any:
        said.append(at_most)
        return compare(*of, at_most=at_most, **how)

    monkeypatch.setattr(ShardStore, "compare_listed", noting)
    monkeypatch.setattr("queue_source.coordinator.backfill.reach", lambda name: time.sleep(2.0))
    world.bucket.ahead = 3600.0
    world.bucket.put(*uris(1))
    drain(world, **ALONE)
    assert all(3600.0 <= at_most / 1_000_000 < 3601.5 for at_most in said)
    assert said


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0], ids=["an hour behind", "an hour ahead"])
def test_with_clocks_an_hour_off_new_objects_are_found_and_existing_ones_are_told_apart(
    world: World, ahead: float
) -> None:
    world.bucket.ahead = ahead
    world.bucket.put(*uris(20), age=5.0)
    options = {**ALONE, "backfillInterval": "50ms", "includeExistingFiles": "false"}
    with world.loop(**options) as loop:
        until(lambda: loop.metrics["listed"] > 20, slowly(loop))
        world.bucket.put(*uris(3, first=20), age=-1.0)
        until(lambda: _all_done(world, 3), slowly(loop))
    assert_published_once(world, uris(3, first=20))


def test_objects_that_appear_and_vanish_while_they_are_listed(world: World) -> None:
    """What appears behind the cursor is found by the next listing; what vanishes harms nothing else."""
    names = [f"s3://bucket/{number:03}" for number in range(50)]
    world.bucket.page_size = 10
    world.bucket.put(*names)

    def change(prefix: str, cursor: str | None) -> None:
        if cursor == names[19]:
            world.bucket.put("s3://bucket/000-behind", "s3://bucket/049-ahead")
            world.bucket.remove(names[5], names[40])
            world.bucket.put(names[45], size=20)

    world.bucket.before_page = change
    assert drain(world, **ALONE)["backfilled"] == 50
    world.bucket.before_page = lambda prefix, cursor: None
    assert drain(world, **ALONE)["backfilled"] == 1
    left = [name for name in names if name != names[40]]
    assert_published_once(world, [*left, "s3://bucket/000-behind", "s3://bucket/049-ahead"])


def test_an_object_that_was_missing_is_read_when_a_listing_finds_it(world: World) -> None:
    world.publish("s3://bucket/late")
    with world.loop(**OFTEN) as loop:
        loop.bad["s3://bucket/late"] = "missing-object"
        until(lambda: states_of(world) == {"quarantined": 1}, slowly(loop))
        loop.bad.clear()
        world.bucket.put("s3://bucket/late")
        until(lambda: states_of(world) == {"done": 1}, slowly(loop))
        assert loop.metrics["reopened"] == 1
    assert_published_once(world, ["s3://bucket/late"])


def test_an_object_that_stays_bad_is_read_once_more_for_each_version(world: World) -> None:
    world.publish("s3://bucket/bad")
    with world.loop(**OFTEN) as loop:
        loop.bad["s3://bucket/bad"] = "object-changed"
        until(lambda: states_of(world) == {"quarantined": 1}, slowly(loop))
        world.bucket.put("s3://bucket/bad")
        until(lambda: loop.metrics["reopened"] == 1 and states_of(world) == {"quarantined": 1}, slowly(loop))
        listed = loop.metrics["listed"]
        until(lambda: loop.metrics["listed"] > listed + 10, slowly(loop))
        assert loop.metrics["reopened"] == 1
        world.bucket.put("s3://bucket/bad", size=20)
        until(lambda: loop.metrics["reopened"] == 2, slowly(loop))


# --- troubles ---


@pytest.mark.parametrize(
    "error",
    [
        BadObject("missing-object", "there is no bucket"),
        ObjectRefused("access denied", own=False),
        ObjectStoreError("is down"),
    ],
    ids=["missing", "forbidden", "down"],
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a queue"])
def test_available_now_ends_though_a_bucket_fails_and_says_so(
    world: World, error: Exception, alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.bucket.failing = [error] * 100
    if not alone:
        world.publish(*uris(3))
    counts = drain(world, **(ALONE if alone else {}), queueRetryTimeout="1s")
    assert counts["listingFailures"] == 1
    assert _published(world) == (0 if alone else 3)
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert PREFIX in record.getMessage()
    assert str(error) in record.getMessage()


def test_a_listing_that_fails_in_the_middle_goes_on_there_at_the_next_interval(world: World) -> None:
    world.bucket.page_size = 10
    world.bucket.put(*uris(50))

    def fail(prefix: str, cursor: str | None) -> None:
        if len(world.bucket.calls) == 2:
            world.bucket.failing = [ObjectRefused("access denied", own=False)]

    world.bucket.before_page = fail
    with world.loop(**{**ALONE, "backfillInterval": "300ms"}) as loop:
        until(lambda: _all_done(world, 50), slowly(loop))
        assert loop.metrics["listingFailures"] == 1
    cursors = [cursor for _, cursor in world.bucket.calls]
    assert cursors[2] == cursors[3], "not from the beginning"
    assert_published_once(world, uris(50))


def test_a_passing_trouble_is_waited_for(world: World) -> None:
    world.bucket.put(*uris(5))
    world.bucket.failing = [ObjectStoreError("slow down")]
    counts = drain(world, **ALONE)
    assert (counts["listingFailures"], counts["backfilled"]) == (0, 5)


def test_one_prefix_that_fails_keeps_no_other_from_being_listed(world: World) -> None:
    world.bucket.put("s3://bucket/a", "s3://other/b")

    def fail(prefix: str, cursor: str | None) -> None:
        if prefix == "s3://other/":
            raise BadObject("missing-object", "there is no bucket")

    world.bucket.before_page = fail
    counts = drain(world, **{**ALONE, "backfillPrefixes": "s3://other/,s3://bucket/"})
    assert counts["listingFailures"] == 1
    assert_published_once(world, ["s3://bucket/a"])


def test_prefixes_are_listed_side_by_side_and_not_too_many(world: World) -> None:
    prefixes = [f"s3://bucket/{name}/" for name in "abcdef"]
    for prefix in prefixes:
        world.bucket.put(f"{prefix}object")
    inside: set[str] = set()
    most = [0]
    lock, full = threading.Lock(), threading.Event()

    def count(prefix: str, cursor: str | None) -> None:
        with lock:
            inside.add(prefix)
            most[0] = max(most[0], len(inside))
        if most[0] == 4:
            full.set()
        assert full.wait(30)
        time.sleep(0.1)  # in which a fifth could come
        with lock:
            inside.discard(prefix)

    world.bucket.before_page = count
    drain(world, **{**ALONE, "backfillPrefixes": ",".join(prefixes)})
    assert most[0] == 4
    assert_published_once(world, [f"{prefix}object" for prefix in prefixes])


def test_a_stop_during_a_listing_is_quick_and_another_goes_on_at_once(world: World) -> None:
    world.bucket.page_size = 10
    world.bucket.put(*uris(1000))
    world.bucket.before_page = lambda prefix, cursor: time.sleep(0.02)
    with world.loop(**ALONE, pipeline="a", checkpoint="a", maxFilesPerTrigger="1000") as loop:
        until(lambda: loop.metrics["listed"] >= 30, lambda: time.sleep(0.01))
        began = time.monotonic()
        loop.stop()
        assert time.monotonic() - began < 3
        loop.die()
    calls = len(world.bucket.calls)
    with world.loop(**ALONE, pipeline="b", checkpoint="b", maxFilesPerTrigger="1000") as loop:
        until(lambda: len(world.bucket.calls) > calls, lambda: time.sleep(0.01))
        assert world.bucket.calls[calls][1] is not None


# --- bounds ---


def test_memory_is_flat_and_calls_are_bounded_over_many_known_objects(world: World) -> None:
    count = 200_000
    names = [f"s3://bucket/{number:07}" for number in range(count)]
    world.bucket.put(*names, age=7200.0)
    with world.store() as store:
        adopt(store, "files", names)
    resident: list[int] = []

    def look(prefix: str, cursor: str | None) -> None:
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)

    world.bucket.before_page = look
    counts = drain(world, **ALONE)
    assert (counts["listed"], counts["backfilled"]) == (count, 0)
    assert len(world.bucket.calls) <= math.ceil(count / 1000) + 1
    assert max(resident[50:]) - max(resident[:50]) < 8 << 20, "150,000 objects more would be 50 MB"


def adopt(store: Any, source: str, names: list[str]) -> None:
    for first in range(0, len(names), 1000):
        store.adopt(source, names[first : first + 1000], "test")


def test_work_that_is_found_stays_bounded(world: World) -> None:
    world.bucket.page_size = 10
    world.bucket.put(*uris(150))
    with world.loop(**ALONE, maxFilesPerTrigger="10") as loop:
        until(lambda: loop.in_flight.counts().ready >= 30, lambda: time.sleep(0.01))
        time.sleep(0.3)
        assert loop.in_flight.counts().ready <= 30 + 10
        until(lambda: _all_done(world, 150), slowly(loop))


# --- what can never be right ---


def test_a_prefix_that_cannot_be_opened_is_refused_at_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.bucket, "open", open_bucket)
    options = {**ALONE, "allowedPrefixes": "ftp://", "backfillPrefixes": "ftp://host/folder/"}
    with pytest.raises(OptionError, match=r"'backfillPrefixes': .*'ftp://host/folder/' is not one of"):
        world.loop(**options).__enter__()


def test_a_queue_that_has_the_name_of_listings_is_refused(world: World) -> None:
    options = reader_options(world.queue_url, world.store_url, **LIST)
    nothing: Any = None
    with pytest.raises(OptionError, match="names a queue 'listing'"):
        prepare(options, nothing, {LISTING: nothing}, nothing, open_bucket=nothing)


def test_a_listing_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.bucket.put(*uris(3))
    with caplog.at_level(logging.INFO, "cuesqueue"):
        drain(world, **ALONE)
    (line,) = [r.getMessage() for r in caplog.records if "listed 3 object(s)" in r.getMessage()]
    assert "of which 3 were unknown" in line
    with world.loop(**ALONE) as loop:
        assert {"listed", "backfilled", "beyondMemory", "listingFailures"} <= loop.coordinator.report().keys()


def test_driver_loops_of_these_tests_have_nothing_to_list_by_themselves(tmp_path: Path) -> None:
    options = reader_options("", f"sqlite:///{tmp_path}/s.db", **ALONE)
    with pytest.raises(AssertionError, match="nothing is listed here"):
        DriverLoop(options, tmp_path / "c", tmp_path / "o")
