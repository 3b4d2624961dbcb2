"""The time of a micro-batch that brings 100 new files, by how many were there before: this source and Spark's own.

Both run on with a trigger of two seconds, and the files come right after a trigger, so that one micro-batch takes them
all (checked). What was there before is known to be done: to this source as finished shards of its store, to Spark's as
the files of the first micro-batch. Those files are empty, which costs Spark no reading. The time is the whole trigger
(`triggerExecution`): listing or taking, planning, reading, logging.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.reading import spark_session
from benchmarks.registry import Measurement, Role, Settings, benchmark
from benchmarks.store import fill
from queue_source.queues import open_queue
from shard_store.store import open_store

NEW = 100
_PATIENCE = 600.0
_TRIGGER = "2 seconds"


@benchmark("growth")
def growth(settings: Settings) -> Iterator[Measurement]:
    """seconds of a trigger with 100 new files, with 1,000, 10,000 and 100,000 there already, against 1,000"""
    sizes = (100, 1_000) if settings.quick else (1_000, 10_000, 100_000)
    found: dict[str, dict[int, list[float]]] = {"this source": {}, "Spark's file stream": {}}
    with spark_session(settings.folder) as spark:
        for size in sizes:
            folder = settings.folder / f"landing-{size}"
            folder.mkdir()
            for number in range(size):
                (folder / f"old-{number:07}.txt").touch()
            settings.say(f"{size:,} files are there")
            found["this source"][size] = _ours(spark, settings, folder, size)
            found["Spark's file stream"][size] = _theirs(spark, settings, folder)
    for role, (name, by_size) in zip((Role.OURS, Role.PEER), found.items(), strict=True):
        for size, seconds in by_size.items():
            case, few = f"{name}, {size:,} there", sizes[0]
            yield Measurement(
                case, seconds, NEW, "files", f"with {few:,}", by_size[few], role=role, reference_role=Role.BASELINE
            )


def _ours(spark: SparkSession, settings: Settings, folder: Path, size: int) -> list[float]:
    state = folder.with_name(f"state-{size}")
    state.mkdir()
    queue_url, store_url = f"sql+sqlite:///{state / 'queue.db'}?queue=files", f"sqlite:///{state / 'store.db'}"
    with open_store(store_url) as store:
        fill(store, size)  # of the source `bench`
    stream = (
        spark.readStream.format("cuesqueue")
        .schema("value STRING")
        .options(queueUrl=queue_url, store=store_url, source="bench", fileFormat="text")
        .option("allowedPrefixes", f"file://{folder}/")
        .load()
    )
    with open_queue(queue_url) as queue:
        return _run(
            stream,
            state / "checkpoint",
            settings.repetitions,
            lambda number: queue.publish([f"file://{path}" for path in _new_files(folder, f"ours-{number}")]),
        )


def _theirs(spark: SparkSession, settings: Settings, folder: Path) -> list[float]:
    stream = spark.readStream.schema("value STRING").text(str(folder))
    checkpoint = folder.with_name(f"{folder.name}-checkpoint")
    return _run(stream, checkpoint, settings.repetitions, lambda number: _new_files(folder, f"theirs-{number}"))


def _new_files(folder: Path, name: str) -> list[Path]:
    """100 files of one line, which come into the folder complete."""
    making = folder.with_name(f"making-{name}")
    making.mkdir(exist_ok=True)
    paths = []
    for number in range(NEW):
        made = making / f"{name}-{number:03}.txt"
        made.write_text("a line\n")
        paths.append(made.rename(folder / made.name))
    return paths


def _run(stream: DataFrame, checkpoint: Path, repetitions: int, bring: Callable[[int], object]) -> list[float]:
    """Seconds of each trigger that brought all of 100 new files; the first two are not counted."""
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=_TRIGGER)
        .start()
    )
    taken: list[float] = []
    seen = 0
    try:
        for number in range(3 * (2 + repetitions)):
            wait(query, lambda: query.status["message"].startswith("Waiting for next trigger"))
            bring(number)
            wait(query, lambda seen=seen: sum(p.numInputRows for p in _full(query)[seen:]) >= NEW)  # type: ignore[misc]
            new = _full(query)[seen:]
            seen += len(new)
            if len(new) == 1:  # else the trigger was quicker than the files
                taken.append(new[0].durationMs["triggerExecution"] / 1000)
            if len(taken) == 2 + repetitions:
                return taken[2:]
        raise RuntimeError(f"the files never came in one micro-batch: {query.recentProgress}")
    finally:
        query.stop()


def _full(query: StreamingQuery) -> list[StreamingQueryProgress]:
    return [progress for progress in query.recentProgress if progress.numInputRows]


def wait(query: StreamingQuery, until: Callable[[], bool]) -> None:
    """Until it holds; raises what the query fails with."""
    patience = time.monotonic() + _PATIENCE
    while not until():
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > patience:
            raise RuntimeError(f"nothing happened in {_PATIENCE:.0f} s: {query.lastProgress}")
        time.sleep(0.02)
