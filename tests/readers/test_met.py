"""Objects of S3 that were announced by their URIs alone: one request each, and one version at all attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from queue_source.announcements.contents import s3_record
from queue_source.options import ReaderOptions, parse_reader_options
from queue_source.queues import open_queue
from queue_source.read.partitions import PlanStore, whole_pieces
from queue_source.read.task import Work, read_work
from queue_source.spark import reader
from queue_source.spark.reader import CuesqueueStreamReader, WorkPartition
from queue_source.storage import fetching
from queue_source.storage.fetching import WHOLE
from shard_store.model import (
    SINK,
    Content,
    Met,
    Plan,
    PlanIdentity,
    Range,
    ShardKey,
    ShardState,
    Split,
    end_at,
    shard_key,
)
from shard_store.store import ShardStore, open_store
from support.coordinator_world import World
from support.driver_loop import reader_options
from support.reading import plan_store
from support.servers.s3 import Refusal, S3Server, etag_of, s3_server
from support.sessions import LEAST
from support.store_backends import Pipeline

SCHEMA = pa.schema([("a", pa.string())])


@dataclass
class Bucket:
    """A server, a pipeline, and the tasks of its plans."""

    s3: S3Server
    store: ShardStore
    options: ReaderOptions
    place: PlanStore
    us: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        self.us = Pipeline.start(self.store)

    def put(self, *names: str, text: str = "old") -> None:
        self.s3.objects |= {f"b/{name}": f"{name} {text}\n".encode() for name in names}

    def announce(self, *names: str) -> list[Range]:
        contents = [Content(f"s3://b/{n}", f"s3://b/{n}", None, None, "q", f"of {n}") for n in names]
        opened = self.store.open_shards(self.us.token, "s", contents)
        return [Range(shard.key, shard.content, shard.position, end_at(0)) for shard in opened.values()]

    def planned(self, *names: str) -> Plan:
        self.us.write(*self.announce(*names))
        return self.us.plan()

    def restarted(self) -> Plan:
        """A new reader's plan of the same offsets."""
        self.us = Pipeline.start(self.store)
        return self.us.plan()

    def task(self, plan: Plan) -> Work:
        pieces = whole_pieces(plan.whole, plan.ranges)
        return Work(plan.identity, pieces, self.options.content, self.place, meets=True)

    def rows(self, plan: Plan, *, repeated: bool = False) -> list[str]:
        batches = read_work(self.task(plan), SCHEMA, repeated=repeated)
        return [row for batch in batches for row in batch.column(0).to_pylist()]

    def facts(self, name: str) -> tuple[ShardState, int | None, str | None]:
        shard = self.us.look(f"s3://b/{name}")[f"s3://b/{name}"]
        return shard.state, shard.content.size, shard.content.etag

    def causes(self) -> dict[str, str]:
        return {
            row[2]: row[0] for page in self.store.pages("errors", columns=["cause", "scope", "subject"]) for row in page
        }

    def version(self, name: str) -> tuple[int, str]:
        data = self.s3.objects[f"b/{name}"]
        return len(data), etag_of(data)


