"""The sink with `queueUrl`: columns, stamps, and what each kind of queue gets. Without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import OptionError, QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Received
from queue_source.options import parse_sink_options
from queue_source.queues import open_queue
from queue_source.queues.sim import Fault, SimQueue
from queue_source.queues.sql import SqlQueue
from queue_source.read.fixed_rows import MESSAGE_SCHEMA
from queue_source.sinks.base import Batch, open_sink
from queue_source.sinks.queue import (
    HASH_HEADER,
    INDEX_HEADER,
    QueueSink,
    RowRefused,
    Written,
    check_columns,
    messages_of,
)
from shard_store.model import Plan
from shard_store.store import ShardStore, open_store
from support.store_backends import Pipeline

SCHEMA = pa.schema(
    [
        ("value", pa.string()),
        ("tag", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("group", pa.string()),
    ]
)
DIGEST = "ab" * 32


def batch_of(*rows: Any, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows as tuples in the order of the schema, which may be shorter; a single value is the value."""
    full = [row if isinstance(row, tuple) else (row,) for row in rows]
    full = [(*row, *[None] * (len(schema) - len(row))) for row in full]
    return pa.record_batch([pa.array(column, f.type) for column, f in zip(zip(*full), schema)], schema=schema)  # noqa: B905


def messages(*batches: pa.RecordBatch, task: str = "7.3", by_content: bool = True) -> list[Any]:
    return list(messages_of(batches, DIGEST, task, by_content=by_content))


# --- columns ---------------------------------------------------------------------------------------------------------


def test_rows_of_messages_may_be_written_as_they_were_read() -> None:
    check_columns(MESSAGE_SCHEMA)
    check_columns(MESSAGE_SCHEMA.append(pa.field("_metadata", pa.struct([("queue", pa.string())]))))
    row = (b"\xff", "the key", "a.b", [("h", "1")], "sql+sqlite:///a.db?queue=a", 1, 2)
    (message,) = messages(batch_of(row, schema=MESSAGE_SCHEMA), by_content=False)
    assert message[:4] == (b"\xff", "a.b", {"h": "1", HASH_HEADER: DIGEST, INDEX_HEADER: "7.3.0"}, None)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("value", pa.binary()), ("id", pa.int64())]), "no place for the column 'id'"),
        (pa.schema([("value", pa.int64())]), "column 'value' of a message is BINARY or STRING, not int64"),
        (pa.schema([("tag", pa.string())]), "needs the column 'value'"),
        (pa.schema([("value", pa.string()), ("tag", pa.int32())]), "column 'tag' of a message is STRING"),
        (
            pa.schema([("value", pa.string()), ("headers", pa.string())]),
            "'headers' of a message is MAP<STRING, STRING>",
        ),
        (
            pa.schema([("value", pa.string()), ("headers", pa.map_(pa.string(), pa.int32()))]),
            "'headers' of a message is MAP<STRING, STRING>",
        ),
        (pa.schema([("value", pa.string()), ("value", pa.string())]), "column 'value' is there twice"),
    ],
)
def test_other_columns_are_refused_at_planning_by_their_name(schema: pa.Schema, said: str) -> None:
    with pytest.raises(OptionError, match="queueUrl") as caught:
        check_columns(schema)
    assert said in caught.value.problem
    assert any(step in caught.value.problem for step in ("select(", "cast", "leave"))


def test_a_row_without_a_value_or_with_a_null_header_is_refused_by_its_number() -> None:
    with pytest.raises(RowRefused, match="null; filter") as caught:
        messages(batch_of("a", "b"), batch_of("c", None))
    assert caught.value.row == 3
    with pytest.raises(RowRefused, match="header 'h' is null"):
        messages(batch_of(("a", None, [("h", None)])))


# --- stamps ----------------------------------------------------------------------------------------------------------


def stamps(found: list[Any]) -> list[tuple[str, str]]:
    return [(m.headers[HASH_HEADER], m.headers[INDEX_HEADER]) for m in found]


def test_equal_rows_have_stamps_of_their_own_and_the_same_ones_when_the_task_runs_again_in_another_order() -> None:
    rows = ["a", "b", "a", ("a", "tag"), ("a", None, [("h", "1")]), ("a", None, None, "group"), "c", ("c", "")]
    first = messages(batch_of(*rows))
    again = messages(batch_of(*rows[4:]), batch_of(*rows[:4]))
    assert len(set(stamps(first))) == len(rows)
    assert {(m.body, m.tag, stamp) for m, stamp in zip(first, stamps(first), strict=True)} == {
        (m.body, m.tag, stamp) for m, stamp in zip(again, stamps(again), strict=True)
    }
    assert len({m.deduplication_id for m in first}) == len(rows)
    assert all(len(m.deduplication_id) <= 128 for m in first)


