"""From Spark's own file source to a reader of ours: what its checkpoint has is not read again."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from queue_source.commands.adopt import adopt
from shard_store.store import open_store
from support.engine.queries import described, run
from support.engine.world import SCHEMA, World

pytestmark = pytest.mark.engine

NAMES = ("plain", "with space", "100%", "a+b", "ünï", "a=b&c", "#hash")


def test_files_that_spark_has_read_are_not_read_again(spark: SparkSession, world: World) -> None:
    folder = world.root / "in"
    folder.mkdir()
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    try:
        for number, name in enumerate(NAMES):
            (folder / f"{name}.json").write_text(json.dumps({"id": number, "name": name}) + "\n", "utf-8")
            old = spark.readStream.schema(SCHEMA).json(str(folder)).writeStream.format("noop")
            old.option("checkpointLocation", str(world.root / "old")).trigger(
                availableNow=True
            ).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
    assert list((world.root / "old/sources/0").glob("*.compact")), "a compacted log is part of this test"
    with open_store(world.store_url) as store:
        assert adopt(store, "files", str(world.root / "old")).new == len(NAMES)
    (folder / "new.json").write_text(json.dumps({"id": 99, "name": "new"}) + "\n", "utf-8")
    prefix = f"file://{folder}/"
    run(spark, described(world, queueUrl=None, allowedPrefixes=None, backfillPrefixes=prefix, source="files"))
    assert world.published() == [(99, "new")]
