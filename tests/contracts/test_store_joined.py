"""Contract: a micro-batch of several pipelines (a join or a union) is published as one, once for each of its plans."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from shard_store.batches.publishing import Published
from shard_store.errors import PipelineTakenOver, ShardsLost
from shard_store.model import ErrorRecord, PlanIdentity, ShardState, Split
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend, rows

BOTH = ("orders", "payments")


class Query:
    """A query over two sources: `feed` says what each has in a batch, `publish` is what its sink does."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self.pipelines = {name: Pipeline.start(store, name, f"source of {name}") for name in BOTH}

    def feed(self, **ids: Sequence[str]) -> None:
        for name, of_it in ids.items():
            self.pipelines[name].planned(*of_it)

    def plans(self) -> tuple[PlanIdentity, ...]:
        return tuple(self.store.current_plan(name) for name in BOTH)

    def publish(self, batch_id: int, *splits: str) -> Published:
        return self.store.publish(self.plans(), [Split(s, 1, 10) for s in splits], batch_id=batch_id)

    def confirm(self) -> None:
        for pipeline in self.pipelines.values():
            pipeline.confirm()


def attempts(store: ShardStore) -> list[tuple[Any, ...]]:
    """Of each: whose it is, which shards and splits it counts, and whose attempt has its rows."""
    found = rows(store, "attempts")
    names = {row["delivery_hash"]: row["pipeline"] for row in found}
    return sorted(
        (row["pipeline"], row["batch_id"], row["shards"], row["splits"], names[row["lead_hash"]]) for row in found
    )


def test_all_pipelines_of_a_batch_advance_together_and_the_first_has_the_splits(store: ShardStore) -> None:
    query = Query(store)
    query.feed(orders=["a", "b"], payments=["c"])
    published = store.publish(query.plans(), [Split("/x", 5, 10), Split("/y", 1, 10)], batch_id=0, row_schema="{}")
    assert (published.already, published.shards) == (False, 3)
    assert attempts(store) == [("orders", 0, 2, 2, "orders"), ("payments", 0, 1, 0, "orders")]
    assert {(s["path"], s["pipeline"], s["delivery_hash"]) for s in rows(store, "splits")} == {
        (path, "orders", query.plans()[0].delivery_hash) for path in ("/x", "/y")
    }
    assert {row["state"] for row in rows(store, "shards")} == {"done"}
    assert store.row_schema("orders") == "{}"
    assert sum(row["rows"] or 0 for row in rows(store, "attempts")) == 6
    query.confirm()
    assert len(rows(store, "attempts")) == 2


def test_a_batch_is_published_once_also_by_drivers_that_start_again(store: ShardStore) -> None:
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    query.publish(0, "/x")
    assert query.publish(0, "/again").already
    assert Query(store).publish(0, "/and again").already
    assert [split["path"] for split in rows(store, "splits")] == ["/x"]


@pytest.mark.parametrize("busy", BOTH)
def test_an_idle_pipeline_stays_as_it_is(store: ShardStore, busy: str) -> None:
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    query.publish(0, "/x")
    query.confirm()
    query.feed(**{busy: ["d", "e"]})
    published = query.publish(1, "/y")
    assert (published.already, published.shards) == (False, 2)
    assert query.publish(1, "/again").already
    restarted = Query(store)
    assert restarted.publish(1, "/and again").already
    assert [(s["path"], s["pipeline"]) for s in rows(store, "splits")] == [("/x", "orders"), ("/y", "orders")]
    second = {
        "orders": [("orders", 1, 2, 1, "orders")],
        "payments": [("orders", 1, 0, 1, "orders"), ("payments", 1, 2, 0, "orders")],
    }[busy]
    assert [attempt for attempt in attempts(store) if attempt[1] == 1] == second


def test_a_pipeline_that_never_had_anything_is_idle_too(store: ShardStore) -> None:
    query = Query(store)
    query.feed(payments=["c"])
    assert query.publish(0, "/x").shards == 1
    assert query.publish(0, "/again").already
    assert attempts(store) == [("orders", 0, 0, 1, "orders"), ("payments", 0, 1, 0, "orders")]


def test_batches_without_input_of_any_pipeline_are_published_once_each(store: ShardStore) -> None:
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    query.publish(0, "/x")
    query.confirm()
    for batch in (1, 2):
        assert not query.publish(batch, f"/state {batch}").already
        assert query.publish(batch, "/again").already
    assert [split["path"] for split in rows(store, "splits")] == ["/x", "/state 1", "/state 2"]


def test_what_is_new_beside_a_pipeline_that_published_the_same_batch_number_is_published(store: ShardStore) -> None:
    """A lost checkpoint counts its batches from 0 again: `orders` has nothing new in it, `payments` has."""
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    query.publish(0, "/x")
    for number in (1, 2):
        query.confirm()
        query.pipelines["orders"].confirmed = 0
        query.pipelines["orders"].plan()
        query.feed(payments=[f"d{number}"])
        assert not query.publish(0, f"/y{number}").already
    assert [split["path"] for split in rows(store, "splits")] == ["/x", "/y1", "/y2"]


