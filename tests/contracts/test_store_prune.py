"""Contract: pruning removes what is done and old, never more; and one pipeline an interval does it (invariant 6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

import shard_store
from shard_store.model import ErrorRecord, Semantics, ShardState, Split, position_at, shard_key
from shard_store.shards.activity import Report
from shard_store.shards.recording import Receipts
from shard_store.sql.database import Transaction
from shard_store.sql.schema import leases, pipelines
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import PruneResult, RetentionPolicy, prune
from support.store_backends import SERVERS, Pipeline, StoreBackend, rows
from support.store_processes import Workers

DAY = 86_400.0
WEEK = RetentionPolicy(timedelta(days=7))


def ids(store: ShardStore) -> set[str]:
    return {row["shard_id"] for row in rows(store, "shards")}


def now(backend: StoreBackend) -> datetime:
    return datetime.fromtimestamp(backend.clock.now, timezone.utc)


def test_what_ended_longer_ago_than_the_window_goes_and_the_rest_stays(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("old", "older")
    backend.clock.advance(4 * DAY)
    us.deliver("young")
    backend.clock.advance(4 * DAY)
    result = shard_store.prune(store, WEEK)
    assert result == PruneResult(shards=2, attempts=1)
    assert ids(store) == {"young"}
    assert len(rows(store, "splits")) == 2  # splits are the data: they are not ours to forget
    assert shard_store.prune(store, WEEK).total == 0


def test_the_time_may_be_given(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    assert store.prune(WEEK, now(backend) + timedelta(days=6)).total == 0
    assert store.prune(WEEK, now(backend) + timedelta(days=8)).shards == 1


def test_what_is_in_progress_is_never_removed_however_old(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.deliver("done")
    us.open("ready", "released")
    store.release(us.token, [shard_key("s", "released")])
    other.planned("planned")
    store.record_errors("s", "other", [ErrorRecord("object", "c", "", "planned", other.plan().identity.delivery_hash)])
    backend.clock.advance(1)
    published = us.planned("published, unconfirmed")
    us.publish(published, Split("/x", 1, 1))
    backend.clock.advance(1000 * DAY)
    result = store.prune(RetentionPolicy(timedelta(0), max_shards=0))
    assert result == PruneResult(shards=3, attempts=1)
    assert ids(store) == {"ready", "planned"}, "what was released was never read: announced once more, it is new"
    assert store.plan(us.token, 1, 2).published
    assert other.publish(other.plan()).quarantined == 1


def test_what_was_given_up_a_short_while_ago_stays_however_old_for_those_who_wait_for_it(backend: StoreBackend) -> None:
    """A reader that holds a message for it looks at every heartbeat: what it misses counts as finished."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    (shard,) = us.open("a").values()
    backend.clock.advance(8 * DAY)
    store.release(us.token, [shard.key])
    assert store.prune(WEEK).total == 0
    assert store.acquire(other.token, {shard.key: None}) == {shard.key}


def test_of_many_finished_shards_the_newest_stay(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "t")
    for i in range(5):
        us.deliver(f"a{i}", f"b{i}")
        backend.clock.advance(1)
    other.deliver("of another source")
    us.open("open")
    assert store.prune(RetentionPolicy(max_shards=3, source="s")).shards == 7
    left = ids(store)
    assert left > {"a4", "b4", "open", "of another source"}
    assert len(left) == 5
    assert store.prune(RetentionPolicy(max_shards=3)).total == 0
    assert store.prune(RetentionPolicy(max_shards=0)).shards == 4
    assert ids(store) == {"open"}


