"""The driver script of `cuesqueue demo`: three streaming queries, one for each file format, with one store.

    python -m cuesqueue_demo.query FOLDER [--backfill]

A script as a user would write it. It runs until the queues are empty, and with --backfill until every object is
finished; it may be killed at any time and started again.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cuesqueue_demo.data import MONTHS, SCHEMA, Layout
from queue_source.queues import open_queue
from shard_store import ShardStore, open_store
from shard_store.operators.views import VIEWS

_BATCHES = 5  # micro-batches for the objects of one pipeline, so that there is a middle in which to be killed

_LONGEST_FOLDER = 60  # characters: the path of a Unix socket has at most 107, and Spark adds 42
_SHORT_LIFE = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives a minute: quick compilation, which took 14 s of processor time where the default took 23 s."""


def start(spark: SparkSession, layout: Layout, pipeline: str, backfill: bool) -> StreamingQuery:
    """Start one pipeline: its queue -> the objects that it announces -> published rows. `backfill` adds lost ones."""
    objects = len(list((layout.folder / "objects" / pipeline).iterdir()))
    reader = (
        spark.readStream.format("cuesqueue")
        .schema(SCHEMA)
        .option("queueUrl", layout.queue(pipeline))
        .option("store", layout.store)
        .option("pipeline", pipeline)
        .option("fileFormat", pipeline)
        .option("allowedPrefixes", layout.objects)
        .option("maxFilesPerTrigger", max(1, objects // _BATCHES))
        # short times, so that messages that a killed run held come back soon
        .option("visibilityTimeout", "12s")
        .option("commitTimeout", "6s")
        .option("waitTime", "1s")
    )
    if pipeline == "csv":
        reader = reader.option("header", True).option("nullValue", "NA")
    if backfill:
        reader = reader.option("backfillPrefixes", layout.prefix(pipeline)).option("backfillGrace", "0s")
    return (
        reader.load()
        .writeStream.format("cuesqueue")
        .queryName(pipeline)
        .option("store", layout.store)
        .option("pipeline", pipeline)
        .option("path", str(layout.splits / pipeline))
        .option("checkpointLocation", str(layout.folder / "checkpoints" / pipeline))
        .start()
    )


def wait_for_its_reader(query: StreamingQuery) -> None:
    """Return when the query's reader process runs, or the query has ended.

    Queries of one driver start one after the other: while Spark (seen on 4.3) starts a reader process, it changes state
    that all queries of a Python source share, without a lock. Started at once, they now and then all fail with "Task
    not serializable ... Illegal size of collection".
    """
    while query.isActive and query.lastProgress is None and not query.status["isDataAvailable"]:
        time.sleep(0.05)


def unfinished(layout: Layout, store: ShardStore) -> bool:
    """Tell whether any object is neither published nor quarantined."""
    objects = {f"file://{path}" for path in (layout.folder / "objects").rglob("*.*")}
    place = [column.name for column in VIEWS["shards"]].index
    rows = (row for page in store.pages("shards") for row in page)
    return bool(objects - {row[place("shard_id")] for row in rows if row[place("state")] != "open"})


def main(folder: Path, backfill: bool = False) -> None:
    """Run the three queries until nothing is left to do; a query that fails ends the script with its error."""
    layout = Layout(folder)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.appName("cuesqueue demo")
        .master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.log.level", "WARN")
        .config("spark.python.unix.domain.socket.enabled", len(str(temporary)) <= _LONGEST_FOLDER)
        .config("spark.local.dir", str(temporary))  # a killed Spark leaves its files: here they go with the demo
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={temporary} {_SHORT_LIFE}")
        .config("spark.sql.warehouse.dir", str(temporary / "warehouse"))
        .getOrCreate()
    )
    with ExitStack() as stack:
        stack.callback(spark.stop)
        queues = [stack.enter_context(open_queue(layout.queue(pipeline))) for pipeline in MONTHS]
        store = stack.enter_context(open_store(layout.store))
        queries = []
        for pipeline in MONTHS:
            queries.append(start(spark, layout, pipeline, backfill))
            wait_for_its_reader(queries[-1])
        while any(queue.depth().total for queue in queues) or (backfill and unfinished(layout, store)):
            for query in queries:
                query.awaitTermination(1)
        for query in queries:
            query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), backfill="--backfill" in sys.argv[2:])
