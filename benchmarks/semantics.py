"""What each delivery semantics costs, with the coordinator and Spark's loop without Spark (`driver_loop`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from benchmarks.store import databases
from queue_source.queues import open_queue
from shard_store.model import Semantics
from support.driver_loop import DriverLoop, published, reader_options

BATCH = 1000


@benchmark("semantics")
def semantics(settings: Settings) -> Iterator[Measurement]:
    """messages/s from queue to publication under each of `deliverySemantics`, against exactly-once"""
    messages = 2_000 if settings.quick else 20_000
    kinds, numbers = list(Semantics), count()
    for name, url in databases(settings.folder):
        with url as database:
            runs = [partial(_run, settings.folder, database, kind.value, messages, numbers) for kind in kinds]
            seconds = alternate(runs, settings.repetitions)
        for kind, taken in zip(kinds, seconds, strict=True):
            case = f"{kind.value}, store on {name}"
            against = Semantics.EXACTLY_ONCE.value
            yield Measurement(case, taken, messages, "messages", against, seconds[0], reference_role=Role.BASELINE)


def _run(folder: Path, database: str, semantics: str, messages: int, numbers: Iterator[int]) -> float:
    """Seconds of an AvailableNow run over a queue of its own: receive, open, plan, publish, confirm, acknowledge."""
    name = f"run{next(numbers)}"
    queue_url = f"sql+sqlite:///{folder}/{name}.db?queue=files"
    with open_queue(queue_url) as queue:
        for first in range(0, messages, BATCH):
            queue.publish([f"s3://bucket/landing/{name}/part-{n:08d}.parquet" for n in range(first, first + BATCH)])
    options = reader_options(
        queue_url,
        database,
        source=name,
        deliverySemantics=semantics,
        visibilityTimeout="10m",
        commitTimeout="60s",
        maxFilesPerTrigger=str(BATCH),
    )
    loop = DriverLoop(options, folder / f"{name}-checkpoint", folder / f"{name}-output")
    try:
        began = time.perf_counter()
        loop.drain()
        taken = time.perf_counter() - began
        found = published(loop.coordinator.session.store)
    finally:
        loop.stop()
    mine = [times for shard_id, times in found.items() if f"/{name}/" in shard_id]
    if mine != [1] * messages:
        raise AssertionError(f"{semantics}: {messages} messages, but {len(mine)} published, {sum(mine)} times in all")
    return taken