def test_only_the_source_that_was_named_is_pruned(backend: StoreBackend) -> None:
    store = backend.open()
    for source in ("s", "t"):
        us = Pipeline.start(store, f"of {source}", source)
        us.deliver(f"in {source}")
        store.record_errors(source, us.token.pipeline, [ErrorRecord("message", "c", "", "m")])
        backend.clock.advance(1)
        us.publish(us.plan(), batch_id=1)  # the last attempt stays
    backend.clock.advance(8 * DAY)
    result = store.prune(RetentionPolicy(timedelta(days=7), source="t"))
    assert result == PruneResult(shards=1, attempts=1, errors=1)
    assert ids(store) == {"in s"}
    assert store.prune(RetentionPolicy(timedelta(days=7), source="unknown")).total == 0


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (RetentionPolicy(timedelta(days=7), source="s"), {"t old", "s young", "t young"}),
        (RetentionPolicy(timedelta(days=7), source="t"), {"s old", "s young", "t young"}),
        (RetentionPolicy(timedelta(days=7)), {"s young", "t young"}),
        (RetentionPolicy(timedelta(days=9)), {"s old", "t old", "s young", "t young"}),
        (RetentionPolicy(timedelta(days=9), max_shards=1, source="s"), {"t old", "s young", "t young"}),
        (RetentionPolicy(timedelta(days=9), max_shards=0, source="t"), {"s old", "s young"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value.source),
)
def test_the_window_and_the_source_hold_for_everything_that_is_pruned(
    backend: StoreBackend, policy: RetentionPolicy, left: set[str]
) -> None:
    """By count: `max_shards` concerns shards alone, whose attempts and errors are kept for the window."""
    store = backend.open()
    pipelines = {source: Pipeline.start(store, f"of {source}", source) for source in ("s", "t")}
    for age in ("old", "young"):
        for source, pipeline in pipelines.items():
            pipeline.deliver(f"{source} {age}")
            name = pipeline.token.pipeline
            store.record_errors(source, name, [ErrorRecord("message", "c", "", f"{source} {age}")])
        backend.clock.advance(8 * DAY if age == "old" else 0)
    store.prune(policy)
    assert ids(store) == left
    by_window = {
        f"{source} old" for source in pipelines if policy.window < timedelta(days=8) and policy.source in (None, source)
    }
    everything = {f"{source} {age}" for source in pipelines for age in ("old", "young")}
    assert {row["subject"] for row in rows(store, "errors")} == everything - by_window
    assert len(rows(store, "attempts")) == 4 - len(by_window)


