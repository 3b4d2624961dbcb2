"""Contract: errors on their way to the error queue, rejected rows, and what is put back by hand."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from queue_source.errors import QueueError
from queue_source.queues import open_queue
from shard_store.error_table import handling, search
from shard_store.error_table.search import Criteria, StoredError
from shard_store.errors import PipelineTakenOver
from shard_store.model import (
    BEGINNING,
    ErrorRecord,
    Plan,
    PublishToken,
    Semantics,
    ShardState,
    Split,
    end_at,
    position_at,
    shard_key,
)
from shard_store.sql.database import Transaction
from shard_store.sql.schema import sources
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.servers.postgres import new_database
from support.store_backends import MYSQL_URL, STALE, Pipeline, StoreBackend, content, rows

MESSAGE = ErrorRecord(
    "message", "malformed-message", "why", "m1", queue="q", message_id="m1", input=b"\xff\0",
    tag="a.b", headers=(("k", "\u00fc\ud800"),), group="g",
)  # fmt: skip


def bad(plan: Plan, shard_id: str, scope: str = "object", at: int | None = None) -> ErrorRecord:
    position = plan.ranges[0].start if at is None else position_at(at)
    return ErrorRecord(scope, "corrupt-object", "why", shard_id, plan.identity.delivery_hash, position, "q", "m")


def found(store: ShardStore, **criteria: object) -> list[StoredError]:
    pages = search.pages(store.database, Criteria(**criteria))  # type: ignore[arg-type]
    return [error for page in pages for error in page]


def states(store: ShardStore) -> dict[str, str]:
    return {row["subject"]: row["state"] for row in rows(store, "errors")}


def undelivered(store: ShardStore, token: PublishToken) -> list[str]:
    database = store.database
    errors = database.read(lambda c: handling.undelivered(c, token, "s"))
    return [error.subject for error in errors]


def deliver(store: ShardStore, token: PublishToken) -> list[str]:
    """Claim and mark, as a forwarder inside the store's database does."""
    database = store.database
    claimed = database.write(lambda c: handling.claim(c, token, "s"))
    keys = [error.key for error in claimed]
    database.write(lambda c: handling.mark_delivered(c, token, keys, "errors"))
    return [error.subject for error in claimed]


def quarantined(us: Pipeline, *ids: str) -> None:
    """Plan and publish objects that are all bad."""
    plan = us.planned(*ids)
    us.store.record_errors("s", us.token.pipeline, [bad(plan, i) for i in ids])
    us.publish(plan, Split("/x", 0, 1))
    us.confirm()


@pytest.mark.parametrize("semantics", list(Semantics))
def test_a_plan_that_is_final_is_named_once_when_it_left_errors(store: ShardStore, semantics: Semantics) -> None:
    us = Pipeline.start(store, semantics=semantics)
    hashes = []
    for number, sink in enumerate(("ours", "another")):
        plan = us.planned(f"a{number}", f"b{number}")
        hashes.append(plan.identity.delivery_hash)
        store.record_errors("s", "p", [bad(plan, f"a{number}"), bad(plan, f"b{number}", "record", 7)])
        if sink == "ours":
            us.publish(plan)
        confirmed = store.advance(us.token, confirm=us.seq)
        assert confirmed.with_errors == (hashes[-1],)
        us.confirmed = us.seq
        assert store.advance(us.token, confirm=us.seq).with_errors == ()
    plan = us.planned("good")
    us.publish(plan)
    assert store.advance(us.token, confirm=us.seq).with_errors == ()
    us.confirmed = us.seq
    plan = us.planned("last")
    store.record_errors("s", "p", [bad(plan, "last")])
    us.publish(plan)
    assert store.start("s", "p", semantics=semantics).with_errors == (plan.identity.delivery_hash,)
    assert store.start("s", "p", semantics=semantics).with_errors == ()
    causes, first = store.errors_of_plans(hashes, 3)
    assert causes == {"corrupt-object": 4}
    assert [(error.delivery_hash in hashes, error.cause, error.detail) for error in first] == [
        (True, "corrupt-object", "why")
    ] * 3
    assert store.errors_of_plans([hashes[0]], 0) == ({"corrupt-object": 2}, [])
    assert store.errors_of_plans(["0" * 64], 3) == ({}, [])


@pytest.mark.parametrize("semantics", list(Semantics))
def test_objects_that_may_be_read_are_those_published_and_those_of_the_plan(
    store: ShardStore, semantics: Semantics
) -> None:
    us = Pipeline.start(store, semantics=semantics)
    plan = us.planned("old", "bad")
    store.record_errors("s", "p", [bad(plan, "bad")])
    us.publish(plan)
    us.confirm()
    plan = us.planned("now", "beside")
    keeps = semantics.keeps_shards
    if keeps:
        us.open("next")
        Pipeline.start(store, "other", source="other").open("theirs")
    published, others = store.known_objects(plan.identity)
    assert ("old" in published) is keeps
    assert {"now", "beside"} <= set(others)
    assert ("next" in others) is keeps
    assert "theirs" not in {*published, *others}
    assert "bad" not in published


