"""A query over time: everything that it needs is slow, away, full or wrong for a while, and then right again.

Spark's loop without Spark, with all that is ours (`crash_sweep.SweepLoop`). Nothing is killed here: the query has to
live through it, receive each message once, and publish each row once.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from queue_source.coordinator.opening import Receivers
from queue_source.errors import ObjectStoreError
from shard_store.store import open_store
from support.crash_sweep import SweepLoop
from support.driver_loop import states
from support.store_backends import rows
from support.sweep_sinks import USERS, Cell, database
from support.time_faults import Case, Setting, Times

OBJECTS = 24
BATCH = 4
HOUR = 3600.0
CLOCKS = (-HOUR, 0.0, HOUR)
"""By how much the clock of the host is wrong: it jumps after each batch."""
_PATIENCE = 600.0  # seconds for a whole case
_RUNNING = 2  # batches, after which it begins to go wrong
_wait = threading.Event().wait  # nobody sets it


@dataclass
class Outcome:
    """How a query went: what failed it, and the reader's counters, over all its starts."""

    failed: str = ""
    starts: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


def prepare(case: Case, setting: Setting, times: Times) -> Counter[str]:
    """Objects, their messages and the user's tables; returns the rows that are to be found."""
    cell = setting.cell
    for url in (cell.store, cell.elsewhere):
        with database(url) as engine:
            USERS.create(engine)
    if case.fault == "backlog":
        count = times.backlog // (10 if case.queue == "sqs" else 1)  # this server searches all messages for each one
        values = [str(number) for number in range(count)]
        for first in range(0, len(values), 5000):
            setting.send([json.dumps({"value": value}) for value in values[first : first + 5000]])
        return Counter(values)
    objects = cell.folder / "objects"
    objects.mkdir()
    names = [f"object-{number:02}" for number in range(OBJECTS)]
    for name in names:
        (objects / f"{name}.json").write_text("".join(f'{{"value": "{name} {line}"}}\n' for line in range(2)))
    setting.send([f"file://{objects}/{name}.json" for name in names])
    if case.fault == "disk full, sink":
        assert setting.disk is not None
        folder = {"Iceberg": "warehouse", "Delta, loading": "delta"}.get(case.column, "output")
        (cell.folder / folder).symlink_to(setting.disk)
    return Counter(f"{name} {line}" for name in names for line in range(2))


def options_of(case: Case, setting: Setting, times: Times) -> dict[str, str]:
    options = {**setting.options, "queueUrl": setting.queue_url, "errorQueueUrl": "", "maxFilesPerTrigger": str(BATCH)}
    options |= {"visibilityTimeout": "", "commitTimeout": "", "waitTime": "", **times.leases}  # "": the default
    if case.fault in ("slow trigger", "slow batch", "disk full, sink"):
        options |= {"visibilityTimeout": times.visibility, "commitTimeout": times.commit, "waitTime": "100ms"}
    if case.fault == "backlog":
        options |= {"content": "message", "allowedPrefixes": "", "maxFilesPerTrigger": "1000"}
    return options


@dataclass
class Query:
    """The query of a case. It says `running` in the midst of its work, and asks whether what is wrong is `over`."""

    case: Case
    cell: Cell
    options: dict[str, str]
    times: Times
    running: Callable[[], object]
    over: Callable[[], bool]
    outcome: Outcome = field(default_factory=Outcome)
    _batches: int = 0

    def run(self, messages: int) -> Outcome:
        """Until so many messages are acknowledged and what is wrong is over, or it has failed."""
        began = time.monotonic()

        def done() -> bool:
            if time.monotonic() - began > _PATIENCE:
                raise TimeoutError(f"not done after {_PATIENCE:g} s: {self.outcome.counts}")
            return self.outcome.counts["acknowledged"] >= messages and self.over()

        with ExitStack() as stack:
            stack.enter_context(_clock_off(self._skew))
            if self.case.fault == "slow store" and self.case.store == "sqlite":
                stack.enter_context(_slow_statements(self.times.statement))
            try:
                while not done():
                    self._start(done)
            except Exception as error:  # noqa: BLE001 - the query has failed, and that is what is asked
                self.outcome.failed = f"{type(error).__name__}: {error}"
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _start(self, done: Callable[[], bool]) -> None:
        """One start: until it is done. A full disk of the sink ends it; there is another one when there is room."""
        before = self.outcome.counts.copy()
        self.outcome.starts += 1
        loop = SweepLoop(self.cell, work=partial(self._pause, "slow batch"), **self.options)
        try:
            if self.case.fault == "clock off":
                loop.coordinator.drain()  # AvailableNow compares times
            while not done():
                self._batches += loop.batch()
                self.outcome.counts = before + _counts(loop)
                if self._batches == _RUNNING:
                    self.running()
                self._pause("slow trigger")
                _wait(0.01)
        except (OSError, ObjectStoreError) as error:
            if self.case.fault != "disk full, sink" or "space left on device" not in str(error).lower():
                raise
            while not self.over():
                _wait(0.05)
        finally:
            loop.stop()
            self.outcome.counts = before + _counts(loop)

    def _pause(self, fault: str) -> None:
        if self.case.fault == fault and _RUNNING <= self._batches < 2 * _RUNNING:
            _wait(self.times.pause)

    def _skew(self) -> float:
        return CLOCKS[self._batches % len(CLOCKS)] if self.case.fault == "clock off" else 0.0


def _counts(loop: SweepLoop) -> Counter[str]:
    """The reader's counters; some are counted by cause."""
    return Counter({name: count for name, count in loop.metrics.items() if isinstance(count, int)})


@contextmanager
def _slow_statements(seconds: float) -> Iterator[None]:
    def wait(*_: Any) -> None:
        time.sleep(seconds)

    sa.event.listen(sa.Engine, "before_cursor_execute", wait)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", wait)


@contextmanager
def _clock_off(skew: Callable[[], float]) -> Iterator[None]:
    """By so many seconds, for all that asks the host for the time of day: our receivers, and PyIceberg's snapshots."""
    right = time.time

    def wrong() -> float:
        return right() + skew()

    start = import_module("queue_source.coordinator.start")
    with patch.object(start, "Receivers", partial(Receivers, _clock=wrong)), patch("time.time", wrong):
        yield


def wrong(case: Case, setting: Setting, expected: Counter[str], outcome: Outcome) -> list[str]:
    """What is not as it is promised: all that is found."""
    cell, counts, found = setting.cell, outcome.counts, []
    if outcome.failed:
        found.append(f"the query failed: {outcome.failed}")
    there = cell.sink.found(cell)
    if there != expected:
        found.append(f"{(expected - there).total()} rows lost, {(there - expected).total()} doubled")
    if left := setting.left_in_queue():
        found.append(f"{left} messages left in the queue")
    messages = expected.total() if case.fault == "backlog" else OBJECTS
    again = counts["received"] - messages
    # a broker that ends takes all leases with it; a query that is started again finds its messages again
    if again and not (case.queue == "rabbitmq" or outcome.starts > 1):
        found.append(f"{again} messages received again ({dict(counts)})")
    with open_store(cell.store) as store:
        if not outcome.failed and states(store) != {"done": messages}:
            found.append(f"shards: {dict(states(store))}")
        if bad := rows(store, "errors"):
            found.append(f"errors: {bad[:3]}")
        try:
            cell.sink.check(cell, store)
        except AssertionError as error:
            if case.column.startswith(("Iceberg", "Delta")):
                found.append(f"sink: {error}")
    return found
