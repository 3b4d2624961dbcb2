"""One query into each kind of sink, which dies at a named point; another goes on, and then everything is looked at.

Spark's loop without Spark, but with all that is ours: the reader, the writer, real objects, sinks, queues and stores.
What a cell of the sweep is: a sink (`sweep_sinks.COLUMNS`), a point, how it fails there, and whether Spark reads each
batch twice.
"""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from queue_source.announcements.routes import Route, Routes
from queue_source.coordinator import Coordinator
from queue_source.coordinator.receivers import Receiver
from queue_source.options import parse_receiver_options, parse_sink_options
from queue_source.queues import open_queue
from queue_source.spark import reader as reader_module
from queue_source.spark import writer as writer_module
from queue_source.spark.process import WRITES_ARROW
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.writer import CuesqueueStreamWriter
from shard_store import failpoints
from shard_store.model import Reading
from shard_store.sql import schema
from shard_store.store import ShardStore, open_store
from support.coordinator_world import EMPTY
from support.driver_loop import DriverLoop, reader_options, states
from support.store_backends import rows
from support.sweep_sinks import FIRST_BATCH, LATE, OBJECTS, SWEPT, Cell


def _schema(cell: Cell) -> StructType:
    schema = StructType([StructField("uri" if cell.sink.by_reference else "value", StringType())])
    return schema.add("size", LongType()).add("etag", StringType()) if cell.sink.names_objects else schema


_task: list[Reading] = []
"""The task attempt that runs, as Spark would number it; the last one counts."""

_BY_REFERENCE = {"content": "reference", "fileFormat": "", "mode": ""}


class SweepLoop(DriverLoop):
    """As Spark runs the query: reader, tasks and writer are pickled wherever Spark pickles them."""

    def __init__(self, cell: Cell, *, work: Callable[[], object] = lambda: None, **more: str) -> None:
        """`more` options override; `work` is what takes time in a batch."""
        self.cell = cell
        given = {
            "mode": "DROPMALFORMED",
            "allowedPrefixes": "file:///,s3://",
            "errorQueueUrl": cell.errors_url,
            "pipeline": "p",
            "source": "s",
            "visibilityTimeout": "60s",
            "commitTimeout": "20s",
            "waitTime": "10ms",
            "maxFilesPerTrigger": str(len(FIRST_BATCH)),
            "minPartitions": "2",
            "deliverySemantics": cell.sink.semantics,
            **(_BY_REFERENCE if cell.sink.by_reference else {}),
        }
        queue_url = "store" if cell.sink.routed else f"sql+{cell.elsewhere}?queue=files"
        options = reader_options(queue_url, cell.store, **{**given, **more})
        self.reader = CuesqueueStreamReader(options, _schema(cell))
        self._stages, self._tasks = itertools.count(), itertools.count()
        super().__init__(options, cell.folder / "checkpoint", cell.folder / "output", work=work)

    def _start_coordinator(self, driver: str) -> Coordinator:
        # as its first call, without a handler of signals
        coordinator, self.reader._store, _ = reader_module._prepare(self.options)
        self.reader._coordinator = coordinator
        coordinator.begin()
        return coordinator

    def _run(self, number: int) -> None:
        start, end = (self.coordinator.offsets.write(self._log[number][name]) for name in ("start", "end"))
        partitions = self.reader.partitions(start, end)
        self.work()
        sink = self.cell.sink

        def read() -> Iterator[Iterator[Any]]:
            """One after the other: each is a task that runs until the next one is asked for."""
            executor, stage = _pickled(self.reader), next(self._stages)
            for place, partition in enumerate(partitions):
                _task.append(Reading(stage, place, next(self._tasks)))
                yield executor.read(_pickled(partition))

        if self.cell.twice:
            for batches in read():
                list(batches)
            self.cell.complete()

        if sink.options is not None:
            options = parse_sink_options(
                {"store": self.cell.store, "pipeline": self.options.pipeline, **sink.options(self.cell)}
            )
            schema = _schema(self.cell)
            task = _pickled(CuesqueueStreamWriter(options, schema))
            written = []
            for place, batches in enumerate(read()):
                with patch.object(writer_module, "task_name", lambda place=place: f"{number}.{place}"):
                    written.append(_pickled(task.write(batches if WRITES_ARROW else _rows(batches))))
            CuesqueueStreamWriter(options, schema).commit(written, number)
        else:
            assert sink.deliver is not None
            sink.deliver(self.cell, lambda: [row.value for batches in read() for row in _rows(batches)], number)
        self._write("commits", number, {})
        self._done[number] = {}
        self._start = self._log[number]["end"]


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _rows(batches: Iterator[Any]) -> Iterator[Row]:
    """Of the one column that there is."""
    return (Row(**row) for batch in batches for row in batch.to_pylist())


@dataclass
class Outcome:
    """How the first query ended, and which points it came to."""

    failed: Exception | None = None
    reached: set[str] = field(default_factory=set)