def test_equal_rows_of_two_tasks_or_batches_are_never_taken_for_one() -> None:
    found = [messages(batch_of("a"), task=task)[0].deduplication_id for task in ("7.3", "7.4", "8.3")]
    assert len(set(found)) == 3


def test_a_message_that_is_sent_on_gets_a_new_stamp_in_place_of_the_old() -> None:
    (first,) = messages(batch_of(("a", "t", [("h", "1")])), task="1.1")
    for by_content in (True, False):
        (second,) = messages(batch_of(("a", "t", list(first.headers.items()))), by_content=by_content)
        assert second.headers.keys() == {"h", HASH_HEADER, INDEX_HEADER}
        assert second.headers[INDEX_HEADER].startswith("7.3.")


@pytest.mark.parametrize("name", [HASH_HEADER, INDEX_HEADER])
def test_a_users_header_with_the_name_of_a_stamp_is_refused(name: str) -> None:
    with pytest.raises(RowRefused, match=f"'{name}' is the name of a stamp"):
        messages(batch_of(("a", None, [(name, "mine")])))


# --- where rows go ---------------------------------------------------------------------------------------------------


class World:
    """A store with a pipeline, and a sink that writes to a queue."""

    def __init__(self, folder: Path, queue_url: str) -> None:
        self.store: ShardStore = open_store(f"sqlite:///{folder}/store.db")
        self.pipeline = Pipeline.start(self.store)
        given = {"store": f"sqlite:///{folder}/store.db", "pipeline": "p", "queueUrl": queue_url}
        self.sink = open_sink(parse_sink_options(given))

    def write(self, plan: Plan, *rows: Any, task: str = "0.0") -> Written:
        batches = iter([batch_of(*rows)] if rows else [])
        written: Written = self.sink.write(batches, SCHEMA, Batch((plan.identity,), task))
        return written

    def commit(self, plan: Plan, *written: Written, batch_id: int = 0) -> None:
        self.sink.commit(self.store, Batch((plan.identity,)), written, row_schema="{}", batch_id=batch_id)

    def attempts(self) -> list[tuple[str, int]]:
        from support.store_backends import rows

        return [(row["kind"], row["rows"]) for row in rows(self.store, "attempts")]


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[World]:
    """The queue is in the store's database, by another name of the same file."""
    (tmp_path / "link").symlink_to(tmp_path)
    world = World(tmp_path, f"sql+sqlite+pysqlite:///{tmp_path}/link/store.db?queue=out")
    yield world
    world.store.close()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[World]:
    with SimQueue(f"sim://out?dir={tmp_path}") as queue:
        queue.create()
    world = World(tmp_path, f"sim://out?dir={tmp_path}")
    yield world
    world.store.close()


def in_queue(folder: Path, kind: str) -> list[Received]:
    url = f"sim://out?dir={folder}" if kind == "outside" else f"sql+sqlite:///{folder}/store.db?queue=out"
    opened: Any = open_queue(url)
    with opened as queue:
        return sorted(queue.peek(10_000), key=lambda message: message.body)


def test_messages_in_the_stores_database_are_there_when_the_batch_is_published_and_once(
    inside: World, tmp_path: Path
) -> None:
    plan = inside.pipeline.planned("a")
    failed = inside.write(plan, "a", "b")
    one, two, none = inside.write(plan, "a"), inside.write(plan, "b", task="0.1"), inside.write(plan, task="0.2")
    assert in_queue(tmp_path, "inside") == []
    inside.commit(plan, one, two, none)
    inside.commit(plan, one, two, none)
    inside.commit(plan, failed)
    found = in_queue(tmp_path, "inside")
    assert [m.body for m in found] == [b"a", b"b"]
    assert [m.headers for m in found] == [
        {HASH_HEADER: plan.identity.delivery_hash, INDEX_HEADER: f"0.{task}.0"} for task in (0, 1)
    ]
    assert inside.attempts() == [("attempt-output", 2)]
    with open_queue(f"sql+sqlite:///{tmp_path}/store.db?queue={failed.staged}") as hidden:
        assert hidden.depth().total == 0


def test_a_batch_without_rows_is_published_as_one_without_output(inside: World, tmp_path: Path) -> None:
    plan = inside.pipeline.planned("a")
    inside.commit(plan, inside.write(plan))
    assert (inside.attempts(), in_queue(tmp_path, "inside")) == ([("attempt-nil", 0)], [])


