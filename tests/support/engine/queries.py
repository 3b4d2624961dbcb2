"""Starting a streaming query from a description: the same in the test's own Spark and in a driver of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import psutil
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shard_store.failpoints import reach
from support.engine.upserts import upserting
from support.engine.world import SCHEMA, World, eventually, take_batch

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "60s",
    # what docs/troubleshooting.md has for queries that a program starts again: a first offset may be cut off by a kill
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.sql.session.timeZone": "America/New_York",  # so that nothing rests on UTC by chance
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short lives: compile less
}


class Query(TypedDict, total=False):
    """`sink`: cuesqueue, parquet, noop, or foreachBatch: `foreign` and `appending` into SQLite, with and without a look
    at the batch's id, `upsert` with `queue_source.foreach_batch`.

    `foreign`: the database of those. `trigger`: the keywords of trigger().

    `second` is another source; `combined` says how its rows meet those of the first: `union`, or `join` by id.
    """

    source: dict[str, str]
    second: dict[str, str]
    combined: str
    schema: str
    sink: str
    sink_options: dict[str, str]
    foreign: str
    checkpoint: str
    trigger: dict[str, Any]


def build_session(master: str = "local[2]", settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("engine-tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def start(spark: SparkSession, query: Query) -> StreamingQuery:
    frame = read(spark, query["source"], query)
    if "second" in query:
        frame = combine(frame, read(spark, query["second"], query), query["combined"])
    return start_frame(frame, query)


def read(spark: SparkSession, source: dict[str, str], query: Query) -> DataFrame:
    stream = spark.readStream.format("cuesqueue").options(**source)
    schema = query.get("schema", SCHEMA)  # "": the source has one of its own
    return (stream.schema(schema) if schema else stream).load()


def combine(first: DataFrame, second: DataFrame, how: str) -> DataFrame:
    if how == "union":
        return first.unionByName(second)
    joined = first.join(second.withColumnRenamed("name", "other"), "id")
    return joined.selectExpr("id", "concat(name, ' with ', other) AS name")


def start_all(spark: SparkSession, queries: Iterable[Query]) -> list[StreamingQuery]:
    """Start queries of one driver: the first alone, as the troubleshooting guide says.

    Spark puts variables into a map that all queries of a source share, without a lock, before it starts a reader's
    process; the first two at the same moment break that map for as long as the driver lives.
    """
    first, *others = queries
    running = [start(spark, first)]
    for query in others:
        if len(running) == 1:
            eventually("the first reader's process", lambda: _reader_runs() or not running[0].isActive)
        running.append(start(spark, query))
    return running


def _reader_runs() -> bool:
    script = psutil.Process()
    parent = script.parent()  # spark-submit's JVM, where the script was started by that
    driver = parent if parent is not None and parent.name() == "java" else script
    for process in driver.children(recursive=True):
        with suppress(psutil.Error):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                return True
    return False


def start_frame(frame: DataFrame, query: Query, output_mode: str = "append") -> StreamingQuery:
    writer = frame.writeStream.outputMode(output_mode).option("checkpointLocation", query["checkpoint"])
    writer = writer.trigger(**query.get("trigger", {"availableNow": True}))
    sink = query.get("sink", "cuesqueue")
    if sink in ("foreign", "appending"):
        database = Path(query["foreign"])

        def take(batch: DataFrame, batch_id: int) -> None:
            rows = [(row["id"], row["name"]) for row in batch.select("id", "name").collect()]
            reach("before-publish")
            take_batch(database, batch_id, rows, idempotent=sink == "foreign")
            reach("published")

        return writer.foreachBatch(take).start()
    if sink == "upsert":
        upsert = upserting(query["source"]["store"], query["source"]["pipeline"], Path(query["foreign"]))
        return writer.foreachBatch(upsert).start()
    return writer.format(sink).options(**query.get("sink_options", {})).start()


def described(
    world: World,
    sink: str = "cuesqueue",
    *,
    checkpoint: object = "checkpoint",
    trigger: object = None,
    **source: object,
) -> Query:
    """The query of a world, by default an AvailableNow run into the cuesqueue sink."""
    return {
        "source": world.source(**source),
        "sink": sink,
        "sink_options": world.sink() if sink == "cuesqueue" else {},
        "foreign": str(world.foreign),
        "checkpoint": str(world.root / str(checkpoint)),
        "trigger": trigger if isinstance(trigger, dict) else {"availableNow": True},
    }


def run(spark: SparkSession, query: Query) -> StreamingQuery:
    """Run to the end; raises what the query failed with. One whose reader's process was starved never began."""
    while True:
        running = start(spark, query)
        try:
            running.awaitTermination()
        except StreamingQueryException:
            if starved(running):
                continue
            raise
        return running


def run_until_settled(spark: SparkSession, parts: Iterable[tuple[World, Query]]) -> None:
    """Run streams until their queues are empty and no shard is open; leases of the dead have to end meanwhile."""
    streams: list[tuple[World, Query]] = [
        (world, {**query, "trigger": {"processingTime": "100 milliseconds"}}) for world, query in parts
    ]
    running = start_all(spark, [query for _, query in streams])
    try:
        for place, (world, query) in enumerate(streams):
            if running[place].exception() is None:
                eventually("the reader's start", lambda q=running[place]: q.lastProgress or q.exception())  # type: ignore[misc]
            if starved(running[place]):
                running[place] = start(spark, query)
            settled(world, running[place])
    finally:
        for stream in running:
            stream.stop()


def starved(query: StreamingQuery) -> bool:
    """Spark gives a Python process 10 s to connect: too little on a machine that is very busy with other things."""
    error = query.exception()
    return error is not None and "Python worker failed to connect back" in str(error)


def settled(world: World, query: StreamingQuery) -> None:
    """Wait until the queue is empty and no shard is open; a query that fails meanwhile fails the test at once."""

    def done() -> bool:
        if (error := query.exception()) is not None:
            raise error
        return world.settled()

    eventually(f"an empty queue and no open shard in {world.root.name}", done)
