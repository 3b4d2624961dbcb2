"""Contract: what was announced of an object by reference is kept until its row is published, and is always the same."""

from __future__ import annotations

import json

import pytest

from shard_store.batches import snapshots
from shard_store.model import Content, ErrorRecord, Reference, Shard, ShardState, shard_key
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content

KEY = shard_key("s", "a")
FIRST = Reference("v1", 1_700_000_000_123_456, 1_700_000_000_999_999, "orders.eu")
SECOND = Reference("v2", 1_800_000_000_000_000, None, "orders.us")
UNUSUAL = Reference('"\0\ud800🦀', -1, 0, '\\u0000"')
NOTHING = Reference()


def said(message: str, reference: Reference | None, shard_id: str = "a", size: int | None = 10) -> Content:
    return Content(shard_id, shard_id, size, None, "queue", message, reference=reference)


def announce(us: Pipeline, *contents: Content) -> dict[str, Shard]:
    found = us.store.open_shards(us.token, us.source, contents)
    return {shard.content.shard_id: shard for shard in found.values()}


ANNOUNCED = {"a": FIRST, "b": UNUSUAL, "c": NOTHING, "d": None}
CONTENTS = [said("m", reference, shard_id) for shard_id, reference in ANNOUNCED.items()]


def test_it_is_what_was_announced_for_who_opens_it_who_looks_and_who_starts_again(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert {i: s.content.reference for i, s in announce(us, *CONTENTS).items()} == ANNOUNCED
    assert {i: s.content.reference for i, s in us.look(*ANNOUNCED).items()} == ANNOUNCED
    again = backend.open().start("s", "p", stale_after=STALE)
    assert {s.content.shard_id: s.content.reference for s in again.unfinished} == ANNOUNCED


def test_another_announcement_of_an_open_shard_finds_what_the_first_one_said(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", FIRST))
    assert announce(us, said("m1", FIRST))["a"].content.reference == FIRST
    other = Pipeline.start(store, "other")
    assert announce(other, said("m1", FIRST))["a"].content.reference == FIRST


def test_a_snapshot_and_its_plan_have_it_at_every_attempt(backend: StoreBackend) -> None:
    us = Pipeline.start(backend.open())
    us.snapshot(*announce(us, *CONTENTS).values())
    assert {r.content.shard_id: r.content.reference for r in us.plan().ranges} == ANNOUNCED
    again = Pipeline.start(backend.open())
    plan = again.store.plan(again.token, 0, 1)
    assert {r.content.shard_id: r.content.reference for r in plan.ranges} == ANNOUNCED
    assert plan.attempt == 2


def test_the_newest_announcement_counts_until_there_is_a_snapshot(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", FIRST))
    shard = announce(us, said("m2", SECOND, size=20))["a"]
    assert (shard.content.size, shard.content.reference) == (20, SECOND)
    us.snapshot(us.look("a")["a"])
    (planned,) = us.plan().ranges
    assert (planned.content.size, planned.content.reference) == (20, SECOND)


def test_a_newer_announcement_changes_nothing_of_a_row_that_a_snapshot_has(backend: StoreBackend) -> None:
    """A row that was in a batch once is the same in each attempt at it, also where the first one was made later."""
    us = Pipeline.start(backend.open())
    us.snapshot(*announce(us, said("m1", FIRST)).values())
    announce(us, said("m2", SECOND, size=20))
    first = us.plan()
    announce(us, said("m3", SECOND, size=30))
    again = Pipeline.start(backend.open())
    second = again.store.plan(again.token, 0, 1)
    assert [(r.content.size, r.content.reference) for r in first.ranges] == [(10, FIRST)]
    assert second.ranges == first.ranges
    again.publish(second)
    assert again.look("a")["a"].state is ShardState.DONE


def test_what_is_opened_again_by_a_new_announcement_has_what_that_says(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*announce(us, said("m1", FIRST)).values())
    plan = us.plan()
    digest = plan.identity.delivery_hash
    store.record_errors("s", "p", [ErrorRecord("object", "missing-object", "why", "a", digest, queue="queue")])
    us.publish(plan)
    us.confirm()
    assert us.look("a")["a"].state is ShardState.QUARANTINED
    opened = announce(us, said("m2", SECOND))["a"]
    assert (opened.reopened, opened.content.reference) == (True, SECOND)
    assert us.look("a")["a"].content.reference == SECOND


def test_objects_that_are_read_have_none_and_their_snapshots_are_as_before(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert [s.content.reference for s in us.open("a", "b").values()] == [None, None]
    assert len(json.loads(snapshots._contents_text([content("a"), content("b")]))) == 9


def test_a_snapshot_of_an_earlier_version_can_be_read() -> None:
    text = json.dumps([["a"], [None], [10], ["e"], ["q"], ["m"], [1], None, None])
    assert snapshots._contents(text) == [Content("a", "a", 10, "e", "q", "m", 1)]


@pytest.mark.parametrize("count", [1, 1000, 2500])
def test_many_are_kept_each_with_its_own(store: ShardStore, count: int) -> None:
    us = Pipeline.start(store)
    wanted = {f"{number}": Reference(f"v{number}", number, -number, "t" * (number % 7)) for number in range(count)}
    us.snapshot(*announce(us, *[said("m", one, name) for name, one in wanted.items()]).values())
    assert {r.content.shard_id: r.content.reference for r in us.plan().ranges} == wanted
