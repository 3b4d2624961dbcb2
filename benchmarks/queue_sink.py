"""The sink with `queueUrl` into a SQL queue in the store's database, beside a bare publish of the same messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from benchmarks.queues import _BODY
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from benchmarks.store import databases
from queue_source.options import parse_sink_options
from queue_source.queues.sql import SqlQueue
from queue_source.read.fixed_rows import MESSAGE_SCHEMA
from queue_source.sinks.base import Batch, open_sink
from shard_store.model import BEGINNING, Content, Range, end_at
from shard_store.store import ShardStore, open_store

_TASKS = 2
_ARROW_ROWS = 10_000


@benchmark("sink-queue")
def sink_queue(settings: Settings) -> Iterator[Measurement]:
    """Messages a second through the queue sink, in two tasks one after the other, beside a bare publish of them."""
    count = 2_000 if settings.quick else 20_000
    for name, database in databases(settings.folder):
        with database as url, open_store(url) as store, SqlQueue(f"sql+{url}?queue=bare") as bare:
            sink = Sink(store, url)
            runs = [partial(sink.run, count), partial(_published, bare, count)]
            found = alternate(runs, settings.repetitions)
            yield Measurement(
                f"{name}, SQL queue in the store's database",
                found[0],
                count,
                "messages",
                "publish",
                found[1],
                reference_role=Role.FLOOR,
            )


class Sink:
    """One pipeline whose micro-batches bring one object each, and any number of rows."""

    def __init__(self, store: ShardStore, url: str) -> None:
        self._store = store
        self._url = f"sql+{url}?queue=sink"
        started = store.start("bench", "sink")
        self._token, self._seq = started.token, started.last_seq
        self._sink = open_sink(parse_sink_options({"store": url, "pipeline": "sink", "queueUrl": self._url}))

    def run(self, count: int) -> float:
        plan = self._plan()
        rows = count // _TASKS
        task_rows = [self._batches(rows) for _ in range(_TASKS)]
        began = time.perf_counter()
        written = [
            self._sink.write(batches, MESSAGE_SCHEMA, replace(plan, task=f"{self._seq}.{task}"))
            for task, batches in enumerate(task_rows)
        ]
        self._sink.commit(self._store, plan, written, row_schema="", batch_id=self._seq)
        seconds = time.perf_counter() - began
        _emptied(self._url, count)
        return seconds

    def _plan(self) -> Batch:
        found = self._store.open_shards(self._token, "bench", [Content(uuid.uuid4().hex, "message:", 1)])
        ranges = [Range(shard.key, shard.content, BEGINNING, end_at(1)) for shard in found.values()]
        before = self._seq or None
        self._store.advance(self._token, confirm=before, keys=[], snapshot=(self._seq + 1, ranges))
        plan = self._store.plan(self._token, self._seq, self._seq + 1)
        self._seq += 1
        return Batch((plan.identity,))

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, _ARROW_ROWS):
            size = min(_ARROW_ROWS, rows - start)
            columns = {"value": [_BODY] * size, "tag": ["a.b"] * size}
            arrays = [pa.array(columns.get(field.name, [None] * size), field.type) for field in MESSAGE_SCHEMA]
            yield pa.record_batch(arrays, schema=MESSAGE_SCHEMA)


def _published(queue: SqlQueue, count: int) -> float:
    began = time.perf_counter()
    queue.publish([_BODY] * count, tag="a.b")
    seconds = time.perf_counter() - began
    if queue.purge() != count:
        raise AssertionError("not all were published")
    return seconds


def _emptied(url: str, count: int) -> None:
    with SqlQueue(url) as queue:
        if queue.purge() != count:
            raise AssertionError("not all were shown")
