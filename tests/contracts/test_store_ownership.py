"""Contract: who owns a shard, and how it passes on (invariants 2 and 5)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from shard_store.batches.publishing import Looked
from shard_store.batches.takeover import Committed
from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost
from shard_store.model import Plan, PublishToken, Semantics, Shard, ShardKey, ShardState, shard_key
from shard_store.sql.schema import shards
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend, content
from support.store_processes import Workers


def seen(*shards: Shard) -> dict[ShardKey, PublishToken | None]:
    return {shard.key: shard.token for shard in shards}


def test_nobody_takes_a_shard_while_its_owner_lives(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    owner.open("a")
    backend.clock.advance(STALE - 1)
    [shard] = other.open("a").values()
    assert not shard.stale
    assert store.acquire(other.token, seen(shard)) == set()
    assert other.look("a")["a"].token == owner.token


def test_a_heartbeat_keeps_shards_however_slow_the_work_is(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    [shard] = owner.open("a").values()
    for _ in range(5):
        backend.clock.advance(STALE - 1)
        store.heartbeat(owner.token, STALE)
        store.heartbeat(other.token, STALE)
        assert store.acquire(other.token, seen(shard)) == set()


def test_a_stale_shard_is_taken_and_its_owner_finds_out_at_publish(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    plan = owner.planned("a", "b")
    backend.clock.advance(STALE)
    [shard] = other.open("a").values()
    assert shard.stale
    assert store.acquire(other.token, seen(shard)) == {shard.key}
    store.heartbeat(owner.token, STALE)  # the owner was only slow: it comes back, and does not know
    with pytest.raises(ShardsLost) as lost:
        owner.publish(plan)
    assert lost.value.shard_ids == ("a",)
    owner.token = store.start(owner.source, "owner", stale_after=STALE).token
    assert owner.publish(owner.plan()).shards == 1  # the next attempt leaves it to its new owner


def test_a_staleness_that_is_over_when_we_take_is_none(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    owner.open("a")
    backend.clock.advance(STALE + 1)
    [shard] = other.open("a").values()
    assert shard.stale
    store.heartbeat(owner.token, STALE)
    assert store.acquire(other.token, seen(shard)) == set()


def test_a_token_that_has_changed_since_it_was_seen_is_not_taken(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    [shard] = owner.open("a").values()
    backend.clock.advance(STALE + 1)
    again = Pipeline.start(store, "owner")
    backend.clock.advance(STALE + 1)  # stale again, but under another token than the one seen
    assert store.acquire(other.token, seen(shard)) == set()
    assert store.acquire(other.token, {shard.key: again.token}) == {shard.key}


def test_a_released_shard_is_taken_without_waiting(store: ShardStore) -> None:
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    a, b = owner.open("a", "b").values()
    store.release(owner.token, [a.key])
    store.release(other.token, [b.key])  # not the owner's word: nothing happens
    found = other.open("a", "b")
    assert [found[i].token for i in "ab"] == [None, owner.token]
    assert store.acquire(other.token, seen(*found.values())) == {a.key}


def test_a_finished_shard_is_never_taken(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    owner.deliver("a")
    backend.clock.advance(STALE + 1)
    assert store.acquire(other.token, seen(owner.look("a")["a"])) == set()
    store.release(owner.token, [shard_key("s", "a")])
    assert owner.look("a")["a"].token == owner.token


def test_what_a_stale_owner_may_have_brought_to_its_target_since_it_was_settled_stays(backend: StoreBackend) -> None:
    """It woke, committed a batch in its table and died, after who takes its shards has asked for its target."""
    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    owner.deliver("before")
    plan = owner.planned("a")
    backend.clock.advance(STALE)
    assert store.settle(["owner"], lambda _: None, repeats=False) == {}
    store.note_target([owner.token], "{}")
    shards = other.open("a").values()
    assert store.acquire(other.token, seen(*shards)) == set()
    table = Committed(plan.identity.delivery_hash, ["owner"], 1, Looked((1, 1), shown_before=True))
    assert store.settle(["owner"], lambda _: table, repeats=False) == {}
    assert other.look("a")["a"].state is ShardState.DONE
    assert store.targets(["owner"]) == {None}, "all that it has is published"


def test_several_owners_shards_are_taken_in_one_call(backend: StoreBackend) -> None:
    store = backend.open()
    owners = [Pipeline.start(store, f"o{i}") for i in range(3)]
    shards = [owner.open(f"a{i}")[f"a{i}"] for i, owner in enumerate(owners)]
    backend.clock.advance(STALE + 1)
    us = Pipeline.start(store, "us")
    store.heartbeat(owners[1].token, STALE)
    assert store.acquire(us.token, seen(*shards)) == {shards[0].key, shards[2].key}


def test_a_retired_pipelines_shards_stay_its_own_until_they_are_stale(backend: StoreBackend) -> None:
    store = backend.open()
    owner, other = Pipeline.start(store, "owner", driver="d"), Pipeline.start(store, "other")
    [shard] = owner.open("a").values()
    store.retire(owner.token)
    assert store.acquire(other.token, seen(shard)) == set()


def test_a_restart_takes_over_its_own_shards_at_once_in_the_order_they_were_opened(backend: StoreBackend) -> None:
    store = backend.open()
    first = Pipeline.start(store)
    first.open("b")
    backend.clock.advance(1)
    first.open("a", "z")
    first.deliver("z")
    started = store.start("s", "p")
    assert [shard.content.shard_id for shard in started.unfinished] == ["b", "a"]
    assert {shard.token for shard in started.unfinished} == {PublishToken("p", 2)}


def test_a_start_tells_whether_the_plan_of_the_one_before_is_unfinished(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert not store.start("s", "p").plan_unfinished
    us = Pipeline.start(store)
    plan = us.planned("a")
    assert store.start("s", "p").plan_unfinished
    us = Pipeline.start(store)
    us.publish(us.plan())
    assert plan.identity.delivery_hash == us.plan().identity.delivery_hash
    assert not store.start("s", "p").plan_unfinished


OldCall = Callable[[ShardStore, Pipeline, Plan], object]
FENCED: dict[str, OldCall] = {
    "heartbeat": lambda store, old, plan: store.heartbeat(old.token, STALE),
    "open": lambda store, old, plan: old.open("new"),
    "acquire": lambda store, old, plan: store.acquire(old.token, {shard_key("s", "free"): None}),
    "snapshot": lambda store, old, plan: store.advance(old.token, snapshot=(2, plan.ranges)),
    "confirm": lambda store, old, plan: store.advance(old.token, confirm=1),
    "plan": lambda store, old, plan: store.plan(old.token, 0, 1),
    "publish": lambda store, old, plan: old.publish(plan),
    "adopt": lambda store, old, plan: store.adopt_offset(old.token, 7),
    "target": lambda store, old, plan: store.note_target([old.token], "{}"),
}


@pytest.mark.parametrize("call", FENCED)
def test_an_old_incarnation_writes_nothing_more(store: ShardStore, call: str) -> None:
    old, other = Pipeline.start(store), Pipeline.start(store, "other")
    plan = old.planned("a")
    other.open("free")
    store.release(other.token, [shard_key("s", "free")])
    Pipeline.start(store)
    before = [list(store.pages(view)) for view in ("shards", "attempts", "splits")]
    with pytest.raises(PipelineTakenOver, match=r"run by incarnation 2, this query is incarnation 1"):
        FENCED[call](store, old, plan)
    assert [list(store.pages(view)) for view in ("shards", "attempts", "splits")] == before
    assert store.start("s", "p").last_seq == 1


def test_an_old_incarnation_releases_nothing_of_the_new_one(store: ShardStore) -> None:
    old = Pipeline.start(store)
    [shard] = old.open("a").values()
    new = Pipeline.start(store)
    store.release(old.token, [shard.key])
    store.retire(old.token)
    assert new.look("a")["a"].token == new.token


def test_a_pipeline_that_the_store_does_not_know_may_do_nothing(store: ShardStore) -> None:
    with pytest.raises(PipelineTakenOver, match="no longer exists"):
        store.open_shards(PublishToken("never", 1), "s", [content("a")])


def test_of_two_threads_that_take_the_same_shards_exactly_one_gets_each(backend: StoreBackend) -> None:
    store = backend.open()
    owner = Pipeline.start(store, "owner")
    shards = list(owner.open(*(f"k{i:03}" for i in range(300))).values())
    backend.clock.advance(STALE + 1)
    takers = [Pipeline.start(backend.open(), f"taker{i}") for i in range(4)]
    barrier = threading.Barrier(len(takers))
    won: dict[str, set[ShardKey]] = {}

    def take(taker: Pipeline) -> None:
        barrier.wait()
        won[taker.token.pipeline] = taker.store.acquire(taker.token, seen(*shards))

    threads = [threading.Thread(target=take, args=(taker,)) for taker in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for keys in won.values() for key in keys) == sorted(shard.key for shard in shards)
    for shard in store.look([shard.key for shard in shards]).values():
        assert shard.token is not None
        assert shard.key in won[shard.token.pipeline]


def test_of_processes_that_take_the_same_shards_exactly_one_gets_each(backend: StoreBackend) -> None:
    ids = [f"k{i}" for i in range(50)]
    Pipeline.start(backend.open(), "owner").open(*ids)
    later = str(backend.clock.now + STALE + 1)
    with Workers([["acquire", backend.url, later, f"taker{i}", "owner", *ids] for i in range(4)]) as workers:
        won = workers.ask("go")
    assert sorted(i for some in won for i in some) == sorted(ids)


def test_the_new_owner_goes_on_where_the_old_one_had_published(backend: StoreBackend) -> None:
    from shard_store.model import position_at

    store = backend.open()
    owner, other = Pipeline.start(store, "owner"), Pipeline.start(store, "other")
    owner.snapshot(*owner.open("a").values(), ends=[position_at(4)])
    owner.publish(owner.plan())
    backend.clock.advance(STALE + 1)
    [shard] = other.open("a").values()
    store.acquire(other.token, seen(shard))
    assert shard.position == position_at(4)
    store.heartbeat(other.token, STALE)
    other.snapshot(shard)
    assert other.publish(other.plan()).shards == 1


@pytest.mark.parametrize("semantics", [Semantics.EXACTLY_ONCE, Semantics.AT_MOST_ONCE])
@pytest.mark.parametrize("wakes", ["to plan", "to its heartbeat"])
def test_what_is_taken_over_from_a_reader_that_sleeps_and_pruned_may_not_be_lost(
    backend: StoreBackend, semantics: Semantics, wakes: str
) -> None:
    """Nothing in the store tells. So its reader acknowledges nothing more, and does not say that it is lost."""
    store = backend.open()
    us, other = Pipeline.start(store, semantics=semantics), Pipeline.start(store, "other")
    (shard,) = us.open("a").values()
    backend.clock.advance(STALE)
    assert store.acquire(other.token, {shard.key: us.token}) == {shard.key}
    other.snapshot(shard)
    other.publish(other.plan())
    other.confirm()
    assert store.prune(RetentionPolicy(max_shards=0)).shards == 1
    if wakes == "to its heartbeat":
        store.heartbeat(us.token, STALE)

    def batch() -> None:
        us.snapshot(shard)
        us.plan()

    with pytest.raises(LostProgress, match=r"may have gone back .* or another pipeline has taken over and ended what"):
        batch()


def test_a_reader_that_never_slept_says_what_is_lost(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.planned("a")
    (shard,) = us.open("b").values()
    backend.clock.advance(STALE / 2)
    store.heartbeat(us.token, STALE)
    store.database.write(lambda t: t.execute(shards.delete().where(shards.c.shard_key == shard.key)))
    us.snapshot(shard)
    with pytest.raises(LostProgress, match=r"has gone back in time .* or a backup was restored\. The query"):
        us.plan()
