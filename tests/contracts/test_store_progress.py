"""Contract: snapshots, plans and confirming (invariants 2, 3 and 4)."""

from __future__ import annotations

import pytest

from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError, StoreConfigurationError
from shard_store.model import (
    BEGINNING,
    SINK,
    ErrorRecord,
    Noted,
    Plan,
    PlanIdentity,
    Position,
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
from support.store_backends import STALE, Pipeline, StoreBackend, content, rows, whole


def ids(plan: Plan) -> list[str]:
    return [r.content.shard_id for r in plan.ranges]


def take(taker: Pipeline, *names: str) -> None:
    """Another pipeline takes what is stale."""
    found = taker.open(*names)
    taker.store.acquire(taker.token, {s.key: s.token for s in found.values()})


# --- snapshots ---


def test_a_snapshot_is_found_again_as_it_was_written(store: ShardStore) -> None:
    us = Pipeline.start(store)
    first = us.snapshot(*us.open("b", "a").values())
    second = us.snapshot(*us.open(*(f"k{i}" for i in range(2001))).values())
    started = store.start("s", "p")
    assert [(s.seq, s.ranges) for s in started.unconfirmed] == [(1, first), (2, second)]
    assert (started.confirmed_seq, started.last_seq) == (0, 2)


def test_writing_the_same_snapshot_twice_is_writing_it_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    written = us.snapshot(*us.open("a").values())
    store.advance(us.token, snapshot=(1, written))
    assert [s.ranges for s in store.start("s", "p").unconfirmed] == [written]


def test_a_snapshot_of_ordered_announcements_may_be_written_again_as_well(store: ShardStore) -> None:
    """As after a commit of which nobody knows: what orders announcements is not in the snapshot."""
    us = Pipeline.start(store)
    announced = [content("a")._replace(sequence="s0A"), content("b")._replace(named=False)]
    written = us.snapshot(*store.open_shards(us.token, "s", announced).values())
    store.advance(us.token, snapshot=(1, written))
    (snapshot,) = store.start("s", "p").unconfirmed
    assert [(r.key, r.start, r.end) for r in snapshot.ranges] == [(r.key, r.start, r.end) for r in written]


def test_another_snapshot_under_a_number_that_is_taken_is_refused(store: ShardStore) -> None:
    us = Pipeline.start(store)
    a, b = us.open("a", "b").values()
    us.snapshot(a)
    with pytest.raises(ShardStoreError, match="snapshot 1 is there already, with other ranges"):
        store.advance(us.token, snapshot=(1, (whole(b),)))


def test_a_snapshot_that_leaves_a_gap_is_refused(store: ShardStore) -> None:
    us = Pipeline.start(store)
    with pytest.raises(ShardStoreError, match="snapshot 2 does not follow 0"):
        store.advance(us.token, snapshot=(2, (whole(us.open("a")["a"]),)))


@pytest.mark.parametrize(("start", "end"), [(position_at(5), position_at(5)), (end_at(1), position_at(9))])
def test_a_range_in_which_the_position_does_not_rise_is_refused(store: ShardStore, start: str, end: str) -> None:
    us = Pipeline.start(store)
    shard = us.open("a")["a"]
    with pytest.raises(ShardStoreError, match="positions only rise"):
        us.write(Range(shard.key, shard.content, Position(start), Position(end)))
    assert store.start("s", "p").last_seq == 0


# --- plans ---


def test_a_plan_holds_all_snapshots_of_its_batch_in_their_order(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("b").values())
    us.snapshot(*us.open("a", "c").values())
    plan = us.plan()
    assert ids(plan) == ["b", "a", "c"]
    assert (plan.identity.start_seq, plan.identity.end_seq, plan.lost, plan.published) == (0, 2, (), False)


def test_the_same_offsets_have_the_same_plan_and_hash_at_every_attempt(store: ShardStore) -> None:
    us = Pipeline.start(store)
    first = us.planned("a", "b")
    assert us.plan() == first
    again = Pipeline.start(store).plan()
    assert again.ranges == first.ranges
    assert again.identity.delivery_hash == first.identity.delivery_hash


def test_other_offsets_never_have_the_hash_of_a_plan_before_them(store: ShardStore) -> None:
    us = Pipeline.start(store)
    hashes = {us.deliver("a").identity.delivery_hash}
    for _ in range(3):
        us.snapshot(us.open("a")["a"], ends=[end_at(11)])  # finished already: the plan is empty
        plan = us.plan()
        assert plan.ranges == ()
        hashes.add(plan.identity.delivery_hash)
        us.publish(plan)
        us.confirm()
    assert len(hashes) == 4


def restarted(us: Pipeline) -> Pipeline:
    """The next reader of the same pipeline: a failed batch is planned again by it, never by the one that failed."""
    again = Pipeline.start(us.store, us.token.pipeline, us.source)
    again.confirmed = us.confirmed
    return again


def test_a_plan_leaves_out_what_passed_to_others_and_says_so(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    store.heartbeat(other.token, STALE)
    plan = restarted(us).plan()
    assert ids(plan) == ["b"]
    assert [r.content.shard_id for r in plan.lost] == ["a"]


def test_the_hash_of_a_batch_stays_when_a_shard_of_it_passes_on_between_two_attempts(backend: StoreBackend) -> None:
    """Users build keys on it: what an attempt delivered under it is found again, whatever is left of the batch."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    first = us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    second = restarted(us).plan()
    assert second.identity.delivery_hash == first.identity.delivery_hash
    store.heartbeat(other.token, STALE)
    backend.clock.advance(STALE + 1)
    take(other, "b")
    us = restarted(us)
    third = us.plan()
    assert (ids(third), third.identity.delivery_hash) == ([], first.identity.delivery_hash)
    us.publish(third)
    assert rows(store, "attempts")[0]["delivery_hash"] == first.identity.delivery_hash


def test_a_batch_that_has_lost_shards_before_its_first_attempt_has_the_hash_of_its_snapshots(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    written = us.snapshot(*us.open("a", "b").values())
    backend.clock.advance(STALE + 1)
    take(other, "a")
    plan = us.plan()
    assert ids(plan) == ["b"]
    assert plan.identity.delivery_hash == delivery_hash("s", "p", written, (0, 1))


def test_a_plan_leaves_out_what_is_finished_without_calling_it_lost(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    other.deliver("a")
    plan = restarted(us).plan()
    assert (ids(plan), plan.lost) == (["b"], ())


def test_what_an_attempt_left_out_stays_left_out_of_its_batch_when_it_comes_back(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    first = restarted(us).plan()
    [shard] = other.look("a").values()
    store.release(other.token, [shard.key])
    us = restarted(us)
    store.acquire(us.token, {shard.key: None})
    assert us.plan().identity.delivery_hash == first.identity.delivery_hash
    us.confirm()  # a foreign sink took the first attempt, which had no "a"
    assert us.look("a")["a"].state is ShardState.OPEN
    assert us.look("b")["b"].state is ShardState.DONE
    us.snapshot(us.look("a")["a"])
    assert ids(us.plan()) == ["a"]


def test_several_ranges_of_one_shard_go_through_several_batches(store: ShardStore) -> None:
    us = Pipeline.start(store)
    for end in (position_at(3), position_at(7), end_at(10)):
        shard = us.open("a")["a"]
        us.snapshot(shard, ends=[end])
        assert us.publish(us.plan()).shards == 1
        us.confirm()
        assert us.look("a")["a"].position == end
    assert us.look("a")["a"].state is ShardState.DONE


def test_several_ranges_of_one_shard_in_one_plan_are_one_move(store: ShardStore) -> None:
    us = Pipeline.start(store)
    shard = us.open("a")["a"]
    for start, end in ((BEGINNING, position_at(3)), (position_at(3), position_at(7)), (position_at(7), end_at(10))):
        us.write(Range(shard.key, shard.content, start, end))
    plan = us.plan()
    assert len(plan.ranges) == 3
    assert us.publish(plan).shards == 1
    assert us.look("a")["a"].position == end_at(10)


def test_a_plan_of_what_the_store_never_gave_is_lost_progress(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    with pytest.raises(LostProgress, match=r"checkpoint is at offset 9, but the store .* knows offsets only up to 1"):
        store.plan(us.token, 0, 9)


def test_a_plan_that_skips_what_is_not_confirmed_is_refused(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    us.planned("b")
    with pytest.raises(ShardStoreError, match="only what is up to 0 is confirmed"):
        store.plan(us.token, 1, 2)


def test_a_published_plan_is_told_as_such_with_what_it_delivered(backend: StoreBackend) -> None:
    """From a checkpoint that began anew after `final`, without what was lost, and without what was found bad."""
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("final")
    us.planned("lost", "bad", "read")
    backend.clock.advance(STALE + 1)
    other = Pipeline.start(store, "other")
    lost = us.look("lost")["lost"]
    store.acquire(other.token, {lost.key: us.token})
    plan = store.plan(us.token, 0, 2)
    error = ErrorRecord("object", "missing-object", "why", "bad", plan.identity.delivery_hash)
    store.record_errors("s", "p", [error])
    us.publish(plan, Split("/x", 1, 1))
    for _ in range(2):
        again = Pipeline.start(store)
        assert again.confirmed == 2  # the start finds out by itself
        repeated = store.plan(again.token, 0, 2)
        assert (repeated.published, [r.content.shard_id for r in repeated.ranges]) == (True, ["read"])
        assert repeated.identity.delivery_hash == plan.identity.delivery_hash
        assert us.store.publish([repeated.identity], [Split("/y", 1, 1)]).already


def test_a_published_plan_that_is_not_the_last_one_has_nothing_to_read(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    us.deliver("b")
    earlier = store.plan(us.token, 0, 1)
    assert (earlier.published, earlier.ranges) == (True, ())
    assert us.planned("c").ranges[0].content.shard_id == "c"


# --- the plan that a sink finds ---


def test_a_sink_finds_the_plan_that_was_made_last(store: ShardStore) -> None:
    us = Pipeline.start(store, driver="d")
    plan = us.planned("a")
    assert store.current_plan("p", "d") == store.current_plan("p") == plan.identity


def test_a_sink_of_another_driver_finds_no_plan(store: ShardStore) -> None:
    Pipeline.start(store, driver="d").planned("a")
    with pytest.raises(PipelineTakenOver):
        store.current_plan("p", "e")


def test_a_sink_finds_no_plan_of_an_incarnation_that_is_over(store: ShardStore) -> None:
    Pipeline.start(store, driver="d").planned("a")
    Pipeline.start(store, driver="d")
    with pytest.raises(PipelineTakenOver):
        store.current_plan("p", "d")


def test_after_a_restart_a_batch_without_input_finds_the_delivered_plan_before_it(store: ShardStore) -> None:
    us = Pipeline.start(store, driver="d")
    plan = us.planned("a")
    us.publish(plan, Split("/x", 1, 1), batch_id=4)
    again = Pipeline.start(store, driver="d")
    found = store.current_plan("p", "d")
    assert (found.token, found.delivery_hash) == (again.token, plan.identity.delivery_hash)
    assert not store.publish([found], [Split("/state", 1, 1)], batch_id=5).already
    assert store.publish([found], [Split("/state", 1, 1)], batch_id=5).already
    assert [row["path"] for row in rows(store, "splits")] == ["/x", "/state"]


def test_a_sink_without_a_source_is_told_what_is_missing(store: ShardStore) -> None:
    with pytest.raises(StoreConfigurationError, match="no cuesqueue source named 'p' has started"):
        store.current_plan("p")


def test_before_the_first_plan_a_sink_finds_an_empty_one_for_batches_without_data(store: ShardStore) -> None:
    us = Pipeline.start(store)
    empty = store.current_plan("p")
    assert (empty.token, empty.start_seq, empty.end_seq) == (us.token, 0, 0)
    assert not store.publish([empty], [Split("/state", 1, 1)], batch_id=0).already
    assert store.publish([empty], [Split("/state", 1, 1)], batch_id=0).already
    assert [row["path"] for row in rows(store, "splits")] == ["/state"]


# --- confirming ---


def test_confirming_what_our_sink_published_only_tells_what_is_finished(store: ShardStore) -> None:
    us = Pipeline.start(store)
    keys = [s.key for s in us.open("a", "open").values()]
    us.snapshot(us.open("a")["a"])
    us.publish(us.plan(), Split("/x", 1, 1))
    assert us.confirm(keys) == {keys[0]}
    assert [row["kind"] for row in rows(store, "attempts")] == ["attempt-output"]


def test_confirming_what_another_sink_took_advances_its_shards_now(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b")
    assert us.confirm([r.key for r in plan.ranges]) == {r.key for r in plan.ranges}
    [attempt] = rows(store, "attempts")
    assert attempt["delivery_hash"] == plan.identity.delivery_hash
    assert (attempt["kind"], attempt["shards"], attempt["rows"]) == ("attempt-output", 2, None)


def test_confirming_twice_changes_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    for _ in range(2):
        confirmed = store.advance(us.token, confirm=1, keys=[plan.ranges[0].key])
        assert confirmed.finished == {plan.ranges[0].key}
    assert len(rows(store, "attempts")) == 1


def test_a_restart_confirms_what_the_incarnation_before_had_planned(store: ShardStore) -> None:
    Pipeline.start(store).planned("a")
    again = Pipeline.start(store)
    again.confirm()
    assert again.look("a")["a"].state is ShardState.DONE


def test_what_came_back_to_us_after_the_plan_left_it_out_is_not_confirmed_away(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.snapshot(*us.open("a", "b").values())
    backend.clock.advance(STALE + 1)
    take(other, "a")
    us.plan()
    [shard] = other.look("a").values()
    store.release(other.token, [shard.key])
    store.acquire(us.token, {shard.key: None})
    us.confirm()
    assert {i: s.state for i, s in us.look("a", "b").items()} == {"a": ShardState.OPEN, "b": ShardState.DONE}


def test_what_was_lost_while_another_sink_took_it_is_told_and_left_to_its_owner(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    confirmed = store.advance(us.token, confirm=1)
    assert [move.key for move in confirmed.lost] == [shard_key("s", "a")]
    assert us.look("a")["a"].token == other.token
    assert us.look("b")["b"].state is ShardState.DONE


def test_what_nobody_planned_cannot_be_confirmed(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    with pytest.raises(ShardStoreError, match="nobody can have read it"):
        us.confirm()
    assert us.look("a")["a"].state is ShardState.OPEN


def test_what_nobody_planned_is_read_again_where_loss_is_accepted(store: ShardStore) -> None:
    """As of a backup that was made between the snapshot and its plan."""
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    again = restarted(us)
    again.seq = us.seq
    with pytest.raises(ShardStoreError, match="'failOnDataLoss' to false"):
        store.advance(again.token, confirm=1)
    assert store.advance(again.token, confirm=1, fail_on_data_loss=False).finished == frozenset()
    again.confirmed = 1
    assert again.look("a")["a"].state is ShardState.OPEN
    again.deliver("a")


def test_with_at_least_once_nothing_that_nobody_planned_is_called_done(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=Semantics.AT_LEAST_ONCE)
    (shard,) = us.open("a").values()
    us.snapshot(shard)
    with pytest.raises(ShardStoreError, match="new checkpoint"):
        store.advance(us.token, confirm=1, fail_on_data_loss=False)


def test_confirming_what_the_store_never_gave_is_lost_progress(store: ShardStore) -> None:
    us = Pipeline.start(store)
    with pytest.raises(LostProgress):
        store.advance(us.token, confirm=3)


def test_confirm_and_snapshot_are_one_transaction(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    with pytest.raises(ShardStoreError, match="does not follow"):
        store.advance(us.token, confirm=1, snapshot=(7, (whole(us.open("b")["b"]),)))
    assert us.look("a")["a"].state is ShardState.OPEN


def test_an_adopted_offset_gives_up_what_was_before_it_and_keeps_the_shards(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    store.adopt_offset(us.token, 41)
    store.adopt_offset(us.token, 40)  # what is behind us is not adopted
    started = store.start("s", "p")
    assert (started.confirmed_seq, started.last_seq, started.unconfirmed) == (41, 41, ())
    assert [s.content.shard_id for s in started.unfinished] == ["a"]
    again = Pipeline.start(store)
    again.snapshot(*again.open("a").values())
    assert ids(again.plan()) == ["a"]


def test_a_plan_whose_shards_are_all_gone_is_a_delivery_of_nothing(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a")
    backend.clock.advance(STALE + 1)
    take(other, "a")
    us.plan()
    us.confirm()
    [attempt] = rows(store, "attempts")
    assert (attempt["kind"], attempt["shards"], attempt["lost"]) == ("attempt-nil", 0, 1)


# --- the backlog ---


def test_the_backlog_of_a_pipeline_is_what_it_owns_and_has_not_finished(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert store.backlog("p") == (0, 0)
    us.deliver("done")
    Pipeline.start(store, "another").open("theirs")
    unknown = content("without a size", size=None)
    store.open_shards(us.token, us.source, [content("a"), content("b"), unknown])
    assert store.backlog("p") == (3, 20)
    assert store.backlog("never started") == (0, 0)


# --- what the sink takes ---


def test_a_sink_takes_no_other_plan_than_the_one_that_its_reader_has_made_for_the_batch(store: ShardStore) -> None:
    """The store may have gone back since: then its current plan is an earlier one, or is not published any more."""
    us = Pipeline.start(store)
    plan = us.planned("a")

    def take_plan(delivery_hash: str, incarnation: int = us.token.incarnation) -> PlanIdentity:
        return store.take_plan("p", None, SINK, lambda store_id, pipeline: Noted(incarnation, delivery_hash, 0))

    assert take_plan(plan.identity.delivery_hash) == store.take_plan("p", None, SINK) == plan.identity
    with pytest.raises(LostProgress, match="has lost the plan of this micro-batch"):
        take_plan("f" * 64)
    with pytest.raises(LostProgress, match="has lost that the plan up to offset 1 is published"):
        take_plan("")  # a batch without input, after this one
    us.publish(plan)
    assert take_plan("") == plan.identity
    assert take_plan("f" * 64, us.token.incarnation - 1) == plan.identity  # of a reader before this one
    with pytest.raises(LostProgress, match="has lost the start of this query"):
        take_plan("", us.token.incarnation + 1)


def test_a_reader_that_repeats_a_batch_without_input_on_a_store_that_went_back_is_not_said_to_be_replaced(
    store: ShardStore,
) -> None:
    Pipeline.start(store).planned("a")  # its publication is lost
    noted = Noted(Pipeline.start(store).token.incarnation, "", 0)
    with pytest.raises(LostProgress, match="with a new checkpoint if this error comes back"):
        store.take_plan("p", None, SINK, lambda *of: noted)
    with pytest.raises(PipelineTakenOver):  # where no reader of ours has noted anything
        store.take_plan("p", None, SINK, lambda *of: None)


def test_what_a_reader_has_noted_is_asked_of_its_store(store: ShardStore) -> None:
    Pipeline.start(store)
    asked: list[tuple[str, str]] = []
    store.take_plan("p", None, SINK, lambda *of: asked.append(of))
    assert asked == [(store.store_id(), "p")]