@pytest.fixture(params=["text", "csv"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """Objects of text are read alone, those of csv together."""
    url = f"sqlite:///{tmp_path}/store.db"
    with s3_server() as s3, open_store(url) as store:
        given = {**LEAST, "fileFormat": request.param, "allowedPrefixes": "s3://", "store": url, **s3.options}
        options = parse_reader_options(given)
        yield Bucket(s3, store, options, plan_store(options))


NAMES = [f"{number:03}" for number in range(150)]


def test_each_object_costs_one_request_and_its_shard_has_what_the_answer_said(bucket: Bucket) -> None:
    bucket.put(*NAMES)
    plan = bucket.planned(*NAMES)
    assert bucket.rows(plan) == [f"{name} old" for name in NAMES]
    assert bucket.s3.requests == {("GET", f"b/{name}"): 1 for name in NAMES}
    assert bucket.facts("000") == (ShardState.OPEN, *bucket.version("000"))
    bucket.us.publish(plan, Split("/x", 150, 1))
    assert [bucket.facts(name) for name in NAMES] == [(ShardState.DONE, *bucket.version(name)) for name in NAMES]


def test_a_task_records_what_it_meets_in_few_transactions(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(*NAMES)
    monkeypatch.setattr(fetching, "_MOMENT", 60.0)
    met: list[int] = []
    meet = ShardStore.meet

    def counted(store: ShardStore, identity: PlanIdentity, objects: dict[ShardKey, Met]) -> dict[ShardKey, Met]:
        met.append(len(objects))
        return meet(store, identity, objects)

    monkeypatch.setattr(ShardStore, "meet", counted)
    bucket.rows(bucket.planned(*NAMES))
    assert sum(met) == len(NAMES)
    assert len(met) <= 3


def test_what_is_known_costs_no_transaction(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("a")
    plan = bucket.planned("a")
    size, etag = bucket.version("a")
    known = [entry._replace(content=entry.content._replace(size=size, etag=etag)) for entry in plan.ranges]
    monkeypatch.delattr(ShardStore, "meet")
    assert bucket.rows(replace(plan, ranges=tuple(known), whole=tuple(known))) == ["a old"]


Again = Callable[[Bucket, Plan], Plan]


@pytest.mark.parametrize(
    ("again", "repeated"),
    [
        (lambda bucket, plan: plan, False),  # a second action of foreachBatch, whose tasks are first attempts for Spark
        (lambda bucket, plan: plan, True),
        (lambda bucket, plan: bucket.us.plan(), False),
        (lambda bucket, plan: bucket.restarted(), False),
    ],
    ids=["action", "task", "self-join", "restart"],
)
def test_an_object_that_was_replaced_between_two_readings_is_changed_and_not_read_in_two_versions(
    bucket: Bucket, again: Again, repeated: bool
) -> None:
    bucket.put("a", "b", "c")
    first = bucket.planned("a", "b", "c")
    assert bucket.rows(first) == ["a old", "b old", "c old"]
    before = bucket.version("b")
    bucket.put("b", text="new")
    plan = again(bucket, first)
    assert plan.identity.delivery_hash == first.identity.delivery_hash
    assert bucket.rows(plan, repeated=repeated) == ["a old", "c old"]
    assert bucket.causes() == {"s3://b/b": "object-changed"}
    bucket.us.publish(plan, Split("/x", 2, 1))
    assert bucket.facts("b") == (ShardState.QUARANTINED, *before)
    assert bucket.facts("a") == (ShardState.DONE, *bucket.version("a"))


@pytest.mark.parametrize("back", [False, True])
def test_of_two_tasks_that_race_one_decides(bucket: Bucket, back: bool) -> None:
    """`back`: the version of the slower one is there again when it looks once more."""
    bucket.put("a", "b")
    plan = bucket.planned("a", "b")
    meet, faster = ShardStore.meet, list[list[str]]()

    def overtaken(store: ShardStore, *given: object) -> object:
        """The other one begins when this one has its answers, and records newer versions first."""
        if not faster:
            faster.append([])
            bucket.put("a", "b", text="new")
            faster[0] += bucket.rows(plan)
            bucket.put("a", *(["b"] if back else []), text="new" if not back else "old")
        return meet(store, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardStore, "meet", overtaken)
        slower = bucket.rows(plan)
    assert faster == [["a new", "b new"]]
    assert slower == ([] if back else ["a new", "b new"])
    assert set(bucket.causes().values()) == ({"object-changed"} if back else set())


def test_a_reader_that_stops_in_the_middle_has_decided_what_it_gave(bucket: Bucket) -> None:
    """As `isEmpty` and `limit` do."""
    bucket.put(*NAMES)
    plan = bucket.planned(*NAMES)
    rows = next(batches := read_work(bucket.task(plan), SCHEMA, repeated=False)).column(0).to_pylist()
    batches.close()  # type: ignore[attr-defined]
    bucket.put(*NAMES, text="new")
    given = {row.partition(" ")[0] for row in rows}
    later = {row.partition(" ")[0] for row in bucket.rows(plan)}
    assert given
    assert not given & later, "read in two versions"


@pytest.mark.parametrize("times", [1, 1 << 30])
def test_a_missing_or_refused_object_is_met_when_it_is_read(bucket: Bucket, times: int) -> None:
    bucket.put("a", "b")
    bucket.s3.refusals["b/b"] = Refusal(403, "AccessDenied", times=times)
    plan = bucket.planned("a", "b", "missing")
    found = bucket.rows(plan)
    bucket.us.publish(plan, Split("/x", 1, 1))
    assert bucket.facts("missing") == (ShardState.QUARANTINED, None, None)
    assert bucket.causes()["s3://b/missing"] == "missing-object"
    if times == 1:
        assert found == ["a old", "b old"]
        assert bucket.facts("b") == (ShardState.DONE, *bucket.version("b"))
    else:
        assert bucket.facts("b") == (ShardState.QUARANTINED, None, None)


def test_an_empty_object_is_met_as_such_and_opened_again(bucket: Bucket) -> None:
    bucket.s3.objects["b/a"] = b""
    plan = bucket.planned("a")
    assert bucket.rows(plan) == []
    bucket.us.publish(plan)
    bucket.us.confirm()
    assert bucket.facts("a") == (ShardState.DONE, 0, etag_of(b""))
    bucket.put("a", text="new")
    filled = Content("s3://b/a", "s3://b/a", *bucket.version("a"), "q", "filled")
    [shard] = bucket.store.open_shards(bucket.us.token, "s", [filled]).values()
    assert shard.reopened


def test_a_large_object_of_unknown_size_is_read_by_ranges_of_one_version(bucket: Bucket) -> None:
    line = b"x" * 99 + b"\n"
    bucket.s3.objects["b/a"] = line * ((WHOLE + (4 << 20)) // 100)
    plan = bucket.planned("a")
    assert len(bucket.rows(plan)) == len(bucket.s3.objects["b/a"]) // 100
    assert bucket.s3.requests == {("GET", "b/a"): 2}
    assert bucket.facts("a")[1:] == bucket.version("a")


def test_answers_that_take_long_are_waited_for_in_their_turn(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_MOMENT", 0.0)
    bucket.put(*NAMES)
    plan = bucket.planned(*NAMES)
    assert bucket.rows(plan) == [f"{name} old" for name in NAMES]
    assert bucket.facts(NAMES[-1])[1:] == bucket.version(NAMES[-1])
    bucket.put("000", text="new")
    assert len(bucket.rows(plan)) == len(NAMES) - 1


def test_an_object_that_grows_into_another_is_known_by_its_etag(bucket: Bucket) -> None:
    bucket.put("a")
    plan = bucket.planned("a")
    bucket.rows(plan)
    bucket.put("a", text="odd")  # as many bytes
    assert bucket.rows(plan) == []
    assert shard_key("s", "s3://b/a") in {entry.key for entry in plan.ranges}


# --- from the queue on: as Spark calls the reader ---


class Query:
    """Batches of a reader, whose tasks run here, and our sink."""

    def __init__(self, world: World, s3: S3Server, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        monkeypatch.setattr(reader, "stop_on_sigterm", lambda: None)
        given = {"fileFormat": "text", "allowedPrefixes": "s3://b/", **s3.options, **options}
        self.spark = CuesqueueStreamReader(
            reader_options(world.queue_url, world.store_url, **given), StructType().add("value", "string")
        )
        self.world, self.offset = world, self.spark.initialOffset()

    def works(self) -> list[Work]:
        """Those of the next batch."""
        end, deadline = self.offset, time.monotonic() + 30
        while end == self.offset and time.monotonic() < deadline:
            end = self.spark.latestOffset(self.offset)
        parts = self.spark.partitions(self.offset, end)
        self.offset = end
        return [part.work for part in parts if isinstance(part, WorkPartition)]

    def batch(self) -> list[str]:
        works = self.works()
        schema = pa.schema([("value", pa.string())])
        batches = [batch for work in works for batch in read_work(work, schema, repeated=False)]
        with self.world.store() as store:
            store.take_plan("files", None, SINK)
            store.publish([works[0].identity], [Split(f"/{self.offset['seq']}", 1, 1)])
        return sorted(row for batch in batches for row in batch.column(0).to_pylist())

    @property
    def counters(self) -> dict[str, int]:
        return self.spark._started().report()


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def requests(s3: S3Server) -> dict[str, int]:
    """Since they were counted last."""
    counted = {verb: sum(n for (v, _), n in s3.requests.items() if v == verb) for verb in ("HEAD", "GET")}
    s3.requests.clear()
    return counted


def put(s3: S3Server, names: list[str], text: str = "old") -> list[str]:
    s3.objects |= {f"b/{name}": f"{name} {text}\n".encode() for name in names}
    return [f"{name} {text}" for name in names]


def test_after_the_first_objects_of_a_source_each_costs_one_request(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    first, second, third = (NAMES[start : start + 40] for start in (0, 40, 80))
    for names in (first, second, third):
        put(s3, names)
    world.publish(*(f"s3://b/{name}" for name in first))
    query = Query(world, s3, monkeypatch)
    assert query.batch() == [f"{name} old" for name in first]
    assert requests(s3) == {"HEAD": 40, "GET": 40}
    world.publish(*(f"s3://b/{name}" for name in second))
    assert query.batch() == [f"{name} old" for name in second]
    assert requests(s3) == {"HEAD": 0, "GET": 40}
    query.spark.stop()
    query = Query(world, s3, monkeypatch)
    world.publish(*(f"s3://b/{name}" for name in third))
    query.offset = query.spark._started().offsets.write(2)
    assert query.batch() == [f"{name} old" for name in third]
    assert requests(s3) == {"HEAD": 0, "GET": 40}
    query.spark.stop()
    with world.store() as store:
        facts = {row for page in store.pages("shards", columns=["state", "size", "etag"]) for row in page}
    assert {(state, size) for state, size, _ in facts} == {("done", 8)}
    assert len(facts) == 120, "each with its own ETag"


def test_what_is_announced_once_more_by_its_uri_alone_is_compared_with_what_was_read(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    put(s3, names := NAMES[:40])
    s3.objects["b/empty"] = b""
    world.publish(*(f"s3://b/{name}" for name in names))
    query = Query(world, s3, monkeypatch, fileFormat="csv", schema="")
    query.batch()
    world.publish("s3://b/late", "s3://b/empty")
    assert query.batch() == []
    requests(s3)
    again = [*put(s3, ["late"]), *put(s3, ["empty"], "filled")]
    put(s3, ["001"], "new")
    world.publish("s3://b/000", "s3://b/001", "s3://b/late", "s3://b/empty")
    assert query.batch() == sorted(again)
    assert requests(s3) == {"HEAD": 4, "GET": 2}
    assert {name: query.counters[name] for name in ("reopened", "changed", "duplicates")} == {
        "reopened": 2,
        "changed": 1,
        "duplicates": 1,
    }
    query.spark.stop()


def test_announced_sizes_cost_no_look_up_and_no_transaction(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    put(s3, names := NAMES[:40])
    monkeypatch.delattr(ShardStore, "meet")
    monkeypatch.delattr(ShardStore, "usual_size")
    with open_queue(world.queue_url) as queue:
        for name in names:
            data = s3.objects[f"b/{name}"]
            facts = {"size": len(data), "eTag": etag_of(data)}
            queue.send([{"Records": [s3_record("b", name, "2026-01-01T00:00:00.000Z", **facts)]}])
    query = Query(world, s3, monkeypatch)
    assert len(query.batch()) == 40
    assert requests(s3) == {"HEAD": 0, "GET": 40}
    query.spark.stop()


def test_a_restart_reads_an_unfinished_batch_in_the_versions_that_were_met(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    put(s3, NAMES[:40])
    world.publish(*(f"s3://b/{name}" for name in NAMES[:40]))
    query = Query(world, s3, monkeypatch)
    query.batch()
    put(s3, ["x", "y"])
    world.publish("s3://b/x", "s3://b/y")
    start = query.offset
    (work, *_) = works = query.works()
    assert all(piece.content.size is None for task in works for piece in task.pieces)
    for task in works:
        for _ in read_work(task, pa.schema([("value", pa.string())]), repeated=False):
            pass
    query.spark._started().close()  # killed
    put(s3, ["y"], "new")
    end = query.offset
    query = Query(world, s3, monkeypatch)
    again = [part.work for part in query.spark.partitions(start, end) if isinstance(part, WorkPartition)]
    assert again[0].identity.delivery_hash == work.identity.delivery_hash
    schema = pa.schema([("value", pa.string())])
    rows = [row for task in again for b in read_work(task, schema, repeated=False) for row in b.column(0).to_pylist()]
    assert rows == ["x old"]
    query.spark.stop()
