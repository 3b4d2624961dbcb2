"""The comparison as a Spark job comes to what the command says, object by object."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import cuesqueue
from queue_source.commands.main import app
from queue_source.uris import plain_prefix
from shard_store.completeness.comparing import Category
from shard_store.model import Content, ErrorRecord, Semantics, Split
from shard_store.operators import views
from shard_store.shards.sources import Naming
from shard_store.sql.schema import sources
from shard_store.store import open_store
from support.engine.queries import described, read, run
from support.engine.world import World
from support.inventories import CREATED, FORMATS, Entry, write_inventory
from support.store_backends import Pipeline

pytestmark = pytest.mark.engine

FORGOTTEN = CREATED - timedelta(days=8)
OLD = FORGOTTEN + timedelta(minutes=59)
BUCKET = "s3://landing/in/"


KINDS = ("done", "bad", "skipped", "given", "begun", "open", "never")


def fill(world: World) -> list[Entry]:
    """A store with shards of every state, and the entries of an inventory that has an object of every category."""
    names = {kind: [f"in/{kind}/{i} ü+" for i in range(30)] for kind in KINDS}
    uris = {kind: [f"s3://landing/{name}" for name in found] for kind, found in names.items()}
    with open_store(world.store_url) as store:
        us = Pipeline.start(store, "p", "s")

        def opened(kind: str) -> list[Any]:
            contents = [Content(u, u, 10, "e" if i % 2 else None, "q", f"m{u}") for i, u in enumerate(uris[kind])]
            return list(store.open_shards(us.token, "s", contents).values())

        us.snapshot(*opened("done"), *opened("bad"), *opened("skipped"))
        plan = us.plan()
        records = [ErrorRecord("object", "corrupt-object", "", u, plan.identity.delivery_hash) for u in uris["bad"]]
        records += [
            ErrorRecord("skipped", "corrupt-object", "", u, plan.identity.delivery_hash) for u in uris["skipped"]
        ]
        store.record_errors("s", "p", records)
        us.publish(plan, Split("/x", 1, 1))
        us.confirm()
        opened("open")
        for kind in ("given", "begun"):  # each start leaves out what the one before has begun
            us = Pipeline.start(store, "at most once", "s", semantics=Semantics.AT_MOST_ONCE)
            us.snapshot(*opened(kind))
            us.plan()
        with store.database.engine.begin() as connection:
            connection.execute(sources.delete())
            micros = round(FORGOTTEN.timestamp() * 1e6)
            connection.execute(sources.insert().values(source="s", forgotten_before=micros, existing_before=None))
    entries = [Entry(name) for found in names.values() for name in found]
    entries += [Entry(f"in/forgotten/{i}", modified=OLD) for i in range(7)]
    entries += [Entry(f"in/young/{i}", modified=CREATED - timedelta(seconds=5)) for i in range(3)]
    entries += [Entry("in/_hidden"), Entry("in/folder/", size=0), Entry("out/x")]
    changed = {"in/done/1 ü+": {"etag": "e2"}, "in/done/2 ü+": {"size": 11}}
    return [
        Entry(e.key, **{"size": e.size, "etag": e.etag, "modified": e.modified, **changed.get(e.key, {})})  # type: ignore[arg-type, dict-item]
        for e in entries
    ]


def fill_versions(world: World) -> list[Entry]:
    """Shards whose id has a version or an ETag, and some that were read before that; the entries beside them."""
    ids = ["in/version#v1", "in/tagged#e", "in/read before", "in/read before, and changed", "in/bad before"]
    with open_store(world.store_url) as store:
        us = Pipeline.start(store, "p", "s")
        contents = [
            Content(f"s3://landing/{one}", f"s3://landing/{one.partition('#')[0]}", 10, "e", "q", f"m{one}")
            for one in ids
        ]
        shards = list(store.open_shards(us.token, "s", contents).values())
        us.snapshot(*shards)
        plan = us.plan()
        bad = ErrorRecord("object", "corrupt-object", "", "s3://landing/in/bad before", plan.identity.delivery_hash)
        store.record_errors("s", "p", [bad])
        us.publish(plan, Split("/x", 1, 1))
        us.confirm()
        with store.database.engine.begin() as connection:
            micros = round(FORGOTTEN.timestamp() * 1e6)
            connection.execute(sources.delete())
            connection.execute(sources.insert().values(source="s", forgotten_before=0, existing_before=micros))
    names = ("in/version", "in/tagged", "in/read before", "in/bad before", "in/new")
    entries = [Entry(name, version=None if name == "in/tagged" else "v1") for name in names]
    entries += [
        Entry("in/read before, and changed", version="v1", etag="e2"),
        Entry("in/version", version="v2", latest=False),
        Entry("in/existed", version="v1", modified=FORGOTTEN - timedelta(seconds=1)),
        Entry("in/began", version="v1", modified=FORGOTTEN),  # in whole seconds: it may have been modified in this one
    ]
    return entries


def by_command(world: World, tmp_path: Path, *arguments: str) -> tuple[dict[str, int], set[tuple[str, str]]]:
    given = ["reconcile", BUCKET, "--store", world.store_url, *arguments, "--json", "--list", str(tmp_path / "list")]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 1, told.output
    [one] = json.loads(told.stdout)["prefixes"]
    lines = [json.loads(line) for line in (tmp_path / "list").read_text("utf-8").splitlines()]
    counts = {
        name: one[name] for name in ("published", "waiting", "quarantined", "skipped", "given_up", "missing", "changed")
    }
    counts |= {name: one[name] for name in ("beyond_memory", "before_beginning", "left_out")}
    return {name: count for name, count in counts.items() if count}, {(x["uri"], x["category"]) for x in lines}


def test_what_a_query_skips_or_gives_up_is_not_certified_as_published(spark: SparkSession, tmp_path: Path) -> None:
    skipping, once = (World(tmp_path / name) for name in ("skipping", "once"))
    skipping.feed(0, 2)
    bad = tmp_path / "skipping" / "in" / "bad.json.gz"
    bad.write_bytes(b"no gzip")
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


@pytest.mark.parametrize("format", FORMATS)
def test_the_job_says_of_each_object_what_the_command_says(
    spark: SparkSession, world: World, tmp_path: Path, format: str
) -> None:
    entries = fill(world)

    def put(name: str, body: bytes) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)

    manifest = f"file://{tmp_path}/{write_inventory(put, entries, format=format, per_file=40)}"
    counts, unpublished = by_command(world, tmp_path, "--inventory", manifest)
    assert counts == {
        "published": 28,
        "changed": 2,
        "quarantined": 30,
        "skipped": 30,
        "given_up": 30,
        "waiting": 60,
        "missing": 30,
        "beyond_memory": 7,
        "left_out": 2,
    }
    found = cuesqueue.reconcile(spark, manifest, world.store_url, BUCKET)
    assert found.columns == ["uri", "size", "etag", "last_modified", "version", "category", "pipeline"]
    rows = found.collect()
    assert Counter(row.category for row in rows) == counts
    kinds = ("missing", "quarantined", "skipped", "given_up", "waiting", "changed")
    assert {(row.uri, row.category) for row in rows if row.category in kinds} == unpublished
    owners = {(row.category, row.pipeline) for row in rows}
    assert owners == {
        *((kind, "p") for kind in ("published", "changed", "quarantined", "skipped", "waiting")),
        *((kind, "at most once") for kind in ("given_up", "waiting")),
        *((kind, None) for kind in ("missing", "beyond_memory", "left_out")),
    }
    damaged = next(tmp_path.rglob("1.*"))
    damaged.write_bytes(b"another")
    with pytest.raises(PySparkException, match="corrupt-object"):
        found.count()


def test_with_versions_in_its_ids_it_says_the_same_too(spark: SparkSession, world: World, tmp_path: Path) -> None:
    entries = fill_versions(world)

    def put(name: str, body: bytes) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)

    manifest = f"file://{tmp_path}/{write_inventory(put, entries, versions=True)}"
    overwrites = ("--inventory", manifest, "--option", "allowOverwrites=true")
    counts, unpublished = by_command(world, tmp_path, *overwrites)
    found = cuesqueue.reconcile(spark, manifest, world.store_url, BUCKET, options={"allowOverwrites": "true"})
    rows = found.collect()
    assert Counter(row.category for row in rows) == counts
    assert counts == {"published": 3, "missing": 4, "before_beginning": 1}
    assert {(row.uri, row.category) for row in rows if row.category == "missing"} == unpublished
    assert {row.uri for row in rows if row.pipeline == "p"} == {
        f"s3://landing/in/{name}" for name in ("version", "tagged", "read before")
    }


def test_a_frame_is_a_listing_and_the_readers_options_choose(spark: SparkSession, world: World) -> None:
    entries = fill(world)
    listing = spark.createDataFrame(
        [(f"s3://landing/{e.key}", e.size, e.etag, e.modified) for e in entries],
        "uri STRING, size LONG, etag STRING, last_modified TIMESTAMP",
    )
    options = {"pathGlobFilter": "1*"}
    until = CREATED - timedelta(minutes=10)
    rows = cuesqueue.reconcile(spark, listing, world.store_url, BUCKET, options=options, until=until).collect()
    assert Counter(row.category for row in rows)["left_out"] > 60
    assert {row.uri.rsplit("/", 1)[1][0] for row in rows if row.category != "left_out"} == {"1"}
    none = cuesqueue.reconcile(spark, listing, world.store_url, [f"{BUCKET}young/", f"{BUCKET}never/"], until=until)
    assert Counter(row.category for row in none.collect()) == {"missing": 30}
    late = cuesqueue.reconcile(
        spark, listing, world.store_url, BUCKET, since=datetime(2026, 11, 20, 12, tzinfo=timezone.utc), until=CREATED
    )
    assert Counter(row.category for row in late.collect()) == {"missing": 3}
    with pytest.raises(cuesqueue.OptionError, match="has no column etag, last_modified"):
        cuesqueue.reconcile(spark, listing.select("uri", "size"), world.store_url, BUCKET)
    with pytest.raises(cuesqueue.StoreConfigurationError, match="has no source 't'"):
        cuesqueue.reconcile(spark, listing, world.store_url, BUCKET, source="t")


def test_objects_of_azure_that_were_read_by_another_name_are_found(spark: SparkSession, world: World) -> None:
    today, before = "abfss://landing@lake.dfs.core.windows.net/", "abfs://landing@lake.dfs.core.windows.net/"
    with open_store(world.store_url) as store:
        us = Pipeline.start(store, "p", "s")
        us.snapshot(*store.open_shards(us.token, "s", [Content(f"{before}a", f"{before}a", 10)]).values())
        us.publish(us.plan(), Split("/x", 1, 1))
        us.confirm()
        store.start("s", "p", naming=Naming(versions=False, plain=plain_prefix))
    modified = datetime.now(timezone.utc) - timedelta(days=2)
    rows = [(f"{today}{name}", 10, None, modified) for name in "ab"]
    frame = spark.createDataFrame(rows, "uri STRING, size BIGINT, etag STRING, last_modified TIMESTAMP")
    result = cuesqueue.reconcile(spark, frame, world.store_url, before, options={"allowedPrefixes": today})
    found = {row["uri"]: row["category"] for row in result.collect()}
    assert found == {f"{today}a": "published", f"{today}b": "missing"}


def test_shards_are_read_side_by_side_and_by_the_columns_that_are_declared(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
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