def test_nothing_becomes_visible_when_another_incarnation_has_taken_over(inside: World, tmp_path: Path) -> None:
    plan = inside.pipeline.planned("a")
    written = inside.write(plan, "a")
    Pipeline.start(inside.store)
    with pytest.raises(Exception, match="incarnation"):
        inside.commit(plan, written)
    assert in_queue(tmp_path, "inside") == []


def test_many_rows_go_in_portions_and_all_arrive(inside: World, tmp_path: Path) -> None:
    plan = inside.pipeline.planned("a")
    sizes = [100] * 5_500 + [3 << 20] * 4
    inside.commit(plan, inside.write(plan, *("x" * size for size in sizes)))
    assert sorted(len(m.body) for m in in_queue(tmp_path, "inside")) == sizes
    assert len({m.headers[INDEX_HEADER] for m in in_queue(tmp_path, "inside")}) == len(sizes)


def test_any_other_queue_has_the_messages_before_the_batch_is_published(outside: World, tmp_path: Path) -> None:
    plan = outside.pipeline.planned("a")
    written = outside.write(plan, "a", ("b", "t", [("h", "1")]))
    found = in_queue(tmp_path, "outside")
    assert [(m.body, m.tag, m.headers.get("h")) for m in found] == [(b"a", "", None), (b"b", "t", "1")]
    outside.commit(plan, written)
    assert outside.attempts() == [("attempt-output", 2)]


def test_a_batch_that_is_sent_again_bears_the_same_stamps(outside: World, tmp_path: Path) -> None:
    plan = outside.pipeline.planned("a")
    outside.write(plan, "a", "b")
    outside.commit(plan, outside.write(plan, "b", "a"))
    found = in_queue(tmp_path, "outside")
    assert [m.body for m in found] == [b"a", b"a", b"b", b"b"]
    assert len({(m.body, m.headers[HASH_HEADER], m.headers[INDEX_HEADER]) for m in found}) == 2


def test_a_queue_that_fails_fails_the_task_with_its_name(outside: World, tmp_path: Path) -> None:
    plan = outside.pipeline.planned("a")
    with SimQueue(f"sim://out?dir={tmp_path}") as queue:
        queue.order(Fault.DISCONNECT, verb="publish")
    with pytest.raises(QueueUnavailable, match="sim://out"):
        outside.write(plan, "a")
    assert outside.attempts() == []
    outside.commit(plan, outside.write(plan, "a"))


@pytest.mark.parametrize("kind", ["inside", "outside"])
def test_a_row_that_the_queue_cannot_carry_is_named_without_its_content(
    request: pytest.FixtureRequest, kind: str
) -> None:
    world: World = request.getfixturevalue(kind)
    plan = world.pipeline.planned("a")
    with pytest.raises(
        QueueError, match=r"row 5001 of task 0\.0 cannot be a message: .*nothing that it read"
    ) as caught:
        world.write(plan, *["good"] * 5_001, ("secret", "\0bad"))
    assert "secret" not in str(caught.value)
    with pytest.raises(QueueError, match=r"row 1 of task 0\.0 cannot be a message: its value is null"):
        world.write(plan, "good", None)


def test_a_sql_queue_elsewhere_is_sent_to_at_least_once_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sql+sqlite:///{tmp_path}/elsewhere.db?queue=out"
    world = World(tmp_path, url)
    plan = world.pipeline.planned("a")
    written = world.write(plan, "a")
    with SqlQueue(url) as queue:
        assert queue.depth().total == 1
    with caplog.at_level(logging.WARNING):
        world.commit(plan, written)
    assert "at least once" in caplog.text
    world.store.close()


def test_what_tasks_have_staged_is_never_left_out_of_the_publish(inside: World, tmp_path: Path) -> None:
    """Should the commit process see another file under a relative name than the tasks, the batch fails."""
    plan = inside.pipeline.planned("a")
    written = inside.write(plan, "a")
    given = {"store": f"sqlite:///{tmp_path}/store.db", "pipeline": "p"}
    other = QueueSink(parse_sink_options({**given, "queueUrl": f"sql+sqlite:///{tmp_path}/other.db?queue=out"}))
    with pytest.raises(Exception, match=r"no such table|staged messages 0 are known"):
        other.commit(inside.store, Batch((plan.identity,)), [Written(1, 1, "x")], row_schema="{}", batch_id=0)
    assert inside.attempts() == []
    inside.commit(plan, written)
    assert inside.attempts() == [("attempt-output", 1)]


def test_a_url_of_no_queue_is_refused_at_planning(tmp_path: Path) -> None:
    sink = open_sink(parse_sink_options({"pipeline": "p", "queueUrl": "nats://x"}))
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(QueueConfigurationError, match="unknown kind 'nats'"):
            sink.prepare(store, SCHEMA, ())