@pytest.mark.parametrize("busy", BOTH)
def test_a_repeated_batch_is_told_its_own_hash_also_beside_an_idle_pipeline(store: ShardStore, busy: str) -> None:
    """Users write by that key: with the hash of an older batch they would write over its rows."""
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    hashes = [query.publish(0, "/x").delivery_hash]
    query.confirm()
    query.feed(**{busy: ["d"]})
    before = store.delivered(query.plans(), 1)
    hashes.append(query.publish(1, "/y").delivery_hash)
    again = store.delivered(Query(store).plans(), 1)
    assert (before.delivery_hash, before.already) == (hashes[1], False)
    assert (again.delivery_hash, again.already) == (hashes[1], True)
    assert len(set(hashes)) == 2
    reversed_plans = Query(store).plans()[::-1]
    assert store.delivered(reversed_plans, 1) == again, "a query may name its pipelines in another order"


def test_of_two_batches_of_one_number_the_newer_ones_hash_is_told(backend: StoreBackend) -> None:
    """A lost checkpoint counts its batches from 0 again, and `orders` has had its batch 0."""
    store = backend.open()
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    first = query.publish(0, "/x").delivery_hash
    query.confirm()
    backend.clock.advance(1)
    query.feed(payments=["d"])
    second = query.publish(0, "/y").delivery_hash
    assert first != second
    assert store.delivered(Query(store).plans(), 0).delivery_hash == second


@pytest.mark.parametrize("whose", BOTH)
def test_a_shard_that_one_of_them_lost_undoes_all(backend: StoreBackend, whose: str) -> None:
    store = backend.open()
    query = Query(store)
    query.feed(orders=["a", "b"], payments=["c", "d"])
    us = query.pipelines[whose]
    other = Pipeline.start(store, "other", us.source)
    backend.clock.advance(STALE + 1)
    lost = us.plan().ranges[0]
    store.acquire(other.token, {lost.key: us.token})
    with pytest.raises(ShardsLost, match=whose):
        query.publish(0, "/x")
    assert (rows(store, "attempts"), rows(store, "splits")) == ([], [])
    assert {row["state"] for row in rows(store, "shards")} == {"open"}


@pytest.mark.parametrize("whose", BOTH)
def test_a_driver_that_lost_one_of_its_pipelines_publishes_nothing(store: ShardStore, whose: str) -> None:
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    plans = query.plans()
    Pipeline.start(store, whose, f"source of {whose}")
    with pytest.raises(PipelineTakenOver, match=whose):
        store.publish(plans, [Split("/x", 1, 10)], batch_id=0)
    assert (rows(store, "attempts"), rows(store, "splits")) == ([], [])


def test_a_bad_object_of_any_pipeline_is_quarantined_with_the_batch(store: ShardStore) -> None:
    query = Query(store)
    query.feed(orders=["a"], payments=["c", "d"])
    digest = query.plans()[1].delivery_hash
    store.record_errors("source of payments", "payments", [ErrorRecord("object", "missing-object", "why", "c", digest)])
    assert query.publish(0, "/x").quarantined == 1
    assert query.pipelines["payments"].look("c", "d")["c"].state is ShardState.QUARANTINED


def test_a_pipeline_may_be_idle_for_longer_than_attempts_are_kept(backend: StoreBackend) -> None:
    store = backend.open()
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    query.publish(0, "/x")
    query.confirm()
    backend.clock.advance(100 * 86400)
    query.feed(orders=["a2"])
    query.publish(1, "/x2")
    query.confirm()
    backend.clock.advance(100 * 86400)
    assert store.prune(RetentionPolicy(timedelta(days=30))).attempts == 1, "the last of each may be asked for again"
    query = Query(store)
    query.feed(orders=["b"])
    assert query.publish(2, "/y").shards == 1
    assert query.publish(2, "/again").already


def test_pipelines_are_locked_in_one_order_whoever_names_them(store: ShardStore) -> None:
    """Two sinks that name the same pipelines in another order would wait for each other for ever."""
    query = Query(store)
    query.feed(orders=["a"], payments=["c"])
    locked: list[str] = []

    def note(connection: object, cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "cuesqueue_pipelines" in statement and statement.startswith("SELECT"):
            given = parameters.values() if isinstance(parameters, dict) else parameters
            locked.extend(str(value) for value in given if value in BOTH)

    plans = query.plans()
    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        store.publish(plans[::-1], [Split("/x", 1, 10)], batch_id=0)
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", note)
    assert locked[:2] == ["orders", "payments"]
