"""The sink with `queueUrl` of a query over two sources: one batch advances both pipelines and shows its messages once.

What Spark would do around the writer, without Spark: both readers make their plans, the writer is pickled for the
tasks, each task writes, and a writer that knows nothing commits.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructField, StructType

from queue_source.messages import Received
from queue_source.options import parse_sink_options
from queue_source.queues import open_queue
from queue_source.queues.sql.database import messages
from queue_source.queues.sql.staging import staged
from queue_source.sinks.queue import HASH_HEADER, INDEX_HEADER
from queue_source.spark import writer as writer_module
from queue_source.spark.process import WRITES_ARROW
from queue_source.spark.writer import CuesqueueStreamWriter
from shard_store import failpoints
from shard_store.errors import PipelineTakenOver, ShardsLost, ShardStoreError
from shard_store.shards import ownership
from shard_store.store import ShardStore, open_store
from support.store_backends import Pipeline, rows

BOTH = ("orders", "payments")
SCHEMA = StructType([StructField("value", StringType())])


class Query:
    """A query over both sources and its sink. `feed` says what each has new; tasks write the rows they are given."""

    def __init__(self, folder: Path, *, inside: bool = True, names: str = "orders, payments") -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self.target = f"sql+sqlite:///{folder}/{'store' if inside else 'elsewhere'}.db?queue=out"
        self.options = parse_sink_options({"store": self.url, "pipeline": names, "queueUrl": self.target})
        self.store: ShardStore = open_store(self.url)
        self.pipelines: dict[str, Pipeline] = {}
        self.start()

    def start(self) -> None:
        """A new driver; both readers hand out what no plan has confirmed, as at any restart."""
        self.pipelines = {name: Pipeline.start(self.store, name, f"source of {name}") for name in BOTH}
        for pipeline in self.pipelines.values():
            if pipeline.seq > pipeline.confirmed:
                pipeline.plan()

    def feed(self, **ids: str) -> None:
        for name, of_it in ids.items():
            self.pipelines[name].planned(*of_it)

    def write(self, number: int, *tasks: str) -> list[Any]:
        """Each task's rows are the letters of its text; returns the tasks' commit messages."""
        writer = pickle.loads(pickle.dumps(CuesqueueStreamWriter(self.options, SCHEMA)))
        return [self._write(writer, f"{number}.{place}", task) for place, task in enumerate(tasks)]

    def _write(self, writer: CuesqueueStreamWriter, name: str, values: str) -> Any:
        batch = pa.record_batch([pa.array(list(values), pa.string())], names=["value"])
        with patch.object(writer_module, "task_name", lambda: name):
            return pickle.loads(
                pickle.dumps(writer.write(iter([batch] if WRITES_ARROW else [Row(value=v) for v in values])))
            )

    def commit(self, number: int, written: list[Any]) -> None:
        CuesqueueStreamWriter(self.options, SCHEMA).commit(written, number)

    def batch(self, number: int, *tasks: str) -> None:
        self.commit(number, self.write(number, *tasks))

    def confirm(self) -> None:
        for pipeline in self.pipelines.values():
            pipeline.confirm()

    def found(self) -> list[Received]:
        """What consumers of the queue can have."""
        opened: Any = open_queue(self.target)
        with opened as queue:
            return sorted(queue.peek(1000), key=lambda message: message.body)

    def text(self) -> str:
        return b"".join(message.body for message in self.found()).decode()

    def done(self) -> dict[str, set[str]]:
        """Of each pipeline, the shards that are at their end."""
        ended: dict[str, set[str]] = {name: set() for name in BOTH}
        for shard in rows(self.store, "shards"):
            if shard["state"] == "done":
                ended[shard["source"].removeprefix("source of ")].add(shard["shard_id"])
        return ended

    def attempts(self) -> list[tuple[str, int, int, int | None]]:
        """Of each: its pipeline, Spark's number of the batch, shards and rows."""
        return sorted((a["pipeline"], a["batch_id"], a["shards"], a["rows"]) for a in rows(self.store, "attempts"))

    def left_over(self) -> int:
        """Staged messages and entries that nobody will show."""
        hidden = sa.select(sa.func.count()).select_from(messages).where(messages.c.queue.startswith(" "))
        entries = sa.select(sa.func.count()).select_from(staged)
        with self.store.database.engine.connect() as connection:
            return sum(connection.execute(query).scalar_one() for query in (hidden, entries))


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    made = Query(tmp_path)
    yield made
    made.store.close()


