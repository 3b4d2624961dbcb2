"""Rows per second through a micro-batch: this source against Spark's own file stream, and two floors.

The same files, schema and sink (`noop`), in one Spark session, in turn. Each run is a query of its own with
`availableNow` and a new checkpoint, and reads all files in one micro-batch (checked). The floors are a source in Python
that has the rows ready, in turn with the others, and pyarrow alone. Two times are taken:

- batch: `getBatch` + `queryPlanning` + `addBatch` of the micro-batch's progress, that is planning and reading;
- query: from `start()` until the query has ended. For this source it includes starting its Python process, receiving
  the messages, and acknowledging them.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from benchmarks import ready
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from queue_source.queues import open_queue

FORMATS = ("csv", "json", "text", "parquet")
CORES = 2
DISTINCT = 100
"""Files of different content."""
TUNED = {"spark.python.unix.domain.socket.enabled": "true"}
"""What docs/explanation/performance.md recommends."""
_PARTS_OF_A_BATCH = ("getBatch", "queryPlanning", "addBatch")


@dataclass(frozen=True, slots=True)
class Content:
    """What is in the files: how Spark declares it, how Arrow does, and the columns of some rows.

    Texts of CSV stand in quotes where `quoted`. Lines of text are one column, whatever is in them.
    """

    ddl: str
    arrow: pa.Schema
    columns: Callable[[range], list[list[Any]]]
    quoted: bool = False

    def declared(self, format: str) -> str:
        return "value STRING" if format == "text" else self.ddl

    def types(self, format: str) -> pa.Schema:
        return pa.schema([("value", pa.string())]) if format == "text" else self.arrow

    def table(self, ids: range) -> pa.Table:
        columns = zip(self.columns(ids), self.arrow, strict=True)
        return pa.Table.from_arrays([pa.array(values, field.type) for values, field in columns], schema=self.arrow)


def _orders(ids: range) -> list[list[Any]]:
    return [
        list(ids),
        [f"customer-{i * 7919 % 1_000_003:07d}-of-the-shop" for i in ids],
        [round(i * 0.37 % 1000, 2) for i in ids],
        [i % 17 for i in ids],
        [("DE", "FR", "US", "JP", "BR")[i % 5] for i in ids],
        [datetime.fromtimestamp(1_700_000_000 + i, timezone.utc) for i in ids],
    ]


def _reviews(ids: range) -> list[list[Any]]:
    return [
        list(ids),
        [f"customer-{i * 7919 % 1_000_003:07d}, of the shop" for i in ids],
        [f"What I ordered ({i % 911}) came after {i % 13} days, and it is as good as it was said to be." for i in ids],
        [f"{_COLOURS[i % 5]}, {_COLOURS[i // 5 % 5]}" for i in ids],
        [date(2020, 1, 1) + timedelta(days=i % 2000) for i in ids],
        [i % 3 == 0 for i in ids],
    ]


_COLOURS = ("red", "green", "blue", "black", "white")
ORDERS = Content(
    "id BIGINT, customer STRING, amount DOUBLE, quantity INT, country STRING, at TIMESTAMP",
    pa.schema(
        [
            ("id", pa.int64()),
            ("customer", pa.string()),
            ("amount", pa.float64()),
            ("quantity", pa.int32()),
            ("country", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    ),
    _orders,
)
"""Made-up orders: numbers, repeated and unique texts, and times."""
REVIEWS = Content(
    "id BIGINT, customer STRING, text STRING, tags STRING, day DATE, public BOOLEAN",
    pa.schema(
        [
            ("id", pa.int64()),
            ("customer", pa.string()),
            ("text", pa.string()),
            ("tags", pa.string()),
            ("day", pa.date32()),
            ("public", pa.bool_()),
        ]
    ),
    _reviews,
    quoted=True,
)
"""Mostly texts, with commas in them."""


@benchmark("reading")
def reading(settings: Settings) -> Iterator[Measurement]:
    """objects to rows in one micro-batch, against Spark's own file stream; and pyarrow alone"""
    yield from _reading(settings)


@benchmark("reading-tuned")
def reading_tuned(settings: Settings) -> Iterator[Measurement]:
    """the same with the setting of Spark that helps a source in Python, for both"""
    yield from _reading(settings, TUNED, ", tuned")


def _reading(settings: Settings, tuned: Mapping[str, str] | None = None, about: str = "") -> Iterator[Measurement]:
    files, rows_each = (8, 10_000) if settings.quick else (32, 40_000)
    with spark_session(settings.folder, tuned) as spark:
        for format in FORMATS:
            folder = settings.folder / format
            write_files(folder, format, files, rows_each)
            yield from compared(settings, spark, format, folder, files * rows_each, about)


