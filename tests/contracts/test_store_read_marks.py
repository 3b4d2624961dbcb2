"""Marks of reads, and how often a plan was made."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from shard_store.model import ALONE, ErrorRecord, Plan, ReadMark
from shard_store.sql.schema import read_marks
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import Pipeline, StoreBackend


def marks(store: ShardStore) -> int:
    """Of all plans."""
    return len(store.database.read(lambda t: t.execute(read_marks.select()).all()))


def failed(store: ShardStore, *ids: str) -> tuple[Pipeline, Plan]:
    """A pipeline whose plan comes for the second time."""
    Pipeline.start(store).planned(*ids)
    pipeline = Pipeline.start(store)
    return pipeline, pipeline.plan()


def test_a_plan_says_how_often_it_was_made_over_restarts_and_the_next_one_begins_anew(store: ShardStore) -> None:
    assert Pipeline.start(store).planned("a").attempt == 1
    assert Pipeline.start(store).plan().attempt == 2
    pipeline = Pipeline.start(store)
    plan = pipeline.plan()
    assert plan.attempt == 3
    pipeline.publish(plan)
    pipeline.confirm()
    assert pipeline.planned("b").attempt == 1


def test_a_read_that_never_ended_is_there_at_the_next_attempt_and_one_that_ended_is_not(store: ShardStore) -> None:
    pipeline, plan = failed(store, "culprit", "neighbour")
    assert not plan.suspected
    store.begin_read(plan.identity, ReadMark(0, 1, 0))
    store.begin_read(plan.identity, ReadMark(1, 2, 1))
    store.end_read(plan.identity, ReadMark(1, 2, 1))
    assert store.read_marks(plan.identity) == [ReadMark(0, 1, 0, unended=1)]
    assert pipeline.plan().suspected
    store.end_read(plan.identity, ReadMark(0, 1, 0))
    assert not pipeline.plan().suspected


def test_each_read_that_begins_counts_one_more_than_it_knows_of(store: ShardStore) -> None:
    _, plan = failed(store, "a")
    for unended in range(3):
        mark = ReadMark(0, 1, ALONE, unended)
        store.begin_read(plan.identity, mark)
        store.begin_read(plan.identity, mark)  # again, as when nobody knows whether the first was committed
        assert store.read_marks(plan.identity) == [ReadMark(0, 1, ALONE, unended + 1)]


def test_a_read_that_failed_for_a_known_reason_does_not_count_and_those_before_it_do(store: ShardStore) -> None:
    _, plan = failed(store, "a")
    for before in (ReadMark(0, 1, ALONE), ReadMark(0, 1, ALONE, 2)):
        store.begin_read(plan.identity, before)
        store.undo_read(plan.identity, before)
        assert store.read_marks(plan.identity) == ([before] if before.unended else [])
        store.begin_read(plan.identity, ReadMark(0, 1, ALONE, 1))


def test_what_was_read_alone_and_well_is_cleared_of_all_suspicions_and_nothing_else_is(store: ShardStore) -> None:
    _, plan = failed(store, *"abcdef")
    for mark in (ReadMark(0, 2, 0), ReadMark(2, 3, 1), ReadMark(2, 3, ALONE), ReadMark(0, 6, ALONE), ReadMark(3, 4, 2)):
        store.begin_read(plan.identity, mark)
    store.end_read(plan.identity, ReadMark(0, 3, ALONE))
    assert {(mark.first, mark.end) for mark in store.read_marks(plan.identity)} == {(0, 6), (3, 4)}


def test_a_task_that_ends_beside_others_clears_itself_alone(store: ShardStore) -> None:
    """Two tasks may read parts of one object."""
    _, plan = failed(store, "a", "b")
    for task in (0, 1):
        store.begin_read(plan.identity, ReadMark(0, 1, task))
    store.end_read(plan.identity, ReadMark(0, 1, 0))
    assert store.read_marks(plan.identity) == [ReadMark(0, 1, 1, unended=1)]


def test_marks_are_gone_when_their_plan_is_published(store: ShardStore) -> None:
    pipeline, plan = failed(store, "a")
    store.begin_read(plan.identity, ReadMark(0, 1, 0))
    pipeline.publish(plan)
    assert marks(store) == 0


def test_marks_are_gone_when_another_sink_has_taken_the_plan(store: ShardStore) -> None:
    pipeline, plan = failed(store, "a")
    store.begin_read(plan.identity, ReadMark(0, 1, 0))
    pipeline.confirm()
    assert marks(store) == 0


def test_marks_are_gone_when_the_plan_changes_because_a_shard_was_lost(backend: StoreBackend) -> None:
    store = backend.open()
    pipeline, plan = failed(store, "a", "b")
    store.begin_read(plan.identity, ReadMark(0, 1, 0))
    backend.clock.advance(1000)
    other = Pipeline.start(store, "other")
    assert store.acquire(other.token, {plan.ranges[0].key: pipeline.token})
    changed = Pipeline.start(store).plan()
    assert (changed.attempt, changed.suspected, len(changed.ranges)) == (3, False, 1)
    assert marks(store) == 0


def test_marks_of_a_plan_that_nobody_makes_again_are_pruned_and_those_of_a_running_one_are_not(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    pipeline, plan = failed(store, "a")
    pipeline.publish(plan)
    pipeline.confirm()
    pipeline.planned("b")
    running = Pipeline.start(store).plan()
    for identity in (plan.identity, running.identity):  # the first by a task of which nobody knew that it was alive
        store.begin_read(identity, ReadMark(0, 1, 0))
    later = datetime.fromtimestamp(backend.clock.now, timezone.utc) + timedelta(days=31)
    store.prune(RetentionPolicy(), later)
    assert marks(store) == 1
    assert store.read_marks(running.identity)


def test_the_places_in_a_plan_stay_the_same_when_something_in_it_is_found_bad(store: ShardStore) -> None:
    pipeline, plan = failed(store, "a", "b", "c")
    bad = ErrorRecord("object", "kills-its-reader", "", "b", plan.identity.delivery_hash)
    store.record_errors("s", "p", [bad])
    again = pipeline.plan()
    assert [r.content.shard_id for r in again.ranges] == ["a", "c"]
    assert [r.content.shard_id for r in again.whole] == ["a", "b", "c"]
