"""Parquet by reference: Spark's own reader in `foreachBatch`, for announced objects and for the files of a folder.

Both read the same large files into Spark's no-op sink, by turns in one session. Ours takes the announced objects as
rows (`content=reference`), asks the store whether the batch is published, and publishes it. The floor is the same read
without any stream.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import cuesqueue
from benchmarks.reading import ORDERS, TUNED, Query, announced, file_stream, spark_session, write_files
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark


@benchmark("references")
def references(settings: Settings) -> Iterator[Measurement]:
    """large Parquet files by reference in foreachBatch, against Spark's file stream in foreachBatch"""
    files, rows_each, sizes = (2, 10_000, (4,)) if settings.quick else (4, 40_000, (32, 128))
    with spark_session(settings.folder, TUNED) as spark:
        for times, about in zip(sizes, ("large", "four times as large"), strict=False):
            folder = settings.folder / "parquet"
            write_files(folder, "parquet", files, rows_each, times)
            yield from _compared(settings, spark, folder, files, files * rows_each * times, f"parquet, {about}")
            shutil.rmtree(folder)


def _compared(
    settings: Settings, spark: SparkSession, folder: Path, files: int, rows: int, name: str
) -> Iterator[Measurement]:
    queries: list[list[float]] = [[], []]
    ours = Query(settings.folder / "ours", files, partial(_objects, spark, folder), partial(_read, folder))
    theirs = Query(settings.folder / "theirs", rows, partial(file_stream, spark, "parquet", folder), _into_nothing)

    def run(query: Query, place: int) -> float:
        batch, whole = query.run()
        queries[place].append(whole)
        return batch

    warm_up = settings.repetitions
    runs = [partial(run, ours, 0), partial(run, theirs, 1), partial(_read_alone, spark, folder)]
    batches = alternate(runs, settings.repetitions, warm_up)
    against = "Spark's file stream in foreachBatch"
    yield Measurement(f"{name}, batch", batches[0], rows, "rows", against, batches[1])
    yield Measurement(f"{name}, query", queries[0][warm_up:], rows, "rows", against, queries[1][warm_up:])
    yield Measurement(f"{name}, read alone", batches[2], rows, "rows", against, batches[1], role=Role.FLOOR)


def _objects(spark: SparkSession, folder: Path) -> DataFrame:
    return announced(spark, folder).option("content", "reference").option("pipeline", "files").load()


def _read(folder: Path, writer: DataStreamWriter) -> DataStreamWriter:
    store = f"sqlite:///{folder.with_name('state') / 'store.db'}"

    def read(batch: DataFrame, batch_id: int) -> None:
        with cuesqueue.delivery(store, "files", batch_id) as this:
            paths = cuesqueue.references(batch)
            if paths and not this.already:
                _load(batch.sparkSession, paths)

    return writer.foreachBatch(read)


def _read_alone(spark: SparkSession, folder: Path) -> float:
    began = time.perf_counter()
    _load(spark, sorted(map(str, folder.iterdir())))
    return time.perf_counter() - began


def _load(spark: SparkSession, paths: Sequence[str]) -> None:
    spark.read.schema(ORDERS.ddl).parquet(*paths).write.format("noop").mode("overwrite").save()


def _into_nothing(writer: DataStreamWriter) -> DataStreamWriter:
    return writer.foreachBatch(lambda batch, _: batch.write.format("noop").mode("overwrite").save())
