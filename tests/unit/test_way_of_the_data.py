"""The way of a message and of a batch, seen while it happens: calls go down the layers, only results come back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from queue_source.read.partitions import partition
from queue_source.read.task import Work, read_work
from support.coordinator_world import EMPTY, World
from support.driver_loop import until
from support.reading import plan_store
from unit.test_imports import place

CALLBACKS = {
    (
        "announcements.contents",
        "storage.files",
    ): "sizes and times are asked for by the function that it was given",
    (
        "announcements.contents",
        "coordinator.ready",
    ): "what is read in pieces is asked of the function that it was given",
    ("coordinator.in_flight", "coordinator.acknowledging"): "the condition that ends a wait",
    ("coordinator.in_flight", "coordinator.coordinator"): "the condition that ends a wait",
    ("coordinator.in_flight", "coordinator.opening"): "the condition that ends a wait",
    (
        "shard_store.batches.starting",
        "coordinator.start",
    ): "options that changed are refused by the function that it was given",
    ("shard_store.batches.starting", "queues.urls"): "older names of queues are read by the function that it was given",
    ("formats.base", "read.combined"): "halves are read by the function that it was given",
}
"""Calls up the layers that are meant, and why."""

RUNNERS = {
    "queue_source.options.declaring": "makes the groups of options that are declared with it",
    "queue_source.coordinator.session": "runs each part on a thread, and calls of queues again",
    "shard_store.sql.database": "runs what it is given in a transaction, and again after passing trouble; makes chunks",
}
"""Modules whose purpose is to call what they are given."""


@dataclass
class Trace:
    """Which module called which: the nearest frames of the project, with whatever library lies between."""

    calls: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        callee = _module(frame)
        if event != "call" or callee is None:
            return
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        if caller is not None:
            self.calls.add((str(_module(caller)), callee))

    def climbs(self) -> set[tuple[str, str]]:
        return {(above, below) for above, below in self.calls if _climbs(above, below) and not _is_meant(above, below)}


def _module(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__"))
    ours = name.startswith(("queue_source.", "shard_store."))
    # the body of a module or class runs where it is imported first
    return name if ours and frame.f_code.co_name not in ("<module>", "__getattr__") else None


def _climbs(caller: str, callee: str) -> bool:
    above, below = place(caller), place(callee)
    return above is not None and below is not None and above[1] != below[1] and above[0] <= below[0]


def _is_meant(caller: str, callee: str) -> bool:
    names = caller.removeprefix("queue_source."), callee.removeprefix("queue_source.")
    return caller in RUNNERS or names in CALLBACKS


@contextmanager
def traced() -> Iterator[Trace]:
    trace = Trace()
    before = sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def announce_files(world: World, count: int) -> None:
    files = [world.folder / f"{number}.json" for number in range(count)]
    for file in files:
        file.write_text('{"a": 10}\n')  # as many bytes as the driver loop says of each object
    world.publish(*map(str, files), *map(str, files[:5]), "no notification")


def test_no_call_of_the_reader_process_climbs_back_up_the_layers(tmp_path: Path) -> None:
    world = World(tmp_path)
    announce_files(world, 30)
    with traced() as trace, world.loop(allowedPrefixes=f"{tmp_path}/", maxFilesPerTrigger="10") as loop:
        until(lambda: world.depth() == EMPTY, loop.batch)
    seen = {callee for _, callee in trace.calls}
    parts = "opening", "in_flight", "messages", "ready", "progress", "acknowledging", "maintenance"
    assert {f"queue_source.coordinator.{part}" for part in parts} <= seen
    assert {"queue_source.announcements.parser", "shard_store.batches.plans", "shard_store.batches.publishing"} <= seen
    assert trace.climbs() == set()


def test_no_call_of_a_task_climbs_back_up_the_layers(tmp_path: Path) -> None:
    world = World(tmp_path)
    announce_files(world, 30)
    rows: list[int] = []
    with traced() as trace, world.loop(allowedPrefixes=f"{tmp_path}/") as loop:
        plan_of = loop.coordinator.plan

        def plan(start: int, end: int) -> Any:
            made = plan_of(start, end)
            for pieces in partition(made, 2, 128 << 20, lambda _: True):
                work = Work(made.identity, pieces, loop.options.content, plan_store(loop.options), None)
                batches = read_work(work, pa.schema([("a", pa.int64())]), repeated=False)
                rows.append(sum(batch.num_rows for batch in batches))
            return made

        loop.coordinator.plan = plan  # type: ignore[method-assign]
        until(lambda: world.depth() == EMPTY, loop.batch)
    assert sum(rows) == 30
    seen = {callee for _, callee in trace.calls}
    assert {"queue_source.read.task", "queue_source.storage.files", "queue_source.formats.text.json"} <= seen
    assert trace.climbs() == set()


def test_a_call_up_the_layers_is_seen() -> None:
    trace = Trace({("shard_store.batches.plans", "queue_source.coordinator.progress")})
    assert trace.climbs()