@benchmark("reading-large")
def reading_large(settings: Settings) -> Iterator[Measurement]:
    """the same with few large files: what a micro-batch costs by itself counts for less"""
    files, rows_each, times = (2, 10_000, 4) if settings.quick else (4, 40_000, 32)
    with spark_session(settings.folder) as spark:
        for format in FORMATS:
            folder = settings.folder / format
            write_files(folder, format, files, rows_each, times)
            yield from compared(settings, spark, format, folder, files * rows_each * times, ", large")
            shutil.rmtree(folder)


@benchmark("reading-gzip")
def reading_gzip(settings: Settings) -> Iterator[Measurement]:
    """the same with files that are packed by gzip"""
    files, rows_each = (8, 10_000) if settings.quick else (32, 40_000)
    with spark_session(settings.folder) as spark:
        for format in ("csv", "json", "text"):
            folder = settings.folder / format
            write_files(folder, format, files, rows_each, packed=True)
            yield from compared(settings, spark, format, folder, files * rows_each, ", gzip")


@benchmark("reading-small")
def reading_small(settings: Settings) -> Iterator[Measurement]:
    """10,000 files of 4 KB in one micro-batch, against Spark's own file stream; and pyarrow alone"""
    files = 500 if settings.quick else 10_000
    with spark_session(settings.folder) as spark:
        for format, rows_each in (("csv", 62), ("json", 31), ("text", 62), ("parquet", 62)):
            folder = settings.folder / format
            write_files(folder, format, files, rows_each)
            about = f", {files:,} small"
            yield from compared(settings, spark, format, folder, files * rows_each, about, rounds=(1, 3))
            shutil.rmtree(folder)


@benchmark("reading-quoted")
def reading_quoted(settings: Settings) -> Iterator[Measurement]:
    """the same, tuned, with files that are mostly texts, each in quotes, with dates and booleans"""
    files, rows_each = (6, 10_000) if settings.quick else (24, 40_000)
    with spark_session(settings.folder, TUNED) as spark:
        for format in ("csv", "json"):
            folder = settings.folder / format
            write_files(folder, format, files, rows_each, content=REVIEWS)
            yield from compared(settings, spark, format, folder, files * rows_each, ", quoted", content=REVIEWS)


def compared(
    settings: Settings,
    spark: SparkSession,
    format: str,
    folder: Path,
    rows: int,
    about: str = "",
    rounds: tuple[int, int] = (5, 5),
    content: Content = ORDERS,
) -> Iterator[Measurement]:
    """The files of a folder: this source, Spark's own and the rows from memory in turn, and pyarrow alone.

    `rounds`: those to warm up, as the JVM goes on compiling for many batches, and those that count.
    """
    ours = Query(settings.folder / "ours", rows, partial(our_stream, spark, format, folder, content))
    theirs = Query(settings.folder / "theirs", rows, partial(file_stream, spark, format, folder, content))
    rows_ready = settings.folder / "ready"
    ready.write(rows_ready, (table.cast(content.types(format)) for table in tables(format, folder, content)), CORES)
    least = Query(settings.folder / "least", rows, partial(ready.stream, spark, rows_ready, content.declared(format)))
    name = f"{format}{about}"
    settings.say(f"{name}: {rows:,} rows in {len(list(folder.iterdir()))} files, {_bytes(folder) / 1e6:.0f} MB")
    queries: list[list[float]] = [[], [], []]

    def run(query: Query, place: int) -> float:
        batch, whole = query.run()
        queries[place].append(whole)
        return batch

    warm_up, counted = (min(number, settings.repetitions) for number in rounds)
    runs = [partial(run, query, place) for place, query in enumerate((ours, theirs, least))]
    batches = alternate(runs, counted, warm_up)
    shutil.rmtree(rows_ready)
    alone = alternate([partial(floor, format, folder, content)], counted)[0]
    against = "Spark's file stream"
    yield Measurement(f"{name}, batch", batches[0], rows, "rows", against, batches[1])
    yield Measurement(f"{name}, query", queries[0][warm_up:], rows, "rows", against, queries[1][warm_up:])
    yield Measurement(
        f"{name}, batch of rows from memory",
        batches[2],
        rows,
        "rows",
        against,
        batches[1],
        role=Role.FLOOR,
    )
    yield Measurement(
        f"{name}, pyarrow alone, {CORES} threads",
        alone,
        rows,
        "rows",
        "this source, batch",
        batches[0],
        role=Role.FLOOR,
        reference_role=Role.OURS,
    )


Sink = Callable[[DataStreamWriter], DataStreamWriter]


def into_nothing(writer: DataStreamWriter) -> DataStreamWriter:
    """Spark's no-op sink."""
    return writer.format("noop")


