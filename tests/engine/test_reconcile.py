"""What a query of Spark leaves behind is certified as what it is, and its shards are a view of several parts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from queue_source.commands.main import app
from shard_store.completeness.comparing import Category
from shard_store.operators import views
from shard_store.store import open_store
from support.engine.queries import described, read, run
from support.engine.world import World
from support.store_backends import Pipeline

pytestmark = pytest.mark.engine


def test_what_a_query_skips_or_gives_up_is_not_certified_as_published(spark: SparkSession, tmp_path: Path) -> None:
    skipping, once = (World(tmp_path / name) for name in ("skipping", "once"))
    skipping.feed(0, 2)
    bad = tmp_path / "skipping" / "in" / "bad.json.gz"
    bad.write_bytes(b"\x1f\x8b, and no gzip behind its magic bytes")
    skipping.publish([bad.as_uri()])
    run(spark, described(skipping, onCorruptObject="skip"))
    once.feed(0, 2)
    query = described(once, deliverySemantics="at-most-once")
    stream = read(spark, query["source"], query).writeStream.foreachBatch(take_and_fail)
    stream = stream.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException):
        stream.start().awaitTermination()
    once.feed(2, 1)
    run(spark, query)
    assert verdict_of(skipping) == ("incomplete", {"published": 2, "skipped": 1})
    assert verdict_of(once) == ("incomplete", {"published": 1, "given_up": 2})
    states = Counter(row["state"] for row in once.view("files_state"))
    assert states == {"done": 1, "given-up": 2}


def take_and_fail(batch: DataFrame, batch_id: int) -> None:
    raise RuntimeError(f"it fails in batch {batch_id}, with {batch.count()} rows")


def verdict_of(world: World) -> tuple[str, dict[str, int]]:
    """What `cuesqueue reconcile` says, and of how many objects."""
    folder = f"file://{world.root}/in/"
    told = CliRunner().invoke(app, ["reconcile", folder, "--store", world.store_url, "--grace", "0s", "--json"])
    [one] = json.loads(told.stdout)["prefixes"]
    return one["verdict"], {c.value: one[c.value] for c in Category if one[c.value]}


def test_shards_are_read_side_by_side_and_by_the_columns_that_are_declared(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(world.store_url) as store:
        us = Pipeline.start(store)
        us.deliver(*(f"s3://landing/{number}" for number in range(150)))
        us.open(*(f"s3://landing/new/{number}" for number in range(30)))
    shards = spark.read.format("cuesqueue").options(storeUrl=world.store_url, view="shards")
    all_columns = shards.load()
    assert all_columns.count() == 180
    some = shards.schema("state STRING, shard_id STRING").load()
    assert sorted(some.collect()) == sorted((row.state, row.shard_id) for row in all_columns.collect())
    with pytest.raises(PySparkException, match="has no column size string"):
        shards.schema("size STRING").load().count()
    with open_store(world.store_url) as store:
        monkeypatch.setattr(views, "SAMPLE", 20)
        assert len(store.key_ranges(30)) > 1
    completeness = spark.read.format("cuesqueue").options(storeUrl=world.store_url, view="completeness").load()
    assert completeness.count() == 0
