"""Whether a reader's memory grows with the messages that have passed through it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.registry import Measurement, Settings, benchmark
from queue_source.queues import open_queue
from support.driver_loop import DriverLoop, reader_options

_BACKLOG = 20_000  # the queue's own size must not matter


@benchmark("memory")
def memory(settings: Settings) -> Iterator[Measurement]:
    """MiB of a reader's process (without Spark) when 100,000 and when 1,000,000 messages have passed"""
    marks = (10_000, 50_000) if settings.quick else (100_000, 1_000_000)
    queue_url = f"sql+sqlite:///{settings.folder}/queue.db?queue=files"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=(settings.folder, queue_url, marks, theirs), daemon=True)
    process.start()
    sizes: list[float] = []
    sent = 0
    started = time.perf_counter()
    with open_queue(queue_url) as queue:
        while len(sizes) < len(marks) and process.is_alive():
            if ours.poll():
                sizes.append(ours.recv())
                settings.say(f"{marks[len(sizes) - 1]:,} messages have passed: {sizes[-1]:.1f} MiB")
            elif sent < marks[-1] + _BACKLOG and queue.depth().ready < _BACKLOG:
                queue.publish([f"s3://bucket/{n:09d}" for n in range(sent, sent + 5_000)])
                sent += 5_000
            else:
                time.sleep(0.02)
    taken = time.perf_counter() - started
    process.terminate()
    process.join()
    if len(sizes) < len(marks):
        raise AssertionError("the reader's process died")
    case = f"{sizes[0]:.1f} MiB after {marks[0]:,}, {sizes[1]:.1f} after {marks[1]:,}: {sizes[1] / sizes[0]:.3f}"
    yield Measurement(case, [taken], marks[-1], "messages")


def _read(folder: Path, queue_url: str, marks: tuple[int, ...], out: Connection) -> None:
    options = reader_options(
        queue_url,
        f"sqlite:///{folder}/store.db",
        maxFilesPerTrigger="1000",
        visibilityTimeout="5m",
        commitTimeout="60s",
    )
    loop = DriverLoop(options, folder / "checkpoint", folder / "output")
    passed = 0
    for mark in marks:
        while passed < mark:
            loop.batch()
            passed = loop.metrics["acknowledged"]
        out.send(psutil.Process().memory_info().rss / 2**20)
    loop.stop()
