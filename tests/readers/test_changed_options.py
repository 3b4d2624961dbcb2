"""Options that are others at the next start, while something that was begun is not finished."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from queue_source.coordinator import ready
from queue_source.errors import OptionError
from queue_source.messages import MESSAGE_URI
from queue_source.options.places import READER, SINK
from queue_source.read.partitions import whole_pieces
from queue_source.read.task import Work, read_work
from shard_store.errors import StoreConfigurationError
from shard_store.model import BEGINNING, Content, Payload, PlanIdentity, PublishToken, Range, end_at, shard_key
from shard_store.shards.changes import Audit
from shard_store.sql.schema import pipelines
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import published, reader_options, until
from support.reading import plan_store

SHORT: dict[str, Any] = {"visibilityTimeout": "5m"}
LARGE = "s3://bucket/large"
CONTENTS: dict[str, dict[str, Any]] = {
    "object": {"fileFormat": "json", "allowedPrefixes": "s3://bucket/"},
    "reference": {"content": "reference", "fileFormat": "", "allowedPrefixes": "s3://bucket/"},
    "message in a format": {"content": "message", "fileFormat": "json", "allowedPrefixes": ""},
}
"""Options of each kind of content."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def begin(world: World, **options: Any) -> None:
    """A batch is planned, and its driver dies."""
    with world.loop(**SHORT, **options) as loop:
        loop.coordinator.plan(0, loop.latest(0))
        loop.die_without_leases()


def finish(world: World, **options: Any) -> None:
    with world.loop(**SHORT, **options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))


def read(world: World) -> dict[str, int]:
    with world.store() as store:
        return published(store)


def start(world: World, **options: Any) -> None:
    with world.loop(**SHORT, **options):
        pass


KINDS = ("object", "reference", "message in a format")


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(KINDS, 2)))
def test_another_content_is_refused_before_anything_is_done_while_a_batch_is_unfinished(
    world: World, before: str, after: str
) -> None:
    world.publish("s3://bucket/a")
    begin(world, **CONTENTS[before])
    with pytest.raises(OptionError, match=r"'content'.* 1 object\(s\).*until nothing is left"):
        start(world, **CONTENTS[after])
    with world.store() as store:
        assert [row.incarnation for row in store.database.read(lambda t: t.execute(sa.select(pipelines)).all())] == [1]
    finish(world, **CONTENTS[before])
    start(world, **CONTENTS[after])
    assert list(read(world).values()) == [1]


@pytest.mark.parametrize(("kind", "payload"), [("object", True), ("reference", True), ("message in a format", False)])
def test_a_task_reads_nothing_of_a_batch_with_contents_of_another_kind(
    tmp_path: Path, kind: str, payload: bool
) -> None:
    """Before, messages without a body were left out, and an error of a later one was put down to another."""
    of_kind, other = (Payload(b'{"a": 1}', "1"), None) if not payload else (None, Payload(b"", "1"))
    contents = [
        Content(str(number), MESSAGE_URI if body else f"s3://bucket/{number}", 8, payload=body)
        for number, body in enumerate((of_kind, other))
    ]
    ranges = [Range(shard_key("s", one.shard_id), one, BEGINNING, end_at(8)) for one in contents]
    options = reader_options("sim://files", f"sqlite:///{tmp_path}/store.db", **CONTENTS[kind])
    identity = PlanIdentity("s", PublishToken("p", 1), 0, 1, "hash")
    work = Work(identity, whole_pieces(ranges), options.content, plan_store(options))
    with pytest.raises(OptionError, match=r"'content'.*when '1' was announced"):
        list(read_work(work, pa.schema([("a", pa.int64())]), repeated=False))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fileFormat", "text"),
        ("lineSep", ";"),
        ("encoding", "ISO-8859-1"),
        ("multiLine", "true"),
        ("recordsPath", "Records"),
    ],
)
def test_what_ends_a_record_stays_as_it_is_while_an_object_is_published_in_part(
    world: World, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setattr(ready, "LEAST_PART", 4)  # the loop's objects have 10 bytes
    world.publish(LARGE)
    options: dict[str, Any] = {"maxBytesPerTrigger": "1b"}
    with world.loop(**SHORT, **options) as loop:
        loop.batch()
        loop.die_without_leases()
    with pytest.raises(OptionError, match=rf"'{option}'.* 1 object\(s\).*a part is published"):
        start(world, **options, **{option: value})
    finish(world, **options)
    start(world, **options, **{option: value})


def test_another_format_is_taken_while_a_batch_of_whole_objects_is_unfinished(world: World) -> None:
    world.publish("s3://bucket/a")
    begin(world)
    finish(world, fileFormat="text")
    assert read(world) == {"s3://bucket/a": 1}


def test_prefixes_that_leave_out_what_is_unfinished_are_refused(world: World) -> None:
    world.publish("s3://bucket/in/a", "s3://bucket/out/a")
    begin(world)
    with pytest.raises(OptionError, match=r"'allowedPrefixes'.* 1 unfinished object\(s\).*bucket/out/a.*quarantine"):
        start(world, allowedPrefixes="s3://bucket/in/")
    finish(world, allowedPrefixes="s3://bucket/")
    assert read(world) == {"s3://bucket/in/a": 1, "s3://bucket/out/a": 1}
    start(world, allowedPrefixes="s3://bucket/in/")


def test_what_an_operator_gave_up_is_outside_of_no_prefix(world: World) -> None:
    world.publish("s3://bucket/in/a", "s3://bucket/out/a")
    begin(world)
    with world.store() as store:
        store.quarantine([shard_key("files", "s3://bucket/out/a")], Audit("me", "why"))
    with world.loop(**SHORT, allowedPrefixes="s3://bucket/in/") as loop:
        [left] = loop.coordinator.plan(0, loop.latest(0)).ranges
        assert left.content.uri == "s3://bucket/in/a"


def test_what_was_read_with_versions_is_not_read_without_them(world: World) -> None:
    world.publish(EVENT)
    begin(world, allowOverwrites="true")
    finish(world, allowOverwrites="true")
    with pytest.raises(StoreConfigurationError, match=r"'allowOverwrites'.* read with true.*another 'source'"):
        start(world, allowOverwrites="false")
    start(world, allowOverwrites="false", source="another", pipeline="another")


def test_what_was_read_without_versions_is_read_again_only_in_another_version(world: World) -> None:
    world.publish(EVENT)
    begin(world)
    with pytest.raises(OptionError, match=r"'allowOverwrites'.*was 'false' and is 'true'"):
        start(world, allowOverwrites="true")
    finish(world)
    world.publish(EVENT)  # as its message comes again when its acknowledgement was lost
    finish(world, allowOverwrites="true")
    assert read(world) == {"s3://bucket/a": 1}
    world.publish(EVENT.replace('"e"', '"e2"'))
    finish(world, allowOverwrites="true")
    assert read(world) == {"s3://bucket/a": 1, "s3://bucket/a#e2": 1}


EVENT = '{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "bucket"}, "object": {"key": "a", "size": 10, "eTag": "e"}}}]}'  # fmt: skip # noqa: E501


def test_every_option_of_reader_and_sink_says_what_its_change_does() -> None:
    assert [option.name for option in (*READER.options, *SINK.options) if not option.on_change] == []
