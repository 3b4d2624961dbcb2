"""Contract: what another announcement of a known object changes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from shard_store.error_table.search import Criteria, pages
from shard_store.model import (
    BEGINNING,
    STORE,
    Content,
    ErrorRecord,
    Pending,
    Plan,
    Range,
    Reference,
    Semantics,
    Shard,
    ShardState,
    Split,
    end_at,
    position_at,
    shard_key,
)
from shard_store.shards.changes import Audit
from shard_store.shards.recording import Receipts
from shard_store.sql.schema import shard_changes, shards
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import Planned
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import SERVERS, STALE, Pipeline, StoreBackend, rows

CURABLE = ("missing-object", "object-changed", "forbidden-object")
KEY = shard_key("s", "a")


def said(message: str, size: int | None = 10, etag: str | None = None, sequence: str | None = None) -> Content:
    """Object "a" as a message announces it."""
    return Content("a", "a", size, etag, "queue", message, sequence=sequence)


def announce(us: Pipeline, *contents: Content) -> Shard:
    return us.store.open_shards(us.token, us.source, contents)[KEY]


def planned(us: Pipeline, shard: Shard) -> Plan:
    us.snapshot(shard)
    return us.plan()


def found_bad(us: Pipeline, plan: Plan, cause: str = "missing-object", scope: str = "object") -> None:
    start = plan.ranges[0].start
    record = ErrorRecord(scope, cause, "why", "a", plan.identity.delivery_hash, start, "queue", "m1")
    us.store.record_errors("s", us.token.pipeline, [record])


def quarantine(us: Pipeline, shard: Shard, cause: str = "missing-object") -> None:
    plan = planned(us, shard)
    found_bad(us, plan, cause)
    us.publish(plan)
    us.confirm()
    assert us.look("a")["a"].state is ShardState.QUARANTINED


def publish(us: Pipeline, shard: Shard) -> Plan:
    plan = planned(us, shard)
    us.publish(plan, Split(f"/split-{us.token}-{us.seq}", 1, 1))
    us.confirm()
    return plan


def version(plan: Plan) -> list[tuple[int | None, str | None]]:
    return [(r.content.size, r.content.etag) for r in plan.ranges]


# --- reopened


@pytest.mark.parametrize("others", [(), ("b",)], ids=["alone", "beside one that is known"])
def test_of_two_announcements_at_once_that_nothing_orders_the_last_counts(
    store: ShardStore, others: tuple[str, ...]
) -> None:
    us = Pipeline.start(store)
    us.open(*others)
    beside = [said("m3")._replace(shard_id=other, uri=other) for other in others]
    assert announce(us, said("m1", etag="1"), said("m2", etag="2"), *beside).content.etag == "2"
    assert store.look([KEY])[KEY].content.etag == "2"


def test_a_uri_that_is_delivered_again_beside_a_newer_event_does_not_hide_that_event(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", None))
    announce(us, said("m2", 10, "old"))
    uri = said("m1", 16, "new")._replace(announced=(None, None), receive_count=2)
    (shard,) = us.store.open_shards(us.token, "s", [said("m3", 16, "new"), uri]).values()
    assert version(planned(us, shard)) == [(16, "new")]
    assert version(us.plan()) == [(16, "new")]


def test_an_older_event_is_no_news_of_what_was_read_in_a_version_that_was_announced_while_its_plan_ran(
    store: ShardStore,
) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", 0, "now", "s1")))
    announce(us, said("m2", 0, "now", "s2"))
    us.publish(plan)
    us.confirm()
    assert announce(us, said("m3", 10, "before", "s1")).state is ShardState.DONE


@pytest.mark.parametrize("announced", ["afterwards", "while the plan runs"])
def test_an_object_of_which_other_tasks_have_published_a_part_is_not_opened_again(
    store: ShardStore, announced: str
) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1")))
    found_bad(us, plan, scope="part")
    if announced == "while the plan runs":
        announce(us, said("m2"))
    us.publish(plan, Split("/the other part", 1, 1))
    us.confirm()
    assert announce(us, said("m3")).state is ShardState.QUARANTINED
    refused = store.put_back([KEY], Audit("ada@host"), message_uri="message").refused
    assert "which of its rows are published" in refused["a"]


@pytest.mark.parametrize("cause", CURABLE)
def test_a_new_announcement_opens_an_object_that_was_missing_changed_or_forbidden(
    store: ShardStore, cause: str
) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1", None)), cause)
    shard = announce(us, said("m2", 16, "e"))
    assert (shard.state, shard.position, shard.token, shard.reopened) == (ShardState.OPEN, BEGINNING, us.token, True)
    assert us.look("a")["a"].content == said("m2", 16, "e")
    assert version(publish(us, shard)) == [(16, "e")]
    assert us.look("a")["a"].state is ShardState.DONE
    assert announce(us, said("m3", 16, "e")).state is ShardState.DONE, "what is published is never opened again"


def test_it_is_opened_as_long_as_its_shard_is_remembered_though_its_error_is_older(backend: StoreBackend) -> None:
    """The first attempt found it missing, and a pipeline that was down for most of the window publishes that."""
    day, week = 86_400, RetentionPolicy(timedelta(days=7))
    store = backend.open()
    us = Pipeline.start(store)
    found_bad(us, planned(us, announce(us, said("m1"))))
    backend.clock.advance(6 * day)
    us = Pipeline.start(store)
    us.publish(store.plan(us.token, 0, 1))
    us.seq = 1
    us.confirm()
    us.deliver("another batch")
    backend.clock.advance(2 * day)
    store.prune(week)
    assert announce(us, said("m2", 16)).reopened
    backend.run_for(6 * day)
    assert store.prune(week).errors == 1


@pytest.mark.parametrize("when", ["afterwards", "while the plan runs"])
def test_what_an_operator_gave_up_stays_so_and_counts_as_changed(store: ShardStore, when: str) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1")))
    found_bad(us, plan, "quarantined-by-hand")
    if when == "while the plan runs":
        announce(us, said("m2", 16))
    us.publish(plan)
    confirmed = store.advance(us.token, confirm=us.seq, keys=[KEY])
    shard = announce(us, said("m2", 16))
    assert (shard.state, shard.reopened) == (ShardState.QUARANTINED, False)
    assert (set(confirmed.finished), confirmed.changed + shard.changed) == ({KEY}, 1)
    store.put_back([KEY], Audit("ada@host"), message_uri="message")
    put_back = us.look("a")["a"]
    assert (put_back.state, put_back.content.size) == (ShardState.OPEN, None), "whatever is there now is read"


def test_a_redelivery_opens_nothing_however_often_it_comes(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1")))
    for _ in range(3):
        assert announce(us, said("m1")._replace(receive_count=7)).state is ShardState.QUARANTINED


def test_each_message_opens_an_object_at_most_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    opened = 0
    quarantine(us, announce(us, said("m0")))
    for message in ["m1", "m2", "m1", "m2", "m1", "m0", "m0"]:
        shard = announce(us, said(message))
        if shard.reopened:
            opened += 1
            quarantine(us, shard)
    assert opened == 3  # m1, m2, and m0, which had announced it, but opened nothing yet


def test_of_messages_without_an_id_each_first_delivery_is_a_new_announcement(store: ShardStore) -> None:
    us = Pipeline.start(store)
    same = said("derived from the body")._replace(named=False)
    quarantine(us, announce(us, same))
    assert announce(us, same._replace(receive_count=2)).state is ShardState.QUARANTINED
    quarantine(us, announce(us, same))
    assert announce(us, same).reopened


def test_an_older_event_that_comes_late_opens_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1", sequence="s5")))
    assert announce(us, said("m2", sequence="s4")).state is ShardState.QUARANTINED
    assert announce(us, said("m3", sequence="s5")).reopened, "the same event, sent again by a person"


def test_two_announcements_in_one_call_open_an_object_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1", 1)))
    shard = announce(us, said("m2", 2), said("m3", 3))
    assert (shard.reopened, shard.content.size) == (True, 3)
    publish(us, shard)
    assert announce(us, said("m2", 2)).state is ShardState.DONE


@pytest.mark.parametrize("redelivered", [0, 1], ids=["before it", "after it"])
def test_a_redelivery_that_comes_with_a_new_announcement_does_not_hide_it(store: ShardStore, redelivered: int) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1")))
    both = [said("m2", 16)._replace(receive_count=2)]  # one that a reader has given back when it stopped
    both.insert(redelivered, said("m1")._replace(receive_count=2))
    assert announce(us, *both).reopened
    assert us.look("a")["a"].content.size == 16


def test_of_two_pipelines_one_opens_an_object_and_the_other_finds_it_taken(store: ShardStore) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    quarantine(us, announce(us, said("m1")))
    shard = announce(other, said("m2", 16))
    assert (shard.reopened, shard.token) == (True, other.token)
    again = announce(us, said("m3", 17))
    assert (again.reopened, again.state, again.token) == (False, ShardState.OPEN, other.token)
    assert version(publish(other, again)) == [(17, None)]
    assert us.confirm([KEY]) == {KEY}, "the message that waited here is acknowledged"


def test_what_was_published_in_part_is_not_opened_by_an_announcement(store: ShardStore) -> None:
    us = Pipeline.start(store)
    shard = announce(us, said("m1", 100))
    us.publish(_part(us, shard, position_at(40)), Split("/x", 1, 1))
    us.confirm()
    quarantine(us, us.look("a")["a"], "object-changed")
    assert announce(us, said("m2", 200)).state is ShardState.QUARANTINED


def _part(us: Pipeline, shard: Shard, end: Any) -> Plan:
    us.snapshot(shard, ends=[end])
    return us.plan()


def test_the_error_stays_and_says_that_its_object_was_opened_again(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1")))
    announce(us, said("m2"))
    (error,) = rows(store, "errors")
    assert (error["cause"], error["state"]) == ("missing-object", "reopened")
    assert error["reopened_at"] is not None


def test_a_plan_that_is_repeated_after_its_publication_leaves_the_opened_object_alone(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1")))
    found_bad(us, plan)
    us.publish(plan)
    reopened = announce(us, said("m2", 16))  # Spark does not know yet that the batch is done
    again = Pipeline.start(store)
    repeated = store.plan(again.token, 0, 1)
    assert (repeated.published, repeated.ranges) == (True, ())
    again.confirmed = 1
    publish(again, again.look("a")["a"])
    assert [row["rows"] for row in rows(store, "splits")] == [1]
    assert reopened.token == us.token


def test_an_announcement_during_the_plan_that_finds_an_object_missing_is_not_lost(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", None)))
    found_bad(us, plan)
    assert announce(us, said("m2", 16)).state is ShardState.OPEN
    us.publish(plan)
    shard = us.look("a")["a"]
    assert (shard.state, shard.position, shard.content.size) == (ShardState.OPEN, BEGINNING, 16)
    assert us.confirm([KEY]) == set(), "neither message may be acknowledged yet"
    assert version(publish(us, shard)) == [(16, None)]
    assert [error["state"] for error in rows(store, "errors")] == ["reopened"]


def test_that_announcement_opens_the_object_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", None)))
    found_bad(us, plan)
    announce(us, said("m2", 16))
    us.publish(plan)
    us.confirm()
    quarantine(us, us.look("a")["a"])
    assert announce(us, said("m2", 16)).state is ShardState.QUARANTINED


def test_with_a_sink_of_another_kind_it_is_opened_by_the_confirm(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", None)))
    found_bad(us, plan)
    announce(us, said("m2", 16))
    assert us.confirm([KEY]) == set()
    assert us.look("a")["a"].state is ShardState.OPEN


# --- the newest version


def test_what_no_plan_holds_takes_the_newest_size_and_etag(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", 8, "old"))
    newest = announce(us, said("m2", 16, "new"))
    assert newest.content == us.look("a")["a"].content == said("m2", 16, "new")
    assert version(publish(us, newest)) == [(16, "new")]
    assert us.look("a")["a"].content == said("m2", 16, "new")


@pytest.mark.parametrize(
    ("sequences", "wins"),
    [
        (("s10", "s11"), 1),
        (("s11", "s10"), 0),
        (("s1", "s0FFF"), 0),  # compared as if padded with zeros at the right end
        (("g00000000000000000009", "g00000000000000000010"), 1),
        (("t00000000000000000009", "t00000000000000000010"), 1),
        (("t00000000000000000009", "t00000000000000000009"), 1),  # some senders write whole seconds
        (("s1", None), 1),  # a plain URI, whose size was asked for just now
        ((None, None), 1),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_the_version_with_the_greater_sequence_wins_in_whatever_order_they_come(
    store: ShardStore, sequences: tuple[str | None, str | None], wins: int, together: bool
) -> None:
    us = Pipeline.start(store)
    first, second = (said(f"m{n}", 8 * n, f"e{n}", sequence) for n, sequence in enumerate(sequences, 1))
    for batch in [[first, second]] if together else [[first], [second]]:
        shard = announce(us, *batch)
    expected = (first, second)[wins]
    if expected is second and second.sequence is None:
        expected = second._replace(
            sequence=f"{first.sequence}!" if first.sequence else None
        )  # an event from before is older than that URI
    assert shard.content == expected
    assert us.look("a")["a"].content == expected


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
def test_an_older_event_that_comes_beside_a_uri_alone_does_not_count(
    store: ShardStore, order: tuple[int, ...], together: bool
) -> None:
    """A URI alone stands for the object as it is: an older event does not bring its version back, and the version of an
    event that may be older than the URI is not asked for.
    """
    events = [said("m1", 1, "1", "s01"), said("m2", 2, "2", "s02"), said("m3", 3, "3", "s03"), said("m4", None)]
    us = Pipeline.start(store)
    announce(us, events[order[0]])
    rest = [events[number] for number in order[1:]]
    for some in [rest] if together else [[one] for one in rest]:
        shard = announce(us, *some)
    expected = {"3", None}
    assert shard.content.etag in expected
    assert us.look("a")["a"].content.etag in expected
    assert {etag for _, etag in version(publish(us, us.look("a")["a"]))} <= expected


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["URI first", "event first"])
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_of_a_uri_alone_and_an_event_that_may_be_older_what_is_there_is_read(
    store: ShardStore, order: tuple[int, int], together: bool, looked_up: bool
) -> None:
    uri = said("m1", 16, "now")._replace(announced=(None, None)) if looked_up else said("m1", None)
    us, both = Pipeline.start(store), (uri, said("m2", 8, "gone", "s1"))
    for some in [[both[n] for n in order]] if together else [[both[n]] for n in order]:
        shard = announce(us, *some)
    for content in (shard.content, us.look("a")["a"].content):
        assert (content.size, content.etag) in [(None, None), (16, "now")]
    assert version(planned(us, shard)) in [[(None, None)], [(16, "now")]]


@pytest.mark.parametrize("turned", [False, True])
def test_an_event_beside_a_uri_that_is_delivered_again_opens_what_its_plan_found_changed(
    store: ShardStore, turned: bool
) -> None:
    us = Pipeline.start(store)
    uri = said("m1", 16, "now")._replace(announced=(None, None))
    us.snapshot(announce(us, uri, said("m2", 16, "now", "s1")))
    announce(us, said("m3", None))
    news = [said("m4", 8, "new", "s2"), uri._replace(size=8, etag="new", receive_count=2)]
    announce(us, *(reversed(news) if turned else news))
    plan = us.plan()
    found_bad(us, plan, "object-changed")
    us.publish(plan)
    assert us.look("a")["a"].state is ShardState.OPEN


@pytest.mark.parametrize("cause", ["missing-object", ""])
def test_what_was_unread_is_opened_by_an_event_that_may_be_older_than_a_uri_alone_and_read_as_it_is(
    store: ShardStore, cause: str
) -> None:
    us = Pipeline.start(store)
    shard = announce(us, said("m1", None))
    if cause:
        quarantine(us, shard, cause)
    else:
        publish(us, shard._replace(content=shard.content._replace(size=0, etag="now")))
    opened = announce(us, said("m2", 8, "gone", "s1"))
    assert opened.reopened
    assert version(planned(us, us.look("a")["a"])) == version(us.plan()) == [(None, None)]
    assert (opened.content.size, opened.content.etag) == (None, None)


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("cause", ["missing-object", ""])
def test_what_is_read_as_it_is_there_beside_an_event_that_may_be_older_is_read_once(
    store: ShardStore, cause: str, looked_up: bool
) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", 0, "now")._replace(announced=(None, None)) if looked_up else said("m1", None))
    shard = announce(us, said("m2", 8, "gone", "s1"))
    plan = planned(us, shard._replace(content=shard.content._replace(size=0, etag="now")))
    if cause:
        found_bad(us, plan, cause)
    us.publish(plan)
    us.confirm()
    assert us.look("a")["a"].state is (ShardState.QUARANTINED if cause else ShardState.DONE)
    assert announce(us, said("m3", 8, "new", "s2")).reopened


def test_what_was_planned_in_the_version_of_a_second_event_is_opened_by_its_repetition_and_in_the_next_version(
    store: ShardStore,
) -> None:
    """All of them have an order: nothing of it is read as it is there."""
    us = Pipeline.start(store)
    announce(us, said("m1", 10, "1", "s1"))
    quarantine(us, announce(us, said("m2", 9, "2", "s2")))
    again = announce(us, said("m3", 9, "2", "s2"))
    assert (again.reopened, again.content.etag) == (True, "2")
    quarantine(us, again)
    newest = announce(us, said("m4", 8, "3", "s3"))
    assert (newest.reopened, newest.content.size, newest.content.etag) == (True, 8, "3")


@pytest.mark.parametrize("first", ["s0A", "g00000000000000000009", "t00000000000000000009"])
def test_an_event_that_a_uri_alone_was_received_with_and_that_comes_again_does_not_count(
    store: ShardStore, first: str
) -> None:
    us = Pipeline.start(store)
    event, uri = said("m1", 8, "gone", first), said("m2", 16, "now")._replace(announced=(None, None))
    announce(us, event, uri)
    for again in ([event], [event, uri], [uri, event]):
        assert announce(us, *again).content.etag in ("now", None)
        assert us.look("a")["a"].content.etag in ("now", None)
    for later in ("s0A01", "s0B", "s1", "g00000000000000000010", "t00000000000000000010"):
        if later[0] == first[0]:
            assert announce(us, said(later, 24, later, later)).content.etag is None, "it may be older than the URI"


def test_the_newest_version_is_known_after_a_restart(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", 8, "old"))
    announce(us, said("m2", 16, "new"))
    (shard,) = store.start("s", "p").unfinished
    assert shard.content == said("m2", 16, "new")


def test_a_version_that_another_pipeline_was_told_of_is_read_by_the_owner(store: ShardStore) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    announce(us, said("m1", 8, "old"))
    assert announce(other, said("m2", 16, "new")).token == us.token
    (found,) = store.renewed(us.token).values()
    assert version(planned(us, found)) == [(16, "new")]
    assert store.renewed(us.token) == {}, "a plan reads it"


def test_a_version_that_the_owner_was_told_of_goes_over_with_the_shard(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    announce(us, said("m1", 8))
    announce(us, said("m2", 16))
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {KEY: us.token}) == {KEY}
    assert version(planned(other, other.look("a")["a"])) == [(16, None)]


def test_a_snapshot_does_not_read_what_was_announced_after_another_pipeline_had_ended_its_object(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.snapshot(announce(us, said("m1", 8, "old")))
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {KEY: us.token}) == {KEY}
    announce(other, said("m2", 0, "empty"))
    (empty,) = store.renewed(other.token).values()
    publish(other, empty)
    us = Pipeline.start(store)
    fresh = announce(us, said("m3", 16, "new"))
    plan = us.plan()
    assert (plan.ranges, plan.lost) == ((), ()), "its snapshot has the version that the other one was to read"
    us.snapshot(fresh)
    plan = us.plan()
    assert version(plan) == [(16, "new")]
    assert us.plan().ranges == plan.ranges, "once, also when Spark asks again"
    us.publish(plan, Split("/new", 1, 1))
    us.confirm()
    assert us.look("a")["a"].state is ShardState.DONE


def test_of_an_object_that_is_published_in_part_the_version_stays(store: ShardStore) -> None:
    us = Pipeline.start(store)
    shard = announce(us, said("m1", 100, "old"))
    us.publish(_part(us, shard, position_at(40)), Split("/x", 1, 1))
    us.confirm()
    assert announce(us, said("m2", 200, "new")).content == said("m1", 100, "old")
    assert version(planned(us, us.look("a")["a"])) == [(100, "old")]


def test_a_redelivery_changes_no_row(store: ShardStore) -> None:
    us = Pipeline.start(store)
    announce(us, said("m1", 8))
    announce(us, said("m1", 8)._replace(receive_count=2))
    assert store.renewed(us.token) == {}


def test_thousands_are_renewed_and_opened_in_sets(store: ShardStore) -> None:
    us = Pipeline.start(store)
    ids = [f"k{number}" for number in range(2500)]

    def contents(message: str, size: int) -> list[Content]:
        return [Content(i, i, size, None, "queue", f"{message} {i}") for i in ids]

    found = store.open_shards(us.token, "s", contents("first", 8))
    bad, good = list(found.values())[:1200], list(found.values())[1200:]
    us.write(*(Range(s.key, s.content, BEGINNING, end_at(8)) for s in bad))
    plan = us.plan()
    kept = [ErrorRecord("object", "missing-object", "", s.content.shard_id, plan.identity.delivery_hash) for s in bad]
    store.record_errors("s", "p", kept)
    us.publish(plan)
    us.confirm()
    again = store.open_shards(us.token, "s", contents("second", 16))
    assert sum(shard.reopened for shard in again.values()) == 1200
    assert {shard.content.size for shard in us.look(*ids).values()} == {16}
    assert len(store.renewed(us.token)) == len(good)
    # that these messages come again changes nothing more
    assert not any(shard.reopened for shard in store.open_shards(us.token, "s", contents("second", 16)).values())


# --- another version


def test_every_attempt_of_a_plan_reads_the_version_of_its_snapshot(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", 8, "first")))
    announce(us, said("m2", 16, "second"))
    again = us.plan()
    assert (version(plan), version(again)) == ([(8, "first")], [(8, "first")])
    assert plan.identity == again.identity
    us.publish(again, Split("/x", 1, 1))
    assert version(us.plan()) == [(8, "first")], "what was published is repeated as it was read"
    assert us.look("a")["a"].content.etag == "first", "the shard is in the version that was read"


@pytest.mark.parametrize("filtered", [False, True], ids=["read", "filtered by its size before load"])
@pytest.mark.parametrize("when", ["afterwards", "while the plan runs"])
def test_what_was_read_as_zero_bytes_is_opened_by_an_announcement_of_its_content(
    store: ShardStore, when: str, filtered: bool
) -> None:
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", 0, "empty")))
    if filtered:
        plan = replace(plan, identity=replace(plan.identity, loaded=frozenset()))
    if when == "while the plan runs":
        announce(us, said("m2", 16, "full"))
    us.publish(plan)
    if when == "afterwards":
        us.confirm()
        announce(us, said("m2", 16, "full"))
        us.confirmed = us.seq
    else:
        assert us.confirm([KEY]) == set(), "neither message may be acknowledged yet"
    shard = us.look("a")["a"]
    assert (shard.state, shard.position, shard.content.etag) == (ShardState.OPEN, BEGINNING, "full")
    assert version(publish(us, shard)) == [(16, "full")]
    assert announce(us, said("m2", 16, "full")).state is ShardState.DONE
    assert us.look("a")["a"].content.etag == "full"


@pytest.mark.parametrize("when", ["afterwards", "while the plan runs"])
def test_what_is_opened_again_waits_from_then_on_and_is_cleaned_as_it_was_then(
    backend: StoreBackend, when: str
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(us, announce(us, said("m1", 0)))
    backend.clock.advance(STALE * 100)
    if when == "while the plan runs":
        announce(us, said("m2", 16))
    us.publish(plan)
    us.confirm([KEY])
    announce(us, said("m2", 16))
    assert store.status()[0].oldest_age == pytest.approx(0, abs=1)
    opened = store.database_time()
    publish(us, us.look("a")["a"])
    backend.clock.advance(1_000_000)
    store.plan_cleanings("s", timedelta(days=7), lambda shard_id, uri: Planned(uri, None), 10)
    assert store.due_cleanings("s", 10).cleanings[0].opened_at == pytest.approx(opened, abs=1_000_000)


@pytest.mark.parametrize("cause", ["corrupt-object", "wrong-columns", "kills-its-reader"])
def test_what_was_bad_is_opened_by_an_announcement_of_another_version_alone(store: ShardStore, cause: str) -> None:
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1", 8, "cut")), cause)
    assert announce(us, said("m2", 8, "cut")).state is ShardState.QUARANTINED
    shard = announce(us, said("m3", 16, "whole"))
    assert (shard.state, shard.reopened) == (ShardState.OPEN, True)
    assert version(publish(us, shard)) == [(16, "whole")]


@pytest.mark.parametrize("part", [False, True], ids=["whole", "in parts"])
def test_another_version_of_what_is_published_is_not_read_and_counts_as_changed_once(
    store: ShardStore, part: bool
) -> None:
    us = Pipeline.start(store)
    shard = announce(us, said("m1", 100, "first"))
    if part:
        us.publish(_part(us, shard, position_at(40)), Split("/x", 1, 1))
        us.confirm()
        shard = us.look("a")["a"]
    plan = planned(us, shard)
    announce(us, said("m2", 200, "second"))  # while it runs
    us.publish(plan, Split("/y", 1, 1))
    confirmed = store.advance(us.token, confirm=us.seq, keys=[KEY])
    assert (set(confirmed.finished), confirmed.changed) == ({KEY}, 1)
    known = [said("m2", 200, "second"), said("m3", 200, "second"), said("m4", 100, "first")]
    assert [announce(us, content).changed for content in known] == [False] * 3
    assert announce(us, said("m5", 300, "third")).changed
    assert not announce(us, said("m5", 300, "third")).changed
    assert us.look("a")["a"].content == said("m1", 100, "first"), "the shard is in the version that was read"
    assert [status.changed for status in store.status()] == [2], "exactly, whatever dies"


@pytest.mark.parametrize(
    ("first", "second", "other"),
    [
        (said("m1", 8, "e"), said("m2", 9, "e"), False),
        (said("m1", 8, "e"), said("m2", 8, "f"), True),
        (said("m1", 8), said("m2", 9, "f"), True),
        (said("m1", 8), said("m2", 8, "f"), False),
        (said("m1", None), said("m2", 8, "f"), False),
        (said("m1", 8, sequence="s1"), said("m2", 8, sequence="s2"), True),
        (said("m1", 8, sequence="s2"), said("m2", 9, sequence="s1"), False),
        (said("m1", 8, sequence="s1"), said("m2", 8, sequence="t2"), False),
        (said("m1", 8)._replace(reference=Reference("v1")), said("m2", 8)._replace(reference=Reference("v2")), True),
    ],
)
def test_what_another_version_is(store: ShardStore, first: Content, second: Content, other: bool) -> None:
    us = Pipeline.start(store)
    publish(us, announce(us, first))
    shard = announce(us, second)
    assert (shard.state, shard.changed) == (ShardState.DONE, other)


def test_what_was_looked_up_for_a_snapshot_is_kept_with_the_shard(store: ShardStore) -> None:
    us = Pipeline.start(store)
    shard = announce(us, said("m1", None))
    looked_up = shard._replace(content=shard.content._replace(size=100, etag="met first"))
    us.publish(_part(us, looked_up, position_at(40)), Split("/x", 1, 1))
    (found,) = Pipeline.start(store).store.start("s", "p").unfinished
    assert (found.position, found.content.size, found.content.etag) == (position_at(40), 100, "met first")


def test_with_at_most_once_an_object_is_done_with_its_snapshot_in_the_version_of_that(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=Semantics.AT_MOST_ONCE)
    announce(us, said("m1", 8, "first"))
    plan = planned(us, announce(us, said("m2", 16, "second")))
    assert announce(us, said("m3", 32, "third")).changed
    us.publish(plan, Split("/x", 1, 1))
    assert us.look("a")["a"].content == said("m2", 16, "second")


# --- crashes, and the record


def _dies_at(backend: StoreBackend, number: int, work: Callable[[ShardStore], object]) -> bool:
    """Run `work` in a store whose `number`th statement fails; whether it came so far."""
    import sqlalchemy as sa

    store, left = backend.open(patience=0.0), [number]

    def step(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ZeroDivisionError  # any error that nobody expects

    sa.event.listen(store.database.engine, "before_cursor_execute", step)
    with suppress(ZeroDivisionError):
        work(store)
        return False
    return True


def test_whoever_dies_while_an_object_is_opened_again_leaves_all_or_nothing_of_it(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m0")))
    number = 0
    while _dies_at(backend, number := number + 1, lambda s: s.open_shards(us.token, "s", [said("m1", 16)])):
        (row,) = store.database.read(lambda t: t.execute(shards.select()).all())
        changes = store.database.read(lambda t: t.execute(shard_changes.select()).all())
        assert (row.state, changes, rows(store, "errors")[0]["state"]) == ("quarantined", [], "recorded")
    assert number > 5
    assert us.look("a")["a"].state is ShardState.OPEN
    assert rows(store, "errors")[0]["state"] == "reopened"


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("by", ["reader", "receiver"])
@pytest.mark.parametrize("was", ["missing", "empty"])
def test_what_is_pruned_while_it_is_announced_again_is_new(backend: StoreBackend, was: str, by: str) -> None:
    """It was read, and is not locked yet. On SQLite no other transaction comes between."""
    import sqlalchemy as sa

    store, view = backend.open(), backend.open()
    us = Pipeline.start(store)
    us.deliver("b")
    store.prune(RetentionPolicy(max_shards=0))  # a source that has to remember a later end waits for its receivers
    if was == "missing":
        quarantine(us, announce(us, said("m1")))
    else:
        publish(us, announce(us, said("m1", 0)))
    view.start_receiver("r", "queue", "host", ["s"])
    pruned: list[int] = []

    def prune(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not pruned and statement.startswith("SELECT cuesqueue_shards.") and statement.endswith("FOR UPDATE"):
            pruned.append(store.prune(RetentionPolicy(max_shards=0)).shards)

    sa.event.listen(view.database.engine, "before_cursor_execute", prune)
    if by == "reader":
        assert view.open_shards(us.token, "s", [said("m2", 16)])[KEY].state is ShardState.OPEN
    else:
        assert view.record("r", {"s": [said("m2", 16)]}, Receipts(1))[:3] == (1, 0, 0)
    assert pruned == [1]
    ((state, message_id),) = store.database.read(lambda t: t.execute(sa.select(shards.c.state, shards.c.message_id)))
    assert (state, message_id) == ("open", "m2")


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("by", ["reader", "receiver"])
def test_what_is_put_back_while_it_is_announced_again_is_waited_for(backend: StoreBackend, by: str) -> None:
    """It was read as quarantined, and is open by the time at which it is locked: its message must not end."""
    import sqlalchemy as sa

    store, view = backend.open(), backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    quarantine(us, announce(us, said("m1")))
    changed: list[int] = []

    def put_back(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not changed and statement.startswith("SELECT cuesqueue_shards.") and statement.endswith("FOR UPDATE"):
            changed.append(store.put_back([KEY], Audit("me", "why"), message_uri="message:").changed)

    sa.event.listen(view.database.engine, "before_cursor_execute", put_back)
    if by == "reader":
        shard = view.open_shards(other.token, "s", [said("m2", 16)])[KEY]
        assert (shard.state, shard.token, shard.position) == (ShardState.OPEN, us.token, BEGINNING)
    else:  # nothing else brings its message
        view.start_receiver("r", "queue", "host", ["s"])
        view.record("r", {"s": [said("m2", 16)]}, Receipts(1))
        assert us.look("a")["a"].content.queue == STORE
    assert changed == [1]
    assert us.look("a")["a"].content.message_id == "m2"


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_what_is_released_while_an_event_of_it_comes_twice_is_read_as_it_is_there(backend: StoreBackend) -> None:
    """It may have been repaired. The event is no news, and so brings no version either."""
    import sqlalchemy as sa

    store, view = backend.open(), backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    quarantine(us, announce(us, said("m1", 10, "bad", "s1")))
    (bad,) = next(iter(pages(store.database, Criteria())))
    requeued: list[bytes] = []

    def requeue(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not requeued and statement.startswith("SELECT cuesqueue_shards.") and statement.endswith("FOR UPDATE"):
            requeued.extend(store.reopen([bad]).shards)

    sa.event.listen(view.database.engine, "before_cursor_execute", requeue)
    shard = view.open_shards(other.token, "s", [said("m2", 10, "bad", "s1")])[KEY]
    assert requeued == [KEY]
    assert (shard.state, shard.token, shard.stale) == (ShardState.OPEN, None, True)
    assert (shard.content.size, shard.content.etag) == (None, None)


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_what_another_opens_again_while_a_receiver_records_it_has_the_message_of_the_receiver(
    backend: StoreBackend,
) -> None:
    """It was recorded, and then found bad. The other one has a queue of its own, for which no other reader waits."""
    import sqlalchemy as sa

    store, view = backend.open(), backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    quarantine(us, announce(us, said("m1")._replace(queue=STORE)))
    view.start_receiver("r", "queue", "host", ["s"])
    opened: list[Shard] = []

    def announce_there(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not opened and statement.startswith("SELECT cuesqueue_shards.") and statement.endswith("FOR UPDATE"):
            opened.extend(store.open_shards(other.token, "s", [said("m2", 16)]).values())

    sa.event.listen(view.database.engine, "before_cursor_execute", announce_there)
    view.record("r", {"s": [said("m3", 17)]}, Receipts(1))
    assert [(shard.token, shard.reopened) for shard in opened] == [(other.token, True)]
    content = us.look("a")["a"].content
    assert (content.queue, content.message_id, content.size) == (STORE, "m3", 17)


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("trusts_rowcount", [True, False])
def test_what_is_opened_while_a_receiver_records_it_is_read_as_recorded(
    backend: StoreBackend, trusts_rowcount: bool
) -> None:
    """It was unknown before the receiver's insert, which is not always counted, and has another version by then."""
    import sqlalchemy as sa

    store, view = backend.open(), backend.open(trusts_rowcount=trusts_rowcount)
    us = Pipeline.start(store)
    view.start_receiver("r", "queue", "host", ["s"])
    opened: list[Shard] = []

    def announce(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not opened and statement.startswith("INSERT INTO cuesqueue_shards"):
            opened.extend(us.store.open_shards(us.token, "s", [said("m1")]).values())

    sa.event.listen(view.database.engine, "before_cursor_execute", announce)
    recorded = view.record("r", {"s": [said("m2", 16)]}, Receipts(1))
    assert (recorded.new, recorded.duplicates) == (0, 1)
    assert [shard.token for shard in opened] == [us.token]
    content = us.look("a")["a"].content
    assert (content.queue, content.message_id, content.size) == (STORE, "m2", 16)


def test_each_opening_is_recorded_until_it_is_pruned(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    quarantine(us, announce(us, said("m1")))
    announce(us, said("m2"))
    (change,) = store.shard_story(KEY).changes
    assert change.change[2:] == (
        "a", "announced again", "p/1", "a new announcement of an object of which nothing is published", "m2",
    )  # fmt: skip
    assert (change.before["state"], change.after and change.after["state"]) == ("quarantined", "open")
    backend.clock.advance(40 * 86_400)
    assert store.prune(RetentionPolicy()).shard_changes == 1
    assert store.shard_story(KEY).changes == ()


def test_a_pending_quarantine_is_not_taken_back_by_an_announcement(store: ShardStore) -> None:
    from shard_store.shards.changes import Audit

    us = Pipeline.start(store)
    shard = announce(us, said("m1"))
    store.quarantine([KEY], Audit("me@here", "why"))
    announce(us, said("m2", 16))
    (row,) = store.database.read(lambda t: t.execute(shards.select()).all())
    assert (row.pending, row.later.size) == (Pending.QUARANTINE.value, 16)
    assert planned(us, shard).ranges == ()


# --- ids that hold a version


@pytest.mark.parametrize("by", ["requeue", "reopen", "announcement", "announcement while it is open"])
def test_an_object_whose_id_holds_a_version_is_read_in_no_other(store: ShardStore, by: str) -> None:
    """The next version is there by now, and has rows of its own: it is announced, and read, under an id of its own."""
    first = Content("a#1", "a", 10, "1", "queue", "m1")
    key = shard_key("s", first.shard_id)
    # a command announces the id and the URI; what is found there is of another version
    anew = first._replace(size=20, etag="2", message_id="m2", announced=(None, None))
    us = Pipeline.start(store)
    shard = us.store.open_shards(us.token, "s", [first])[key]
    if by != "announcement while it is open":
        plan = planned(us, shard)
        record = ErrorRecord(
            "object", "object-changed", "why", "a#1", plan.identity.delivery_hash, BEGINNING, "queue", "m1"
        )
        us.store.record_errors("s", us.token.pipeline, [record])
        us.publish(plan)
        us.confirm()
        assert store.look([key])[key].state is ShardState.QUARANTINED
    if by == "requeue":
        assert not store.reopen([error for page in pages(store.database, Criteria()) for error in page]).refused
    if by == "reopen":
        assert store.put_back([key], Audit("ada@host"), message_uri="message").changed == 1
        assert store.renewed(us.token)[key].content[2:4] == (10, "1")
    shard = us.store.open_shards(us.token, "s", [anew])[key]
    if shard.state is ShardState.OPEN and shard.token != us.token:
        assert store.acquire(us.token, {key: shard.token}) == {key}
        shard = store.look([key])[key]
    assert (shard.state, shard.content[2:4]) == (ShardState.OPEN, (10, "1"))
    assert store.look([key])[key].content[2:4] == (10, "1")
    assert version(planned(us, shard)) == [(10, "1")]
