"""From an event to its visible rows: one small file every 0.4 s, this source and sink against Spark's own.

Ours: a notification in a SQL queue, `cuesqueue` as source and as sink with `path` (Parquet), store on SQLite. Spark's:
its file stream into its own Parquet sink, which is transactional as well. Same session, same trigger (the default: as
soon as possible), by turns; and ours with `load`. Each turn is a query of its own, whose first files are not counted.

A file's rows are visible when the transaction that publishes them is committed (failpoint `published`), or when Spark's
sink has put the batch into its `_spark_metadata` (the time of that file). The time of an event is when the file
has its name, before its message is sent.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.growth import wait
from benchmarks.reading import TUNED, spark_session
from benchmarks.registry import Breakdown, Measurement, Part, Role, Settings, benchmark
from queue_source.queues import open_queue
from shard_store.failpoints import VARIABLE
from shard_store.store import open_store

EVERY = 0.4
"""Seconds between two files."""
WARM_UP = 15
"""Files of a turn that do not count."""
STEPS = (
    "snapshot-written",
    "offset-logged",
    "plan-made",
    "object-read",
    "split-written",
    "before-publish",
    "published",
)
"""What is noted of a micro-batch, in this order."""
SCHEMA = "id BIGINT, text STRING"
_KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
_PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
_TO_BEGIN, _TO_ROWS = "to the publication's begin", "to visible rows"


def _between(step: str, following: str) -> str:
    return f"{step} .. {following}"


_ORDER = (*_PARTS, *map(_between, STEPS, STEPS[1:]), _TO_BEGIN, _TO_ROWS)
"""Of all parts; the first notes of a trace may be in the middle of a micro-batch."""
_PROGRESS, _POINTS, _WAY = "micro-batch, by Spark's progress", "micro-batch, by points of the code", "from an event on"


@dataclass
class Turn:
    """One query, to which files have come: the latency of each counted file, and what its micro-batches consist of."""

    latencies: list[float] = field(default_factory=list)
    parts: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    triggers: list[float] = field(default_factory=list)
    slowest: str = ""

    def add(self, of: str, part: str, seconds: float) -> None:
        self.parts.setdefault(of, {}).setdefault(part, []).append(seconds)


@benchmark("latency")
def latency(settings: Settings) -> Iterator[Measurement]:
    """seconds from an event to its visible rows, a file every 0.4 s, Unix sockets, against Spark's file stream"""
    yield from _latency(settings, TUNED, "unix sockets")


@benchmark("latency-untuned")
def latency_untuned(settings: Settings) -> Iterator[Measurement]:
    """the same with Spark's defaults"""
    yield from _latency(settings, {}, "Spark's defaults")


def _latency(settings: Settings, tuned: Mapping[str, str], about: str) -> Iterator[Measurement]:
    if SparkContext._gateway is not None:  # a JVM of an earlier benchmark: its processes would note nothing
        raise RuntimeError("latency needs a JVM that inherits where to note each step: start it in a run of its own")
    files, rounds = (10, 1) if settings.quick else (80, 5)
    trace = settings.folder / "trace"
    os.environ[VARIABLE] = ";".join(f"{step}=note:{trace}" for step in STEPS)  # Spark's processes inherit it
    try:
        with spark_session(settings.folder, {**tuned, **_KEPT}) as spark:
            ours: list[Turn] = []
            theirs: list[Turn] = []
            loads: list[Turn] = []
            for number in range(1 + rounds):
                count = WARM_UP + (files if number else 0)
                ours.append(_ours(spark, settings.folder / f"ours-{number}", count, trace))
                theirs.append(_theirs(spark, settings.folder / f"theirs-{number}", count))
                loads.append(_ours(spark, settings.folder / f"load-{number}", count, trace, load=True))
                p50 = ", ".join(_ms(turns[-1].latencies) for turns in (ours, theirs, loads))
                settings.say(f"round {number}: p50 and p99 of ours, Spark's, ours with load: {p50} ms")
                settings.say(f"  slowest: {ours[-1].slowest}")
    finally:
        del os.environ[VARIABLE]
    ours, theirs, loads = ours[1:], theirs[1:], loads[1:]
    breakdowns = list(_breakdowns({"this source": ours, "Spark's own": theirs}))
    _say_breakdowns(settings, breakdowns)
    for name, place in (("p50", 0.5), ("p99", 0.99)):
        mine = [_quantile(turn.latencies, place) for turn in ours]
        yield Measurement(
            f"{about}, {name}",
            mine,
            0,
            "",
            "Spark's file stream",
            [_quantile(turn.latencies, place) for turn in theirs],
            breakdowns=breakdowns if name == "p50" else (),
        )
        loaded = [_quantile(turn.latencies, place) for turn in loads]
        yield Measurement(f"{about}, load, {name}", loaded, 0, "", "rows", mine, reference_role=Role.BASELINE)


