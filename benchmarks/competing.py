"""How many messages several pipelines bring through queue, store and publishing on one PostgreSQL, exactly once.

Each pipeline is a process with the coordinator and Spark's loop without Spark (`driver_loop`): receive, open,
snapshot, plan, publish, confirm, acknowledge. Objects are not read.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.registry import Measurement, Settings, benchmark
from queue_source.queues.sql import SqlQueue
from shard_store.store import open_store
from support.driver_loop import DriverLoop, published, reader_options
from support.servers.postgres import new_database, postgres

PIPELINES = 4


@benchmark("competing")
def competing(settings: Settings) -> Iterator[Measurement]:
    """messages/s through four pipelines that compete for one queue, queue and store on one PostgreSQL"""
    messages = 5_000 if settings.quick else 40_000
    seconds = []
    with postgres() as server:
        for number in range(1 if settings.quick else 3):
            settings.say(f"run {number + 1}: {messages:,} messages")
            seconds.append(run_once(settings.folder / str(number), new_database(server.url), messages))
    yield Measurement(f"{PIPELINES} pipelines on PostgreSQL", seconds, messages, "messages")


def run_once(folder: Path, database: str, messages: int) -> float:
    """Seconds until the queue is empty and everything is published once; the pipelines are running already."""
    folder.mkdir()
    queue_url = f"sql+{database}?queue=files"
    with open_store(database):
        pass
    context = multiprocessing.get_context("spawn")
    begun, end = context.Barrier(PIPELINES + 1), context.Event()
    processes = [
        context.Process(target=run_pipeline, args=(f"p{n}", folder, queue_url, database, begun, end), daemon=True)
        for n in range(PIPELINES)
    ]
    for process in processes:
        process.start()
    with SqlQueue(queue_url) as queue:
        begun.wait()
        start = time.perf_counter()
        for first in range(0, messages, 1000):
            queue.publish([f"s3://bucket/{n:08d}" for n in range(first, min(first + 1000, messages))])
        while queue.peek(1):  # not its depth: to count 40,000 messages all the time would be part of the load
            time.sleep(0.05)
        taken = time.perf_counter() - start
    end.set()
    for process in processes:
        process.join(60)
    with open_store(database) as store:
        found = published(store)
    if len(found) != messages or max(found.values()) != 1:
        raise AssertionError(
            f"{messages} messages, but {len(found)} published, one of them {max(found.values())} times"
        )
    return taken


def run_pipeline(name: str, folder: Path, queue_url: str, database: str, begun: object, end: object) -> None:
    options = reader_options(
        queue_url,
        database,
        source="files",
        pipeline=name,
        visibilityTimeout="5m",
        commitTimeout="60s",
        maxFilesPerTrigger="1000",
    )
    loop = DriverLoop(options, folder / name, folder / "output", driver=name)
    try:
        begun.wait()  # type: ignore[attr-defined]
        while not end.is_set():  # type: ignore[attr-defined]
            if not loop.batch():
                time.sleep(0.01)
    finally:
        loop.stop()