class Query:
    """Runs a stream into a sink, each time anew in a folder of its own.

    `rows` are those that the stream has; None where an object may be several, as parts.
    """

    def __init__(
        self, folder: Path, rows: int | None, stream: Callable[[], DataFrame], sink: Sink = into_nothing
    ) -> None:
        self._folder = folder
        self._rows = rows
        self._stream = stream
        self._sink = sink
        self._numbers = itertools.count()

    def run(self) -> tuple[float, float]:
        """(seconds of the micro-batch, seconds of the query)."""
        stream = self._stream()
        checkpoint = self._folder / str(next(self._numbers))
        started = time.perf_counter()
        query = (
            self._sink(stream.writeStream)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        whole = time.perf_counter() - started
        full = [progress for progress in query.recentProgress if progress.numInputRows]
        if [progress.numInputRows if self._rows else None for progress in full] != [self._rows]:
            raise RuntimeError(f"expected one micro-batch of {self._rows} rows: {query.recentProgress}")
        durations = full[0].durationMs
        shutil.rmtree(checkpoint)
        return sum(durations.get(name, 0) for name in _PARTS_OF_A_BATCH) / 1000, whole


def our_stream(spark: SparkSession, format: str, folder: Path, content: Content = ORDERS) -> DataFrame:
    """A new queue and a new store; announcing is not part of what is measured."""
    return announced(spark, folder).schema(content.declared(format)).option("fileFormat", format).load()


def announced(spark: SparkSession, folder: Path) -> DataStreamReader:
    """A reader of a new queue in which all files of the folder are announced, with a new store beside the folder."""
    state = folder.with_name("state")
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    url = f"sql+sqlite:///{state / 'queue.db'}?queue=files"
    with open_queue(url) as queue:
        queue.publish([f"file://{path}" for path in sorted(folder.iterdir())])
    return (
        spark.readStream.format("cuesqueue")
        .option("queueUrl", url)
        .option("store", f"sqlite:///{state / 'store.db'}")
        .option("allowedPrefixes", f"file://{folder}/")
        .option("maxFilesPerTrigger", 10_000)
    )


def file_stream(spark: SparkSession, format: str, folder: Path, content: Content = ORDERS) -> DataFrame:
    """Spark's own."""
    return spark.readStream.format(format).schema(content.declared(format)).load(str(folder))


def floor(format: str, folder: Path, content: Content = ORDERS) -> float:
    """Seconds in which pyarrow reads the files into memory, a file a thread at a time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(lambda path: _READ[format](path, content.arrow).num_rows, sorted(folder.iterdir())))
    return time.perf_counter() - started


def tables(format: str, folder: Path, content: Content) -> Iterator[pa.Table]:
    """What pyarrow makes of each file."""
    return (_READ[format](path, content.arrow) for path in sorted(folder.iterdir()))


def _read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    return pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=schema.names),
        convert_options=pa_csv.ConvertOptions(column_types=schema),
    )


def _read_json(path: Path, schema: pa.Schema) -> pa.Table:
    """Dates stay texts: pyarrow makes none of them from JSON."""
    known = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in schema]
    return pa_json.read_json(
        path,
        read_options=pa_json.ReadOptions(use_threads=False),
        parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(known)),
    )


def _read_lines(path: Path, _schema: pa.Schema) -> pa.Table:
    """pyarrow has no reader of lines: CSV of one column, parted by what does not occur."""
    return pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=["value"]),
        parse_options=pa_csv.ParseOptions(delimiter="\x01", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types={"value": pa.string()}),
    )


_READ: dict[str, Callable[[Path, pa.Schema], pa.Table]] = {
    "csv": _read_csv,
    "json": _read_json,
    "text": _read_lines,
    "parquet": lambda path, _schema: pq.read_table(path, use_threads=False),
}


def write_files(
    folder: Path,
    format: str,
    files: int,
    rows_each: int,
    times: int = 1,
    *,
    packed: bool = False,
    content: Content = ORDERS,
) -> None:
    """Files of `content`. Each holds its rows so many `times`."""
    folder.mkdir(parents=True)
    for number in range(files):
        path = folder / f"part-{number:05}.{format}"
        if number >= DISTINCT:  # thousands of files are quicker copied than made
            shutil.copyfile(folder / f"part-{number % DISTINCT:05}.{format}", path)
            continue
        table = content.table(range(number * rows_each, (number + 1) * rows_each))
        if format == "parquet":
            pq.write_table(pa.concat_tables([table] * times), path)
            continue
        text = _as_csv(table, content) if format in ("csv", "text") else _as_json(table)
        with gzip.open(f"{path}.gz", "wb", 6) if packed else path.open("wb") as file:
            for _ in range(times):
                file.write(text.encode())


def _as_csv(table: pa.Table, content: Content) -> str:
    columns = []
    for field, values in zip(table.schema, table.to_pydict().values(), strict=True):
        in_quotes = content.quoted and field.type == pa.string()
        columns.append([f'"{value}"' if in_quotes else str(_plain(value)) for value in values])
    return "".join(",".join(line) + "\n" for line in zip(*columns, strict=True))


def _as_json(table: pa.Table) -> str:
    return "".join(json.dumps(row, default=_plain) + "\n" for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, date):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else value


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def spark_session(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A local Spark with two cores and all its files under `folder`; ended when the block is left."""
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    spark = builder.config(map=dict(settings or {})).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
