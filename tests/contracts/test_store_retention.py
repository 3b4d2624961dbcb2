"""Contract: what a micro-batch has written is forgotten once no plan can need it again (decision 0032)."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from shard_store.batches import snapshots as snapshot_rows
from shard_store.batches.starting import Started
from shard_store.model import BEGINNING, Content, Payload, Range, Semantics, Split, end_at, shard_key
from shard_store.sql.schema import snapshots
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import Pipeline, StoreBackend, rows

AT_LEAST = Semantics.AT_LEAST_ONCE
CENTURY = RetentionPolicy(timedelta(days=36_500))
SPLIT = Split("/x", 1, 1)


def message(number: int, size: int) -> Content:
    name = f"queue#{number}"
    return Content(name, name, size, None, "queue", str(number), payload=Payload(b"x" * size, str(number)))


def deliver_messages(us: Pipeline, count: int, size: int) -> None:
    """A whole micro-batch of messages with their bodies."""
    contents = [message(number, size) for number in range(count)]
    found = us.store.open_shards(us.token, us.source, contents)
    us.write(*(Range(s.key, c, s.position, end_at(size)) for s, c in zip(found.values(), contents, strict=True)))
    us.publish(us.plan(), SPLIT)
    us.confirm()


def kept(store: ShardStore) -> list[tuple[int, int, int]]:
    """Of each row of a snapshot: its seq, and how long its moves and contents are."""
    lengths = sa.func.length(snapshots.c.moves), sa.func.length(snapshots.c.contents)
    query = sa.select(snapshots.c.seq, *lengths).order_by(snapshots.c.seq, snapshots.c.chunk)
    return [tuple(row) for row in store.database.read(lambda t: t.execute(query).all())]


def test_after_the_confirm_nothing_is_kept_of_a_thousand_messages_of_20_kb(store: ShardStore) -> None:
    us = Pipeline.start(store)
    deliver_messages(us, 1000, 20_000)
    assert kept(store) == []
    assert len(rows(store, "shards")) == 1000


def test_with_at_least_once_the_bodies_go_at_once_and_the_moves_when_no_restart_asks_for_them(
    backend: StoreBackend,
) -> None:
    store = backend.open()

    def start() -> Started:
        return store.start("s", "p", semantics=AT_LEAST, remembered=300.0)

    us = Pipeline(store, start().token, "s")
    first, second = (Range(shard_key("s", str(n)), message(n, 20_000), BEGINNING, end_at(20_000)) for n in (1, 2))
    for entry in (first, second):
        us.write(entry)
        us.plan()
        us.confirm([entry.key])
        assert {contents for _, _, contents in kept(store)} == {0}
        assert store.prune(CENTURY).snapshots == 0
        backend.clock.advance(200)
    assert start().recent == {second.key}
    assert store.prune(CENTURY).snapshots == 1
    assert [seq for seq, *_ in kept(store)] == [2]
    assert start().recent == {second.key}


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_batch_that_was_published_before_a_kill_is_planned_again_with_what_it_held(
    store: ShardStore, restarts: int
) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b")
    us.publish(plan, SPLIT)
    for _ in range(restarts):
        again = Pipeline.start(store)  # it counts as confirmed now, and Spark does not know
        assert again.confirmed == 1
        store.prune(CENTURY)
    repeated = store.plan(again.token, 0, 1)
    assert (repeated.published, repeated.ranges) == (True, plan.ranges)


def test_what_a_restart_left_of_a_published_batch_goes_with_pruning_once_the_next_is_planned(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.publish(us.planned("a"), SPLIT)
    again = Pipeline.start(store)
    assert store.prune(CENTURY).snapshots == 0
    again.deliver("b")
    assert [seq for seq, *_ in kept(store)] == [1]
    assert store.prune(CENTURY).snapshots == 1
    assert kept(store) == []


def test_a_batch_that_another_sink_has_taken_is_delivered_from_its_snapshots_and_then_they_go(
    store: ShardStore,
) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    store.prune(CENTURY)
    again = Pipeline.start(store)
    again.plan()
    store.prune(CENTURY)
    again.confirm()
    assert again.look("a")["a"].state.value == "done"
    assert kept(store) == []


def test_a_snapshot_that_is_written_with_a_confirm_stays(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.publish(us.planned("a"), SPLIT)
    (shard,) = us.open("b").values()
    entry = Range(shard.key, shard.content, shard.position, end_at(10))
    for _ in range(2):  # the second time as when the answer to the first was lost
        store.advance(us.token, confirm=1, snapshot=(2, [entry]))
        assert [seq for seq, *_ in kept(store)] == [2]
    assert store.plan(us.token, 1, 2).ranges == (entry,)


def test_when_a_file_was_processed_is_known_after_its_snapshot_is_gone(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    written = round(backend.clock.now * 1_000_000)
    backend.clock.advance(5)
    us.publish(us.plan(), SPLIT)
    us.confirm()
    assert [row["processed_time"] for row in rows(store, "files_state")] == [written]


def test_no_statement_carries_more_than_some_megabytes_of_a_snapshot(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    contents = [message(number, 1 << 20) for number in range(9)]
    found = store.open_shards(us.token, us.source, contents)
    written = us.write(*(Range(s.key, c, BEGINNING, end_at(1)) for s, c in zip(found.values(), contents, strict=True)))
    sizes = [length for _, _, length in kept(store)]
    assert max(sizes) <= snapshot_rows.CHUNK_BYTES + (1 << 20)
    assert sum(sizes) > 9 << 20
    assert us.plan().ranges == written


@pytest.mark.parametrize("size", [snapshot_rows.PIECE - 1, 4 * snapshot_rows.PIECE + 1, 27 << 20])
def test_a_message_of_any_size_goes_through_statements_of_some_megabytes(store: ShardStore, size: int) -> None:
    """MariaDB takes no more than 16 MB in one statement, unless it is set up to."""
    us = Pipeline.start(store)
    large, small = message(1, size), message(2, 1)
    # as JSON all of it has to be escaped: quotes, a NUL, and characters of four bytes
    odd = message(3, 1)._replace(payload=Payload(b"", "3", headers=(("h", '"\0\U0001f600' * (size // 30)),)))
    contents = (large, small, odd)
    found = store.open_shards(us.token, us.source, contents)
    us.write(*(Range(s.key, c, BEGINNING, end_at(1)) for s, c in zip(found.values(), contents, strict=True)))
    assert [entry.content for entry in us.plan().ranges] == list(contents)
    assert max(length for _, _, length in kept(store)) <= 4 << 20
    us.publish(us.plan(), SPLIT)
    us.confirm()
    assert kept(store) == []
