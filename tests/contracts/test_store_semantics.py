"""Contract: the journal (Cues' snapshots and attempts) under each delivery semantics."""

from __future__ import annotations

import pytest

from shard_store.errors import ShardsLost, StoreConfigurationError
from shard_store.model import (
    BEGINNING,
    ErrorRecord,
    Range,
    Semantics,
    ShardState,
    Split,
    delivery_hash,
    end_at,
    position_at,
    shard_key,
)
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content, rows

AT_LEAST, AT_MOST = Semantics.AT_LEAST_ONCE, Semantics.AT_MOST_ONCE


def unkept(*ids: str) -> list[Range]:
    """Ranges of shards that the store has no rows of."""
    return [Range(shard_key("s", i), content(i), BEGINNING, end_at(10)) for i in ids]


def attempts(store: ShardStore) -> list[tuple[str, int, int, int]]:
    """(kind, shards, lost, errors) of each, in the order of their ends."""
    found = sorted(rows(store, "attempts"), key=lambda row: row["end_seq"])
    return [(row["kind"], row["shards"], row["lost"], row["errors"]) for row in found]


# --- the journal ---


@pytest.mark.parametrize("semantics", list(Semantics))
def test_the_delivery_hash_of_an_attempt_is_the_hash_of_its_snapshots(store: ShardStore, semantics: Semantics) -> None:
    """Cues' recovery: nothing but the journal is needed to tell whether the newest attempt was successful."""
    us = Pipeline.start(store, semantics=semantics)
    if semantics.keeps_shards:
        us.open("a", "b", "c")
    us.write(*unkept("b"))
    us.write(*unkept("a", "c"))
    journal = [r for snapshot in store.start("s", "p", semantics=semantics).unconfirmed for r in snapshot.ranges]
    us = Pipeline.start(store, semantics=semantics)
    us.publish(us.plan(), Split("/split", 3, 1))
    [attempt] = rows(store, "attempts")
    assert attempt["delivery_hash"] == delivery_hash("s", "p", journal, (0, 2))


@pytest.mark.parametrize("semantics", list(Semantics))
def test_recovery_hands_out_a_newest_snapshot_and_not_one_with_its_attempt(
    store: ShardStore, semantics: Semantics
) -> None:
    us = Pipeline.start(store, semantics=semantics)
    if semantics.keeps_shards:
        us.open("a", "b")
    us.write(*unkept("a"))
    us.publish(us.plan(), Split("/split", 1, 1))  # and dies before anybody says that the batch is done
    started = store.start("s", "p", semantics=semantics)
    assert (started.confirmed_seq, started.unconfirmed) == (1, ())
    us = Pipeline.start(store, semantics=semantics)
    assert store.plan(us.token, 0, 1).published
    us.write(*unkept("b"))  # and dies without an attempt
    started = store.start("s", "p", semantics=semantics)
    assert (started.confirmed_seq, [s.seq for s in started.unconfirmed]) == (1, [2])


@pytest.mark.parametrize("semantics", list(Semantics))
def test_the_queue_of_origin_is_the_snapshots_also_when_the_other_queue_brings_the_shard_again(
    store: ShardStore, semantics: Semantics
) -> None:
    """Cues' alts: what one queue announced is retried as that queue's, whichever has messages by then."""
    us = Pipeline.start(store, semantics=semantics)
    first, second = content("a")._replace(queue="first"), content("a")._replace(queue="second")
    if semantics.keeps_shards:
        store.open_shards(us.token, "s", [first])
    us.write(Range(shard_key("s", "a"), first, BEGINNING, end_at(10)))
    us.plan()
    us = Pipeline.start(store, semantics=semantics)  # the failure falls between snapshot and attempt
    if semantics.keeps_shards:
        store.open_shards(us.token, "s", [second])
    plan = us.plan()
    assert [r.content.queue for r in (*plan.ranges, *plan.lost)] == ["first"]
    us.publish(plan, Split("/split", 1, 1))
    again = Pipeline.start(store, semantics=semantics)  # and now between attempt and Spark's commit
    assert store.plan(again.token, 0, 1).published