def _ours(spark: SparkSession, folder: Path, count: int, trace: Path, *, load: bool = False) -> Turn:
    landing = folder / "landing"
    landing.mkdir(parents=True)
    trace.unlink(missing_ok=True)
    queue_url, store_url = f"sql+sqlite:///{folder}/queue.db?queue=files", f"sqlite:///{folder}/store.db"
    reader = (
        spark.readStream.format("cuesqueue")
        .options(queueUrl=queue_url, store=store_url, fileFormat="json", source="files", pipeline="files")
        .option("allowedPrefixes", f"file://{landing}/")
    )
    stream = reader.option("content", "reference").load() if load else reader.schema(SCHEMA).load()
    writer = (
        stream.writeStream.format("cuesqueue")
        .options(**({"load": "json", "schema": SCHEMA} if load else {}))
        .option("store", store_url)
        .option("pipeline", "files")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    with open_queue(queue_url) as queue:
        query = writer.start(str(folder / "table"))
        try:
            sent = _send(query, landing, count, lambda path: queue.publish([f"file://{path}"]))
            wait(query, lambda: sum(p.numInputRows for p in query.recentProgress) >= count)
        finally:
            query.stop()
    turn = Turn()
    notes = [(float(at), name) for at, name, _ in map(str.split, trace.read_text().splitlines())]
    notes.sort()
    visible = [at for at, name in notes if name == "published"]
    published_at = _published(store_url)
    for path, at in list(sent.items())[WARM_UP:] or sent.items():
        published = published_at[str(path)]
        # the store's time of a publication is taken at its begin: the next note is that of its end
        seen = visible[bisect.bisect_left(visible, published)]
        turn.latencies.append(seen - at)
        turn.add(_WAY, _TO_BEGIN, published - at)
        turn.add(_WAY, _TO_ROWS, seen - published)
        if seen - at == max(turn.latencies):
            turn.slowest = _story(notes, at, seen)
    _add_steps(turn, notes)
    _add_progress(turn, query)
    return turn


def _theirs(spark: SparkSession, folder: Path, count: int) -> Turn:
    landing = folder / "landing"
    landing.mkdir(parents=True)
    stream: DataFrame = spark.readStream.schema(SCHEMA).json(str(landing))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    metadata = folder / "table" / "_spark_metadata"
    query = writer.start(str(folder / "table"))
    try:
        sent = _send(query, landing, count, lambda path: None)
        wait(query, lambda: sum(p.numInputRows for p in query.recentProgress) >= count)
    finally:
        query.stop()
    turn = Turn()
    of_batch = {path: int(batch) for batch, path in _read_by_spark(folder / "checkpoint")}
    for path, at in list(sent.items())[WARM_UP:] or sent.items():
        turn.latencies.append(_written_at(metadata, of_batch[str(path)]) - at)
    _add_progress(turn, query)
    return turn


def _send(query: StreamingQuery, landing: Path, count: int, announce: Callable[[Path], object]) -> dict[Path, float]:
    """A file every 0.4 s, once the query runs; returns when each had its name."""
    wait(query, lambda: bool(query.recentProgress) or query.status["message"].startswith("Waiting for data"))
    sent: dict[Path, float] = {}
    begin = time.monotonic()
    for number in range(count):
        making = landing.with_name("making")
        making.write_text(json.dumps({"id": number, "text": "a row of a small file"}) + "\n")
        time.sleep(max(0.0, begin + number * EVERY - time.monotonic()))
        path = making.rename(landing / f"part-{number:05}.json")
        sent[path] = time.time()
        announce(path)
        error = query.exception()
        if error is not None:
            raise error
    return sent


def _published(store_url: str) -> dict[str, float]:
    """When each object was published, in seconds since 1970 by the clock that the trace has."""
    with open_store(store_url) as store:
        pages = store.pages("files_state", columns=("path", "commit_time", "state"))
        return {unquote(path.removeprefix("file://")): at / 1e6 for page in pages for path, at, _ in page if at}


def _read_by_spark(checkpoint: Path) -> Iterator[tuple[int, str]]:
    """(micro-batch, path) of each file, from the log that Spark's file source keeps."""
    for log in (checkpoint / "sources" / "0").iterdir():
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            yield entry["batchId"], unquote(entry["path"].removeprefix("file://"))


def _written_at(metadata: Path, batch: int) -> float:
    """When Spark's sink wrote a batch into its log. Every tenth batch is compacted into a file of another name."""
    plain = metadata / str(batch)
    return (plain if plain.exists() else plain.with_name(f"{batch}.compact")).stat().st_mtime


def _add_steps(turn: Turn, notes: Sequence[tuple[float, str]]) -> None:
    """The seconds between one step of a micro-batch and the next; notes of batches that were cut off are left out."""
    last: tuple[float, str] | None = None
    for at, name in notes:
        if last is not None and STEPS.index(name) == STEPS.index(last[1]) + 1:
            turn.add(_POINTS, _between(last[1], name), at - last[0])
        last = (at, name)


def _story(notes: Sequence[tuple[float, str]], event: float, seen: float) -> str:
    """What happened from an event to its rows: milliseconds since the event and the step, of each note."""
    return ", ".join(f"{1000 * (at - event):.0f} {name}" for at, name in notes if event <= at <= seen)


def _add_progress(turn: Turn, query: StreamingQuery) -> None:
    for progress in query.recentProgress:
        if progress.numInputRows:
            for part in _PARTS:
                turn.add(_PROGRESS, part, progress.durationMs.get(part, 0) / 1000)
            turn.triggers.append(progress.durationMs["triggerExecution"] / 1000)


def _breakdowns(by_name: Mapping[str, Sequence[Turn]]) -> Iterator[Breakdown]:
    """The budget: the parts of all turns together."""
    for of, (name, turns) in itertools.product((_PROGRESS, _POINTS, _WAY), by_name.items()):
        parts = []
        for part in sorted(set().union(*(turn.parts.get(of, ()) for turn in turns)), key=_ORDER.index):
            values = [value for turn in turns for value in turn.parts.get(of, {}).get(part, ())]
            parts.append(Part(part, statistics.median(values), _quantile(values, 0.99), len(values)))
        if parts:
            triggers = [seconds for turn in turns for seconds in turn.triggers] if of == _PROGRESS else []
            yield Breakdown(f"{name}: {of}", parts, statistics.median(triggers) if triggers else 0.0)


def _say_breakdowns(settings: Settings, breakdowns: Sequence[Breakdown]) -> None:
    for breakdown in breakdowns:
        settings.say(f"{breakdown.of}: milliseconds of each part, median and 99th percentile")
        for part in breakdown.parts:
            settings.say(f"  {part.name:34} {1000 * part.seconds:6.0f} {1000 * part.slow:6.0f}  ({part.count})")
        if breakdown.whole:
            settings.say(f"  {'all of it':34} {1000 * breakdown.whole:6.0f}")


def _ms(values: Sequence[float]) -> str:
    return f"{1000 * statistics.median(values):6.0f} {1000 * _quantile(values, 0.99):6.0f}"


def _quantile(values: Sequence[float], place: float) -> float:
    return sorted(values)[min(len(values) - 1, round(place * (len(values) - 1)))]
