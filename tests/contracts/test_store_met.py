"""Contract: an object that was announced without a size is read in one version by all attempts at its plan.

The task that meets it first decides, and no plan before or after.
"""

from __future__ import annotations

import pytest

from shard_store.batches.publishing import Looked
from shard_store.errors import PipelineTakenOver
from shard_store.model import (
    OF_UNKNOWN_VERSION,
    SINK,
    Content,
    Met,
    Plan,
    Range,
    Shard,
    ShardState,
    Split,
    end_at,
    shard_key,
)
from shard_store.store import ShardStore
from support.store_backends import Pipeline, StoreBackend

KEY, OTHER = shard_key("s", "a"), shard_key("s", "b")
OLD, NEW = Met(10, "old"), Met(12, "new")


def announced(
    us: Pipeline, shard_id: str = "a", message: str = "m1", size: int | None = None, etag: str | None = None
) -> Shard:
    content = Content(shard_id, shard_id, size, etag, "q", message)
    (shard,) = us.store.open_shards(us.token, us.source, [content]).values()
    return shard


def planned(us: Pipeline, *opened: Shard) -> Plan:
    us.write(*(Range(s.key, s.content, s.position, end_at(s.content.size or 0)) for s in opened))
    return us.plan()


def facts(us: Pipeline) -> tuple[int | None, str | None]:
    content = us.look("a")["a"].content
    return content.size, content.etag


def test_the_first_task_decides_for_all_and_the_shard_has_its_version(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us), announced(us, "b"))
    assert store.meet(plan.identity, {KEY: OLD}) == {KEY: OLD}
    assert store.meet(plan.identity, {KEY: NEW, OTHER: NEW}) == {KEY: OLD, OTHER: NEW}
    us.publish(plan, Split("/x", 2, 1))
    assert facts(us) == OLD
    assert store.meet(plan.identity, {KEY: NEW}) == {KEY: OLD}, "an action that follows the publication"


def test_an_attempt_after_a_restart_has_the_version_of_the_one_before_and_the_same_hash(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us))
    store.meet(plan.identity, {KEY: OLD})
    for _ in range(2):
        us = Pipeline.start(store)
        again = us.plan()
        assert (again.identity.delivery_hash, again.ranges) == (plan.identity.delivery_hash, plan.ranges)
        assert store.meet(again.identity, {KEY: NEW}) == {KEY: OLD}
    us.publish(again, Split("/x", 1, 1))
    assert facts(us) == OLD


def test_a_task_of_a_driver_that_was_replaced_decides_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us))
    us = Pipeline.start(store)
    us.plan()
    with pytest.raises(PipelineTakenOver):
        store.meet(plan.identity, {KEY: OLD})
    assert facts(us) == (None, None)


def test_a_task_of_a_plan_that_was_replaced_decides_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us, "b"))
    us.publish(plan, Split("/x", 1, 1))
    us.confirm()
    following = planned(us, announced(us))
    assert store.meet(plan.identity, {KEY: OLD}) == {KEY: OLD}
    assert facts(us) == (None, None)
    assert store.meet(following.identity, {KEY: NEW}) == {KEY: NEW}


def test_a_shard_of_another_pipeline_is_left_as_it_is(backend: StoreBackend, store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us))
    backend.run_for(1000.0)
    them = Pipeline.start(store, "other")
    store.acquire(them.token, {KEY: us.token})
    assert store.meet(plan.identity, {KEY: OLD}) == {KEY: OLD}
    assert facts(us) == (None, None)
    theirs = planned(them, them.look("a")["a"])
    assert store.meet(theirs.identity, {KEY: NEW}) == {KEY: NEW}
    assert store.meet(plan.identity, {KEY: OLD}) == {KEY: NEW}


def test_the_first_attempt_at_a_plan_begins_without_what_was_known_of_another_version(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announced(us, size=10, etag="old")
    plan = planned(us, announced(us, message="m2"))
    assert facts(us) == (None, None)
    assert store.meet(plan.identity, {KEY: NEW}) == {KEY: NEW}


@pytest.mark.parametrize(("later", "changed"), [(OLD, False), (NEW, True)])
def test_a_later_announcement_is_compared_with_what_was_met(store: ShardStore, later: Met, changed: bool) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us))
    store.meet(plan.identity, {KEY: OLD})
    us.publish(plan, Split("/x", 1, 1))
    us.confirm()
    again = announced(us, message="m2", size=later.size, etag=later.etag)
    assert (again.state, again.changed) == (ShardState.DONE, changed)


def test_what_was_met_as_empty_is_opened_again_and_then_met_anew(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us))
    store.meet(plan.identity, {KEY: Met(0, "empty")})
    us.publish(plan)
    us.confirm()
    again = announced(us, message="m2")
    assert again.reopened
    assert store.meet(plan.identity, {KEY: Met(0, "empty")}) == {KEY: Met(0, "empty")}, "a task that was forgotten"
    plan = planned(us, again)
    assert store.meet(plan.identity, {KEY: NEW}) == {KEY: NEW}


def test_a_store_that_has_no_row_of_it_has_no_word(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announced(us, "b"))
    assert store.meet(plan.identity, {KEY: OLD}) == {KEY: OLD}


def test_the_usual_size_is_that_of_what_the_source_has_finished(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert store.usual_size("s", "p") == (None, None)
    us.deliver("a", "b")
    us.open("c")
    them = Pipeline.start(store, "q", "t")
    them.planned("d")
    store.take_plan("q", None, SINK)
    assert store.usual_size("s", "p") == (10, None)
    assert store.usual_size("t", "q") == (None, SINK)
    assert store.usual_size("nothing", "nobody") == (None, None)


def publish(us: Pipeline, plan: Plan, verdicts: str | None = None) -> str:
    """Into a table elsewhere, which has the batch already where it has `verdicts`; returns those of this attempt."""
    looked = Looked((1, 1), verdicts is not None, verdicts)
    said = us.store.publish([plan.identity], (), look=lambda _: looked).verdicts
    assert said is not None
    return said


@pytest.mark.parametrize(("met", "kept"), [(OLD, True), (NEW, False)])
def test_a_table_elsewhere_has_the_versions_that_a_restored_store_has_lost(
    backend: StoreBackend, store: ShardStore, met: Met, kept: bool
) -> None:
    """The second attempt is one of the store as it was before the first task met anything."""
    us = Pipeline.start(store)
    plan = planned(us, announced(us), announced(us, "b", size=8, etag="b"))
    store.meet(plan.identity, {KEY: OLD})
    mark = publish(us, plan)
    backend.wipe()
    us = Pipeline.start(store)
    plan = planned(us, announced(us), announced(us, "b", size=8, etag="b"))
    store.meet(plan.identity, {KEY: met})
    publish(us, plan, mark)
    us.confirm()
    assert facts(us) == (met if kept else (None, OF_UNKNOWN_VERSION))
    again = announced(us, message="m2", size=met.size, etag=met.etag)
    assert again.changed is not kept
    assert us.look("b")["b"].content.etag == "b"


def test_marks_of_batches_whose_sizes_are_known_are_as_they_were(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert publish(us, us.planned("a", "b")) == "{}"
