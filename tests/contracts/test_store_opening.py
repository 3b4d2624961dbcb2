"""Contract: what opening shards promises, whatever the database."""

from __future__ import annotations

import pytest

from shard_store.errors import StoreConfigurationError
from shard_store.model import BEGINNING, Content, ErrorRecord, Shard, ShardState, end_at, shard_key
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content


def test_a_new_shard_is_open_at_the_beginning_and_ours(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert us.open("a")["a"] == Shard(
        shard_key("s", "a"), content("a"), BEGINNING, ShardState.OPEN, us.token, stale=False
    )


def test_one_call_opens_a_set_and_tells_of_each_how_it_stands(backend: StoreBackend) -> None:
    store = backend.open()
    us, other, gone = (Pipeline.start(store, name) for name in ("us", "other", "gone"))
    us.deliver("done")
    bad = us.planned("bad")
    store.record_errors("s", "us", [ErrorRecord("object", "corrupt-object", "", "bad", bad.identity.delivery_hash)])
    us.publish(bad)
    us.confirm()
    us.open("ours", "released")
    store.release(us.token, [shard_key("s", "released")])
    gone.open("stale")
    backend.clock.advance(STALE + 1)
    store.heartbeat(us.token, STALE)
    store.heartbeat(other.token, STALE)
    other.open("live")
    found = us.open("new", "done", "bad", "ours", "released", "stale", "live")
    assert {i: (s.state, s.token, s.stale) for i, s in found.items()} == {
        "new": (ShardState.OPEN, us.token, False),
        "done": (ShardState.DONE, us.token, False),
        "bad": (ShardState.QUARANTINED, us.token, False),
        "ours": (ShardState.OPEN, us.token, False),
        "released": (ShardState.OPEN, None, True),
        "stale": (ShardState.OPEN, gone.token, True),
        "live": (ShardState.OPEN, other.token, False),
    }
    assert found["done"].position == end_at(10)


def test_a_shard_announced_twice_in_one_call_is_one_and_the_last_announcement_counts(store: ShardStore) -> None:
    us = Pipeline.start(store)
    first, second = Content("a", "uri", 1, "e", "q", "m1"), Content("a", "other", 2, "f", "q", "m2")
    [shard] = store.open_shards(us.token, "s", [first, second]).values()
    assert shard.content == second
    assert us.look("a")["a"].content == second


def test_opening_twice_changes_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert us.open("a", "b") == us.open("b", "a")


def test_opening_nothing_finds_nothing(store: ShardStore) -> None:
    assert Pipeline.start(store).open() == {}


def test_sources_do_not_share_shards(store: ShardStore) -> None:
    one, two = Pipeline.start(store, "p", "s"), Pipeline.start(store, "q", "t")
    assert one.open("a")["a"].token == one.token
    assert two.open("a")["a"].token == two.token


def test_more_shards_than_one_statement_takes_are_opened_in_one_call(store: ShardStore) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    other.open(*(f"k{i}" for i in range(0, 2500, 7)))
    found = us.open(*(f"k{i}" for i in range(2500)))
    assert len(found) == 2500
    assert {i for i, s in found.items() if s.token == other.token} == {f"k{i}" for i in range(0, 2500, 7)}


STRANGE = [
    "x",
    "k" * 4000,
    "s3://bucket/" + "\N{GRINNING FACE}" * 1000,
    "nul \0 inside",
    "\0",
    "lone \ud800 surrogate",
    "\udcff from a file name",
    "\ud83d\ude00",  # two lone surrogates that JSON would join
    "\N{GRINNING FACE}",
    '"quoted"',
    '"',
    '"\\u0000"',
    "back\\slash \\u0041",
    "new\nline\ttab",
    "%20+%00",
    "' or 1=1 --",
    "{'a': :b, %(c)s}",
    "e\u0301",
    "\u00e9",
    "Case",
    "case",
    "space",
    "space ",
    " space",
    "space\u00a0",
    "stra\u00dfe",
    "strasse",
]


def test_ids_of_any_length_and_any_unicode_are_told_apart_and_given_back_as_they_were(store: ShardStore) -> None:
    us = Pipeline.start(store)
    found = us.open(*STRANGE)
    assert list(found) == STRANGE
    assert len({shard.key for shard in found.values()}) == len(STRANGE)
    looked = us.look(*STRANGE)
    assert {i: (s.key, s.content) for i, s in looked.items()} == {i: (s.key, s.content) for i, s in found.items()}


def test_strange_ids_go_through_a_whole_batch(store: ShardStore) -> None:
    us = Pipeline.start(store)
    written = us.snapshot(*us.open(*STRANGE).values())
    again = Pipeline.start(store)
    plan = again.plan()
    assert plan.ranges == written
    assert again.publish(plan).shards == len(STRANGE)
    assert {row for page in store.pages("shards") for row in (r[1] for r in page)} == set(STRANGE)


@pytest.mark.parametrize("text", ["\0", '"', "\ud800", "\N{GRINNING FACE}" * 500])
def test_everything_a_notification_tells_is_kept_as_it_was(store: ShardStore, text: str) -> None:
    us = Pipeline.start(store)
    told = Content(f"id {text}", f"uri {text}", 2**62, text, text, text, 2**31 - 1)
    store.open_shards(us.token, "s", [told])
    key = shard_key("s", told.shard_id)
    assert store.look([key])[key].content == told
    bare = Content("bare", "bare", None, None, "", "", 1)
    store.open_shards(us.token, "s", [bare])
    assert us.look("bare")["bare"].content == bare


@pytest.mark.parametrize("name", ["", " p", "p ", "p\0", "\ud800", "p\n", "p" * 201])
def test_names_that_some_database_would_not_keep_are_refused(store: ShardStore, name: str) -> None:
    with pytest.raises(StoreConfigurationError, match=r"option 'pipeline': .* cannot be a name"):
        store.start("s", name)
    with pytest.raises(StoreConfigurationError, match=r"option 'source': .* cannot be a name"):
        store.start(name, "p")


def test_names_are_case_sensitive_and_may_be_long(store: ShardStore) -> None:
    for name in ("p", "P", "\u00e9", "e\u0301", "\N{GRINNING FACE}" * 200):
        assert store.start("s", name).token.incarnation == 1


def test_a_pipeline_reads_one_source_for_ever(store: ShardStore) -> None:
    store.start("s", "p")
    with pytest.raises(StoreConfigurationError, match="'p' already reads source 's' in this store, not 't'"):
        store.start("t", "p")
