"""Makes a file of `tests/data/checkpoints`: what a query of this code leaves behind, killed in a batch, or ended.

    PYTHONPATH=SRC python tests/support/engine/keep_checkpoint.py FILE.zip [ended]

with the `src` folder of the version to be kept: nothing of today's is imported here. Spark writes the checkpoint. There
is a checkpoint, the store that belongs to it, and what was read and what was not.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import zipfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from queue_source.queues import open_queue


def keep(target: Path, ended: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sql+sqlite:///{folder}/queue.db?queue=files"
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        batches: list[list[str]] = []

        def take(batch: DataFrame, number: int) -> None:
            found = sorted(bytes(row.value).decode() for row in batch.collect())
            if found == ["d", "e"] and not ended:
                raise RuntimeError("killed here")
            batches.append(found)

        for bodies in (["a", "b", "c"], ["d", "e"]):
            with open_queue(url) as queue:
                queue.publish(bodies)
            stream = spark.readStream.format("cuesqueue").option("queueUrl", url).option("content", "message")
            stream = stream.option("store", f"sqlite:///{folder}/store.db").option("waitTime", "100ms")
            rows = stream.option("pipeline", "kept").option("source", "kept").load()
            query = rows.writeStream.foreachBatch(take).option("checkpointLocation", f"{folder}/checkpoint")
            try:
                query.trigger(availableNow=True).start().awaitTermination()
            except StreamingQueryException as error:
                if "killed here" not in str(error):
                    raise
        spark.stop()
        with closing(sqlite3.connect(folder / "store.db")) as store:
            store.execute("PRAGMA journal_mode = DELETE")
            if any(column[1] == "host" for column in store.execute("PRAGMA table_info(cuesqueue_pipelines)")):
                store.execute("UPDATE cuesqueue_pipelines SET host = NULL")  # of whoever has made it
                store.commit()
            store.execute("VACUUM")
        told = {
            "delivered": sorted(body for found in batches for body in found),
            "in_flight": [] if ended else ["d", "e"],
            "spark": version("pyspark"),
        }
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("told.json", json.dumps(told))
            archive.write(folder / "store.db", "store.db")
            for file in sorted((folder / "checkpoint").rglob("*")):
                if file.is_file():
                    archive.write(file, str(file.relative_to(folder)))
        assert [*told["delivered"], *told["in_flight"]] == ["a", "b", "c", "d", "e"]


if __name__ == "__main__":
    keep(Path(sys.argv[1]), ended=sys.argv[2:] == ["ended"])
