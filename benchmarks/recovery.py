"""Starting a query: with nothing to do, and after kill -9 of everything with many files done.

Both run into their own transactional Parquet sink, from a folder of many files of one row.

- *starting*: an AvailableNow run, of a query that has run before, with nothing new: from `start()` until it has ended.
  In one Spark session, by turns; and, as the floor, with a source in Python that never has anything.
- *starting-first*: the first query of a session that has run another job, and the query after it: each from `start()`
  until the row of a new file is visible, with many files done. With rows, and as load.
- *recovery*: a whole driver is killed (all its processes, SIGKILL) while its query waits for files, a file comes, and
  the program is started again: from there until the file's row is visible. So it includes Python, Spark and the JVM,
  which cost both the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from benchmarks import ready
from benchmarks.reading import TUNED, into_nothing, spark_session
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from queue_source.queues import open_queue
from shard_store.store import open_store

SCHEMA = "id BIGINT, text STRING"
FILES_PER_BATCH = 10_000
_PATIENCE = 900.0
_THEIRS = "Spark's file stream"
_BARE = "bare"
_CASES = {"ours": "rows", "load": "load", _BARE: "a source and a sink in Python that do nothing"}


@benchmark("starting")
def starting(settings: Settings) -> Iterator[Measurement]:
    """seconds of an AvailableNow run with nothing to do, against Spark's file stream"""
    with spark_session(settings.folder, TUNED) as spark:
        runs = []
        for kind in STREAMS:
            _bring(settings.folder / kind, 0, 10)
            runs.append(partial(_run_to_the_end, spark, settings.folder / kind, kind))
        runs.append(partial(_run_of_an_empty_source, spark, settings.folder / "empty"))
        for run in runs:
            run()
        ours, theirs, empty = alternate(runs, settings.repetitions, warm_up=2)
    yield Measurement("nothing to do", ours, 0, "", _THEIRS, theirs)
    yield Measurement("a source in Python that is empty", empty, 0, "", _THEIRS, theirs, Role.FLOOR)


@benchmark("starting-first")
def starting_first(settings: Settings) -> Iterator[Measurement]:
    """seconds from a query's start to a new file's row, 20,000 files done: the first of a session, and the next"""
    files, rounds = (100, 1) if settings.quick else (20_000, 3)
    kinds = [kind for kind in (*STARTED, _BARE) if kind != "theirs"]
    for kind in STARTED:
        folder = settings.folder / kind
        _bring(folder, 0, files)
        _first_queries(folder, kind, files)
    taken: dict[str, list[list[float]]] = {kind: [] for kind in (*STARTED, _BARE)}
    for number in range(rounds):
        for kind, queries in taken.items():
            queries.append(_first_queries(settings.folder / kind, kind, files + 2 * (number + 1)))
            settings.say(f"{kind}: {', '.join(f'{seconds:.1f} s' for seconds in queries[-1])}")
    for place, query in enumerate(("first query of a session", "the next")):
        seconds = {kind: [both[place] for both in queries] for kind, queries in taken.items()}
        for kind in kinds:
            role = Role.FLOOR if kind == _BARE else Role.OURS
            yield Measurement(f"{_CASES[kind]}, {query}", seconds[kind], 0, "", _THEIRS, seconds["theirs"], role)