def run(
    cell: Cell, armed: str = "", *, dies: bool = False, options: Mapping[str, str] = MappingProxyType({})
) -> Outcome:
    """One query until everything is done, or until it fails; `dies`: then as by SIGKILL, else it is stopped."""
    outcome = Outcome()
    counted = dict.fromkeys(SWEPT, (1_000_000, "", ""))
    with (
        patch.multiple(failpoints, _armed={**counted, **failpoints._parse(armed)}, _reached={}),
        patch.multiple(reader_module, is_repeated=lambda: False, reading=lambda: _task[-1]),
        patch.object(writer_module, "reading", lambda: _task[-1]),
    ):
        loop = None
        try:
            if cell.sink.routed:
                receive(cell)
            loop = SweepLoop(cell, work=lambda: None, **options)
            loop.drain()
        except Exception as error:  # noqa: BLE001 - the caller says which it expected
            outcome.failed = error
            if dies and loop is not None:
                loop.die()
        finally:
            if loop is not None:
                loop.stop()
        outcome.reached = set(failpoints._reached)
    return outcome


def receive(cell: Cell) -> None:
    """A receiver that works until the queue is empty."""
    url = f"sql+{cell.elsewhere}?queue=files"
    with open_queue(url) as queue, open_store(cell.store) as store:
        routes = Routes([Route("file:///", "#", "s")])
        receiver = Receiver("r", queue, routes, parse_receiver_options(url, {}), store, threading.Event())
        receiver.begin()
        receiver.run(until_empty=True)


def recover(cell: Cell) -> None:
    """Another query of the pipeline, which nothing disturbs; one more where there is something new for it."""
    for again in [False, True] if cell.twice else [False]:
        if again:
            cell.announce_again()
        cell.end_leases()
        failed = run(cell).failed
        if failed is not None:
            raise failed


def check(cell: Cell, point: str, *, failed: bool) -> None:
    """The rows, the store, the queues: what stands when nothing is left to do. Raises AssertionError."""
    sink = cell.sink
    found = sink.found(cell)
    expected = cell.expected(found)
    lost, doubled = expected - found, found - expected
    assert bool(lost) == (failed and point in sink.losing), f"lost: {lost}"
    assert not lost or lost == Counter(v for v in expected.elements() if v.split()[0] in FIRST_BATCH), f"lost: {lost}"
    assert not doubled or (point in sink.doubling and doubled.keys() <= expected.keys()), f"doubled: {doubled}"
    with open_store(cell.store) as store:
        check_store(cell, store)
        sink.check(cell, store)
        if sink.semantics == "exactly-once":
            check_errors(cell, store, point, failed=failed)
        if lost:
            assert sum(attempt["lost"] for attempt in rows(store, "attempts")) == len(FIRST_BATCH)
    with open_queue(f"sql+{cell.elsewhere}?queue=files") as queue:
        assert queue.depth() == EMPTY, "messages are left"


def check_store(cell: Cell, store: ShardStore) -> None:
    if cell.sink.semantics == "at-least-once":
        assert states(store) == {}
    elif cell.sink.semantics == "exactly-once":
        bad = cell.sink.bad.count("object")
        ended = [Counter(done=len(set(OBJECTS)) - count) + Counter(quarantined=count) for count in (bad, bad - 1)]
        opened = cell.twice and states(store) == ended[1]
        assert states(store) == ended[opened]
        if opened:
            assert cell.sink.found(cell) >= LATE, "the late object is done, and its rows are nowhere"
    else:  # a batch that was given up told of no bad objects
        assert states(store).keys() <= {"done", "quarantined"}
        assert sum(states(store).values()) == len(set(OBJECTS))
    with store.database.engine.connect() as connection:
        query = sa.select(schema.pipelines.c.confirmed_seq, schema.pipelines.c.last_seq)
        confirmed, last = connection.execute(query).one()
    attempts = sorted((attempt["start_seq"], attempt["end_seq"]) for attempt in rows(store, "attempts"))
    starts, ends = [0, *(end for _, end in attempts)], [*(start for start, _ in attempts), last]
    assert starts == ends, f"not one attempt for each plan: {attempts}"
    assert confirmed == last, "a snapshot is not confirmed"


def check_errors(cell: Cell, store: ShardStore, point: str, *, failed: bool) -> None:
    """What an attempt that failed has read may be in a sink that shows rows early: a verdict after that is doubted."""
    told = rows(store, "errors")
    scopes = sorted(error["scope"] for error in told)
    before_verdicts = ["plan-made", "object-read"]
    if cell.sink.loads:  # the commit records them
        before_verdicts += ["table-files-written", "before-publish"]
    read_before = failed and cell.sink.shows_early and point in before_verdicts
    doubted = read_before or (cell.twice and "part" in scopes)
    bad = ["part" if scope == "object" and doubted else scope for scope in cell.sink.bad]
    never_missing = cell.twice and "missing-object" not in {error["cause"] for error in told}
    if never_missing:  # its messages came after others', and the two readings of the batch before made it appear
        assert failed or cell.sink.routed  # what a receiver records has another order when its connection was lost
        assert cell.sink.found(cell) >= LATE
        bad.remove("part" if doubted else "object")
    assert scopes == sorted([*(["message"] if cell.sink.errors_inside else []), *bad])
    opened = cell.twice and not never_missing and states(store)["quarantined"] == 0
    assert not (doubted and opened), "what may be published was opened again"
    assert {error["state"] for error in told} == {"delivered", *(["reopened"] if opened else [])}
    with open_queue(cell.errors_url) as queue:
        sent = [json.loads(message.body)["error_id"] for message in queue.peek(1000)]  # type: ignore[attr-defined]
    assert set(sent) == {error["error_id"] for error in told}
    assert len(sent) == len(told) or point == "errors-sent", "an error was sent twice"
