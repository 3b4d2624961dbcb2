import statistics
import sys

from pyspark.sql import SparkSession

FREEZE = "freeze" in sys.argv


def collections(batches):
    """Milliseconds of processor time of each full collection that this worker has run so far."""
    import gc
    import time

    import pandas  # noqa: F401
    import pyarrow.dataset

    if not hasattr(gc, "noted"):
        gc.noted = []
        gc.callbacks.append(lambda phase, info: info["generation"] == 2 and gc.noted.append(time.process_time()))
        if FREEZE:
            gc.freeze()
    ended = [1000 * (stop - start) for start, stop in zip(gc.noted[::2], gc.noted[1::2])]
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"ms": ended})


spark = SparkSession.builder.master("local[1]").getOrCreate()
for _ in range(20):
    rows = spark.range(1, numPartitions=1).mapInArrow(collections, "ms double").collect()
print(f"{len(rows)} collections after 20 tasks, median {statistics.median(row.ms for row in rows):.1f} ms")
