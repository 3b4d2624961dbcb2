"""Contract: what an operator does to shards: give up, open again, forget; found, recorded and told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest
import sqlalchemy as sa

from shard_store.error_table import search
from shard_store.error_table.search import Criteria
from shard_store.model import (
    BEGINNING,
    LISTING,
    ErrorRecord,
    Payload,
    Plan,
    Semantics,
    ShardKey,
    ShardState,
    Split,
    position_at,
    shard_key,
)
from shard_store.operators.repair import ShardsChanged
from shard_store.operators.shards import ShardCriteria
from shard_store.shards.changes import Audit
from shard_store.sql.schema import attempts, errors, shard_changes, shards
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content, rows

ME = Audit("ada@host", "it blocks us")
MESSAGE = "message:"


def keys(*ids: str) -> list[ShardKey]:
    return [shard_key("s", i) for i in ids]


def read_by(plan: Plan) -> list[str]:
    return [r.content.shard_id for r in plan.ranges]


def state(us: Pipeline, shard_id: str) -> ShardState:
    return us.look(shard_id)[shard_id].state


def bad(us: Pipeline, plan: Plan, *ids: str, cause: str = "corrupt-object") -> None:
    starts = {r.content.shard_id: r.start for r in plan.ranges}
    us.store.record_errors(
        "s",
        us.token.pipeline,
        [ErrorRecord("object", cause, "why", i, plan.identity.delivery_hash, starts[i]) for i in ids],
    )


def quarantined(us: Pipeline, *ids: str) -> None:
    plan = us.planned(*ids)
    bad(us, plan, *ids)
    us.publish(plan)
    us.confirm()


# --- quarantine


def test_what_waits_is_given_up_by_its_first_plan_and_the_rest_is_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    written = us.snapshot(*us.open("a", "b").values())
    assert store.quarantine(keys("a"), ME) == ShardsChanged(changed=1)
    plan = us.plan()
    assert read_by(plan) == ["b"]
    assert {r.content.shard_id for r in plan.whole} == {"a", "b"}, "the offset stands for the same shards"
    us.publish(plan, Split("/x", 1, 1))
    assert us.confirm([r.key for r in written]) == set(keys("a", "b")), "its message is acknowledged"
    assert (state(us, "a"), state(us, "b")) == (ShardState.QUARANTINED, ShardState.DONE)
    (error,) = rows(store, "errors")
    assert (error["cause"], error["scope"], error["state"]) == ("quarantined-by-hand", "object", "recorded")
    assert error["detail"] == "ada@host gave it up: it blocks us"


def test_an_attempt_that_is_under_way_publishes_what_it_read(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b")
    assert store.quarantine(keys("a"), ME).changed == 1
    assert read_by(us.plan()) == ["a", "b"], "a second call for the same attempt has to find the same"
    us.publish(plan, Split("/x", 2, 1))
    us.confirm()
    assert (state(us, "a"), state(us, "b")) == (ShardState.DONE, ShardState.DONE)
    assert rows(store, "errors") == []


def test_the_next_attempt_at_a_plan_that_failed_gives_it_up_under_the_same_hash(store: ShardStore) -> None:
    us = Pipeline.start(store)
    failed = us.planned("a", "b", "c")
    bad(us, failed, "c")
    store.quarantine(keys("a"), ME)
    us = Pipeline.start(store)
    plan = us.plan()
    assert (plan.identity.delivery_hash, plan.attempt) == (failed.identity.delivery_hash, 2)
    assert read_by(plan) == ["b"]
    assert read_by(us.plan()) == ["b"], "and every later one"
    us.publish(plan, Split("/x", 1, 1))
    us.confirm()
    assert {i: state(us, i) for i in "abc"} == {
        "a": ShardState.QUARANTINED, "b": ShardState.DONE, "c": ShardState.QUARANTINED,
    }  # fmt: skip


def test_with_a_sink_of_another_kind_the_confirm_of_an_attempt_that_was_taken_wins(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    store.quarantine(keys("a"), ME)
    us = Pipeline.start(store)  # the batch was taken, and Spark knows it: it is not planned again
    us.seq = 1
    assert us.confirm(keys("a")) == set(keys("a"))
    assert state(us, "a") is ShardState.DONE


def test_it_goes_over_with_the_shard_to_another_pipeline(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a")
    store.quarantine(keys("a"), ME)
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {keys("a")[0]: us.token}) == set(keys("a"))
    other.snapshot(*other.look("a").values())
    plan = other.plan()
    assert read_by(plan) == []
    other.publish(plan)
    other.confirm()
    assert state(other, "a") is ShardState.QUARANTINED


def test_a_plan_that_lost_another_shard_since_has_one_error_of_it(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "lost")
    store.quarantine(keys("a"), ME)
    us = Pipeline.start(store)
    assert read_by(us.plan()) == ["lost"]
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    store.acquire(other.token, {keys("lost")[0]: us.token})
    us = Pipeline.start(store)
    plan = us.plan()
    assert read_by(plan) == []
    us.publish(plan)
    assert [(e["cause"], e["final"]) for e in rows(store, "errors")] == [("quarantined-by-hand", True)]
    assert rows(store, "attempts")[0]["errors"] == 1


def test_with_at_most_once_it_is_not_read_either(store: ShardStore) -> None:
    us = Pipeline.start(store, semantics=Semantics.AT_MOST_ONCE)
    found = us.open("a", "b")
    store.quarantine(keys("a"), ME)
    us.snapshot(*found.values())
    plan = us.plan()
    assert read_by(plan) == ["b"]
    us.publish(plan, Split("/x", 1, 1))
    assert (state(us, "a"), state(us, "b")) == (ShardState.QUARANTINED, ShardState.DONE)


def test_what_is_published_is_refused_and_what_is_quarantined_is_left_alone(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("done")
    quarantined(us, "bad")
    us.open("asked")
    store.quarantine(keys("asked"), ME)
    changed = store.quarantine(keys("done", "bad", "asked", "unknown"), ME)
    assert changed == ShardsChanged(0, 2, {"done": "it is published already"})


def test_a_message_that_is_given_up_is_kept_whole_in_its_error(store: ShardStore) -> None:
    us = Pipeline.start(store)
    payload = Payload(b"body", "m1", "tag", (("h", "1"),))
    (shard,) = store.open_shards(us.token, "s", [content("q#m1")._replace(uri=MESSAGE, payload=payload)]).values()
    us.snapshot(shard._replace(content=shard.content._replace(payload=payload)))
    store.quarantine([shard.key], ME)
    us.publish(us.plan())
    from shard_store.error_table import search

    ((error,),) = search.pages(store.database, Criteria())
    assert (error.input, error.tag, error.headers, error.whole) == (b"body", "tag", {"h": "1"}, True)


# --- open again


def test_what_is_opened_again_is_its_pipelines_and_is_read_once_from_where_it_was_bad(store: ShardStore) -> None:
    us = Pipeline.start(store)
    (shard,) = us.open("a").values()
    us.snapshot(shard, ends=[position_at(4)])
    us.publish(us.plan(), Split("/1", 1, 1))
    us.confirm()
    us.snapshot(*us.look("a").values())
    plan = us.plan()
    bad(us, plan, "a")
    us.publish(plan)
    us.confirm()
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE) == ShardsChanged(changed=1)
    (found,) = store.renewed(us.token).values()
    assert (found.state, found.position, found.token) == (ShardState.OPEN, position_at(4), us.token)
    us.snapshot(found)
    us.publish(us.plan(), Split("/2", 1, 1))
    us.confirm()
    assert state(us, "a") is ShardState.DONE
    assert [error["state"] for error in rows(store, "errors")] == ["reopened"]


def test_a_pipeline_that_is_not_running_finds_it_when_it_starts(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantined(us, "a")
    store.retire(us.token)
    store.put_back(keys("a"), ME, message_uri=MESSAGE)
    assert [s.content.shard_id for s in store.start("s", "p").unfinished] == ["a"]


def test_a_quarantine_that_no_plan_has_seen_is_taken_back(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    store.quarantine(keys("a"), ME)
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE).changed == 1
    assert read_by(us.plan()) == ["a"]
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE) == ShardsChanged(unchanged=1)


@pytest.mark.parametrize("part", [False, True], ids=["whole", "rest"])
def test_one_that_a_plan_has_seen_is_taken_back_when_the_plan_ends(store: ShardStore, part: bool) -> None:
    """The attempt without its rows may have reached a sink that takes no second one: so it comes with a later plan."""
    us = Pipeline.start(store)
    (shard,) = us.open("a").values()
    if part:
        us.snapshot(shard, ends=[position_at(4)])
        us.publish(us.plan(), Split("/1", 1, 1))
        us.confirm()
        (shard,) = us.look("a").values()
    us.snapshot(shard)
    store.quarantine(keys("a"), ME)
    assert read_by(us.plan()) == []
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE).changed == 1
    us = Pipeline.start(store)
    plan = us.plan()
    assert read_by(plan) == []
    us.publish(plan)
    us.confirm()
    (again,) = store.renewed(us.token).values() or us.look("a").values()
    assert (again.state, again.position) == (ShardState.OPEN, shard.position)
    us.snapshot(again)
    assert read_by(us.plan()) == ["a"]


def test_what_an_operator_gave_up_can_be_opened_again(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    store.quarantine(keys("a"), ME)
    us.publish(us.plan())
    us.confirm()
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE).changed == 1
    us.snapshot(*us.look("a").values())
    assert read_by(us.plan()) == ["a"]


def test_what_cannot_be_opened_again_is_refused_with_the_reason(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("done")
    message = content("q#m")._replace(uri=MESSAGE)
    grouped = content("g")._replace(group="g1")
    store.open_shards(us.token, "s", [message, grouped])
    quarantined(us, "q#m", "g", "dropped")
    from shard_store.error_table import search

    ((dropped,),) = search.pages(store.database, Criteria(matching=re.compile("dropped")))
    store.drop_errors([dropped.key])
    refused = store.put_back(keys("done", "q#m", "g", "dropped"), ME, message_uri=MESSAGE).refused
    assert {name: why.split(":")[0].split(",")[0] for name, why in refused.items()} == {
        "done": "it is published",
        "q#m": "it is read with its message only",
        "g": "it is read with its message only",
        "dropped": "nobody knows which of its rows are published",
    }


# --- forget


def test_what_is_forgotten_is_new_when_it_is_announced_again(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    quarantined(us, "b")
    us.open("open")
    changed = store.forget(keys("a", "b", "open", "unknown"), ME)
    assert changed.changed == 2
    assert list(changed.refused) == ["open"]
    assert set(us.look("a", "b", "open")) == {"open"}
    us.deliver("a")
    assert [row["path"] for row in rows(store, "splits")] == ["/split-1", "/split-3"]


def test_forgetting_under_a_plan_that_spark_may_repeat_publishes_nothing_twice_by_itself(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, Split("/x", 1, 1))
    store.forget(keys("a"), ME)
    again = Pipeline.start(store)
    assert store.plan(again.token, 0, 1).published
    assert again.publish(store.plan(again.token, 0, 1), Split("/y", 1, 1)).already


# --- all of them

CHANGES: dict[str, Callable[[ShardStore, Sequence[ShardKey], bool], ShardsChanged]] = {
    "quarantine": lambda store, chosen, dry: store.quarantine(chosen, ME, dry_run=dry),
    "reopen": lambda store, chosen, dry: store.put_back(chosen, ME, message_uri=MESSAGE, dry_run=dry),
    "forget": lambda store, chosen, dry: store.forget(chosen, ME, dry_run=dry),
}


def prepared(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantined(us, "bad")
    us.open("open")


@pytest.mark.parametrize("name", CHANGES)
def test_a_dry_run_says_what_would_be_done_and_does_nothing(store: ShardStore, name: str) -> None:
    prepared(store)

    def everything() -> list[object]:
        with store.database.engine.connect() as connection:
            return [connection.execute(table.select()).all() for table in (shards, shard_changes)]

    before = everything()
    would = CHANGES[name](store, keys("bad", "open"), True)
    assert everything() == before
    assert CHANGES[name](store, keys("bad", "open"), False) == would
    assert would.changed == 1


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_recorded_with_who_what_and_why(store: ShardStore, name: str) -> None:
    prepared(store)
    CHANGES[name](store, keys("bad", "open"), False)
    shard_id = "open" if name == "quarantine" else "bad"
    (stored,) = store.shard_story(keys(shard_id)[0]).changes
    assert stored.change[1:] == ("s", shard_id, name, "ada@host", "it blocks us", None)
    after = {"quarantine": ("open", "quarantine"), "reopen": ("open", "reopened"), "forget": None}[name]
    assert (stored.after and (stored.after["state"], stored.after["pending"])) == after
    assert stored.before["state"] == ("open" if name == "quarantine" else "quarantined")


@pytest.mark.parametrize("name", CHANGES)
def test_whoever_dies_in_a_change_leaves_all_or_nothing_of_it(backend: StoreBackend, name: str) -> None:
    store = backend.open()
    prepared(store)
    number, done = 0, False
    while not done:
        number += 1
        mine, left = backend.open(patience=0.0), [number]

        def step(*_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise ZeroDivisionError

        sa.event.listen(mine.database.engine, "before_cursor_execute", step)
        with suppress(ZeroDivisionError):
            CHANGES[name](mine, keys("bad", "open"), False)
            done = True
        recorded = store.database.read(lambda t: t.execute(shard_changes.select()).all())
        assert len(recorded) == done
    assert number > 3


def test_thousands_are_changed_in_sets(store: ShardStore) -> None:
    us = Pipeline.start(store)
    ids = [f"k{number}" for number in range(1000)]
    us.snapshot(*us.open(*ids).values())
    assert store.quarantine(keys(*ids), ME).changed == 1000
    plan = us.plan()
    assert plan.ranges == ()
    us.publish(plan)
    us.confirm()
    assert store.put_back(keys(*ids), ME, message_uri=MESSAGE).changed == 1000
    assert len(store.renewed(us.token)) == 1000


# --- found, and told


def test_shards_are_found_by_id_digits_glob_state_source_pipeline_and_time(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "q", "t")
    us.deliver("s3://b/done")
    backend.clock.advance(3600)
    us.open("s3://b/open", "s3://c/open")
    other.open("s3://b/open")

    def found(**criteria: object) -> list[str]:
        pages = store.find_shards(ShardCriteria(**criteria))  # type: ignore[arg-type]
        return sorted(f"{shard.source} {shard.shard_id}" for page in pages for shard in page)

    everything = ["s s3://b/done", "s s3://b/open", "s s3://c/open", "t s3://b/open"]
    assert found() == everything
    assert found(ids=["s3://b/open"]) == ["s s3://b/open", "t s3://b/open"]
    assert found(ids=["s3://b/open"], source="t") == ["t s3://b/open"]
    assert found(ids=[shard_key("t", "s3://b/open").hex()[:12]]) == ["t s3://b/open"]
    assert found(ids=["s3://nowhere"]) == []
    assert found(matching=re.compile("s3://c/.*")) == ["s s3://c/open"]
    assert found(states=["done"]) == ["s s3://b/done"]
    assert found(pipeline="q") == ["t s3://b/open"]
    assert found(older_than=timedelta(minutes=30)) == ["s s3://b/done"]
    assert found(since=timedelta(minutes=30)) == everything[1:]


def test_what_no_query_has_read_yet_is_found_by_its_id(store: ShardStore) -> None:
    """As `cuesqueue adopt` and a receiver of several sources write it."""
    store.adopt("s", ["a"], "origin")
    assert [shard.shard_id for page in store.find_shards(ShardCriteria(ids=["a"])) for shard in page] == ["a"]
    assert not list(store.find_shards(ShardCriteria(ids=["a"], source="another")))


def test_thousands_are_found_by_their_whole_keys(store: ShardStore) -> None:
    """As a script takes them from `--json`; of errors too."""
    store.adopt("s", [str(number) for number in range(2500)], "origin")
    ids = [key.hex() for key in keys(*map(str, range(2500)))]
    assert sum(map(len, store.find_shards(ShardCriteria(ids=ids)))) == 2500
    assert not list(search.pages(store.database, Criteria(ids=ids)))


def test_any_number_is_found_in_pages(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.open(*(f"k{number}" for number in range(2100)))
    pages = [len(page) for page in store.find_shards(ShardCriteria())]
    assert pages == [1000, 1000, 100]
    assert sum(len(page) for page in store.find_shards(ShardCriteria(), limit=1500)) == 1500


def test_the_story_of_a_published_object_names_its_plan_and_its_data_files(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.deliver("a")
    story = store.shard_story(keys("a")[0])
    assert story.outcome == f"published by attempt {plan.identity.delivery_hash}"
    assert story.shard is not None
    assert (story.shard.message_id, story.shard.queue) == ("message of a", "queue")
    (attempt,) = story.attempts
    assert (attempt.seqs, attempt.files, attempt.kind) == ((0, 1), ("/split-1",), "attempt-output")
    assert attempt.planned_at is not None
    assert attempt.planned_at <= attempt.published_at


def test_the_story_of_an_object_that_is_not_published_says_why(store: ShardStore) -> None:
    us = Pipeline.start(store)

    def outcome() -> str:
        return store.shard_story(keys("a")[0]).outcome

    assert outcome() == "the store does not know it"
    found = us.open("a")
    assert outcome() == "open: it waits to be planned by pipeline 'p'"
    us.snapshot(*found.values())
    plan = us.plan()
    assert outcome() == "in the plan of (0, 1], which was made 1 time(s) and is not published"
    us = Pipeline.start(store)  # the first attempt has failed
    plan = us.plan()
    store.quarantine(keys("a"), ME)
    assert outcome() == (
        "in the plan of (0, 1], which was made 2 time(s) and is not published; an operator wants it given up"
    )
    bad(us, plan, "a")
    us.publish(plan)
    us.confirm()
    assert outcome() == "quarantined, nothing of it was published from position '' on: corrupt-object: why"
    store.forget(keys("a"), ME)
    assert outcome() == "the store does not know it: it was forgotten"
    story = store.shard_story(keys("a")[0])
    assert [stored.change.action for stored in story.changes] == ["quarantine", "forget"]
    assert [error.cause for error in story.errors] == ["corrupt-object"]


def test_the_story_of_an_object_that_was_opened_again_has_both_its_plans(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantined(us, "a")
    store.put_back(keys("a"), ME, message_uri=MESSAGE)
    us.snapshot(*us.look("a").values())
    us.publish(us.plan(), Split("/x", 1, 1))
    us.confirm()
    story = store.shard_story(keys("a")[0])
    assert [attempt.seqs for attempt in story.attempts] == [(0, 1), (1, 2)]
    assert story.outcome == f"published by attempt {story.attempts[-1].delivery_hash}"
    assert story.shard is not None
    assert story.shard.position != BEGINNING


def test_a_requeue_is_recorded_too(store: ShardStore) -> None:
    from shard_store.error_table import search

    us = Pipeline.start(store)
    quarantined(us, "a")
    ((error,),) = search.pages(store.database, Criteria())
    store.reopen([error], audit=ME)
    (stored,) = store.shard_story(keys("a")[0]).changes
    assert (stored.change.action, stored.change.actor) == ("requeue", "ada@host")
    assert stored.after is not None
    assert (stored.after["state"], stored.after["publish_token"]) == ("open", None)


@pytest.mark.parametrize("known", [True, False])
def test_what_a_listing_found_is_requeued_to_its_pipeline_as_no_message_comes(store: ShardStore, known: bool) -> None:
    from shard_store.error_table import search

    us = Pipeline.start(store)
    quarantined(us, "a")
    with store.database.engine.begin() as connection:
        connection.execute(shards.update().values(queue=LISTING))
        if not known:
            connection.execute(shards.update().values(owner="forgotten"))
            for table in (errors, attempts):
                connection.execute(table.update().values(pipeline="forgotten"))
    (page,) = search.pages(store.database, Criteria())
    for _ in range(2):  # a call that died after it is called again
        (shard,) = store.reopen(page, audit=ME).shards.values()
        assert (shard.queue, shard.known) == (LISTING, True)
    assert [*store.renewed(us.token)] == (keys("a") if known else [])
    (waiting,) = store.abandoned("s", 10) or us.look("a").values()
    assert waiting.token == (us.token if known else None)
    (stored,) = store.shard_story(keys("a")[0]).changes
    assert stored.after is not None
    assert stored.after["publish_token"] == (str(us.token) if known else None)


@pytest.mark.parametrize("why", ["released", "stopped", "held", "a message", "in a group", "in a listing"])
def test_an_open_shard_that_nobody_has_is_taken_without_its_message_when_it_is_reopened(
    backend: StoreBackend, why: str
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.open("a")
    if why not in ("stopped", "held"):
        store.release(us.token, keys("a"))
    if why == "stopped":
        backend.clock.advance(STALE + 1)
    odd: dict[str, dict[str, str]] = {
        "a message": {"uri": MESSAGE}, "in a group": {"message_group": "g"}, "in a listing": {"queue": LISTING},
    }  # fmt: skip
    if why in odd:
        store.database.write(lambda t: t.execute(shards.update().values(odd[why])))
    is_mended = why in ("released", "stopped")
    done = store.put_back(keys("a"), ME, message_uri=MESSAGE)
    assert (done.changed, done.unchanged) == ((1, 0) if is_mended else (0, 1))
    assert store.put_back(keys("a"), ME, message_uri=MESSAGE).unchanged == 1
    assert [shard.key for shard in store.abandoned("s", 10)] == keys("a") * (is_mended or why == "in a listing")
    if is_mended:
        (stored,) = store.shard_story(keys("a")[0]).changes
        assert (stored.change.action, stored.after and stored.after["queue"]) == ("reopen", LISTING)
        other = Pipeline.start(store, "other")
        (found,) = store.abandoned("s", 10)
        assert store.acquire(other.token, {found.key: found.token}) == set(keys("a"))


def test_it_stays_given_up_when_another_shard_of_the_plan_is_lost_meanwhile(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    failed = us.planned("a", "b", "c")
    store.quarantine(keys("a"), ME)
    us = Pipeline.start(store)
    assert read_by(us.plan()) == ["b", "c"]
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {keys("c")[0]: us.token}) == set(keys("c"))
    us = Pipeline.start(store)
    plan = us.plan()
    assert plan.identity.delivery_hash == failed.identity.delivery_hash
    assert read_by(plan) == ["b"]
    us.publish(plan, Split("/x", 1, 1))
    assert (state(us, "a"), state(us, "b")) == (ShardState.QUARANTINED, ShardState.DONE)
