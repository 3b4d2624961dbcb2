"""`content=reference`: the announced objects themselves are the rows, each once, and the same at every attempt."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import cuesqueue
from queue_source.announcements.contents import announced_objects, listed_contents
from queue_source.announcements.parser import parse_notification
from queue_source.errors import BadObject, OptionError
from queue_source.messages import ListedObject, Receipt, Received
from queue_source.options import parse_reader_options
from queue_source.queues import open_queue
from queue_source.read.fixed_rows import REFERENCE_SCHEMA, default_columns, fixed_rows, names_parts
from queue_source.read.partitions import partition
from queue_source.read.task import Work, read_work
from queue_source.spark.process import arrow_schema
from queue_source.spark.source import CuesqueueSource
from queue_source.storage.files import ObjectStat
from shard_store.model import LISTING, Plan, Reference, is_end, micros
from support import driver_loop
from support.coordinator_world import EMPTY, World
from support.driver_loop import DriverLoop, published, states, until
from support.reading import plan_store

AT = datetime(2026, 11, 20, 8, 30, 0, 123000, tzinfo=timezone.utc)
EVENT = "2026-11-20T08:30:00.123Z"
UPDATED = "2026-11-20T08:29:59.5Z"
LEAST = {"queueUrl": "sim://files", "content": "reference", "allowedPrefixes": "s3://bucket/"}
BY_REFERENCE: dict[str, Any] = {"content": "reference", "fileFormat": ""}


def s3(key: str, *, size: int | None = 7, event: str = EVENT, **item: str) -> dict[str, Any]:
    """An event of S3 about an object of the bucket."""
    about: dict[str, Any] = {"key": key, **item}
    if size is not None:
        about["size"] = size
    return {
        "Records": [
            {
                "eventName": "ObjectCreated:Put",
                "eventTime": event,
                "s3": {"bucket": {"name": "bucket"}, "object": about},
            }
        ]
    }


def received(body: object, headers: dict[str, str] | None = None, tag: str = "orders.eu") -> Received:
    text = body if isinstance(body, str) else json.dumps(body)
    return Received("q", "m", Receipt("r"), text.encode(), 2, 0.0, tag=tag, headers=headers or {})


def announced(message: Received, stat: Any = lambda uris: [None] * len(uris), **options: str) -> Any:
    """The one content that the message announces."""
    [one] = announced_objects([message], parse_reader_options({**LEAST, **options}).notifications, stat)
    assert one.error is None
    [content] = one.contents
    return content


# --- what is announced -----------------------------------------------------------------------------------------------


def test_an_event_of_s3_says_all_that_a_row_needs() -> None:
    content = announced(received(s3("a", eTag="e", versionId="v", sequencer="0A")))
    assert content.reference == Reference("v", micros(AT), micros(AT), "orders.eu")
    assert (content.uri, content.size, content.etag, content.receive_count) == ("s3://bucket/a", 7, "e", 2)


def test_the_version_is_said_without_being_a_part_of_the_identity() -> None:
    body = s3("a", eTag="e", versionId="v")
    assert announced(received(body)).shard_id == "s3://bucket/a"
    assert announced(received(body), allowOverwrites="true").shard_id == "s3://bucket/a#v"


def test_eventbridge_says_when_its_event_happened() -> None:
    detail = {"bucket": {"name": "bucket"}, "object": {"key": "a", "size": 7, "version-id": "v"}}
    body = {"detail-type": "Object Created", "source": "aws.s3", "time": EVENT, "detail": detail}
    assert announced(received(body)).reference == Reference("v", micros(AT), micros(AT), "orders.eu")


GCS = {"eventType": "OBJECT_FINALIZE", "bucketId": "bucket", "objectId": "a", "objectGeneration": "17"}


@pytest.mark.parametrize(
    ("body", "modified"),
    [
        ({"size": "7", "updated": UPDATED}, datetime(2026, 11, 20, 8, 29, 59, 500000, tzinfo=timezone.utc)),
        ({"size": "7", "updated": None}, AT),
        ({"size": "7"}, AT),
        ({}, None),
    ],
)
def test_cloud_storage_says_when_the_event_happened_and_when_the_object_was_changed(
    body: dict[str, str | None], modified: datetime | None
) -> None:
    headers = {**GCS, "eventTime": EVENT, "payloadFormat": "JSON_API_V1"}
    content = announced(received(body, headers), allowedPrefixes="gs://bucket/")
    assert content.reference == Reference("17", None if modified is None else micros(modified), micros(AT), "orders.eu")


def test_an_object_of_cloud_storage_alone_says_nothing_of_an_event() -> None:
    body = {"kind": "storage#object", "bucket": "bucket", "name": "a", "size": "7", "updated": EVENT}
    [notice] = parse_notification(json.dumps(body).encode()).objects
    assert (notice.modified, notice.event_time) == (AT, None)


def test_what_a_uri_omits_is_asked_for_with_its_size() -> None:
    content = announced(received("s3://bucket/a"), lambda uris: [ObjectStat(9, AT) for _ in uris])
    assert (content.size, content.reference) == (9, Reference(None, micros(AT), None, "orders.eu"))


def test_of_an_object_that_nobody_can_find_its_message_is_known() -> None:
    content = announced(received(s3("a", size=None)))
    assert (content.size, content.reference) == (None, Reference(None, None, micros(AT), "orders.eu"))


def test_a_time_that_is_none_is_not_known() -> None:
    for event in ("1970-01-01T00:00:00.000Z", "yesterday", ""):
        assert announced(received(s3("a", event=event))).reference == Reference(None, None, None, "orders.eu")


def test_where_objects_are_read_nothing_more_is_kept() -> None:
    options = {"content": "object", "fileFormat": "json"}
    assert announced(received(s3("a", eTag="e", versionId="v")), **options).reference is None
    [listed] = listed_contents(
        [ListedObject("s3://bucket/a", 7, "e", AT)], parse_reader_options({**LEAST, **options}).notifications
    )
    assert listed is not None
    assert listed.reference is None


def test_a_listing_says_what_the_store_does() -> None:
    options = parse_reader_options(LEAST).notifications
    [listed] = listed_contents([ListedObject("s3://bucket/a", 7, "e", AT, "v")], options)
    assert listed is not None
    assert (listed.etag, listed.queue) == ("e", LISTING)
    assert listed.reference == Reference("v", micros(AT), None, None)


def test_rows_name_their_parts_where_the_format_is_known() -> None:
    """So that a sink which loads the objects can read a large one in several tasks."""
    content = parse_reader_options({**LEAST, "fileFormat": "csv"}).content
    columns = default_columns(content)
    assert columns is not None
    assert names_parts(columns)
    assert [name for name in columns.names if name != "_metadata"] == REFERENCE_SCHEMA.names
    assert default_columns(parse_reader_options(LEAST).content) == REFERENCE_SCHEMA
    assert not names_parts(REFERENCE_SCHEMA)


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("header", "true"),
        ("multiLine", "true"),
        ("mode", "FAILFAST"),
        ("rescuedDataColumn", "_rest"),
        ("columnNameOfCorruptRecord", "_bad"),
        ("partitionColumns", "day"),
        ("schemaLocation", "/schemas"),
        ("schemaHints", "id INT"),
        ("schemaEvolutionMode", "none"),
        ("onMissingObject", "skip"),
        ("onCorruptObject", "fail"),
        ("onForbiddenObject", "fail"),
    ],
)
def test_what_is_about_reading_objects_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_reader_options({**LEAST, name: value})
    assert caught.value.option == name
    assert str(caught.value).endswith("leave it out")


@pytest.mark.parametrize(
    "more",
    [
        {"backfillPrefixes": "s3://bucket/in/"},
        {"cleanSource": "delete"},
        {"modifiedAfter": "2026-11-01T00:00:00Z", "maxFileAge": "7 days", "onForeignObject": "ignore"},
        {"allowOverwrites": "true", "maxBytesPerTrigger": "10g", "maxFilesPerTrigger": "10"},
        {"deliverySemantics": "at-most-once", "errorQueueUrl": "sim://errors", "tagFilter": "orders.#"},
    ],
)
def test_what_chooses_announces_limits_and_cleans_objects_is_taken(more: dict[str, str]) -> None:
    assert parse_reader_options({**LEAST, **more}).notifications.by_reference


def test_a_message_may_still_not_name_any_object() -> None:
    with pytest.raises(OptionError, match="allowedPrefixes"):
        parse_reader_options({name: value for name, value in LEAST.items() if name != "allowedPrefixes"})


def test_partitions_are_not_counted_by_bytes_that_nobody_reads(tmp_path: Path) -> None:
    world = World(tmp_path)
    with open_queue(world.queue_url) as queue:
        queue.publish([s3(f"{number}", size=1 << 40) for number in range(20)])
    for given, tasks in (("", 4), ("2t", 10)):
        with world.loop(**BY_REFERENCE, minPartitions="4", maxPartitionBytes=given, checkpoint=f"c{tasks}") as loop:
            plan = loop.coordinator.plan(0, loop.latest(0))
            assert len(works(loop, plan)) == tasks
            loop.die()


# --- rows ------------------------------------------------------------------------------------------------------------


def works(loop: DriverLoop, plan: Plan) -> list[Work]:
    options, batches = loop.options, loop.options.batches
    tasks = partition(plan, batches.min_partitions, batches.max_partition_bytes, lambda _: False)
    return [Work(plan.identity, pieces, options.content, plan_store(options)) for pieces in tasks]


def rows_of(loop: DriverLoop, plan: Plan, schema: pa.Schema = REFERENCE_SCHEMA) -> list[dict[str, Any]]:
    """What the tasks make of the plan, in the order of URIs."""
    found = []
    for work in works(loop, plan):
        for batch in read_work(work, schema, repeated=True):
            assert batch.schema.equals(schema)
            found += batch.to_pylist()
    return sorted(found, key=lambda row: str(row))


def planned(loop: DriverLoop) -> Plan:
    return loop.coordinator.plan(0, loop.latest(0))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def announce(world: World, *bodies: str | dict[str, Any], tag: str = "orders.eu") -> list[str]:
    with open_queue(world.queue_url) as queue:
        return list(queue.publish(list(bodies), tag=tag))


def test_a_row_says_what_was_announced(world: World) -> None:
    [message_id] = announce(world, s3("a", eTag="e", versionId="v"))
    with world.loop(**BY_REFERENCE) as loop:
        assert rows_of(loop, planned(loop)) == [
            {
                "uri": "s3://bucket/a",
                "size": 7,
                "etag": "e",
                "version": "v",
                "last_modified": AT,
                "event_time": AT,
                "queue": world.queue_url,
                "message_id": message_id,
                "tag": "orders.eu",
                "receive_count": 1,
            }
        ]


METADATA = pa.struct([("file_path", pa.string()), ("file_size", pa.int64()), ("file_name", pa.string()),
                      ("file_modification_time", pa.timestamp("us", tz="UTC")), ("file_block_start", pa.int64()),
                      ("shard_id", pa.string()), ("delivery_hash", pa.string())])  # fmt: skip


def test_some_columns_in_any_order_with_metadata(world: World) -> None:
    announce(world, s3("in/a", eTag="e", versionId="v"))
    schema = pa.schema([("size", pa.int64()), ("_metadata", METADATA), ("uri", pa.string())])
    with world.loop(**BY_REFERENCE, allowOverwrites="true") as loop:
        plan = planned(loop)
        [row] = rows_of(loop, plan, schema)
    assert (row["size"], row["uri"]) == (7, "s3://bucket/in/a")
    assert row["_metadata"] == {
        "file_path": "s3://bucket/in/a",
        "file_size": 7,
        "file_name": "a",
        "file_modification_time": AT,
        "file_block_start": None,
        "shard_id": "s3://bucket/in/a#v",
        "delivery_hash": plan.identity.delivery_hash,
    }


def test_the_schema_is_known_without_reading_anything() -> None:
    source = CuesqueueSource(LEAST)
    assert source.schema().simpleString() == (
        "struct<uri:string,size:bigint,etag:string,version:string,last_modified:timestamp,event_time:timestamp,"
        "queue:string,message_id:string,tag:string,receive_count:int>"
    )
    fixed = fixed_rows(parse_reader_options(LEAST).content)
    assert fixed is not None
    fixed.check(arrow_schema(source.schema()))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (pa.schema([("uri", pa.string()), ("value", pa.binary())]), "an object by reference has no column 'value'"),
        (pa.schema([("size", pa.string())]), "column 'size' of an object by reference is int64, not string"),
        (pa.schema([("_metadata", pa.string())]), "'_metadata' must be a struct"),
    ],
)
def test_a_schema_with_other_columns_is_refused(schema: pa.Schema, problem: str) -> None:
    fixed = fixed_rows(parse_reader_options(LEAST).content)
    assert fixed is not None
    with pytest.raises(OptionError, match=problem):
        fixed.check(schema)


# --- the way of the data ---------------------------------------------------------------------------------------------

SEVERAL = [s3(f"{number}", eTag=f"e{number}", event=f"2026-11-20T08:30:0{number}.5Z") for number in range(5)]


def forget(world: World) -> None:
    """From here on only the store knows what was announced."""
    with open_queue(world.queue_url) as queue:
        queue.purge()  # type: ignore[attr-defined]


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
def test_a_replayed_batch_has_the_very_same_rows(world: World, semantics: str) -> None:
    announce(world, *SEVERAL)
    options = {**BY_REFERENCE, "deliverySemantics": semantics}
    with world.loop(**options) as loop:
        before = rows_of(loop, planned(loop))
        loop.die()
    forget(world)
    with world.loop(**options) as loop:
        plan = loop.coordinator.plan(0, 1)
        assert plan.attempt == 2
        assert rows_of(loop, plan) == before
    assert [row["event_time"].second for row in before] == list(range(5))


def test_with_at_most_once_a_replayed_batch_has_no_rows(world: World) -> None:
    announce(world, *SEVERAL)
    options = {**BY_REFERENCE, "deliverySemantics": "at-most-once"}
    with world.loop(**options) as loop:
        assert len(rows_of(loop, planned(loop))) == 5
        loop.die()
    with world.loop(**options) as loop:
        assert rows_of(loop, loop.coordinator.plan(0, 1)) == []


def test_what_was_opened_and_is_in_no_batch_yet_keeps_what_was_announced(world: World) -> None:
    announce(world, *SEVERAL)
    with world.loop(**BY_REFERENCE) as loop:
        until(lambda: loop.in_flight.counts().ready == 5, lambda: time.sleep(0.02))
        loop.die()
    forget(world)
    with world.loop(**BY_REFERENCE) as loop:
        rows = rows_of(loop, planned(loop))
    assert [(row["tag"], row["event_time"].second) for row in rows] == [("orders.eu", n) for n in range(5)]


def test_a_newer_event_is_in_the_row_of_an_object_that_is_in_no_batch_yet(world: World) -> None:
    announce(world, s3("a", eTag="old", versionId="v1", sequencer="01"))
    with world.loop(**BY_REFERENCE) as loop:
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.02))
        announce(world, s3("a", eTag="old", versionId="v2", sequencer="02"), tag="second")
        until(lambda: loop.in_flight.counts().in_flight == 2, lambda: time.sleep(0.02))
        until(lambda: rows_ready(loop) == ["v2"], lambda: time.sleep(0.02))
        [row] = rows_of(loop, planned(loop))
    assert (row["version"], row["tag"]) == ("v2", "second")


def rows_ready(loop: DriverLoop) -> list[str]:
    return [entry.content.reference.version for entry in loop.in_flight._ready._entries.values()]  # type: ignore[union-attr,misc]


@pytest.mark.parametrize("size", [None, 0, 7])
def test_an_object_is_done_after_one_batch_whatever_its_size(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr(driver_loop, "ObjectStat", lambda *_: None)  # nobody knows the size either
    announce(world, s3("a", size=size))
    with world.loop(**BY_REFERENCE, maxBytesPerTrigger="1kb") as loop:
        ends: list[str] = []
        of_plan = loop.coordinator.plan

        def plan(start: int, end: int) -> Plan:
            made = of_plan(start, end)
            assert [row["size"] for row in rows_of(loop, made)] == [size]
            ends.extend(entry.end for entry in made.ranges)
            return made

        monkeypatch.setattr(loop.coordinator, "plan", plan)
        loop.drain()
    assert list(map(is_end, ends)) == [True]  # type: ignore[arg-type]
    with world.store() as store:
        assert states(store) == {"done": 1}
    assert world.depth() == EMPTY


def test_batches_end_at_the_bytes_that_are_announced_and_no_object_is_cut(world: World) -> None:
    announce(world, *[s3(f"{number}", size=600 << 20) for number in range(4)])
    with world.loop(**BY_REFERENCE, maxBytesPerTrigger="1300m") as loop:
        sizes = []
        while loop.batch():
            sizes.append(len(loop.coordinator.in_flight._snapshots))
        assert len(sizes) == 2
    with world.store() as store:
        assert published(store) == {f"s3://bucket/{number}": 1 for number in range(4)}


def test_versions_of_an_object_are_rows_of_their_own_with_allow_overwrites(world: World) -> None:
    announce(world, s3("a", versionId="v1"), s3("a", versionId="v2"), s3("a", versionId="v2"))
    with world.loop(**BY_REFERENCE, allowOverwrites="true") as loop:
        rows = rows_of(loop, planned(loop))
    assert sorted(row["version"] for row in rows) == ["v1", "v2"]
    assert {row["uri"] for row in rows} == {"s3://bucket/a"}


def test_what_a_listing_finds_is_a_row_also_after_a_restart(world: World) -> None:
    world.bucket.put("s3://bucket/a", etag="e")
    alone = {**BY_REFERENCE, "queueUrl": "", "source": "files", "backfillPrefixes": "s3://bucket/"}
    with world.loop(**alone) as loop:
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.02))
        loop.die()
    with world.loop(**alone) as loop:
        [row] = rows_of(loop, planned(loop))
    assert abs((datetime.now(timezone.utc) - row.pop("last_modified")).total_seconds() - 60) < 30
    assert row.pop("message_id").startswith("listed ")
    assert row == {
        "uri": "s3://bucket/a",
        "size": 10,
        "etag": "e",
        "version": None,
        "event_time": None,
        "queue": LISTING,
        "tag": None,
        "receive_count": 1,
    }


def test_a_message_that_announces_nothing_goes_to_the_error_table_and_the_others_are_rows(world: World) -> None:
    announce(world, "no notification", s3("a"), "s3://elsewhere/b")
    with world.loop(**BY_REFERENCE, allowedPrefixes="s3://bucket/") as loop:
        loop.drain()
        assert loop.metrics["quarantined"] == 2
    assert world.depth() == EMPTY
    with world.store() as store:
        assert published(store) == {"s3://bucket/a": 1}


# --- the face --------------------------------------------------------------------------------------------------------


class Frame:
    """What `references` uses of a DataFrame, Spark's or Spark Connect's."""

    def __init__(self, uris: Sequence[str], *columns: str) -> None:
        self._uris = uris
        self.columns = list(columns or ("uri", "size"))

    def select(self, *columns: str) -> Any:
        assert columns == ("uri",), "the other columns stay where they are"
        return SimpleNamespace(collect=lambda: [(uri,) for uri in self._uris])


def test_the_paths_of_a_batch_are_its_objects_each_once_in_the_order_of_its_rows() -> None:
    uris = ["s3://b/in/2.json", "s3://b/in/1.json", "s3://b/in/2.json", "file:///in/a b%20#c+d.json", "gs://b/ü.json"]
    assert cuesqueue.references(Frame(uris)) == [uris[0], uris[1], *uris[3:]]
    assert cuesqueue.references(Frame([])) == []


def test_a_path_names_one_object_whatever_is_in_its_name() -> None:
    uris = ["s3://b/a[1].json", "s3://b/{x,y}*?.json", "s3://b/back\\slash"]
    assert cuesqueue.references(Frame(uris)) == [
        r"s3://b/a\[1\].json",
        r"s3://b/\{x,y\}\*\?.json",
        r"s3://b/back\\slash",
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/in/_part.json",
        "s3://b/.part",
        "file:///in/a._COPYING_",
        "s3://b/in//a.json",
        "s3://b//a.json",
        "s3://b/a/",
    ],
)
def test_what_sparks_readers_would_leave_out_or_take_for_another_is_an_error(uri: str) -> None:
    with pytest.raises(BadObject, match="shards quarantine") as caught:
        cuesqueue.references(Frame(["s3://b/good", uri]))
    assert caught.value.cause == "unsupported-key"


def test_folders_of_partitions_and_names_that_hold_an_equals_sign_are_no_hidden_ones() -> None:
    uris = ["s3://b/_year=2026/_a=b", "s3://b/_staging/a"]
    assert cuesqueue.references(Frame(uris)) == uris


def test_rows_that_are_no_references_are_an_error() -> None:
    with pytest.raises(OptionError, match="no column 'uri', only value, key"):
        cuesqueue.references(Frame(["a"], "value", "key"))
