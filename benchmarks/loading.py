"""Landing files in a table: this source with `load`, and with rows, against Spark's file stream into its Parquet sink.

The same files, in one Spark session, in turn. Each run is a query of its own with `availableNow`, a new checkpoint and
a new target, and takes all files in one micro-batch (checked). The floor is pyarrow alone: as many processes as cores
read a file after the other, and write what they have read to a Parquet file each. Times as in `reading.py`.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.reading import (
    _READ,
    CORES,
    FORMATS,
    ORDERS,
    TUNED,
    Query,
    Sink,
    announced,
    file_stream,
    our_stream,
    spark_session,
    write_files,
)
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark

_THEIRS = "Spark's file stream into its Parquet sink"


@benchmark("loading")
def loading(settings: Settings) -> Iterator[Measurement]:
    """objects into Parquet files and tables without rows, against Spark's file stream into its Parquet sink"""
    files, rows_each, times = (6, 10_000, 1) if settings.quick else (24, 40_000, 4)
    with spark_session(settings.folder, TUNED) as spark:
        for format in FORMATS:
            folder = settings.folder / format
            write_files(folder, format, files, rows_each, times)
            yield from _compared(settings, spark, format, folder, files * rows_each * times)
            shutil.rmtree(folder)


@benchmark("loading-one")
def loading_one(settings: Settings) -> Iterator[Measurement]:
    """one object of 2 GB of csv, against the same rows in 32 objects"""
    rows_each, times = (10_000, 8) if settings.quick else (40_000, 16)
    with spark_session(settings.folder, TUNED) as spark:
        runs: list[Callable[[], float]] = []
        for files in (1, 32):
            folder = settings.folder / f"of-{files}"
            write_files(folder, "csv", files, rows_each, times * 32 // files)
            query = _query(settings, f"of {files}", None, partial(references, spark, folder, "csv"), loaded(settings))
            runs.append(lambda query=query: query.run()[0])  # type: ignore[misc]
        one, many = alternate(runs, settings.repetitions, 1)
    rows = rows_each * times * 32
    yield Measurement("csv, one object", one, rows, "rows", "32 objects", many, reference_role=Role.BASELINE)


def _compared(settings: Settings, spark: SparkSession, format: str, folder: Path, rows: int) -> Iterator[Measurement]:
    count = len(list(folder.iterdir()))
    refer = partial(references, spark, folder, format)
    columns = {"load": format, "schema": ORDERS.declared(format)}
    table = {"table": "db.orders", "warehouse": str(settings.folder / "warehouse")}
    delta = {"delta": str(settings.folder / "target")}
    queries = {
        "load into path": _query(settings, "loaded", count, refer, loaded(settings, columns)),
        "load into Iceberg": _query(settings, "iceberg", count, refer, loaded(settings, {**columns, **table})),
        "load into Delta": _query(settings, "delta", count, refer, loaded(settings, {**columns, **delta})),
        "rows into path": _query(
            settings, "rows", rows, partial(our_stream, spark, format, folder), loaded(settings, {})
        ),
        _THEIRS: _query(settings, "theirs", rows, partial(file_stream, spark, format, folder), _parquet(settings)),
    }
    whole: dict[str, list[float]] = {name: [] for name in queries}

    def run(name: str) -> float:
        batch, taken = queries[name].run()
        whole[name].append(taken)
        settings.say(f"{format}, {name}: batch {batch:.2f} s, query {taken:.2f} s")
        return batch

    warm_up = min(2, settings.repetitions)
    batches = dict(
        zip(queries, alternate([partial(run, name) for name in queries], settings.repetitions, warm_up), strict=True)
    )
    (alone,) = alternate([partial(_alone, format, folder, settings.folder / "alone")], settings.repetitions)
    for name in list(queries)[:-1]:
        yield Measurement(f"{format}, {name}, batch", batches[name], rows, "rows", _THEIRS, batches[_THEIRS])
    yield Measurement(
        f"{format}, load into path, query",
        whole["load into path"][warm_up:],
        rows,
        "rows",
        _THEIRS,
        whole[_THEIRS][warm_up:],
    )
    yield Measurement(
        f"{format}, pyarrow alone, {CORES} processes", alone, rows, "rows", _THEIRS, batches[_THEIRS], role=Role.FLOOR
    )


def _query(settings: Settings, name: str, rows: int | None, stream: Callable[[], DataFrame], sink: Sink) -> Query:
    return Query(settings.folder / name, rows, stream, sink)


def references(spark: SparkSession, folder: Path, format: str) -> DataFrame:
    """The objects of a folder by reference, in parts."""
    return announced(spark, folder).option("content", "reference").option("fileFormat", format).load()


def loaded(settings: Settings, options: Mapping[str, str] | None = None) -> Sink:
    """Our sink into a new target."""
    own = {"load": "csv", "schema": ORDERS.ddl} if options is None else options
    target = settings.folder / "target"

    def into(writer: DataStreamWriter) -> DataStreamWriter:
        for old in (target, settings.folder / "warehouse"):
            shutil.rmtree(old, ignore_errors=True)
        place: dict[str, Any] = {} if {"table", "delta"} & own.keys() else {"path": str(target)}
        state = settings.folder / "state"  # of `announced`
        return writer.format("cuesqueue").options(
            pipeline="files", store=f"sqlite:///{state / 'store.db'}", **place, **own
        )

    return into


def _parquet(settings: Settings) -> Sink:
    target = settings.folder / "their-target"

    def into(writer: DataStreamWriter) -> DataStreamWriter:
        shutil.rmtree(target, ignore_errors=True)
        return writer.format("parquet").option("path", str(target))

    return into


def _alone(format: str, folder: Path, target: Path) -> float:
    """Seconds in which pyarrow alone does it."""
    target.mkdir()
    paths = sorted(folder.iterdir())
    shares = [paths[place::CORES] for place in range(CORES)]
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.map(_idle, range(CORES))  # with everything imported
        started = time.perf_counter()
        pool.starmap(_write_share, [(format, share, target / f"{n}.parquet") for n, share in enumerate(shares)])
        taken = time.perf_counter() - started
    shutil.rmtree(target)
    return taken


def _idle(_: int) -> None:
    time.sleep(0.1)


def _write_share(format: str, paths: list[Path], target: Path) -> None:
    schema = ORDERS.types(format)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for path in paths:
            writer.write_table(pa.table(_READ[format](path, ORDERS.arrow)).cast(schema))
