"""Contract: what is to be deleted or moved is planned once from what is done, tried until it ends, and written down."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_store.model import BEGINNING, ErrorRecord, Split, shard_key
from shard_store.shards.changes import Audit
from shard_store.sql.schema import shards, sources
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import CHANGED, DONE, NEEDED, Ended, Planned
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import SERVERS, Pipeline, StoreBackend, content, rows

HOUR, DAY = 3600.0, 86_400.0
WEEK = timedelta(days=7)


def delete(shard_id: str, uri: str) -> Planned | None:
    return Planned(uri, None)


def plan(store: ShardStore, retention: timedelta = WEEK, limit: int = 1000, choose: Any = delete) -> int:
    return store.plan_cleanings("s", retention, choose, limit)


def due(store: ShardStore, limit: int = 1000) -> list[str]:
    return sorted(one.uri for one in store.due_cleanings("s", limit).cleanings)


def end(store: ShardStore, uri: str, **what: Any) -> None:
    (one,) = (one for one in store.due_cleanings("s", 1000).cleanings if one.uri == uri)
    store.end_cleanings([Ended(one.shard_key, one.read_at, **what)])


def row(store: ShardStore, uri: str) -> dict[str, Any]:
    (found,) = (found for found in rows(store, "cleanings") if found["uri"] == uri)
    return dict(found)


def test_what_has_been_done_for_long_enough_is_planned_once(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("old", "older")
    backend.clock.advance(5 * DAY)
    us.deliver("young")
    assert (plan(store), due(store)) == (0, [])
    backend.clock.advance(2 * DAY)
    assert plan(store) == 2
    assert plan(store) == 0
    assert due(store) == ["old", "older"]
    backend.clock.advance(5 * DAY)
    assert plan(store) == 1
    assert due(store) == ["old", "older", "young"]


def test_only_what_is_done_is_planned(backend: StoreBackend) -> None:
    store = backend.open()
    us, other, elsewhere = Pipeline.start(store), Pipeline.start(store, "other"), Pipeline.start(store, "q", "t")
    us.deliver("done")
    us.open("open")
    other.planned("planned")
    elsewhere.deliver("of another source")
    us.deliver("quarantined")
    this = shards.update().where(shards.c.shard_id == "quarantined")
    store.database.write(lambda t: t.execute(this.values(state="quarantined")))
    backend.clock.advance(100 * DAY)
    assert plan(store) == 1
    assert due(store) == ["done"]


def test_what_was_done_at_one_time_is_planned_together_however_much_it_is(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    first, second = [f"a{place:02d}" for place in range(25)], [f"b{place:02d}" for place in range(5)]
    us.deliver(*first)
    backend.clock.advance(1)
    us.deliver(*second)
    backend.clock.advance(8 * DAY)
    assert plan(store, limit=10) == 25
    assert due(store) == first
    assert plan(store, limit=10) == 5
    assert plan(store, limit=10) == 0
    assert due(store) == [*first, *second]


def test_a_limit_that_ends_where_a_time_ends_leaves_nothing_out(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    for place in range(6):
        us.deliver(f"{place}x", f"{place}y")
        backend.clock.advance(1)
    backend.clock.advance(8 * DAY)
    for limit in (2, 4, 6):
        assert plan(store, limit=limit) == limit
    assert len(due(store)) == 12


def test_what_is_not_chosen_is_left_alone_and_not_looked_at_again(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("ours", "others")
    backend.clock.advance(8 * DAY)
    asked: list[str] = []

    def choose(shard_id: str, uri: str) -> Planned | None:
        asked.append(uri)
        return Planned(uri, f"moved {uri}", "v1") if uri == "ours" else None

    assert plan(store, choose=choose) == 1
    assert plan(store, choose=choose) == 0
    assert sorted(asked) == ["others", "ours"]
    (one,) = store.due_cleanings("s", 10).cleanings
    assert (one.uri, one.target, one.version, one.size, one.again) == ("ours", "moved ours", "v1", 10, False)
    assert (row(store, "ours")["action"], row(store, "ours")["ended_at"]) == ("move", None)


def test_a_short_retention_waits_for_publishes_that_are_under_way(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    backend.clock.advance(60)
    assert plan(store, timedelta(seconds=1)) == 0
    backend.clock.advance(600)
    assert plan(store, timedelta(seconds=1)) == 1


@pytest.mark.parametrize("outcome", [DONE, CHANGED])
def test_what_ended_is_not_due_again_and_is_forgotten_with_the_window(backend: StoreBackend, outcome: str) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a", "b")
    backend.clock.advance(8 * DAY)
    plan(store)
    end(store, "a", outcome=outcome)
    assert due(store) == ["b"]
    assert row(store, "a")["outcome"] == outcome
    policy = RetentionPolicy(timedelta(days=30), source="s")
    assert store.prune(policy).cleanings == 0
    backend.run_for(31 * DAY)
    assert store.prune(policy).cleanings == 1
    assert [found["uri"] for found in rows(store, "cleanings")] == ["b"], "what is still to be done stays"


def test_what_failed_is_due_again_later_and_later(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    pauses = []
    for _ in range(9):
        end(store, "a", cause="unavailable", detail="the disk is full")
        waited = 0
        while due(store) == []:
            backend.clock.advance(60)
            waited += 1
        pauses.append(waited)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    found = row(store, "a")
    assert (found["attempts"], found["cause"], found["detail"]) == (9, "unavailable", "the disk is full")


def test_what_only_a_person_can_change_is_tried_once_a_day(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    end(store, "a", cause="forbidden-object", detail="no", hopeless=True)
    backend.clock.advance(23 * HOUR)
    assert due(store) == []
    backend.clock.advance(HOUR)
    assert due(store) == ["a"]


def test_what_was_forgotten_is_left_alone_until_it_is_read_again(backend: StoreBackend) -> None:
    """Who has it forgotten wants it to be read: between that and its announcement it must not be deleted."""
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a", "b")
    backend.clock.advance(8 * DAY)
    plan(store)
    store.forget([shard_key("s", "a")], Audit("me", "why"))
    assert due(store) == ["b"]
    us.deliver("a")
    assert (plan(store), due(store)) == (0, ["b"])
    backend.clock.advance(8 * DAY)
    assert (plan(store), due(store)) == (1, ["a", "b"])


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_what_is_forgotten_while_it_is_planned_is_left_alone(backend: StoreBackend) -> None:
    """It would be deleted before it is read again. On SQLite no other transaction comes between."""
    store, view = backend.open(), backend.open()
    us = Pipeline.start(store)
    us.deliver("a", "b")
    backend.clock.advance(8 * DAY)
    forgotten: list[int] = []

    def forget(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not forgotten and statement.startswith("SELECT cuesqueue_errors."):  # what is done is read already
            forgotten.append(store.forget([shard_key("s", "a")], Audit("me", "why")).changed)

    sa.event.listen(view.database.engine, "before_cursor_execute", forget)
    assert plan(view) == 1
    assert forgotten == [1]
    assert due(store) == ["b"]


def test_what_was_pruned_and_announced_again_is_known_as_such_and_planned_anew(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    store.database.write(lambda t: t.execute(shards.delete()))
    assert [one.again for one in store.due_cleanings("s", 1).cleanings] == [False], "nobody has announced it"
    opened = us.open("a")
    assert [one.again for one in store.due_cleanings("s", 1).cleanings] == [True]
    us.snapshot(*opened.values())
    us.publish(us.plan())
    us.confirm()
    assert [one.again for one in store.due_cleanings("s", 1).cleanings] == [True], "done, and just now"
    end(store, "a", outcome=CHANGED)
    backend.clock.advance(8 * DAY)
    assert plan(store) == 1
    assert [one.again for one in store.due_cleanings("s", 1).cleanings] == [False]


@pytest.mark.parametrize("late", [{"outcome": CHANGED}, {"outcome": DONE}, {"cause": NEEDED}])
def test_what_is_late_changes_nothing_of_a_newer_plan(backend: StoreBackend, late: dict[str, Any]) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    (before,) = store.due_cleanings("s", 1).cleanings
    store.end_cleanings([Ended(before.shard_key, before.read_at, CHANGED)])
    store.forget([before.shard_key], Audit("me", "why"))
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    store.end_cleanings([Ended(before.shard_key, before.read_at, **late)])
    assert due(store) == ["a"]


def test_nothing_is_forgotten_before_it_is_planned(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)  # from here on the source is cleaned
    us.deliver("b")
    backend.clock.advance(8 * DAY)
    policy = RetentionPolicy(WEEK, source="s")
    for _ in range(2):
        store.prune(policy)
        assert {found["shard_id"] for found in rows(store, "shards")} == {"b"}
        store.prune(RetentionPolicy(WEEK, max_shards=0, source="s"))
        assert {found["shard_id"] for found in rows(store, "shards")} == {"b"}
    assert plan(store) == 1
    store.prune(policy)
    assert rows(store, "shards") == []
    assert due(store) == ["a", "b"], "what is planned needs its shard no more"


@pytest.mark.parametrize("action", ["delete", "move"])
def test_an_object_with_bad_records_is_moved_and_never_deleted(backend: StoreBackend, action: str) -> None:
    """However long it stays: the errors, which say so, are kept as long as its shard."""
    store = backend.open()
    us = Pipeline.start(store)
    begun = us.deliver("first")
    backend.clock.advance(8 * DAY)
    plan(store)  # from here on the source is cleaned
    with_errors = us.planned("good", "bad")
    bad = ErrorRecord("record", "bad-record", "why", "bad", with_errors.identity.delivery_hash, begun.ranges[0].start)
    store.record_errors("s", us.token.pipeline, [bad])
    us.publish(with_errors, Split("/split-2", 1, 1))
    us.confirm()
    us.deliver("later")
    backend.clock.advance(10 * DAY)
    store.prune(RetentionPolicy(WEEK, source="s"))
    plan(store, choose=lambda shard_id, uri: Planned(uri, f"moved/{uri}" if action == "move" else None))
    assert due(store) == ["bad"] * (action == "move") + ["first", "good", "later"]
    store.prune(RetentionPolicy(WEEK, source="s"))
    if action == "move":
        assert rows(store, "errors"), "options may change before it is moved"
        end(store, "bad", outcome=DONE)
    store.prune(RetentionPolicy(WEEK, source="s"))
    assert rows(store, "errors") == [], "they go with the shard"
    assert plan(store) == 0


@pytest.mark.parametrize("source", ["s", "audit"])
def test_bad_records_that_any_source_found_are_known_when_it_is_due(backend: StoreBackend, source: str) -> None:
    """It was planned to be moved, or another source has found them; they stay known until it is cleaned."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "audit")
    us.deliver("a", "b")
    other.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store, choose=lambda shard_id, uri: Planned(uri, f"moved/{uri}"))
    bad = ErrorRecord("record", "bad-record", "why", "a", "0" * 64, BEGINNING)
    store.record_errors(source, us.token.pipeline, [bad])
    if source == "s":
        backend.clock.advance(30 * DAY)
        store.prune(RetentionPolicy(WEEK, source="s"))
        store.prune(RetentionPolicy(WEEK, source="s"))
    found = store.due_cleanings("s", 10).cleanings
    assert {one.uri: (one.needed, one.has_bad_records) for one in found} == {"a": (None, True), "b": (None, False)}