def test_a_message_is_kept_with_all_that_publishing_it_again_needs(store: ShardStore) -> None:
    store.record_errors("s", "p", [MESSAGE])
    (error,) = found(store)
    assert (error.input, error.input_size, error.whole) == (b"\xff\0", 2, True)
    assert (error.tag, error.headers, error.group) == ("a.b", {"k": "\u00fc\ud800"}, "g")
    assert (error.seqs, error.shard_key, error.state) == (None, None, "recorded")


def test_an_error_is_pending_until_its_plan_is_published_and_sent_once_after_that(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b")
    store.record_errors("s", "p", [bad(plan, "a"), bad(plan, "b", "record", 5)])
    assert set(states(store).values()) == {"pending"}
    assert undelivered(store, us.token) == []
    us.publish(plan)
    assert set(states(store).values()) == {"recorded"}
    assert sorted(deliver(store, us.token)) == ["a", "b"]
    assert set(states(store).values()) == {"delivered"}
    assert undelivered(store, us.token) == []
    (error, _) = found(store)
    assert (error.seqs, error.delivered_to) == ((0, 1), "errors")


def test_what_is_sent_holds_the_beginning_of_a_large_input(store: ShardStore) -> None:
    us = Pipeline.start(store)
    large = bytes(range(256)) * 300
    store.record_errors("s", "p", [ErrorRecord("message", "c", "", "m", input=large)])
    database = store.database
    (error,) = database.read(lambda c: handling.undelivered(c, us.token, "s"))
    assert error.input == large[: handling.MAX_INPUT]
    assert (error.input_size, error.whole) == (len(large), False)
    (error,) = found(store)
    assert (error.input, error.whole) == (large, True)


def test_errors_of_a_pipeline_that_died_are_sent_by_another_of_the_source_and_of_a_live_one_are_not(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    elsewhere = Pipeline.start(store, "elsewhere", "t")
    for subject, pipeline in (("mine", us), ("another's", other), ("another source's", elsewhere)):
        store.record_errors(pipeline.source, pipeline.token.pipeline, [ErrorRecord("message", "c", "", subject)])
    assert undelivered(store, us.token) == ["mine"]
    backend.clock.advance(STALE + 1)
    store.heartbeat(us.token, STALE)
    assert sorted(undelivered(store, us.token)) == ["another's", "mine"]


def test_of_two_pipelines_that_claim_at_once_only_one_gets_the_errors_of_a_dead_one(backend: StoreBackend) -> None:
    first, second = backend.open(), backend.open()
    Pipeline.start(first, "dead")
    backend.clock.advance(STALE)
    us, others = Pipeline.start(first), Pipeline.start(second, "other")
    first.record_errors("s", "dead", [MESSAGE])
    got: list[list[str]] = []
    late = threading.Thread(target=lambda: got.append(deliver(second, others.token)))

    def work(t: Transaction) -> list[bytes]:
        keys = [error.key for error in handling.claim(t, us.token, "s")]
        if not late.is_alive():
            late.start()
        late.join(0.3)  # it has to wait for us; were it not to, it would be done by then
        handling.mark_delivered(t, us.token, keys, "errors")
        return keys

    assert len(first.database.write(work)) == 1
    late.join(30)
    assert got == [[]]


def test_a_zombie_neither_claims_nor_marks_errors(store: ShardStore) -> None:
    zombie = Pipeline.start(store)
    store.record_errors("s", "p", [MESSAGE])
    us = Pipeline.start(store)
    with pytest.raises(PipelineTakenOver):
        deliver(store, zombie.token)
    with pytest.raises(PipelineTakenOver):
        store.database.write(lambda c: handling.mark_delivered(c, zombie.token, [], "q"))
    assert deliver(store, us.token) == ["m1"]


def test_pruning_leaves_errors_that_an_error_queue_waits_for_and_what_makes_them_final(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    store.database.write(lambda c: handling.name_queue(c, us.token, "errors"))
    quarantined(us, "a")
    backend.clock.advance(3600)
    policy = RetentionPolicy(window=timedelta(seconds=60))
    assert (store.prune(policy).errors, states(store)) == (0, {"a": "recorded"})
    assert deliver(store, us.token) == ["a"]
    us.deliver("b")  # what was planned last may be asked for once more, with its errors
    result = store.prune(policy)
    assert (result.errors, result.attempts, rows(store, "errors")) == (1, 1, [])


def test_an_error_of_a_message_that_was_requeued_and_is_bad_again_is_new_again(store: ShardStore) -> None:
    us = Pipeline.start(store)
    store.record_errors("s", "p", [MESSAGE])
    deliver(store, us.token)
    store.record_errors("s", "p", [MESSAGE])
    assert states(store) == {"m1": "delivered"}, "a redelivery is no second error"
    store.mark_requeued([error.key for error in found(store)])
    assert states(store) == {"m1": "requeued"}
    store.record_errors("s", "p", [MESSAGE])
    assert deliver(store, us.token) == ["m1"]


def test_errors_are_found_by_all_that_is_known_of_them(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    store.record_errors("s", "p", [ErrorRecord("message", "no-message-id", "", "m/1")])
    backend.clock.advance(100)
    quarantined(us, "s3://b/a", "s3://b/c")
    pending = other.planned("s3://b/p")
    store.record_errors("t", "other", [bad(pending, "s3://b/p", "record", 3)])
    everything = found(store)
    assert everything[0].subject == "m/1", "the oldest first"
    assert len(everything) == 4

    def subjects(**criteria: object) -> set[str]:
        return {error.subject for error in found(store, **criteria)}

    first = everything[0].key.hex()
    assert subjects(ids=[first]) == subjects(ids=[first[:7]]) == {"m/1"}
    assert subjects(ids=[error.key.hex()[:12] for error in everything[:2]]) == {e.subject for e in everything[:2]}
    assert subjects(matching=re.compile("s3://b/[ac]")) == {"s3://b/a", "s3://b/c"}
    assert subjects(states=["pending"]) == subjects(source="t") == subjects(pipeline="other") == {"s3://b/p"}
    assert subjects(words={"scope": ["object"]}) == {"s3://b/a", "s3://b/c"}
    assert subjects(words={"scope": ["message", "record"]}, since=timedelta(seconds=10)) == {"s3://b/p"}
    assert subjects(older_than=timedelta(seconds=10), words={"cause": ["no-message-id"]}) == {"m/1"}
    assert subjects(older_than=timedelta(seconds=1000)) == set()


@pytest.mark.parametrize("limit", [1, 5, None])
def test_pages_hold_every_error_once_up_to_the_limit(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(search, "PAGE", 5)
    store.record_errors("s", "p", [ErrorRecord("message", "c", "", f"m{i}") for i in range(11)])
    criteria = Criteria(matching=re.compile("m[0-9]+"))
    seen = [e.subject for page in search.pages(store.database, criteria, limit=limit) for e in page]
    assert len(seen) == len(set(seen)) == (limit or 11)


def test_a_quarantined_shard_is_put_back_to_where_it_was_found_bad(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("large").values(), ends=[position_at(4)])
    us.publish(us.plan(), Split("/first part", 1, 1))
    us.confirm()
    us.snapshot(*us.look("large").values(), ends=[position_at(8)])
    plan = us.plan()
    store.record_errors("s", "p", [bad(plan, "large", at=4)])
    us.publish(plan)
    us.confirm()
    assert us.look("large")["large"].state is ShardState.QUARANTINED
    for _ in range(2):  # a call that died after it is called again
        opened = store.reopen(found(store))
        assert opened.refused == {}
        (shard,) = opened.shards.values()
        assert (shard.uri, shard.version, shard.queue) == ("large", "", "queue")
        (again,) = us.look("large").values()
        assert (again.state, again.position, again.token) == (ShardState.OPEN, position_at(4), None)
    repaired = content("large", 99)._replace(etag="new")
    (announced,) = store.open_shards(us.token, "s", [repaired]).values()
    assert (announced.content.size, announced.content.etag) == (None, None), "its reader looks up what is there now"
    assert store.acquire(us.token, {announced.key: announced.token}) == {announced.key}
    us.snapshot(announced, ends=[end_at(99)])
    us.publish(us.plan(), Split("/the rest", 1, 1))
    assert us.look("large")["large"].state is ShardState.DONE


def test_what_would_double_or_lose_rows_is_not_put_back(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    quarantined(us, "twice", "healed")
    old = found(store)
    store.reopen(old)
    for shard in store.open_shards(us.token, "s", [content("twice"), content("healed")]).values():
        store.acquire(us.token, {shard.key: None})
        us.snapshot(shard)
    plan = us.plan()
    store.record_errors("s", "p", [bad(plan, "twice")])
    us.publish(plan)
    us.confirm()
    pending = other.planned("pending")
    store.record_errors("s", "other", [bad(pending, "pending")])
    new = [error for error in found(store) if error.key not in {e.key for e in old}]
    problems = store.reopen([*old, *new], dry_run=True).refused
    assert {error.subject: problems[error.key] for error in old} == {
        "twice": "its object was found bad once more since; take that error instead",
        "healed": "its object is done by now: a new reading would double its rows",
    }
    assert {error.subject: problems.get(error.key) for error in new} == {
        "twice": None,
        "pending": "its batch is not published yet: it may still be repeated",
    }
    assert us.look("twice")["twice"].state is ShardState.QUARANTINED, "a dry run"
    assert list(store.reopen([*old, *new]).shards) == [shard_key("s", "twice")]
    assert us.look("twice", "healed")["twice"].state is ShardState.OPEN
    assert us.look("healed")["healed"].state is ShardState.DONE


def test_a_shard_that_the_store_forgot_is_only_announced_and_not_where_a_part_was_published(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    quarantined(us, "whole")
    errors = found(store)
    backend.clock.advance(3600)
    store.prune(RetentionPolicy(window=timedelta(seconds=60)))
    assert us.look("whole") == {}
    ((key, shard),) = store.reopen(errors).shards.items()
    assert (key, shard.uri, shard.queue) == (shard_key("s", "whole"), "whole", "q")
    (why,) = store.reopen([replace(errors[0], position=position_at(4))]).refused.values()
    assert "a part was published before" in why


def test_a_forgotten_object_is_not_announced_under_a_name_with_its_version(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("s3://b/a#e1")
    error = ErrorRecord("object", "corrupt-object", "why", "s3://b/gone#e1", "", BEGINNING, queue="q")
    store.record_errors("s", us.token.pipeline, [error])
    (stored,) = found(store)
    ((_, shard),) = store.reopen([stored], dry_run=True).shards.items()
    assert shard.uri == "s3://b/gone#e1", "without versions that is its name"
    store.database.write(lambda t: t.execute(sources.update().values(naming=json.dumps({"versions": True}))))
    (why,) = store.reopen([stored]).refused.values()
    assert "cuesqueue send" in why


def test_dropping_leaves_pending_errors_and_quarantined_shards(store: ShardStore) -> None:
    us = Pipeline.start(store)
    quarantined(us, "a")
    plan = us.planned("b")
    store.record_errors("s", "p", [bad(plan, "b"), MESSAGE])
    assert store.drop_errors([error.key for error in found(store)]) == 2
    assert states(store) == {"b": "pending"}
    assert us.look("a")["a"].state is ShardState.QUARANTINED
    assert us.publish(plan).quarantined == 1


def rejected(plan: Plan, *inputs: bytes) -> list[ErrorRecord]:
    seen: dict[bytes, int] = {}
    records = []
    for data in inputs:
        number = seen[data] = seen.get(data, -1) + 1
        records.append(
            ErrorRecord("row", "rejected-row", "", "", plan.identity.delivery_hash, input=data, occurrence=str(number))
        )
    return records


def test_rejected_rows_are_written_once_however_often_the_batch_runs_and_equal_ones_are_counted(
    store: ShardStore,
) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    for _ in range(2):
        store.reject(plan.identity, rejected(plan, b"1", b"1", b"2"))
    assert sorted(error.input or b"" for error in found(store)) == [b"1", b"1", b"2"]
    assert us.publish(plan, Split("/x", 0, 1)).kind == "attempt-error"
    store.reject(plan.identity, rejected(plan, b"1", b"3"))  # a batch without input has the plan before it
    assert len(deliver(store, us.token)) == 4


def test_rows_that_were_rejected_in_the_users_transaction_go_with_it(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    for commits in (False, True):
        with sa.create_engine(store.database.url, poolclass=sa.NullPool).begin() as connection:
            identity = store.current_plan_inside(connection, "p")
            store.reject_inside(connection, identity, rejected(plan, b"1"))
            if not commits:
                connection.rollback()
        assert len(found(store)) == commits


def test_an_input_of_any_size_is_an_error_of_which_at_least_the_beginning_is_kept(backend: StoreBackend) -> None:
    """MariaDB answers a statement of more than 16 MB by closing the connection."""
    store = backend.open(patience=3.0)
    Pipeline.start(store)
    body = bytes(range(256)) * (27 << 12)
    store.record_errors("s", "p", [ErrorRecord("message", "malformed-message", "", "m", input=body)])
    (error,) = found(store)
    assert error.input is not None
    assert body.startswith(error.input)
    assert (error.input_size, error.whole) == (len(body), backend.name != "mysql")
    assert len(error.input) > 5 << 20


@pytest.mark.skipif(not MYSQL_URL, reason="MariaDB alone has such a limit")
def test_a_message_that_the_database_of_a_queue_does_not_take_is_refused_by_its_size() -> None:
    url = new_database(MYSQL_URL)
    with open_queue(f"sql+{url}?queue=large") as queue:
        queue.send([b"'" * (7 << 20)])
        with pytest.raises(QueueError, match=r"28,311,552 bytes is larger than .* max_allowed_packet"):
            queue.send([b"x" * (27 << 20)])
        assert queue.depth().ready == 1