def test_each_kind_of_attempt_is_recorded_as_cues_does(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.publish(us.planned("rows"), Split("/split", 1, 1))
    us.confirm()
    us.publish(us.planned("no rows"))
    us.confirm()
    plan = us.planned("bad")
    error = ErrorRecord("object", "missing-object", "it is gone", "bad", plan.identity.delivery_hash)
    store.record_errors("s", "p", [error])
    us.publish(plan)
    assert [kind for kind, *_ in attempts(store)] == ["attempt-output", "attempt-nil", "attempt-error"]


# --- at-least-once ---


def test_at_least_once_plans_and_confirms_without_a_single_shard_row(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_LEAST)
    us.write(*unkept("a", "b"))
    plan = us.plan()
    assert [r.content.shard_id for r in plan.ranges] == ["a", "b"]
    us = Pipeline.start(store, semantics=AT_LEAST)
    again = us.plan()
    assert (again.ranges, again.identity.delivery_hash) == (plan.ranges, plan.identity.delivery_hash)
    keys = [r.key for r in plan.ranges]
    assert us.confirm(keys) == set(keys)
    assert rows(store, "shards") == []
    assert attempts(store) == [("attempt-output", 2, 0, 0)]


def test_at_least_once_leaves_the_shards_of_other_pipelines_alone(store: ShardStore) -> None:
    other, us = Pipeline.start(store, "other"), Pipeline.start(store, semantics=AT_LEAST)
    other.open("a")
    us.write(*unkept("a"))
    plan = us.plan()
    error = ErrorRecord("object", "missing-object", "it is gone", "a", plan.identity.delivery_hash)
    store.record_errors("s", "p", [error])
    us.publish(plan)
    assert us.confirm([plan.ranges[0].key]) == {plan.ranges[0].key}
    assert other.look("a")["a"].state is ShardState.OPEN
    assert attempts(store) == [("attempt-error", 1, 0, 1)]


# --- at-most-once ---


def test_at_most_once_shards_are_final_with_their_snapshot(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    found = us.open("a", "b")
    us.snapshot(*found.values(), ends=[end_at(10), position_at(4)])
    assert us.look("a")["a"].state is ShardState.DONE
    assert (us.look("b")["b"].state, us.look("b")["b"].position) == (ShardState.OPEN, position_at(4))
    plan = us.plan()
    assert len(plan.ranges) == 2
    us.publish(plan, Split("/split", 2, 1))
    us.confirm()
    us.snapshot(us.look("b")["b"])
    assert [r.start for r in us.plan().ranges] == [position_at(4)]


def test_at_most_once_only_what_no_plan_held_is_in_the_plan_of_another_incarnation(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    us.snapshot(*us.open("a").values())
    us.plan()
    us.snapshot(*us.open("b").values())
    us = Pipeline.start(store, semantics=AT_MOST)
    plan = us.plan()  # of both: a lost checkpoint
    assert [r.content.shard_id for r in plan.ranges] == ["b"]
    assert [r.content.shard_id for r in plan.lost] == ["a"]
    us.publish(plan, Split("/split", 1, 1))
    assert attempts(store) == [("attempt-output", 1, 1, 0)]


@pytest.mark.parametrize("publishes", [True, False], ids=["cuesqueue", "foreign"])
def test_at_most_once_the_second_attempt_is_nil_and_tells_what_was_lost(store: ShardStore, publishes: bool) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    us.planned("a", "b")
    us = Pipeline.start(store, semantics=AT_MOST)
    plan = us.plan()
    assert plan.ranges == ()
    if publishes:
        us.publish(plan)
    us.confirm()
    assert attempts(store) == [("attempt-nil", 0, 2, 0)]


def test_at_most_once_a_bad_object_is_quarantined_though_it_was_final_before(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    plan = us.planned("a", "b")
    error = ErrorRecord("object", "missing-object", "it is gone", "a", plan.identity.delivery_hash)
    store.record_errors("s", "p", [error])
    us.publish(plan, Split("/split", 1, 1))
    assert us.look("a")["a"].state is ShardState.QUARANTINED
    assert us.look("b")["b"].state is ShardState.DONE


def test_at_most_once_what_passed_to_another_is_left_out_of_the_snapshot(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store, semantics=AT_MOST), Pipeline.start(store, "other", semantics=AT_MOST)
    found = us.open("a", "b")
    backend.clock.advance(STALE + 1)
    store.acquire(other.token, {found["a"].key: us.token})
    ranges = unkept("a", "b")
    assert store.advance(us.token, snapshot=(1, ranges)).written == (ranges[1],)
    assert store.advance(us.token, snapshot=(1, ranges)).written == (ranges[1],)  # as when the answer was lost
    assert other.look("a")["a"].state is ShardState.OPEN


def test_at_most_once_fails_without_a_trace_when_a_shard_passes_on_between_look_and_update(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    us = Pipeline.start(store, semantics=AT_MOST)
    us.open("a")
    monkeypatch.setattr("shard_store.batches.progress.split_by_fit", lambda entries, positions: (list(entries), []))
    with pytest.raises(ShardsLost, match="nobody's"):
        us.write(*unkept("a"), *unkept("nobody's"))
    assert us.look("a")["a"].state is ShardState.OPEN
    assert store.start("s", "p", semantics=AT_MOST).last_seq == 0


# --- changing ---


@pytest.mark.parametrize(
    ("before", "after"), [(Semantics.EXACTLY_ONCE, AT_MOST), (AT_MOST, AT_LEAST), (AT_LEAST, Semantics.EXACTLY_ONCE)]
)
def test_semantics_change_only_where_nothing_is_unfinished(
    store: ShardStore, before: Semantics, after: Semantics
) -> None:
    us = Pipeline.start(store, semantics=before)
    if before.keeps_shards:
        us.open("a")
    us.write(*unkept("a"))
    with pytest.raises(StoreConfigurationError, match=f"run with {before.value}.*1 snapshot"):
        store.start("s", "p", semantics=after)
    us.plan()
    us.confirm()
    assert store.start("s", "p", semantics=after).unconfirmed == ()