def test_a_dry_run_counts_and_removes_nothing(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a", "b")
    store.record_errors("s", "p", [ErrorRecord("message", "c", "", "m")])
    backend.clock.advance(8 * DAY)
    us.deliver("c")
    for policy in (WEEK, RetentionPolicy(timedelta(days=7), max_shards=0)):
        before = [list(store.pages(view)) for view in ("shards", "attempts", "errors")]
        counted = store.prune(policy, dry_run=True)
        assert [list(store.pages(view)) for view in ("shards", "attempts", "errors")] == before
        assert store.prune(policy) == counted
    assert ids(store) == set()


def test_it_goes_in_batches_until_its_time_is_over_and_says_that_more_is_left(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver(*(f"k{i}" for i in range(25)))
    backend.clock.advance(8 * DAY)
    seconds = iter(range(1000))
    result = prune(store.database, WEEK, limit=10, time_out=4.5, share=1.0, clock=lambda: float(next(seconds)))
    assert (result.shards, result.timed_out) == (20, True)
    result = prune(store.database, WEEK, limit=10)
    assert (result.shards, result.timed_out) == (5, False)


def test_it_rests_between_batches_so_that_publishing_goes_on(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver(*(f"k{i}" for i in range(25)))
    backend.clock.advance(8 * DAY)
    seconds, rests = iter(range(1000)), list[float]()
    prune(store.database, WEEK, limit=10, share=0.2, clock=lambda: float(next(seconds)), sleep=rests.append)
    assert rests == [4.0, 4.0], "after a batch that took a second, by this clock, and not after the last"


def test_a_shard_that_was_pruned_and_comes_again_is_read_and_published_again(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    first = us.deliver("a")
    store.prune(RetentionPolicy(max_shards=0))  # the attempt is younger than the window, and stays
    again = us.planned("a")
    assert again.identity.delivery_hash != first.identity.delivery_hash
    published = us.publish(again, Split("/again", 1, 1), batch_id=1)
    assert (published.already, published.shards) == (False, 1)
    assert us.confirm([shard_key("s", "a")]) == {shard_key("s", "a")}


def test_two_prunes_at_once_remove_each_row_once(backend: StoreBackend) -> None:
    store, other = backend.open(), backend.open()
    Pipeline.start(store).deliver(*(f"k{i}" for i in range(30)))
    backend.clock.advance(8 * DAY)
    turns = iter([0.0] * 1000)

    def clock() -> float:
        """Between two batches of the one, the other runs to its end."""
        between.append(prune(other.database, WEEK).shards if len(between) == 1 else 0)
        return next(turns)

    between: list[int] = []
    first = prune(store.database, WEEK, limit=10, clock=clock)
    assert first.shards + sum(between) == 30


def test_what_is_asked_between_two_of_its_transactions_is_answered_as_the_store_is_then(
    backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by what another thread of its process would ask at that moment, with the same connections."""
    store, elsewhere = backend.open(), backend.open()
    Pipeline.start(store).planned("a")
    read, seen = store.database.read, list[int]()

    def read_and_ask(work: Callable[[Transaction], Any]) -> Any:
        result = read(work)
        Pipeline.start(elsewhere, f"p{len(seen)}")
        seen.append(read(lambda t: t.execute(sa.select(sa.func.count()).select_from(pipelines)).scalar_one()))
        return result

    monkeypatch.setattr(store.database, "read", read_and_ask)
    store.prune(WEEK)
    assert len(seen) > 3
    assert seen == list(range(2, len(seen) + 2))


# --- one winner an interval ---


def test_one_caller_wins_each_interval(backend: StoreBackend) -> None:
    one, two = backend.open(), backend.open()
    for _ in range(3):
        assert one.win_interval("work", 60.0)
        assert not two.win_interval("work", 60.0)
        backend.clock.advance(59)
        assert not one.win_interval("work", 60.0)
        assert two.win_interval("other work", 0.0)
        backend.clock.advance(1)


def test_names_of_any_length_are_different_leases(backend: StoreBackend) -> None:
    one, two = backend.open(), backend.open()
    long = f"prune {'s' * 200}"
    for name in (long, f"{long}t", "s" * 200, "prune " + "\u00fc" * 5000):
        assert one.win_interval(name, 60.0)
        assert not two.win_interval(name, 60.0)


def test_of_8_processes_one_wins_each_interval_also_when_the_winner_dies(backend: StoreBackend) -> None:
    backend.open()
    with Workers([["win", backend.url]] * 8) as workers:
        first = workers.ask(f"{backend.clock.now} die")
        assert sorted(first) == [False] * 7 + [True]
        later = workers.ask(f"{backend.clock.now + 59} live")
        assert later == [False] * 7  # the winner is dead, and its interval is not over
        assert sorted(workers.ask(f"{backend.clock.now + 60} live")) == [False] * 6 + [True]


def test_who_lost_learns_it_from_one_statement_that_locks_nothing(backend: StoreBackend) -> None:
    store = backend.open()
    store.win_interval("work", 60.0)
    other = backend.open(patience=0.2)
    with store.database.engine.begin() as connection:
        connection.execute(leases.update().values(holder="somebody"))
        assert not other.win_interval("work", 60.0)


# --- what nobody will ask for again ---


def test_what_was_given_up_before_anything_of_it_was_read_goes_after_the_window(backend: StoreBackend) -> None:
    """Its message was thrown away by the queue. What is partly published stays: read again, its rows would double."""
    store = backend.open()
    us = Pipeline.start(store)
    shards = us.open("unread", "partly read", "young")
    us.snapshot(shards["partly read"], ends=[position_at(3)])
    us.publish(us.plan(), Split("/x", 1, 1))
    us.confirm()
    store.release(us.token, [shards[name].key for name in ("unread", "partly read")])
    backend.clock.advance(8 * DAY)
    store.release(us.token, [us.open("young too")["young too"].key])
    assert store.prune(WEEK).shards == 1
    assert ids(store) == {"partly read", "young", "young too"}
    assert us.open("unread")["unread"].token == us.token, "announced once more, it is new"


def test_a_pipeline_that_stopped_for_good_is_forgotten_after_a_year(backend: StoreBackend) -> None:
    store = backend.open()
    names = ("nothing left", "an open shard", "an unconfirmed batch", "an unsent error", "a data file", "alive")
    pipelines = {name: Pipeline.start(store, name) for name in names}
    for name, pipeline in pipelines.items():
        pipeline.publish(pipeline.planned(f"of {name}"))
        pipeline.confirm()
    pipelines["an open shard"].open("open")
    pipelines["an unconfirmed batch"].planned("planned")
    store.record_errors("s", "an unsent error", [ErrorRecord("message", "c", "", "m")])
    store.name_error_queue(pipelines["an unsent error"].token, "errors")
    pipelines["a data file"].publish(pipelines["a data file"].plan(), Split("/x", 1, 1), batch_id=1)
    backend.clock.advance(300 * DAY)
    assert store.prune(WEEK).pipelines == 0
    store.heartbeat(pipelines["alive"].token, 60.0)
    backend.run_for(66 * DAY)
    result = store.prune(WEEK)
    assert (result.pipelines, result.attempts) == (1, 1)
    assert {row["pipeline"] for row in rows(store, "attempts")} == set(names[1:])
    assert Pipeline.start(store, "nothing left").seq == 0
    assert Pipeline.start(store, "a data file").seq == 1


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_pipeline_that_is_pruned_as_it_starts_begins_anew(backend: StoreBackend) -> None:
    store, other = backend.open(), backend.open()
    Pipeline.start(store, "idle")
    backend.run_for(400 * DAY)
    pruned: list[int] = []

    def prune(_1: Any, _2: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO cuesqueue_pipelines") and not pruned:
            pruned.append(other.prune(WEEK).pipelines)

    sa.event.listen(store.database.engine, "after_cursor_execute", prune)
    assert Pipeline.start(store, "idle").token.incarnation == 1
    assert pruned == [1]


def test_leases_that_nobody_renews_go(backend: StoreBackend) -> None:
    store = backend.open()
    store.win_interval("prune of a source that is no more", 60.0)
    backend.clock.advance(8 * DAY)
    store.win_interval("prune s", 60.0)
    assert store.prune(WEEK).leases == 1
    assert not store.win_interval("prune s", 60.0)


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_lease_that_is_pruned_as_it_is_won_is_won_next_time(backend: StoreBackend) -> None:
    store, other = backend.open(), backend.open()
    assert store.win_interval("prune s", 60.0)
    backend.run_for(40 * DAY)
    pruned: list[int] = []

    def prune(_1: Any, _2: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO cuesqueue_leases") and not pruned:
            pruned.append(other.prune(WEEK).leases)

    sa.event.listen(store.database.engine, "after_cursor_execute", prune)
    assert [store.win_interval("prune s", 60.0) for _ in range(3)] == [False, True, False]
    assert pruned == [1]


def test_published_files_go_only_when_the_user_says_how_old_they_may_be(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("old")
    Pipeline.start(store, "other", "t").deliver("of another source")
    backend.clock.advance(400 * DAY)
    us.deliver("young")
    assert store.prune(WEEK).splits == 0
    policy = RetentionPolicy(timedelta(days=7), source="s", data=timedelta(days=365))
    assert store.prune(policy, dry_run=True).splits == 1
    assert store.prune(policy).splits == 1
    assert [row["path"] for row in rows(store, "splits")] == ["/split-1", "/split-2"]


MONTH = timedelta(days=30)


def say(pipeline: Pipeline, window: timedelta | None) -> None:
    report = Report(window=None if window is None else window // timedelta(microseconds=1))
    pipeline.store.heartbeat(pipeline.token, 60.0, report)


def test_of_pipelines_with_different_windows_the_longest_holds_for_their_source(backend: StoreBackend) -> None:
    """The other one's queue may bring an object again after the shorter window, and its rows would double."""
    store = backend.open()
    short, long = Pipeline.start(store), Pipeline.start(store, "long")
    elsewhere = Pipeline.start(store, "elsewhere", "t")
    for pipeline in (short, elsewhere):
        pipeline.deliver(f"of {pipeline.token.pipeline}")
    say(long, MONTH)
    backend.clock.advance(8 * DAY)
    say(short, WEEK.window)
    result = store.prune(WEEK)
    assert (ids(store), result.windows) == ({"of p"}, {"s": MONTH})
    assert store.prune(WEEK, now(backend) + timedelta(days=21), dry_run=True).shards == 0
    assert store.prune(WEEK, now(backend) + timedelta(days=23)).shards == 1


def test_a_pipeline_holds_nothing_when_it_was_gone_for_longer_than_its_own_window(backend: StoreBackend) -> None:
    store = backend.open()
    us, gone = Pipeline.start(store), Pipeline.start(store, "gone")
    say(gone, MONTH)
    Pipeline.start(store, "of the version before")
    backend.clock.advance(23 * DAY)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    result = store.prune(WEEK)
    assert (result.shards, result.windows) == (1, {})


def test_a_reader_that_starts_again_has_its_window_before_its_first_heartbeat(backend: StoreBackend) -> None:
    store = backend.open()
    us, long = Pipeline.start(store), Pipeline.start(store, "long")
    us.deliver("a")
    say(long, MONTH)
    backend.clock.advance(8 * DAY)
    Pipeline.start(store, "long")
    assert store.prune(WEEK).shards == 0


def test_where_no_shards_are_kept_a_window_holds_nothing(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    say(Pipeline.start(store, "at least once", semantics=Semantics.AT_LEAST_ONCE), MONTH)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    assert store.prune(WEEK).shards == 1


def test_what_is_announced_again_counts_as_opened_now_until_its_reader_takes_it(backend: StoreBackend) -> None:
    """The reader takes it in a transaction of its own; what it misses when it looks again counts as finished."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    (shard,) = us.open("a").values()
    store.release(us.token, [shard.key])
    backend.clock.advance(8 * DAY)
    assert other.open("a")["a"].token is None
    assert store.prune(WEEK).shards == 0
    assert store.acquire(other.token, {shard.key: None}) == {shard.key}


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("by", ["reader", "receiver"])
def test_what_was_given_up_and_is_pruned_while_it_is_announced_again_is_new(backend: StoreBackend, by: str) -> None:
    """It was read, and is not locked yet: the message would be acknowledged, and no store would have the object."""
    store, view = backend.open(), backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    (shard,) = us.open("a").values()
    store.release(us.token, [shard.key])
    view.start_receiver("r", "queue", "host", ["s"])
    backend.clock.advance(8 * DAY)
    pruned: list[int] = []

    def prune(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        is_ours = statement.startswith(("SELECT cuesqueue_shards.", "UPDATE cuesqueue_shards"))
        if not pruned and is_ours and (statement.startswith("UPDATE") or statement.endswith("FOR UPDATE")):
            pruned.append(store.prune(WEEK).shards)

    again = [shard.content._replace(receive_count=2)]
    sa.event.listen(view.database.engine, "before_cursor_execute", prune)
    if by == "reader":
        opened = view.open_shards(other.token, "s", again)[shard.key]
        assert (opened.state, opened.token) == (ShardState.OPEN, other.token)
    else:
        assert view.record("r", {"s": again}, Receipts(1))[:3] == (1, 0, 0)
    assert pruned == [1]
    assert ids(store) == {"a"}
