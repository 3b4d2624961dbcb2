"""One queue for many sources: what 200 sources behind one receiver cost beside a single one.

Queue and store are SQLite files, the receiver is a thread of this process, as is the reader of one source. The runs of
both take turns, each in a folder of its own. Every message announces one object, for one source.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.registry import Measurement, Role, Settings, benchmark
from queue_source.announcements.routes import Routes, parse_routes
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.receivers import Receiver
from queue_source.options import parse_receiver_options
from queue_source.queues import open_queue
from shard_store.store import ShardStore, open_store
from support.driver_loop import reader_options, start_coordinator

SOURCES = 200
_LOOK = 0.002  # seconds between two looks at whether the reader has what was sent
_PATIENCE = 60.0


@dataclass
class Turn:
    """One run: seconds to record many messages, with how many statements, and those of single ones to each step."""

    recording: float = 0.0
    statements: int = 0
    recorded: list[float] = field(default_factory=list)
    readable: list[float] = field(default_factory=list)


@benchmark("routes")
def routes(settings: Settings) -> Iterator[Measurement]:
    """a receiver for 200 sources against one for a single source: recording, and from sent to readable"""
    messages, singles = (1_000, 5) if settings.quick else (5_000, 40)
    few: list[Turn] = []
    many: list[Turn] = []
    for number in range(1 + settings.repetitions):
        for turns, sources in ((few, 1), (many, SOURCES)):
            turns.append(_turn(settings.folder / f"{number}-{sources}", sources, messages, singles))
        counts = few[-1].statements, many[-1].statements
        settings.say(
            f"run {number}: {counts[0] / messages:.4f} and {counts[1] / messages:.4f} statements a message with 1 and "
            f"{SOURCES} sources: {counts[1] / counts[0]:.2f} times as many"
        )
    few, many = few[1:], many[1:]
    alone, behind = "one source", f"{SOURCES} sources"

    def compared(case: str, value: Callable[[Turn], float], amount: int = 0, unit: str = "") -> Measurement:
        reference = [value(turn) for turn in few]
        ours = [value(turn) for turn in many]
        return Measurement(f"{behind}, {case}", ours, amount, unit, alone, reference, reference_role=Role.BASELINE)

    yield compared("recording", lambda turn: turn.recording, messages, "messages")
    yield compared("sent to recorded, median", lambda turn: statistics.median(turn.recorded))
    yield compared("sent to readable, median", lambda turn: statistics.median(turn.readable))


def _turn(folder: Path, sources: int, messages: int, singles: int) -> Turn:
    folder.mkdir()
    queue_url, store_url = f"sql+sqlite:///{folder}/queue.db?queue=landing", f"sqlite:///{folder}/store.db"
    names = [f"source-{number:03}" for number in range(sources)]
    entries = [{"prefix": f"s3://bucket/{name}/", "source": name} for name in names]
    turn, stopping, recorded = Turn(), threading.Event(), threading.Semaphore(0)
    with open_queue(queue_url) as queue, open_store(store_url) as store:
        receiver = Receiver(
            "landing", queue, Routes(parse_routes(json.dumps(entries))), parse_receiver_options(queue_url, {}), store,
            stopping, on_recorded=lambda _: recorded.release(),
        )  # fmt: skip
        receiver.begin()
        queue.send([f"s3://bucket/{names[number % sources]}/{number}" for number in range(messages)])
        with _counting(store) as statements:
            began = time.perf_counter()
            receiver.run(until_empty=True)
            turn.recording, turn.statements = time.perf_counter() - began, len(statements)
        thread = threading.Thread(target=receiver.run)
        thread.start()
        try:
            _send_singles(turn, queue, store_url, recorded, names[0], singles)
        finally:
            stopping.set()
            thread.join()
    return turn


def _send_singles(
    turn: Turn, queue: Any, store_url: str, recorded: threading.Semaphore, source: str, singles: int
) -> None:
    """Send messages one by one to a source that has a reader, and note when each is recorded, and is the reader's."""
    more = {"source": source, "maxInFlightMessages": "100000", "maxFilesPerTrigger": "10000"}
    coordinator = start_coordinator(reader_options("store", store_url, **more))
    in_flight = coordinator.in_flight
    try:
        ready = _settled(in_flight)
        for number in range(singles):
            while recorded.acquire(blocking=False):
                pass
            sent = time.perf_counter()
            queue.send([f"s3://bucket/{source}/single-{number}"])
            assert recorded.acquire(timeout=_PATIENCE)
            turn.recorded.append(time.perf_counter() - sent)
            ready += 1
            _wait_for(lambda most=ready: in_flight.counts().ready >= most)  # type: ignore[misc]
            turn.readable.append(time.perf_counter() - sent)
            time.sleep(0.037 * (number % 7))  # so that messages come at all times between two looks of the reader
    finally:
        coordinator.stop()


def _settled(in_flight: InFlight) -> int:
    """Return what the reader has once it has taken all that was recorded before."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 1.5:
        if (now := in_flight.counts().ready) != before:
            before, since = now, time.monotonic()
        time.sleep(0.05)
    return before


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_LOOK)


@contextmanager
def _counting(store: ShardStore) -> Iterator[Sequence[str]]:
    """Collect the statements that the store's database gets in the block."""
    statements: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        statements.append(statement)

    engine = store.database.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
