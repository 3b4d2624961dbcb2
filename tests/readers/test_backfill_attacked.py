"""Listings against what is rare: times that writers set, pages that fail for ever, what a stopped pipeline has left."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import ObjectRefused
from queue_source.storage.buckets import open_bucket
from shard_store.sql.schema import pipelines
from shard_store.upkeep.pruning import RetentionPolicy
from support.coordinator_world import World, assert_published_once, patiently, uris
from support.driver_loop import published, states, until

LIST: dict[str, Any] = {"backfillPrefixes": "s3://bucket/", "backfillGrace": "0s"}
OFTEN: dict[str, Any] = {**LIST, "backfillInterval": "50ms"}
ALONE: dict[str, Any] = {**LIST, "queueUrl": "", "source": "files"}
DAY = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def drain(world: World, **options: Any) -> dict[str, int]:
    """An AvailableNow run; its counters."""
    with world.loop(**{**ALONE, **options}) as loop:
        loop.drain()
        return loop.metrics


def published_of(world: World) -> Counter[str]:
    with world.store() as store:
        return published(store)


# --- times that no clock has told ---


@pytest.mark.parametrize("age", [-10 * DAY, 60.0], ids=["modified in ten days", "modified a minute ago"])
def test_what_was_forgotten_is_not_read_again_whatever_time_its_writer_gave_it(world: World, age: float) -> None:
    world.bucket.put(*uris(3), age=age)
    drain(world)
    with world.store() as store:
        with store.database.engine.begin() as connection:  # else its own window would hold
            connection.execute(pipelines.update().values(report=None))
        assert store.prune(RetentionPolicy(window=timedelta(0))).shards == 3
    counts = drain(world)
    assert (counts["backfilled"], counts["beyondMemory"]) == (0, 3)
    assert published_of(world) == dict.fromkeys(uris(3), 1)


def test_a_file_that_was_moved_in_with_its_old_time_does_not_count_as_existing(world: World) -> None:
    world.bucket.put("s3://bucket/0", appeared=DAY, age=DAY)
    with world.loop(**OFTEN, includeExistingFiles="false") as loop:
        until(lambda: loop.metrics["listed"] >= 1, patiently(loop))
        world.bucket.put("s3://bucket/new", age=10 * DAY, appeared=0.0)  # as mv, cp -p, rsync -t and tar do it
        until(lambda: published_of(world).total() == 1, patiently(loop))
        assert loop.metrics["existing"] >= 1
    assert_published_once(world, ["s3://bucket/new"])


def test_what_is_left_out_as_existing_is_counted_and_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.bucket.put(*uris(25), age=DAY)
    world.bucket.page_size = 10
    with caplog.at_level(logging.INFO, "cuesqueue"):
        counts = drain(world, includeExistingFiles="false")
    assert (counts["existing"], counts["backfilled"], counts["beyondMemory"]) == (25, 0, 0)
    (line,) = [r.getMessage() for r in caplog.records if "listed 25 object(s)" in r.getMessage()]
    assert "25 existed before the first listing" in line


def test_local_files_say_when_they_appeared(tmp_path: Path) -> None:

    began = time.time()
    (tmp_path / "old").write_text("x")
    os.utime(tmp_path / "old", (1_000_000_000, 1_000_000_000))
    (listed,) = open_bucket(f"file://{tmp_path}/").page(f"file://{tmp_path}/").objects
    assert listed.modified.timestamp() == 1_000_000_000
    assert listed.appeared is not None
    assert listed.appeared.timestamp() >= began - 1


# --- a page that cannot be read ---


def test_a_page_that_fails_for_ever_does_not_end_all_listing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.bucket.page_size = 2
    world.bucket.put(*uris(9, first=1))

    def before(prefix: str, cursor: str | None) -> None:
        if cursor is not None and cursor >= "s3://bucket/4":
            raise ObjectRefused("no permission for a folder", own=False)

    world.bucket.before_page = before
    with world.loop(**OFTEN) as loop:
        until(lambda: loop.metrics["listingFailures"] >= 3, patiently(loop))
        world.bucket.put("s3://bucket/0")  # comes before the page
        until(lambda: "s3://bucket/0" in published_of(world), patiently(loop))
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == loop.metrics["listingFailures"]
    assert "from where it was" in errors[0]
    assert "from its beginning" in errors[1]


def test_runs_that_end_at_a_page_that_fails_begin_anew_too(world: World) -> None:
    """Each of them sees but one failure."""
    world.bucket.page_size = 2
    world.bucket.put(*uris(9, first=1))

    def before(prefix: str, cursor: str | None) -> None:
        if cursor is not None and cursor >= "s3://bucket/4":
            raise ObjectRefused("no permission for a folder", own=False)

    world.bucket.before_page = before
    for _ in range(2):
        assert drain(world)["listingFailures"] == 1
    before_it = ["s3://bucket/0", "s3://bucket/00"]
    world.bucket.put(*before_it)
    assert drain(world)["backfilled"] == 2
    assert_published_once(world, [*before_it, *uris(4, first=1)])


# --- what a stopped pipeline has left ---


def test_available_now_reads_what_a_pipeline_that_stopped_had_found(world: World) -> None:
    world.bucket.put(*uris(5))
    with world.loop(**LIST, pipeline="one", checkpoint="one", maxFilesPerTrigger="1") as loop:
        until(lambda: loop.metrics["backfilled"] == 5, lambda: time.sleep(0.01))
    with world.loop(**LIST, pipeline="two", checkpoint="two") as loop:
        loop.drain()
    assert_published_once(world, uris(5))


def test_available_now_reads_all_that_stopped_pipelines_had_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_source.coordinator.opening._ABANDONED", 2)
    world.bucket.put(*uris(7))

    with world.loop(**LIST, pipeline="one", checkpoint="one", maxFilesPerTrigger="3") as loop:
        until(lambda: loop.metrics["backfilled"] == 7, lambda: time.sleep(0.01))
    with world.loop(**LIST, pipeline="two", checkpoint="two") as loop:
        loop.drain()
    assert_published_once(world, uris(7))


def test_a_batch_that_a_stopped_pipeline_had_planned_stays_its_own(world: World) -> None:
    world.bucket.put(*uris(5))
    with world.loop(**LIST, pipeline="one", checkpoint="one", maxFilesPerTrigger="1") as loop:
        until(lambda: loop.metrics["backfilled"] == 5, lambda: time.sleep(0.01))
        loop.latest(0)
    with world.loop(**LIST, pipeline="two", checkpoint="two") as loop:
        loop.drain()
        with world.store() as store:
            assert states(store) == {"open": 1, "done": 4}


def test_a_reader_that_does_not_list_any_more_reads_what_it_had_found(world: World) -> None:
    world.bucket.put(*uris(5))
    with world.loop(**LIST, pipeline="one", checkpoint="one", maxFilesPerTrigger="1") as loop:
        until(lambda: loop.metrics["backfilled"] == 5, lambda: time.sleep(0.01))
    with world.loop(pipeline="one", checkpoint="one") as loop:
        until(lambda: published_of(world).total() == 5, patiently(loop))
    assert_published_once(world, uris(5))
