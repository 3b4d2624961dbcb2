"""Objects of a bucket, near by and 30 ms away, beside the same files on a disk: what the distance costs.

nginx is the endpoint; a proxy before it holds each request back for 30 ms, as S3 does until its first byte. The
events have sizes, and queue and store are on one PostgreSQL. The same query, in one Spark session, in turn: the time of
its triggers, from the look for messages to the published batch, without the first of several. Requests are counted in
nginx's log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.reading import ORDERS, TUNED, Sink, into_nothing, spark_session, write_files
from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from queue_source.queues import open_queue
from support.servers.debian import NotInstalled
from support.servers.nginx import far_away, nginx
from support.servers.postgres import new_database, postgres

AWAY = 0.03
"""Seconds."""
_BATCH = 4_000  # objects
_KEYS = {"s3.accessKeyId": "k", "s3.secretAccessKey": "s", "s3.region": "us-east-1"}


@benchmark("buckets")
def buckets(settings: Settings) -> Iterator[Measurement]:
    """objects of a bucket, near and 30 ms away, against the same files on a disk"""
    small = 500 if settings.quick else 4 * _BATCH
    shapes = [("json", small, 31, 1, "4 KB"), ("parquet", 24, 40_000, 1, "2 MB"), ("csv", 8, 40_000, 7, "20 MB")]
    root, log = settings.folder / "buckets", settings.folder / "requests"
    try:
        with (
            nginx(root, log) as near,
            far_away(near, AWAY) as far,
            postgres() as server,
            spark_session(settings.folder, TUNED) as spark,
        ):
            places = {"disk": None, "near": near, "30 ms away": far}
            for format, count, rows_each, times, size in shapes:
                folder = root / format
                write_files(folder, format, count, rows_each, times)
                for how in ("load", "rows"):
                    yield from _compared(
                        settings,
                        spark,
                        folder,
                        f"{format} of {size}",
                        how,
                        places,
                        log,
                        lambda: new_database(server.url),
                    )
                shutil.rmtree(folder)
    except NotInstalled as error:
        settings.say(f"buckets: skipped, {error}")


def _compared(
    settings: Settings,
    spark: SparkSession,
    folder: Path,
    name: str,
    how: str,
    places: dict[str, int | None],
    log: Path,
    database: Callable[[], str],
) -> Iterator[Measurement]:
    files = sorted(folder.iterdir())

    def run(place: str) -> float:
        url, before = database(), log.read_text().count("\n")
        stream = partial(_announced, spark, folder, files, places[place], url, how)
        sink = _sink(settings, folder.name, how, url, _access(places[place]))
        taken = _batches(settings.folder / "run", stream(), sink)
        asked = log.read_text().count("\n") - before
        settings.say(f"{name}, {how}, {place}: {taken:.2f} s, {asked / len(files):.2f} requests for each")
        return taken

    times = dict(zip(places, alternate([partial(run, p) for p in places], settings.repetitions, 1), strict=True))
    for place in list(places)[1:]:
        yield Measurement(
            f"{name}, {how}, {place}", times[place], len(files), "objects", "disk", times["disk"],
            reference_role=Role.BASELINE,
        )  # fmt: skip


def _batches(folder: Path, stream: DataFrame, sink: Sink) -> float:
    """Return the seconds of all batches of a query but its first, as for all files; those of the only one."""
    query = sink(stream.writeStream).option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(folder)
    batches = [
        progress.durationMs["triggerExecution"] / 1000 for progress in query.recentProgress if progress.numInputRows
    ]
    warm = batches[1:] or batches
    return sum(warm) * len(batches) / len(warm)


def _announced(
    spark: SparkSession, folder: Path, files: list[Path], port: int | None, database: str, how: str
) -> DataFrame:
    prefix = f"file://{folder}/" if port is None else f"s3://{folder.name}/"
    with open_queue(f"sql+{database}?queue=files") as queue:
        for first in range(0, len(files), 1000):
            some = files[first : first + 1000]
            queue.publish([f"{prefix}{file.name}" if port is None else _event(file) for file in some])
    reader = (
        spark.readStream.format("cuesqueue")
        .options(queueUrl=f"sql+{database}?queue=files", store=database, pipeline="files", source="files")
        .options(maxFilesPerTrigger=str(_BATCH), allowedPrefixes=prefix, fileFormat=folder.name)
    )
    reader = reader.options(**_access(port))
    if how == "load":
        return reader.option("content", "reference").load()
    return reader.schema(ORDERS.declared(folder.name)).load()


def _access(port: int | None) -> dict[str, str]:
    return {} if port is None else {**_KEYS, "s3.endpointUrl": f"http://127.0.0.1:{port}"}


def _event(file: Path) -> str:
    """Return what S3 says when the object is made, with nginx's ETag."""
    status = file.stat()
    facts = {"key": file.name, "size": status.st_size, "eTag": f"{int(status.st_mtime):x}-{status.st_size:x}"}
    s3 = {"bucket": {"name": file.parent.name}, "object": facts}
    return json.dumps({"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": s3}]})


def _sink(settings: Settings, format: str, how: str, database: str, access: dict[str, str]) -> Sink:
    if how == "rows":
        return into_nothing

    def into(writer: DataStreamWriter) -> DataStreamWriter:
        target = settings.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        own = {"load": format, "schema": ORDERS.declared(format), "path": str(target)}
        return writer.format("cuesqueue").options(store=database, pipeline="files", **own, **access)

    return into
