"""Contract: what a long downtime, a second reading, or a slow publish must not change."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

from shard_store.model import ErrorRecord, Plan, PlanIdentity, ShardState, Split
from shard_store.operators.views import AsOf
from shard_store.store import ShardStore, open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import SERVERS, STALE, Pipeline, StoreBackend, rows

DAY = 86_400.0
WINDOW = RetentionPolicy(timedelta(days=30))
servers = pytest.mark.parametrize("backend", SERVERS, indirect=True)


def bad(plan: PlanIdentity, subject: str, scope: str = "object") -> ErrorRecord:
    return ErrorRecord(scope, "corrupt-object", "", subject, plan.delivery_hash)


def names(plan: Plan) -> set[str]:
    return {entry.content.shard_id for entry in plan.ranges}


# --- a pipeline that was down for longer than the deduplication window ---


def test_a_published_batch_is_read_again_for_its_state_however_long_the_pipeline_was_down(
    backend: StoreBackend,
) -> None:
    """Spark was killed between the publication and its own log: it runs the batch again, 60 days later."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    plan = us.planned("good", "bad")
    store.record_errors("s", "p", [bad(plan.identity, "bad")])
    us.publish(plan, Split("/x", 1, 1), batch_id=1)
    backend.clock.advance(60 * DAY)
    other.deliver("of another pipeline, which goes on")
    store.prune(WINDOW)
    again = Pipeline.start(store)
    store.prune(WINDOW)  # the first thing that its reader's maintenance does
    repeated = store.plan(again.token, 0, 1)
    assert repeated.published
    assert names(repeated) == {"good"}
    assert store.publish([repeated.identity], [Split("/y", 1, 1)], batch_id=1).already


def test_a_batch_without_input_is_published_once_however_long_the_pipeline_was_down(backend: StoreBackend) -> None:
    """A time-out of a query with state brought rows, without new input; Spark was killed before its own log."""
    store = backend.open()
    us = Pipeline.start(store)
    plan = us.deliver("a")
    backend.clock.advance(1)
    assert not us.publish(plan, Split("/timed-out", 1, 1), batch_id=7).already
    backend.clock.advance(60 * DAY)
    store.prune(WINDOW)
    again = Pipeline.start(store)
    store.prune(WINDOW)
    assert store.publish([store.current_plan("p")], [Split("/again", 1, 1)], batch_id=7).already
    assert again.confirmed == 1
    assert [row["path"] for row in rows(store, "splits")] == ["/split-1", "/timed-out"]


# --- one streaming DataFrame that a query reads twice ---


def test_a_batch_that_is_planned_twice_by_one_reader_is_one_attempt_at_one_plan(store: ShardStore) -> None:
    us = Pipeline.start(store)
    first = us.planned("a", "b")
    second = store.plan(us.token, 0, 1)
    assert (first.attempt, second.attempt) == (1, 1)
    assert second.identity == first.identity
    again = Pipeline.start(store)
    assert [store.plan(again.token, 0, 1).attempt for _ in range(2)] == [2, 2]


def test_both_readings_of_a_batch_have_the_same_shards_though_one_passes_on_between_them(
    backend: StoreBackend,
) -> None:
    """The publish then fails, and the next attempt leaves the shard out of both."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    first = us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    key = us.look("b")["b"].key
    assert store.acquire(other.token, {key: us.token}) == {key}
    assert names(store.plan(us.token, 0, 1)) == names(first) == {"a", "b"}
    again = Pipeline.start(store)
    assert names(store.plan(again.token, 0, 1)) == {"a"}


# --- a plan that changes after an attempt at it ---


@pytest.mark.parametrize("scope", ["object", "skipped"])
def test_an_object_that_an_attempt_found_bad_stays_bad_though_the_plan_lost_a_shard_since(
    backend: StoreBackend, scope: str
) -> None:
    """Another sink may have taken the first attempt, which it knows by its batch, without the object's rows."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    first = us.planned("good", "bad", "taken over", "bad and taken over")
    reported = [bad(first.identity, name, scope) for name in ("bad", "bad and taken over")]
    in_records = [bad(first.identity, name, "record") for name in ("good", "taken over")]
    store.record_errors("s", "p", [*reported, *in_records])
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    keys = {shard.key: us.token for shard in us.look("taken over", "bad and taken over").values()}
    assert store.acquire(other.token, keys) == set(keys)
    for attempt in (2, 3):
        again = Pipeline.start(store)
        plan = store.plan(again.token, 0, 1)
        assert plan.attempt == attempt
        assert plan.identity.delivery_hash == first.identity.delivery_hash
        assert names(plan) == {"good"}
    again.seq = 1
    again.confirm()
    states = {name: shard.state for name, shard in us.look("good", "bad", "taken over").items()}
    ended = ShardState.QUARANTINED if scope == "object" else ShardState.DONE
    assert states == {"good": ShardState.DONE, "bad": ended, "taken over": ShardState.OPEN}
    final = {row["subject"] for row in rows(store, "errors") if row["final"]}
    assert final == {"good", "bad"}, "what another pipeline reads now is for that pipeline to judge"
    assert [row["errors"] for row in rows(store, "attempts")] == [2]


def test_what_a_late_task_reports_of_a_shard_that_its_batch_has_lost_counts_for_nothing(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    first = us.planned("a", "b")
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {us.look("b")["b"].key: us.token})
    us = Pipeline.start(store)
    plan = us.plan()
    store.record_errors("s", "p", [bad(first.identity, "b", "object")])
    published = us.publish(plan, Split("/a", 1, 1))
    assert (published.quarantined, us.look("b")["b"].state) == (0, ShardState.OPEN)
    assert rows(store, "errors") == []


# --- views of the past, while others publish ---


@servers
@pytest.mark.parametrize("by", ["time", "attempt"])
def test_what_was_published_at_a_time_does_not_change_while_another_publish_is_under_way(
    backend: StoreBackend, by: str
) -> None:
    """Its rows have their ids and their time before its commit: a view waits for it."""
    store = backend.open()
    slow, quick = Pipeline.start(store, "slow"), Pipeline.start(store, "quick")
    plan = slow.planned("a")
    found: list[list[str]] = []

    def view() -> None:
        at = datetime.fromtimestamp(backend.clock.now, timezone.utc)
        as_of = AsOf(time=at) if by == "time" else AsOf(attempt=digest)
        with backend.open() as reader:
            found.append([row[0] for page in reader.pages("splits", as_of=as_of) for row in page])

    with store.database.begin() as connection:
        slow.publish(plan, Split("/slow", 1, 1), connection=connection)
        digest = quick.deliver("b").identity.delivery_hash
        looking = threading.Thread(target=view)
        looking.start()
        looking.join(0.5)
        connection.commit()
    looking.join(30)
    view()
    assert found == [["/slow", "/split-1"]] * 2


def test_all_files_of_a_publish_have_one_time(store: ShardStore) -> None:
    url = store.database.url.render_as_string(hide_password=False)
    with open_store(url) as real:  # the database's own clock
        us = Pipeline.start(real)
        us.publish(us.planned("a"), *(Split(f"/{n}", 1, 1) for n in range(5000)))
        assert len({row["published_at"] for row in rows(real, "splits")}) == 1
