"""Sinks: rows a second from Arrow batches to a published micro-batch, through the sink's own calls.

One micro-batch of two tasks, one after the other in one process: prepare, write, commit, with the store's open,
snapshot and plan of one shard. Spark's part is left out: it is the same for all. `none` only confirms the plan, as with
a sink of Spark's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from queue_source.options import parse_sink_options
from queue_source.sinks.base import Batch, open_sink
from shard_store.model import BEGINNING, Content, Range, end_at
from shard_store.store import ShardStore, open_store

Options = Callable[[Path], Mapping[str, str]]
SINKS: dict[str, Options] = {
    "path": lambda folder: {"path": str(folder / "splits")},
    "table": lambda folder: {"table": "db.events", "warehouse": str(folder / "lake")},
    "table in 8 partitions": lambda folder: {
        "table": "db.parts",
        "warehouse": str(folder / "lake"),
        "partitionBy": "bucket(8, id)",
    },
}
"""Case -> options of the sink that it measures. A new sink is a line here."""

TASKS = 2
_ROWS_PER_BATCH = 10_000


@benchmark("sinks")
def sinks(settings: Settings) -> Iterator[Measurement]:
    """rows a second into each sink, beside the path sink"""
    rows = 20_000 if settings.quick else 500_000
    tasks = [rows_of(number, rows) for number in range(TASKS)]
    with open_store(f"sqlite:///{settings.folder / 'store.db'}") as store:
        queries = {name: Query(store, name, options(settings.folder)) for name, options in SINKS.items()}
        queries["none"] = Query(store, "none", {})
        runs = [partial(query.run, tasks) for query in queries.values()]
        seconds = dict(zip(queries, alternate(runs, settings.repetitions), strict=True))
    for name, taken in seconds.items():
        reference = seconds["path"] if name != "path" else ()
        role = Role.FLOOR if name == "none" else Role.OURS
        yield Measurement(name, taken, TASKS * rows, "rows", "path", reference, role, Role.BASELINE)


class Query:
    """A pipeline whose every run is one micro-batch of one shard."""

    def __init__(self, store: ShardStore, name: str, options: Mapping[str, str]) -> None:
        started = store.start(name, name)
        self._store, self._name, self._token, self._seq = store, name, started.token, started.last_seq
        self._options = parse_sink_options({"pipeline": name, **options}) if options else None

    def run(self, tasks: list[pa.Table]) -> float:
        """Seconds of one micro-batch."""
        begun = time.perf_counter()
        content = Content(uuid.uuid4().hex, "s3://bucket/key", 10)
        (shard,) = self._store.open_shards(self._token, self._name, [content]).values()
        snapshot = self._seq + 1, [Range(shard.key, shard.content, BEGINNING, end_at(10))]
        self._store.advance(self._token, confirm=self._seq or None, snapshot=snapshot)
        plan = self._store.plan(self._token, self._seq, self._seq + 1).identity
        self._seq += 1
        if self._options is None:
            self._store.advance(self._token, confirm=self._seq)
            return time.perf_counter() - begun
        schema, batch, sink = tasks[0].schema, Batch((plan,)), open_sink(self._options)
        sink.prepare(self._store, schema, batch.plans)
        written = [sink.write(iter(task.to_batches(_ROWS_PER_BATCH)), schema, batch) for task in tasks]
        sink.commit(self._store, batch, written, row_schema="{}", batch_id=self._seq)
        return time.perf_counter() - begun


def rows_of(task: int, rows: int) -> pa.Table:
    """Six columns; the numbers are spread, so that they do not compress away."""
    ids = pa.array(range(task * rows, (task + 1) * rows), pa.int64())
    spread = pc.bit_wise_and(pc.multiply(ids, 2654435761), 0xFFFFFF)
    return pa.table(
        {
            "id": ids,
            "amount": pc.divide(pc.cast(spread, pa.float64()), 100.0),
            "name": pc.binary_join_element_wise("customer", pc.cast(pc.bit_wise_and(spread, 0xFFFF), pa.string()), "-"),
            "country": pc.take(pa.array(["DE", "FR", "US", "JP"]), pc.bit_wise_and(ids, 3)),
            "flag": pc.equal(pc.bit_wise_and(spread, 1), 1),
            "ts": pc.cast(pc.multiply(ids, 1_000_000), pa.timestamp("us", "UTC")),
        }
    )
