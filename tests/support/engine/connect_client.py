"""A user's script with Spark Connect, in a process of its own: `python connect_client.py URL FOLDER`.

FOLDER/queries.json describes three queries: one into the cuesqueue sink, one with foreachBatch, whose function Spark
runs in a Python process of the server, and one whose function has Spark's own reader read the announced objects. What
the views say is written to FOLDER/views.json.

It imports nothing of the project, which is not installed where it runs.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter


def stream(spark: SparkSession, query: dict[str, Any], schema: str = "id BIGINT, name STRING") -> DataStreamWriter:
    frame = spark.readStream.format("cuesqueue").options(**query["source"]).schema(schema).load()
    return frame.writeStream.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True)


def main(url: str, folder: Path) -> None:
    assert importlib.util.find_spec("queue_source") is None, "the client is to need Spark alone"
    files, batches, objects = json.loads((folder / "queries.json").read_text("utf-8"))
    spark = SparkSession.builder.remote(url).getOrCreate()
    stream(spark, files).format("cuesqueue").options(**files["sink_options"]).start().awaitTermination()

    store = batches["source"]["store"]

    def deliver(rows: DataFrame, batch_id: int) -> None:
        import sqlalchemy as sa

        from cuesqueue import delivery

        taken = [{"id": row["id"], "name": row["name"]} for row in rows.collect()]
        with delivery(store, "files", batch_id) as batch:
            if taken and not batch.already:
                batch.connection.execute(sa.text("INSERT INTO taken VALUES (:id, :name)"), taken)

    stream(spark, batches).foreachBatch(deliver).start().awaitTermination()

    store_of_objects = objects["source"]["store"]

    def load(rows: DataFrame, batch_id: int) -> None:
        import sqlalchemy as sa

        from cuesqueue import delivery, references

        with delivery(store_of_objects, "files", batch_id) as batch:
            paths = references(rows)
            if paths and not batch.already:
                read = rows.sparkSession.read.schema("id BIGINT, name STRING").json(paths).collect()
                loaded = [{"id": row["id"], "name": row["name"]} for row in read]
                batch.connection.execute(sa.text("INSERT INTO taken VALUES (:id, :name)"), loaded)

    stream(spark, objects, "uri STRING").foreachBatch(load).start().awaitTermination()

    views = spark.read.format("cuesqueue").option("storeUrl", files["source"]["store"])
    found = {
        "rows": sorted([row["id"], row["name"]] for row in views.load().collect()),
        "causes": sorted(row["cause"] for row in views.option("view", "errors").load().collect()),
    }
    (folder / "views.json").write_text(json.dumps(found), "utf-8")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
