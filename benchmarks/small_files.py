"""Small files end to end: from 20,000 messages to published rows, exactly once, queue and store on one PostgreSQL.

Objects are local JSON files of 4 KB, read by a real Spark with two cores in batches of 4,000, into this sink's `path`.
The peer is Spark's file stream over the same files into its own Parquet sink, which is transactional too, in the same
session.

- *whole run*: an AvailableNow query, from `start()` until it has ended. All messages are in the queue before.
- *warm batches*: of the same runs, from the end of the first batch until the end of the last. Starting is not in it.

The floor is pyarrow alone: it reads the same files with two threads.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.reading import ORDERS, TUNED, floor, spark_session, write_files
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from queue_source.queues import open_queue
from support.servers.postgres import new_database, postgres

ROWS_EACH = 31  # 4 KB
_THEIRS = "Spark's file stream"


@benchmark("small-files")
def small_files(settings: Settings) -> Iterator[Measurement]:
    """small files/s from message to published row on PostgreSQL, against Spark's file stream"""
    files, batch = (800, 200) if settings.quick else (20_000, 4_000)
    rounds = 1 if settings.quick else 3
    landing = settings.folder / "landing"
    write_files(landing, "json", files, ROWS_EACH)
    warm: list[list[float]] = [[], [], []]
    with postgres() as server, spark_session(settings.folder, TUNED) as spark:

        def ours(folder: Path) -> Run:
            return _announced(spark, landing, folder, batch, new_database(server.url))

        def loaded(folder: Path) -> Run:
            return _announced(spark, landing, folder, batch, new_database(server.url), load=True)

        def theirs(folder: Path) -> Run:
            rows = spark.readStream.schema(ORDERS.ddl).option("maxFilesPerTrigger", batch).json(str(landing))
            return lambda: _start(rows, folder, "parquet", {})

        def run(place: int, make: Callable[[Path], Run]) -> float:
            folder = settings.folder / "run"
            start = make(folder)
            began = time.perf_counter()
            query = start()
            query.awaitTermination()
            taken = time.perf_counter() - began
            warm[place].append(_after_the_first_batch(query, files * (1 if place == 2 else ROWS_EACH)))
            name = ("rows", "theirs", "load")[place]
            settings.say(f"{name}: {taken:.1f} s, without the first batch {warm[place][-1]:.1f} s")
            shutil.rmtree(folder)
            return taken

        whole = alternate([partial(run, 0, ours), partial(run, 1, theirs), partial(run, 2, loaded)], rounds)
    alone = alternate([partial(floor, "json", landing)], rounds)[0]
    for place, how in ((2, "load"), (0, "rows")):
        yield Measurement(f"{how}, whole run", whole[place], files, "files", _THEIRS, whole[1])
        yield Measurement(f"{how}, warm batches", warm[place][1:], files - batch, "files", _THEIRS, warm[1][1:])
    against, roles = "this source, whole run", (Role.FLOOR, Role.OURS)
    yield Measurement("pyarrow alone, 2 threads", alone, files, "files", against, whole[0], *roles)


Run = Callable[[], StreamingQuery]


def _announced(
    spark: SparkSession, landing: Path, folder: Path, batch: int, database: str, *, load: bool = False
) -> Run:
    """A query over a new queue and a new store, in which every file is announced; `load`: without rows in Spark."""
    queue_url = f"sql+{database}?queue=files"
    uris = [f"file://{path}" for path in sorted(landing.iterdir())]
    with open_queue(queue_url) as queue:
        for first in range(0, len(uris), 1000):
            queue.publish(uris[first : first + 1000])
    reader = (
        spark.readStream.format("cuesqueue")
        .options(queueUrl=queue_url, store=database, fileFormat="json", pipeline="files", source="files")
        .options(maxFilesPerTrigger=str(batch), allowedPrefixes=f"file://{landing}/")
    )
    sink = {"store": database, "pipeline": "files"}
    if load:
        rows = reader.option("content", "reference").load()
        return lambda: _start(rows, folder, "cuesqueue", {**sink, "load": "json", "schema": ORDERS.ddl})
    rows = reader.schema(ORDERS.ddl).load()
    return lambda: _start(rows, folder, "cuesqueue", sink)


def _start(rows: DataFrame, folder: Path, sink: str, options: dict[str, str]) -> StreamingQuery:
    writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(availableNow=True).start(f"{folder}/table")


def _after_the_first_batch(query: StreamingQuery, rows: int) -> float:
    """Seconds from the end of the first batch until the end of the last. All `rows` are published, each once."""
    full = [progress for progress in query.recentProgress if progress.numInputRows]
    read = sum(progress.numInputRows for progress in full)
    if read != rows:
        raise RuntimeError(f"expected {rows} rows, and {read} were read: {query.recentProgress}")
    first, last = (
        datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00"))
        + timedelta(milliseconds=progress.durationMs["triggerExecution"])
        for progress in (full[0], full[-1])
    )
    return (last - first).total_seconds()
