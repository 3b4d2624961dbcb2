"""Small data files of the sink with `path` before and after `cuesqueue compact`, read by Spark and without it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

import cuesqueue
from benchmarks.reading import TUNED, spark_session
from benchmarks.registry import Measurement, Role, Settings, benchmark
from queue_source.commands.compact import compact
from queue_source.sinks.splits import write_split
from queue_source.spark.process import spark_schema
from shard_store.store import open_store
from support.store_backends import Pipeline

_ROWS = 31  # of 4 KB as JSON
_AGAINST = "20,000 small files"


@benchmark("compacting")
def compacting(settings: Settings) -> Iterator[Measurement]:
    """20,000 small data files before and after compact: by published() and by Spark's view data"""
    files = 1_000 if settings.quick else 20_000
    url, out = f"sqlite:///{settings.folder / 'store.db'}", str(settings.folder / "out")
    chance = random.Random(7)

    def table() -> pa.Table:
        rows = range(_ROWS)
        amounts = {f"amount_{n}": [chance.random() for _ in rows] for n in range(4)}
        return pa.table({"id": [*rows], "name": [f"name {chance.randrange(1000)}" for _ in rows], **amounts})

    with open_store(url) as store:
        us = Pipeline.start(store)
        for first in range(0, files, 1000):
            tables = [table() for _ in range(min(1000, files - first))]
            schema = tables[0].schema
            splits = [write_split(t.to_batches(), schema, out, "split-0123456789ab", "zstd")[0] for t in tables]
            us.publish(us.planned(f"o{first}"), *splits, row_schema=spark_schema(schema).json())
            us.confirm()
        with spark_session(settings.folder, TUNED) as spark:
            view = spark.read.format("cuesqueue").options(store=url)
            reads: dict[str, Callable[[], int]] = {
                "published()": lambda: cuesqueue.published(store).to_arrow().num_rows,
                "view data": lambda: view.load().groupBy("name").sum("id").count(),
            }

            def timed(read: Callable[[], int]) -> float:
                began = time.perf_counter()
                read()
                return time.perf_counter() - began

            times = {"published()": settings.repetitions, "view data": 1}  # minutes, while the files are small
            before = {name: [timed(read) for _ in range(times[name])] for name, read in reads.items()}
            began = time.perf_counter()
            result = compact(store, smaller_than=32 << 20, target=256 << 20)
            taken = time.perf_counter() - began
            assert result.files == files
            settings.say(f"{result.files} files of {result.bytes} bytes into {result.into} of {result.bytes_after}")
            after = {name: [timed(read) for _ in range(times[name])] for name, read in reads.items()}
        for name in reads:
            yield Measurement(f"{name}, joined", after[name], files, "files", _AGAINST, before[name], Role.OURS)
        yield Measurement("compact", [taken], files, "files")