def test_a_batch_of_both_shows_its_messages_once_and_both_advance(query: Query) -> None:
    query.feed(orders="ab", payments="c")
    failed = query.write(0, "xy", "z")
    written = query.write(0, "xy", "z")
    assert (query.text(), query.done()) == ("", {"orders": set(), "payments": set()})
    query.commit(0, written)
    query.commit(0, written)
    query.commit(0, failed)
    assert (query.text(), query.done()) == ("xyz", {"orders": {"a", "b"}, "payments": {"c"}})
    assert query.attempts() == [("orders", 0, 2, 3), ("payments", 0, 1, None)]
    assert query.left_over() == 0


def test_the_stamp_has_the_hash_over_both_plans(query: Query) -> None:
    query.feed(orders="a", payments="c")
    query.batch(0, "x")
    attempts = sorted(rows(query.store, "attempts"), key=lambda attempt: str(attempt["pipeline"]))
    hashes = [attempt["delivery_hash"] for attempt in attempts]
    (message,) = query.found()
    assert message.headers[HASH_HEADER] == hashlib.sha256("\0".join(hashes).encode()).hexdigest()


@pytest.mark.parametrize("busy", BOTH)
def test_one_that_is_idle_stays_as_it_is(query: Query, busy: str) -> None:
    query.feed(orders="a", payments="c")
    query.batch(0, "x")
    query.confirm()
    query.feed(**{busy: "de"})
    query.write(1, "lost")
    query.batch(1, "y", "z")
    query.batch(1, "again")
    query.start()
    query.batch(1, "and again")
    before = query.done()
    assert query.text() == "xyz"
    assert {name: ids - {"a", "c"} for name, ids in before.items()} == {
        name: set("de" * (name == busy)) for name in BOTH
    }
    assert [attempt for attempt in query.attempts() if attempt[1] == 1] == {
        "orders": [("orders", 1, 2, 2)],
        "payments": [("orders", 1, 0, 2), ("payments", 1, 2, None)],
    }[busy]
    assert query.left_over() == 0


def test_rows_of_batches_in_which_neither_has_anything_are_shown_once(query: Query) -> None:
    query.feed(orders="a", payments="c")
    query.batch(0, "x")
    query.confirm()
    for number, row in ((1, "y"), (2, "z")):
        query.batch(number, row)
        query.batch(number, row)
    assert query.text() == "xyz"
    stamps = {(m.headers[HASH_HEADER], m.headers[INDEX_HEADER]) for m in query.found()}
    assert len(stamps) == 3
    assert query.left_over() == 0


def test_a_pipeline_that_never_had_anything_is_idle_too(query: Query) -> None:
    query.feed(payments="c")
    query.batch(0, "x")
    query.batch(0, "x")
    assert (query.text(), query.done()) == ("x", {"orders": set(), "payments": {"c"}})


@pytest.mark.parametrize("whose", BOTH)
def test_when_either_was_taken_over_nothing_is_shown_and_neither_advances(query: Query, whose: str) -> None:
    query.feed(orders="a", payments="c")
    written = query.write(0, "x")
    Pipeline.start(query.store, whose, f"source of {whose}")
    with pytest.raises(PipelineTakenOver, match=whose):
        query.commit(0, written)
    assert (query.text(), query.done(), query.attempts()) == ("", {"orders": set(), "payments": set()}, [])
    query.start()
    query.batch(0, "x")
    assert (query.text(), query.done()) == ("x", {"orders": {"a"}, "payments": {"c"}})
    assert query.left_over() == 0