def test_a_source_that_nobody_cleans_any_more_is_pruned_by_its_window_alone(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    us.deliver("b")
    backend.clock.advance(22 * DAY)
    store.prune(RetentionPolicy(WEEK, source="s"))
    assert rows(store, "shards") == []


def test_planning_twice_at_once_plans_once(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a")
    backend.clock.advance(8 * DAY)
    plan(store)
    end(store, "a", outcome=DONE)
    # another pipeline has read the table before, and writes what it found now
    store.database.write(lambda t: t.execute(sources.update().values(cleaned_until=None)))
    plan(store)
    assert due(store) == []
    assert row(store, "a")["outcome"] == DONE


@pytest.mark.parametrize(
    ("naming", "theirs", "etag"),
    [
        ({}, "s3://b/a", None),
        ({}, "s3://b/a", "e1"),
        ({"versions": True}, "s3://b/a#e1", "e1"),
        ({"versions": True}, "s3://b/a#e1", None),
        ({"versions": True, "versionless": True}, "s3://b/a", "e1"),
    ],
    ids=["no-etag", "etag", "versions", "version-unknown-to-us", "versions-later"],
)
def test_what_another_source_has_not_published_is_needed_until_it_has(
    backend: StoreBackend, naming: dict[str, Any], theirs: str, etag: str | None
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "audit")
    kept = sources.update().where(sources.c.source == "audit").values(naming=json.dumps(naming))
    store.database.write(lambda t: t.execute(kept))
    uri = "s3://b/a"
    us.deliver(uri, "s3://b/unshared")
    store.database.write(lambda t: t.execute(shards.update().values(etag=etag)))
    backend.clock.advance(8 * DAY)
    plan(store)
    store.open_shards(other.token, "audit", [content(theirs)._replace(uri=uri)])  # after it was planned
    found = {one.uri: one for one in store.due_cleanings("s", 10).cleanings}
    assert {uri: one.needed for uri, one in found.items()} == {
        uri: "source 'audit' has not published it",
        "s3://b/unshared": None,
    }
    store.end_cleanings([Ended(found[uri].shard_key, found[uri].read_at, cause=NEEDED, detail=found[uri].needed)])
    assert due(store) == ["s3://b/unshared"]
    shown = row(store, uri)
    assert (shown["cause"], shown["detail"], shown["attempts"]) == (NEEDED, "source 'audit' has not published it", 0)
    other.deliver(theirs)
    backend.clock.advance(HOUR)
    assert {one.uri: one.needed for one in store.due_cleanings("s", 10).cleanings} == dict.fromkeys(found)


VERSIONS = st.sampled_from([None, "e1", "e2"])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ours=st.tuples(st.sampled_from([None, "e1", "v1"]), VERSIONS),
    theirs=st.tuples(st.sampled_from(["e1", "e2", "v1", "v2", "1700000000000"]), VERSIONS),
    ends=st.sampled_from(["open", "in part", "quarantined", "skipped", "published", "with bad records", "reopened"]),
)
def test_what_another_source_needs_is_known_whichever_version_each_of_them_was_told(
    backend: StoreBackend, ours: tuple[str | None, str | None], theirs: tuple[str, str | None], ends: str
) -> None:
    """`ours`, `theirs`: what is in the id beside the URI, and the ETag. What both know tells two versions apart."""
    backend.wipe()
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "audit")
    for source, version in (("s", ours[0]), ("audit", theirs[0])):
        naming = json.dumps({"versions": version is not None})
        with store.database.engine.begin() as connection:
            connection.execute(sources.update().where(sources.c.source == source).values(naming=naming))
    uri = "s3://b/a"
    mine = uri if ours[0] is None else f"{uri}#{ours[0]}"
    opened = store.open_shards(us.token, "s", [content(mine)._replace(uri=uri, etag=ours[1])])
    us.snapshot(*opened.values())
    us.publish(us.plan(), Split("/1", 1, 1))
    us.confirm()
    backend.clock.advance(8 * DAY)
    assert plan(store, choose=lambda shard_id, uri: Planned(uri, None, ours[0])) == 1
    (shard,) = store.open_shards(
        other.token, "audit", [content(f"{uri}#{theirs[0]}")._replace(uri=uri, etag=theirs[1])]
    ).values()
    if ends != "open":
        other.snapshot(shard)
        made = other.plan()
        scope = {
            "quarantined": "object",
            "in part": "part",
            "skipped": "skipped",
            "with bad records": "record",
            "reopened": "object",
        }
        if ends in scope:
            error = ErrorRecord(scope[ends], "missing-object", "", shard.content.shard_id, made.identity.delivery_hash)
            store.record_errors("audit", "q", [error])
        other.publish(made, Split("/2", 1, 1))
        other.confirm()
    if ends == "reopened":
        newer = content(shard.content.shard_id)._replace(uri=uri, etag=theirs[1], message_id="again")
        store.open_shards(other.token, "audit", [newer])
    (found,) = (one for one in store.due_cleanings("s", 10).cleanings if one.uri == uri)
    told_apart = theirs[0] not in ours and ours[1] is not None and theirs[1] is not None and ours[1] != theirs[1]
    is_needed = ends in ("open", "reopened") or (ends in ("quarantined", "skipped", "in part") and not told_apart)
    assert (found.needed is not None) is is_needed
    assert found.has_bad_records is (ends == "with bad records" and not told_apart)
    backend.close()
    backend.views.clear()


def test_what_another_source_has_given_up_stays_as_if_it_were_our_own(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "audit")
    us.deliver("a")
    other.deliver("a")
    theirs = shards.update().where(shards.c.source == "audit")
    backend.clock.advance(8 * DAY)
    plan(store)
    for values in ({"state": "quarantined"}, {"state": "done", "pending": "skipped"}):
        store.database.write(lambda t, v=values: t.execute(theirs.values(**v)))  # type: ignore[misc]
        assert [one.needed for one in store.due_cleanings("s", 10).cleanings] == ["source 'audit' has not published it"]


def test_the_view_shows_what_was_done_and_why_not(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).deliver("a", "b")
    backend.clock.advance(8 * DAY)
    plan(store)
    end(store, "a", outcome=DONE)
    end(store, "b", cause="forbidden-object", detail="access denied", hopeless=True)
    pages = [found for page in store.pages("cleanings", source="s") for found in page]
    assert sorted(found[1:3] for found in pages) == [("a", "delete"), ("b", "delete")]
    assert {(found[1], found[-3], found[-2]) for found in pages} == {
        ("a", DONE, None),
        ("b", None, "forbidden-object"),
    }
    assert list(store.pages("cleanings", source="t")) == []