def _first_queries(folder: Path, kind: str, files: int) -> list[float]:
    """Run a program of two queries over `files` and one more each; return the seconds of each.

    They are from its start until something is visible, or it has ended.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.recovery", str(folder), kind, str(files), "first"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return [float(seconds) for seconds in done.stdout.splitlines()[-1].split()]


def _run_first(folder: Path, kind: str, files: int) -> Iterator[float]:
    """Run the queries in a session that has run another job, but no query."""
    with spark_session(folder, TUNED) as spark:
        spark.range(1000).selectExpr("sum(id)").write.mode("overwrite").parquet(f"{folder}/warm")
        for number in (files, files + 1):
            if kind == _BARE:
                yield _run_of_one_row(spark, folder / str(number))
                continue
            _bring(folder, number, 1)
            began = time.time()
            _start(spark, folder, kind, availableNow=True).awaitTermination()
            yield NEWEST[kind](folder) - began


@benchmark("recovery")
def recovery(settings: Settings) -> Iterator[Measurement]:
    """seconds from a restart after kill -9 until a new file's row is visible, against Spark's file stream"""
    rounds = 1 if settings.quick else 3
    for files in (100,) if settings.quick else (20_000, 100_000):
        taken: dict[str, list[float]] = {kind: [] for kind in STREAMS}
        folders = {kind: settings.folder / f"{kind}-{files}" for kind in STREAMS}
        for kind, folder in folders.items():
            settings.say(f"{kind}: {files:,} files")
            _bring(folder, 0, files)
            driver = Driver(folder, kind, files)
            driver.wait_until_idle()
            driver.kill()
        for number in range(1 + rounds):
            for kind, folder in folders.items():
                _bring(folder, files + number, 1)
                driver = Driver(folder, kind, 1)
                seconds = driver.wait_for_rows()
                driver.wait_until_idle()
                driver.kill()
                settings.say(f"{kind}: {seconds:.1f} s")
                if number:
                    taken[kind].append(seconds)
        ours, theirs = taken.values()
        yield Measurement(f"{files:,} files done", ours, 0, "", _THEIRS, theirs)


class Driver:
    """A program of its own that runs one query until it is killed."""

    def __init__(self, folder: Path, kind: str, rows: int) -> None:
        self._folder = folder
        self._kind = kind
        (folder / "idle").unlink(missing_ok=True)
        self._log = (folder / "log").open("ab")
        self._began = time.time()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recovery", str(folder), kind, str(rows)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_idle(self) -> None:
        """Until all its rows are published."""
        self._wait(lambda: (self._folder / "idle").exists())

    def wait_for_rows(self) -> float:
        """Seconds from the start of the program until it has published something."""
        self._wait(lambda: NEWEST[self._kind](self._folder) > self._began)
        return NEWEST[self._kind](self._folder) - self._began

    def kill(self) -> None:
        """The program, its JVM, and all Python processes of Spark, which have a process group of their own."""
        program = psutil.Process(self._process.pid)
        for process in (program, *program.children(recursive=True)):
            process.kill()
        self._process.wait()
        self._log.close()

    def _wait(self, until: Callable[[], bool]) -> None:
        patience = time.monotonic() + _PATIENCE
        while not until():
            if self._process.poll() is not None or time.monotonic() > patience:
                raise RuntimeError((self._folder / "log").read_text()[-4000:])
            time.sleep(0.1)


def _bring(folder: Path, first: int, count: int) -> None:
    """New files of one row, complete, and announced."""
    landing, making = folder / "landing", folder / "making"
    landing.mkdir(parents=True, exist_ok=True)
    uris = []
    for number in range(first, first + count):
        making.write_text(json.dumps({"id": number, "text": "a row"}) + "\n")
        uris.append(f"file://{making.rename(landing / f'part-{number:07}.json')}")
    with open_queue(_queue_url(folder)) as queue:
        for begin in range(0, len(uris), 1000):
            queue.publish(uris[begin : begin + 1000])


def _queue_url(folder: Path) -> str:
    return f"sql+sqlite:///{folder}/queue.db?queue=files"


def _store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def _reader(spark: SparkSession, folder: Path) -> DataStreamReader:
    return (
        spark.readStream.format("cuesqueue")
        .options(queueUrl=_queue_url(folder), store=_store_url(folder), fileFormat="json", pipeline="files")
        .options(source="files", maxFilesPerTrigger=str(FILES_PER_BATCH), allowedPrefixes=f"file://{folder}/landing/")
    )


def _ours(spark: SparkSession, folder: Path) -> DataStreamWriter:
    stream = _reader(spark, folder).schema(SCHEMA).load()
    return stream.writeStream.format("cuesqueue").options(store=_store_url(folder), pipeline="files")


def _spark_s(spark: SparkSession, folder: Path) -> DataStreamWriter:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).json(f"{folder}/landing")
    return stream.writeStream.format("parquet")


def _load(spark: SparkSession, folder: Path) -> DataStreamWriter:
    """The way that has no rows."""
    stream = _reader(spark, folder).option("content", "reference").load()
    options = {"store": _store_url(folder), "pipeline": "files", "load": "json", "schema": SCHEMA}
    return stream.writeStream.format("cuesqueue").options(**options)


STREAMS: dict[str, Callable[[SparkSession, Path], DataStreamWriter]] = {"ours": _ours, "theirs": _spark_s}
STARTED = {**STREAMS, "load": _load}


def _start(spark: SparkSession, folder: Path, kind: str, **trigger: bool) -> StreamingQuery:
    writer = STARTED[kind](spark, folder).option("checkpointLocation", f"{folder}/checkpoint")
    if trigger:
        writer = writer.trigger(availableNow=True)
    return writer.start(f"{folder}/table")


def _run_to_the_end(spark: SparkSession, folder: Path, kind: str) -> float:
    began = time.perf_counter()
    _start(spark, folder, kind, availableNow=True).awaitTermination()
    return time.perf_counter() - began


def _run_of_an_empty_source(spark: SparkSession, folder: Path) -> float:
    """Its processes have nothing to load but PySpark and pyarrow, and nothing to ask. Into no sink of Python's."""
    began = time.perf_counter()
    writer = into_nothing(ready.stream(spark, folder, SCHEMA).writeStream).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    return time.perf_counter() - began


def _run_of_one_row(spark: SparkSession, folder: Path) -> float:
    """A source in Python that has one row, into a sink in Python that does nothing with it."""
    ready.write(folder / "rows", [pa.table({"id": [1], "text": ["a row"]})], 1)
    began = time.perf_counter()
    writer = (
        ready.stream(spark, folder / "rows", SCHEMA).writeStream.format(ready.Ready.name()).trigger(availableNow=True)
    )
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    return time.perf_counter() - began


def _newest_of_ours(folder: Path) -> float:
    """When something was published last, in seconds since 1970; 0 where nothing was."""
    if not (folder / "store.db").exists():
        return 0.0
    with open_store(_store_url(folder), create=False) as store:
        return max(
            (at / 1e6 for page in store.pages("attempts", columns=("published_at",)) for (at,) in page), default=0
        )


def _newest_of_spark(folder: Path) -> float:
    """When Spark's sink wrote a batch into its log last. Every tenth is compacted, into a file of another name."""
    metadata = folder / "table" / "_spark_metadata"
    written = [entry for entry in os.scandir(metadata) if entry.name[0] != "."] if metadata.exists() else []
    return max((entry.stat().st_mtime for entry in written), default=0.0)


NEWEST: dict[str, Callable[[Path], float]] = {
    "ours": _newest_of_ours,
    "load": _newest_of_ours,
    "theirs": _newest_of_spark,
}


def _main(folder: Path, kind: str, rows: int) -> None:
    """The program of a `Driver`: says in the file `idle` when all rows are read, and runs until it is killed."""
    with spark_session(folder, TUNED) as spark:
        query = _start(spark, folder, kind)
        while sum(progress.numInputRows for progress in query.recentProgress) < rows:
            time.sleep(0.1)
        (folder / "idle").touch()
        query.awaitTermination()


if __name__ == "__main__" and sys.argv[-1] == "first":
    print(*_run_first(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
elif __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