@pytest.mark.parametrize("whose", BOTH)
def test_a_shard_that_either_lost_undoes_all_and_the_next_attempt_goes_without_it(query: Query, whose: str) -> None:
    query.feed(orders="ab", payments="cd")
    written = query.write(0, "xy")
    us = query.pipelines[whose]
    other = Pipeline.start(query.store, "other", us.source)
    lost = us.plan().ranges[0]
    query.store.database.write(lambda c: ownership.release(c, us.token, [lost.key]))
    assert query.store.acquire(other.token, {lost.key: None}) == {lost.key}
    with pytest.raises(ShardsLost, match=whose):
        query.commit(0, written)
    assert (query.text(), query.attempts(), query.done()) == ("", [], {"orders": set(), "payments": set()})
    query.start()  # the failure has ended the query
    query.batch(0, "x")
    assert query.text() == "x"
    assert sum(map(len, query.done().values())) == 3
    assert query.left_over() == 0


def test_what_tasks_of_a_plan_and_of_the_one_before_wrote_is_not_published_together(query: Query) -> None:
    query.feed(orders="a")
    before = query.write(0, "x")
    query.feed(orders="b")
    with pytest.raises(ShardStoreError, match="batch 1: expected commit messages of one plan and got 2"):
        query.commit(1, [*before, *query.write(1, "y")])
    assert (query.text(), query.attempts(), query.done()) == ("", [], {"orders": set(), "payments": set()})


def test_what_failed_attempts_staged_is_found_in_whatever_order_the_pipelines_are_named(tmp_path: Path) -> None:
    first = Query(tmp_path, names="payments, orders")
    first.feed(orders="a", payments="c")
    first.write(0, "lost")
    assert first.left_over() > 0
    second = Query(tmp_path, names="orders, payments")
    second.batch(0, "x")
    assert (second.text(), second.left_over()) == ("x", 0)
    for made in (first, second):
        made.store.close()


@pytest.mark.parametrize(
    ("point", "fed"),
    [
        ("rows-staged", "orders, payments"),
        ("before-publish", "orders, payments"),
        ("rows-shown", "orders"),
        ("rows-shown", "payments"),
        ("published", "orders, payments"),
        ("published", "payments"),
    ],
)
def test_wherever_the_driver_dies_every_row_is_there_once_and_nothing_is_left(
    query: Query, point: str, fed: str
) -> None:
    query.feed(orders="a", payments="c")
    query.batch(0, "w")
    query.confirm()
    query.feed(**dict.fromkeys(fed.split(", "), "de"))
    with patch.multiple(failpoints, _armed=failpoints._parse(f"{point}@1=raise"), _reached={}):
        with pytest.raises(failpoints.FailpointReached):
            query.batch(1, "xy", "z")
    query.start()
    query.batch(1, "xy", "z")
    assert query.text() == "wxyz"
    wanted = {"orders": {"a"}, "payments": {"c"}}
    assert query.done() == {name: ids | set("de" * (name in fed)) for name, ids in wanted.items()}
    assert query.left_over() == 0


def test_elsewhere_a_batch_that_is_sent_again_by_another_driver_bears_the_same_stamps(tmp_path: Path) -> None:
    query = Query(tmp_path, inside=False)
    query.feed(orders="a", payments="c")
    query.batch(0, "w")
    query.confirm()
    query.feed(payments="d")
    query.write(1, "xy", "z")
    query.start()
    query.batch(1, "yx", "z")
    query.confirm()
    query.feed(orders="b")
    query.batch(2, "xy")
    assert query.text() == "wxxxyyyzz"
    rows_of = {(m.body, m.headers[HASH_HEADER], m.headers[INDEX_HEADER]) for m in query.found()}
    assert sorted(body for body, _, _ in rows_of) == [b"w", b"x", b"x", b"y", b"y", b"z"]
    assert query.done() == {"orders": {"a", "b"}, "payments": {"c", "d"}}
    query.store.close()
