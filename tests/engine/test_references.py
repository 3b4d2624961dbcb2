"""Objects by reference: rows of any sink, and what Spark's own readers make of them in `foreachBatch`."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import cuesqueue
from support.engine.queries import Query, described, run_until_settled
from support.engine.versions import TELLS_START
from support.engine.world import World, eventually
from support.snippets import ROOT, blocks

pytestmark = pytest.mark.engine

PAGE = blocks(ROOT / "docs" / "how-to" / "foreach-batch.md")
LOADS = sa.Table("loads", sa.MetaData(), sa.Column("folder", sa.Text))
NAMES = ["0.parquet", "a b.parquet", "a%20b+.parquet", "[1].parquet", "{x,y}*?.parquet", "\u00fc#1.parquet"]


def references_of(world: World, **source: Any) -> Query:
    """Without a schema: references have one of their own."""
    options: dict[str, Any] = {"fileFormat": None, "content": "reference", "maxFilesPerTrigger": 2, **source}
    return {**described(world, **options), "schema": ""}


def write_objects(world: World, first: int = 0) -> list[str]:
    """Objects with unusual names, each with two rows of its own; and one that a pattern in such a name would match."""
    folder = world.root / "in"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [-1]}), folder / "1.parquet")
    for number, name in enumerate(NAMES, first):
        pq.write_table(pa.table({"id": [2 * number, 2 * number + 1]}), folder / name)
    return [f"{folder}/{name}" for name in NAMES]


def test_each_announced_object_is_one_row_of_the_cuesqueue_sink(spark: SparkSession, world: World) -> None:
    uris = write_objects(world)
    world.publish([*uris, uris[1], f"{world.root}/in/vanished.parquet"])
    run_until_settled(spark, [(world, references_of(world))])
    found = spark.read.format("cuesqueue").option("store", world.store_url).load().collect()
    rows = {row.uri: row for row in found}
    assert len(rows) == len(found) == len(uris) + 1
    assert {uri.removeprefix("file://") for uri in rows} == {*uris, f"{world.root}/in/vanished.parquet"}
    for uri, row in rows.items():
        file = Path(uri.removeprefix("file://"))
        assert row.size == (file.stat().st_size if file.exists() else None)
        assert (row.etag, row.version, row.event_time, row.tag, row.receive_count) == (None, None, None, "", 1)
        if file.exists():
            changed = row.last_modified.astimezone(timezone.utc)
            assert abs(changed - datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)).total_seconds() < 1
    assert {shard["state"] for shard in world.view("shards")} == {"done"}


def test_columns_that_are_declared_and_the_time_of_an_event(spark: SparkSession, world: World) -> None:
    record = {
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-11-20T08:30:00.123Z",
        "s3": {"bucket": {"name": "b"}, "object": {"key": "a", "size": 7, "eTag": "e", "versionId": "v"}},
    }
    world.publish([{"Records": [record]}])
    schema = "event_time TIMESTAMP, uri STRING, version STRING, _metadata STRUCT<file_size: BIGINT, shard_id: STRING>"
    run_until_settled(spark, [(world, {**references_of(world, allowedPrefixes="s3://b/"), "schema": schema})])
    [row] = spark.read.format("cuesqueue").option("store", world.store_url).load().collect()
    assert row.event_time.astimezone(timezone.utc) == datetime(2026, 11, 20, 8, 30, 0, 123000, tzinfo=timezone.utc)
    assert (row.uri, row.version, tuple(row._metadata)) == ("s3://b/a", "v", (7, "s3://b/a"))


def loading(world: World, before_publish: Callable[[], None]) -> Callable[[DataFrame, int], None]:
    """As on the page: Spark writes the rows of a batch into a folder, whose name is committed with the progress."""

    def load(batch: DataFrame, batch_id: int) -> None:
        with cuesqueue.delivery(world.store_url, "files", batch_id) as this:
            paths = cuesqueue.references(batch)
            if paths and not this.already:
                folder = str(world.root / "loaded" / this.hash)
                batch.sparkSession.read.parquet(*paths).write.mode("overwrite").parquet(folder)
                before_publish()
                this.connection.execute(LOADS.insert(), [{"folder": folder}])

    return load


def loaded(spark: SparkSession, world: World) -> list[int]:
    engine = sa.create_engine(world.store_url)
    with engine.connect() as connection:
        folders = connection.execute(sa.select(LOADS.c.folder)).scalars().all()
    engine.dispose()
    return sorted(row.id for row in spark.read.parquet(*folders).collect()) if folders else []


def load_all(spark: SparkSession, world: World, load: Callable[[DataFrame, int], None]) -> None:
    query = references_of(world)
    stream = spark.readStream.format("cuesqueue").options(**query["source"]).load()
    writer = stream.writeStream.foreachBatch(load).option("checkpointLocation", query["checkpoint"])
    running = writer.trigger(availableNow=True).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()


def settle(spark: SparkSession, world: World, load: Callable[[DataFrame, int], None]) -> None:
    """AvailableNow runs: one from Spark 4.2 on; before, one for each batch."""

    def done() -> bool:
        load_all(spark, world, load)
        return TELLS_START or world.settled()

    eventually("everything loaded", done)


def test_sparks_own_reader_loads_each_object_once_also_when_a_batch_fails_in_the_middle(
    spark: SparkSession, world: World
) -> None:
    uris = write_objects(world)
    world.publish([*uris, uris[0]])
    engine = sa.create_engine(world.store_url)
    LOADS.create(engine)
    engine.dispose()
    calls = 0

    def fails_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("in the middle")

    load = loading(world, fails_once)
    with pytest.raises(StreamingQueryException, match="in the middle"):
        settle(spark, world, load)
    assert calls == 2
    assert len(loaded(spark, world)) == 4
    settle(spark, world, load)
    assert loaded(spark, world) == list(range(2 * len(NAMES)))
    folders = [path.name for path in (world.root / "loaded").iterdir()]
    assert len(folders) == 3, "the repeated batch has written into its own folder again"


def test_an_object_that_vanished_stops_the_batch_until_it_is_given_up(spark: SparkSession, world: World) -> None:
    uris = write_objects(world)
    Path(uris[0]).unlink()
    world.publish(uris)
    engine = sa.create_engine(world.store_url)
    LOADS.create(engine)
    engine.dispose()
    load = loading(world, lambda: None)
    with pytest.raises(StreamingQueryException, match=r"0\.parquet"):
        load_all(spark, world, load)
    with cuesqueue.open_store(world.store_url) as store:
        chosen = cuesqueue.ShardCriteria(ids=[f"file://{uris[0]}"])
        assert cuesqueue.quarantine_shards(store, chosen, reason="deleted by its owner").changed == 1
    settle(spark, world, load)
    assert loaded(spark, world) == list(range(2, 2 * len(NAMES)))
    assert Counter(shard["state"] for shard in world.view("shards")) == {"done": 5, "quarantined": 1}
    assert [error["cause"] for error in world.view("errors")] == ["quarantined-by-hand"]


def test_the_other_readers_of_the_page_take_the_paths(spark: SparkSession, world: World) -> None:
    folder = world.root / "in"
    folder.mkdir()
    (folder / "[1]").write_text("<order><id>1</id><total>2.5</total></order>")
    (folder / "1").write_text("<order><id>9</id></order>")
    (folder / "{2").write_text(json.dumps({"id": 1, "total": 2.5}))
    (code,) = [block.text for block in PAGE if "binaryFile" in block.text]
    for name, uri in (("documents", folder / "[1]"), ("lines", folder / "{2")):
        rows = spark.createDataFrame([(f"file://{uri}",)], "uri STRING")
        found: dict[str, Any] = {"batch": rows, "paths": cuesqueue.references(rows)}
        exec(code, found)
        assert [tuple(row) for row in found[name].collect()] == [(1, 2.5)]
        assert [row.path.rpartition("/")[2] for row in found["files"].select("path").collect()] == [uri.name]


def test_a_path_whose_pattern_were_not_escaped_would_be_another_object(spark: SparkSession, world: World) -> None:
    """What `references` is for; and names that it refuses are those that Spark does leave out."""
    uris = write_objects(world)
    other = spark.read.parquet(uris[NAMES.index("[1].parquet")])
    assert [row.id for row in other.collect()] == [-1]
    hidden = world.root / "in" / "_hidden.parquet"
    pq.write_table(pa.table({"id": [1]}), hidden)
    with pytest.raises(AnalysisException):
        spark.read.parquet(str(hidden))
    both = spark.read.schema("id BIGINT").parquet(str(hidden), uris[0])
    assert sorted(row.id for row in both.collect()) == [0, 1], "without a word"


def test_the_function_of_the_page_sets_bad_documents_aside_and_reads_the_others(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """The functions as they are; the stream with a queue, a store and folders of this test."""
    (script,) = [block.text for block in PAGE if "def problem" in block.text]
    functions, _, stream = script.partition("objects = ")
    assert 'readStream.format("cuesqueue").option("content", "reference")' in stream
    found: dict[str, Any] = {}
    exec(compile(functions, "page.py", "exec"), found)
    found |= {"STORE": world.store_url, "TARGET": f"{tmp_path}/orders"}
    landing = world.root / "in"
    landing.mkdir()
    text = "<orders><order><id>1</id><total>9.5</total></order><order><id>2</id><total>19</total></order></orders>"
    (landing / "good.xml").write_text(text)
    (landing / "record.xml").write_text(text.replace("<id>1", "<id>first").replace("<id>2", "<id>3"))
    (landing / "damaged.xml.gz").write_bytes(gzip.compress(text.encode())[:-9])
    world.publish([f"{landing}/{name}" for name in ("good.xml", "record.xml", "damaged.xml.gz", "deleted.xml")])
    source = {"content": "reference", "queueUrl": world.queue_url, "pipeline": "orders", "storeUrl": world.store_url}
    objects = spark.readStream.format("cuesqueue").options(**source).option("allowedPrefixes", f"{landing}/").load()
    writer = objects.writeStream.foreachBatch(found["load"]).option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.parquet(f"{tmp_path}/orders/*").collect()
    assert sorted((row.id, row.total) for row in rows) == [(1, 9.5), (2, 19.0), (3, 19.0)]
    errors = [(error["scope"], error["cause"], error["subject"].rpartition("/")[2]) for error in world.view("errors")]
    unreadable = [("object", "unreadable-object", name) for name in ("damaged.xml.gz", "deleted.xml")]
    assert sorted(errors)[:2] == unreadable
    assert [error[:2] for error in sorted(errors)[2:]] == [("row", "bad-record")]
