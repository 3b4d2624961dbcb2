"""What can wait gives way to Spark's batches, and not for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from queue_source.coordinator import backfill
from queue_source.coordinator.session import Precedence
from support.buckets import MemoryStore
from support.coordinator_world import World
from support.driver_loop import until

FOREVER = 1e6


def rest() -> None:
    time.sleep(0.02)


def goes_on(precedence: Precedence, seconds: float) -> bool:
    """Whether what gives way goes on before the end of the test."""
    waits = threading.Thread(target=precedence.wait_for_batch_end, args=(seconds,), daemon=True)
    waits.start()
    waits.join(10)
    return not waits.is_alive()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, MemoryStore())
    world.bucket.put(*(f"s3://bucket/{n:04}" for n in range(3000)), age=60.0)
    return world


def test_a_listing_stands_still_after_a_page_while_a_batch_is_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "_YIELD", FOREVER)
    monkeypatch.setattr(backfill, "_LONGEST_YIELD", FOREVER)
    waits = threading.Event()
    wait_for_batch_end = Precedence.wait_for_batch_end

    def seen(self: Precedence, seconds: float) -> None:
        if seconds:  # not before the first page
            waits.set()
        wait_for_batch_end(self, seconds)

    monkeypatch.setattr(Precedence, "wait_for_batch_end", seen)
    options: dict[str, Any] = {"backfillPrefixes": "s3://bucket/", "backfillGrace": "0s", "maxFilesPerTrigger": "5000"}
    with world.loop(publishes=True, **options) as loop:
        loop.coordinator.session.batches.begin()
        assert waits.wait(30)
        assert loop.coordinator.report()["listed"] == 1000
        loop.coordinator.session.batches.end()
        until(lambda: loop.coordinator.report()["listed"] == 3000, rest)


def test_it_goes_on_after_the_time_that_its_caller_gives() -> None:
    precedence = Precedence(lambda: 0.0)
    precedence.begin()
    assert goes_on(precedence, 0.01)


def test_a_batch_of_which_nothing_is_heard_is_over() -> None:
    now = 0.0
    precedence = Precedence(lambda: now)
    precedence.begin()
    now = 10.0
    assert goes_on(precedence, FOREVER)


def test_spark_begins_a_batch_where_there_is_work_and_ends_it_where_there_is_none(world: World) -> None:
    heard: list[str] = []

    class Heard(Precedence):
        def begin(self) -> None:
            heard.append("begin")

        def end(self) -> None:
            heard.append("end")

    with world.loop() as loop:
        object.__setattr__(loop.coordinator.session, "batches", Heard(lambda: 0.0))
        assert not loop.batch()
        assert heard[-1] == "end"
        world.publish("s3://bucket/0001")
        until(loop.batch, rest)
        assert heard[-2:] == ["begin", "begin"]  # the snapshot, and the plan
        assert not loop.batch()
        assert heard[-1] == "end"
