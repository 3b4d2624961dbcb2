"""Marks of reads in isolation, and how often a plan was made."""

from __future__ import annotations

import sqlalchemy as sa

from shard_store.sql.schema import reads
from shard_store.store import ShardStore
from support.store_backends import Pipeline


def test_a_plan_tells_how_often_it_was_made_over_restarts_and_the_next_one_begins_anew(store: ShardStore) -> None:
    before = Pipeline.start(store)
    assert before.planned("a").attempt == 1
    assert before.plan().attempt == 2
    pipeline = Pipeline.start(store)
    plan = pipeline.plan()
    assert plan.attempt == 3
    pipeline.publish(plan)
    pipeline.confirm()
    assert pipeline.planned("b").attempt == 1


def test_a_read_that_never_ended_is_told_at_the_next_one_and_one_that_ended_is_not(store: ShardStore) -> None:
    plan = Pipeline.start(store).planned("culprit", "neighbour")
    culprit, neighbour = plan.ranges
    for earlier in range(3):
        assert store.begin_read(plan.identity, culprit) == earlier
        assert store.begin_read(plan.identity, neighbour) == 0
        store.end_read(plan.identity, neighbour)


def test_marks_are_gone_with_the_next_plan(store: ShardStore) -> None:
    pipeline = Pipeline.start(store)
    pipeline.planned("a")
    plan = pipeline.plan()
    store.begin_read(plan.identity, plan.ranges[0])
    pipeline.publish(plan)
    pipeline.confirm()
    pipeline.planned("b")
    count = sa.select(sa.func.count()).select_from(reads)
    assert store.database.read(lambda connection: connection.execute(count).scalar_one()) == 0
