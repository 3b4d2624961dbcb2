"""Contract: a database's clock that is years ahead for a moment loses nothing, and stops nothing for years."""

from __future__ import annotations

from datetime import timedelta

from shard_store.completeness.comparing import Scope, Tally
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import Planned
from shard_store.upkeep.pruning import RetentionPolicy
from shard_store.upkeep.timing import LASTING
from support.store_backends import Pipeline, StoreBackend, rows

HOUR, DAY = 3_600.0, 86_400.0
YEARS = 3650 * DAY
WEEK = RetentionPolicy(timedelta(days=7))
AGES = RetentionPolicy(timedelta(days=7), pipelines=timedelta(days=8), data=timedelta(days=30))


def ids(store: ShardStore) -> set[str]:
    return {row["shard_id"] for row in rows(store, "shards")}


def remembered(store: ShardStore) -> dict[str, int]:
    return {view: len(rows(store, view)) for view in ("shards", "attempts", "errors", "splits", "cleanings")}


def test_a_prune_while_the_clock_is_years_ahead_forgets_nothing_within_the_window(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    assert store.prune(AGES).total == 0
    backend.clock.advance(HOUR / 2)
    us.deliver("b")
    before = remembered(store)
    backend.clock.advance(YEARS)
    result = store.prune(AGES)
    assert (result.total, result.ahead is not None and result.ahead > timedelta(days=3000)) == (0, True)
    backend.clock.advance(600)
    assert store.prune(AGES).total == 0, "nor while it lasts"
    assert store.prune(AGES, dry_run=True).total == 0
    backend.clock.advance(-YEARS)
    assert (store.prune(AGES).total, store.prune(AGES).ahead) == (0, None)
    assert remembered(store) == before
    us.open("a")
    assert us.look("a")["a"].state.value == "done"


def test_after_the_clock_has_come_back_pruning_goes_on_as_if_nothing_had_been(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    daily = RetentionPolicy(timedelta(days=1))
    store.prune(daily)
    backend.clock.advance(YEARS)
    store.prune(daily)
    backend.clock.advance(-YEARS)
    for _ in range(26):
        backend.clock.advance(HOUR)
        assert store.prune(daily).ahead is None
    assert ids(store) == set()


def test_a_job_that_prunes_once_a_week_still_forgets_what_is_old(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    removed = 0
    for _ in range(4):
        backend.clock.advance(7 * DAY + 1)
        removed += store.prune(WEEK).shards
    assert removed == 1


def test_a_step_of_the_clock_counts_when_it_has_lasted(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    store.prune(WEEK)
    backend.clock.advance(8 * DAY)  # everything was stopped
    assert store.prune(WEEK).shards == 0
    backend.clock.advance(LASTING.total_seconds() - 60)
    assert store.prune(WEEK).shards == 0
    backend.clock.advance(60)
    assert store.prune(WEEK).shards == 1


def test_nothing_is_cleaned_before_its_time_while_the_clock_is_years_ahead(backend: StoreBackend) -> None:
    """Objects of users are deleted then: that does not come back with the clock."""
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    store.prune(WEEK)
    backend.clock.advance(YEARS)

    def plan() -> int:
        return store.plan_cleanings("s", timedelta(days=1), lambda shard_id, uri: Planned(uri, None), 100)

    assert plan() == 0
    backend.clock.advance(-YEARS)
    for _ in range(26):
        backend.clock.advance(HOUR)
        store.prune(RetentionPolicy(timedelta(days=2)))
    assert plan() == 1


def test_an_interval_that_was_won_years_ahead_is_won_again_when_the_clock_is_back(backend: StoreBackend) -> None:
    store = backend.open()
    backend.clock.advance(YEARS)
    assert store.win_interval("prune s", 60.0)
    backend.clock.advance(-YEARS)
    assert store.win_interval("prune s", 60.0)
    assert not store.win_interval("prune s", 60.0)


def test_the_newest_certificate_is_the_one_that_was_written_last(backend: StoreBackend) -> None:
    store = backend.open()
    scope = Scope("s", "p", None, 5, "{}")
    backend.clock.advance(YEARS)
    store.certify(scope, "listing", Tally(), "ahead")
    backend.clock.advance(-YEARS)
    last = store.certify(scope, "listing", Tally(), "now")
    found = store.newest_certificate(scope)
    assert found is not None
    assert found.id == last
