"""Contract: a source that begins anew has read nothing, shows nothing, and repeats no delivery (decision 0047)."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from queue_source.messages import MESSAGE_URI
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.model import BEGINNING, ErrorRecord, ShardState, Split, position_at, shard_key
from shard_store.operators import resetting
from shard_store.operators.resetting import Reset
from shard_store.shards.activity import Report
from shard_store.shards.changes import Audit
from shard_store.sql.schema import cleanings, listings, pipelines, shard_changes, shards, snapshots, sources, splits
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import DONE, Ended, Planned
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend, content, rows

ME = Audit("ada@host", "the table is loaded anew")


def reset(store: ShardStore, *names: str, **settings: Any) -> Reset:
    return store.reset(names or ("s",), ME, message_uri=MESSAGE_URI, **settings)


def stop(us: Pipeline) -> None:
    us.store.retire(us.token, Report(stopped=True))


def paths(store: ShardStore) -> set[str]:
    return {row["path"] for row in rows(store, "splits")}


def column(store: ShardStore, table: sa.Table, name: str) -> list[Any]:
    return list(store.database.read(lambda t: t.execute(sa.select(table.c[name])).scalars()))


def test_what_was_read_is_read_once_more_and_its_files_are_no_longer_shown(store: ShardStore) -> None:
    us = Pipeline.start(store)
    before = us.deliver("a", "b")
    stop(us)
    would = reset(store, dry_run=True)
    assert would == Reset(("p",), objects=2, messages=0, begun=0, adopted=0, cleaned=0, files=1, beyond_memory=False)
    assert set(us.look("a", "b")) == {"a", "b"}, "a dry run changes nothing"
    assert paths(store) == {"/split-1"}
    assert reset(store) == would
    assert us.look("a", "b") == {}
    assert paths(store) == set()
    again = Pipeline.start(store)
    after = again.deliver("b", "a")
    assert paths(store) == {"/split-3"}
    assert after.identity.delivery_hash != before.identity.delivery_hash
    with pytest.raises(StoreConfigurationError, match="pipeline 'p' runs"):
        reset(store)
    assert paths(store) == {"/split-3"}, "a refusal changes nothing"


def test_each_object_tells_who_had_it_forgotten_and_why(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("a", '"quoted"')
    stop(us)
    reset(store)
    for shard_id in ("a", '"quoted"'):
        story = store.shard_story(shard_key("s", shard_id))
        assert story.outcome == "the store does not know it: it was forgotten"
        (stored,) = story.changes
        assert (stored.change.action, stored.change.actor, stored.change.reason) == ("reset", ME.actor, ME.reason)
        assert (stored.change.shard_id, stored.before["state"], stored.after) == (shard_id, "done", None)


def test_a_pipeline_that_runs_or_was_killed_a_moment_ago_is_refused(store: ShardStore, backend: StoreBackend) -> None:
    Pipeline.start(store).deliver("a")
    with pytest.raises(StoreConfigurationError, match="stop its query first"):
        reset(store)
    backend.run_for(STALE + 1)
    assert reset(store).objects == 1, "its heartbeats have stopped"
    (status,) = store.status()
    assert status.state == "stopped"


def test_a_reader_that_slept_meanwhile_publishes_nothing(store: ShardStore, backend: StoreBackend) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    plan = us.planned("b")
    backend.run_for(STALE + 1)
    reset(store)
    with pytest.raises(PipelineTakenOver):
        us.publish(plan, Split("/late", 1, 1))
    assert paths(store) == set()


@pytest.mark.parametrize("published", [False, True])
def test_an_old_checkpoint_that_repeats_its_last_batch_finds_it_empty(
    store: ShardStore, backend: StoreBackend, published: bool
) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    plan = us.planned("b")
    if published:
        us.publish(plan, Split("/b", 1, 1))
    backend.run_for(STALE + 1)
    reset(store)
    again = Pipeline.start(store)
    repeated = store.plan(again.token, 1, 2)
    assert repeated.ranges == ()
    store.publish([repeated.identity], [Split("/empty", 0, 1)])
    store.advance(again.token, confirm=2)
    again.deliver("b", "a")
    assert {row["path"]: row["rows"] for row in rows(store, "splits")}["/split-4"] == 2


def test_a_batch_that_another_sink_took_unconfirmed_is_not_done_by_its_old_checkpoint(
    store: ShardStore, backend: StoreBackend
) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    backend.run_for(STALE + 1)
    reset(store)
    assert column(store, snapshots, "seq") == []
    again = Pipeline.start(store)
    store.advance(again.token, confirm=1)  # as Spark says
    assert again.look("a")["a"].state is ShardState.OPEN
    assert [r.content.shard_id for r in again.planned("a").ranges] == ["a"]


def test_what_was_read_in_part_begins_at_its_beginning(store: ShardStore, backend: StoreBackend) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("large").values(), ends=[position_at(4)])
    us.publish(us.plan(), Split("/first", 1, 1))
    us.confirm()
    assert us.look("large")["large"].position == position_at(4)
    backend.run_for(STALE + 1)
    assert reset(store).begun == 1
    assert us.look("large")["large"].position == BEGINNING
    assert paths(store) == set()
    (stored,) = store.shard_story(shard_key("s", "large")).changes
    assert stored.after == {"state": "open", "position": ""}
    again = Pipeline.start(store)
    assert again.look("large")["large"].token == again.token, "its pipeline goes on with it, without a message"


def test_of_the_pipelines_of_a_source_one_may_begin_anew(store: ShardStore, backend: StoreBackend) -> None:
    ours, theirs = Pipeline.start(store, "ours"), Pipeline.start(store, "theirs")
    ours.deliver("a")
    plan = theirs.planned("b")
    theirs.publish(plan, Split("/theirs", 1, 1))
    theirs.confirm()
    stop(ours)
    store.adopt("s", ["x"], "elsewhere")
    assert reset(store, only=["ours"]).objects == 1, "the other one runs on"
    assert set(ours.look("a", "b", "x")) == {"b", "x"}
    assert paths(store) == {"/theirs"}
    theirs.deliver("c")
    with pytest.raises(StoreConfigurationError, match="no pipeline 'their' of 's'"):
        reset(store, only=["their"])
    with pytest.raises(StoreConfigurationError, match=r"no source 'sources' in .*; there is 's'"):
        reset(store, "sources")


def test_the_memory_of_what_was_pruned_ends_with_the_whole_source_only(
    store: ShardStore, backend: StoreBackend
) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    backend.run_for(timedelta(days=2).total_seconds())
    store.prune(RetentionPolicy(window=timedelta(days=1)))
    assert column(store, sources, "forgotten_before") != [0]
    assert reset(store, only=["p"]).beyond_memory
    assert column(store, sources, "forgotten_before") != [0]
    assert not reset(store).beyond_memory
    assert column(store, sources, "forgotten_before") == [0], "listings find all that is there"


def test_inputs_of_one_query_begin_anew_together(store: ShardStore) -> None:
    orders, payments = Pipeline.start(store, "orders", "o"), Pipeline.start(store, "payments", "p")
    plans = [orders.planned("a").identity, payments.planned("b").identity]
    store.publish(plans, [Split("/both", 2, 1)], batch_id=0)
    for us in (orders, payments):
        us.confirm()
        stop(us)
    for name in ("o", "p"):
        with pytest.raises(StoreConfigurationError, match="are inputs of one query"):
            reset(store, name)
    assert paths(store) == {"/both"}
    assert reset(store, "o", "p").objects == 2
    assert paths(store) == set()


def test_what_another_reader_has_read_stays_known_unless_it_is_wanted(store: ShardStore) -> None:
    store.adopt("s", ["x"], "elsewhere")
    us = Pipeline.start(store)
    us.deliver("a")
    stop(us)
    done = reset(store)
    assert (done.objects, done.adopted) == (1, 1)
    assert set(us.look("a", "x")) == {"x"}
    assert reset(store, adopted=True).objects == 1
    assert us.look("x") == {}


def test_messages_are_counted_apart_since_their_queue_has_them_no_more(store: ShardStore) -> None:
    us = Pipeline.start(store)
    message = content("m")._replace(uri=MESSAGE_URI)
    (shard,) = store.open_shards(us.token, "s", [message]).values()
    us.snapshot(shard)
    us.publish(us.plan(), Split("/m", 1, 1))
    us.confirm()
    stop(us)
    assert reset(store, dry_run=True).messages == 1
    with pytest.raises(StoreConfigurationError, match=r"1 messages were data themselves.*--lose-rows"):
        reset(store)
    assert paths(store) != set(), "a refusal changes nothing"
    done = reset(store, lose_rows=True)
    assert (done.objects, done.messages) == (0, 1)


def test_messages_that_are_pruned_are_not_lost_either(store: ShardStore, backend: StoreBackend) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    us.store.start("s", "p", stale_after=STALE, settings={"content": "message"})
    backend.run_for(timedelta(days=3).total_seconds())
    store.prune(RetentionPolicy(window=timedelta(days=1)))
    with pytest.raises(StoreConfigurationError, match="older messages, which the store has pruned, were data"):
        reset(store)


def test_rows_whose_objects_are_deleted_by_now_are_not_lost_by_a_word_about_tables(
    store: ShardStore, backend: StoreBackend
) -> None:
    us = Pipeline.start(store)
    us.deliver("a", "b")
    backend.run_for(1200.0)
    store.plan_cleanings("s", timedelta(0), lambda shard_id, uri: Planned(uri, None) if uri == "a" else None, 10)
    (cleaning,) = store.due_cleanings("s", 10).cleanings
    store.end_cleanings([Ended(cleaning.shard_key, cleaning.read_at, DONE)])
    with pytest.raises(StoreConfigurationError, match="1 objects are deleted or moved by cleanSource"):
        reset(store)
    assert paths(store) == {"/split-1"}
    backend.run_for(timedelta(days=3).total_seconds())
    store.prune(RetentionPolicy(window=timedelta(days=1)))
    with pytest.raises(StoreConfigurationError, match="older objects, which the store has pruned, may be deleted"):
        reset(store)
    assert reset(store, lose_rows=True).objects == 0
    assert paths(store) == set()


def test_listings_are_due_at_once_and_nothing_is_deleted_that_is_to_be_read(
    store: ShardStore, backend: StoreBackend
) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    assert store.claim_listing(us.token, "s", "s3://b/", 1e6) is not None
    backend.run_for(1200.0)
    store.plan_cleanings("s", timedelta(0), lambda shard_id, uri: Planned(uri, None), 10)
    assert column(store, cleanings, "uri") == ["a"]
    reset(store)
    assert column(store, cleanings, "uri") == []
    assert column(store, listings, "prefix") == []


def test_errors_and_attempts_stay_as_a_record(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "bad")
    found = ErrorRecord("object", "corrupt-object", "why", "bad", plan.identity.delivery_hash, BEGINNING)
    store.record_errors("s", "p", [found])
    us.publish(plan, Split("/x", 1, 1))
    us.confirm()
    stop(us)
    assert reset(store).objects == 2, "what was quarantined is read once more, too"
    assert [row["cause"] for row in rows(store, "errors")] == ["corrupt-object"]
    assert len(rows(store, "attempts")) == 1
    assert not store.has_finished("s", "p")


def test_inputs_of_one_query_begin_anew_together_also_when_the_attempts_are_pruned(
    store: ShardStore, backend: StoreBackend
) -> None:
    orders, payments = Pipeline.start(store, "orders", "o"), Pipeline.start(store, "payments", "p")
    store.publish([orders.planned("a").identity, payments.planned("b").identity], [Split("/both", 2, 1)], batch_id=0)
    for us in (orders, payments):
        us.confirm()
        stop(us)
    backend.run_for(timedelta(days=3).total_seconds())
    store.prune(RetentionPolicy(window=timedelta(days=1)))
    with pytest.raises(StoreConfigurationError, match="are inputs of one query"):
        reset(store, "p")


class Interrupted(Exception):
    """The command is killed here."""


def everything(store: ShardStore) -> dict[str, Any]:
    """What a reset changes, without times."""
    with store.database.engine.connect() as connection:
        kept = {
            table.name: sorted(
                json.dumps(
                    {
                        k: str(v)
                        for k, v in row._asdict().items()
                        if k not in ("id", "cleaned_until") and not k.endswith("_at")
                    }
                )
                for row in connection.execute(sa.select(table))
            )
            for table in (shards, splits, cleanings, listings, snapshots, sources, shard_changes)
        }
        fenced = connection.execute(sa.select(pipelines.c.pipeline, pipelines.c.incarnation, pipelines.c.last_seq))
        return {**kept, "fenced": sorted(map(tuple, fenced))}


def filled(backend: StoreBackend) -> ShardStore:
    """Three pipelines of two sources, with all that may be forgotten or kept; "theirs" may run on."""
    backend.wipe()
    store = backend.open()
    us, theirs = Pipeline.start(store), Pipeline.start(store, "theirs")
    for number in range(4):
        us.deliver(*(f"{number}{name}" for name in "abc"))
    theirs.deliver("x", "y")
    us.snapshot(*us.open("large").values(), ends=[position_at(4)])
    us.publish(us.plan(), Split("/large", 1, 1))
    us.confirm()
    us.open("open")
    other = Pipeline.start(store, "q", "t")
    other.deliver(*(f"{number}t" for number in range(5)))
    store.adopt("s", ["known", "known too"], "elsewhere")
    backend.clock.advance(1200.0)
    store.plan_cleanings("s", timedelta(0), lambda shard_id, uri: Planned(uri, None), 3)
    for each in (us, other, theirs):
        stop(each)
    return store


@pytest.mark.parametrize(
    "scope",
    [{}, {"adopted": True}, {"only": ["p"]}, {"only": ["p"], "adopted": True}, {"names": ("s", "t")}],
    ids=lambda scope: " ".join(scope) or "all",
)
def test_a_reset_goes_in_pieces_and_on_after_each_interruption(backend: StoreBackend, scope: dict[str, Any]) -> None:
    settings = {name: value for name, value in scope.items() if name != "names"}
    names = scope.get("names", ("s",))

    def piece_by_piece(store: ShardStore, dies_at: int | None = None) -> int:
        """Returns how many pieces it took; dies in one."""
        pieces = itertools.count()

        def reached(place: str) -> None:
            if next(pieces) == dies_at:
                raise Interrupted(place)

        with patch("shard_store.operators.resetting.reach", reached):
            resetting.reset(store.database, names, ME, message_uri=MESSAGE_URI, most=2, pause=lambda: None, **settings)
        return next(pieces)

    store = filled(backend)
    number = piece_by_piece(store)
    assert number > 6
    expected = everything(store)
    Pipeline.start(store)
    for dies_at in range(number):
        store = filled(backend)
        with pytest.raises(Interrupted):
            piece_by_piece(store, dies_at)
        assert not [row for row in rows(store, "splits") if row["pipeline"] == "p"], "all at once"
        for _ in range(2):
            with pytest.raises(StoreConfigurationError, match=r"cuesqueue reset s.* to its end first"):
                Pipeline.start(store)
        with pytest.raises(StoreConfigurationError, match="runs, or was interrupted"):
            store.source_of("s")
        with pytest.raises(StoreConfigurationError, match="runs, or was interrupted"):
            store.compare("s", [])  # a page of a comparison that began before
        assert store.due_cleanings("s", 10).cleanings == []
        with pytest.raises(StoreConfigurationError, match="was interrupted: end that first"):
            reset(store, *names, only=["theirs"])
        if "only" in settings:
            Pipeline.start(store, "theirs").deliver(f"new {dies_at}")
            stop(Pipeline.start(store, "theirs"))
        else:
            with pytest.raises(StoreConfigurationError, match="to its end first"):
                Pipeline.start(store, "a new one")
            with pytest.raises(StoreConfigurationError, match="to its end first"):
                store.adopt("s", ["late"], "elsewhere")
        piece_by_piece(store)
        if "only" not in settings:
            assert everything(store) == expected
        Pipeline.start(store)
        backend.close()
        backend.views.clear()


def test_a_run_that_slept_forgets_nothing_once_another_one_has_ended(backend: StoreBackend) -> None:
    store = filled(backend)
    late: list[Any] = []

    def wake() -> None:
        if late:
            return
        late.append(None)
        reset(store)
        Pipeline.start(store).deliver("0a", "read since")

    with pytest.raises(StoreConfigurationError, match="another run of this reset of 's' has ended it"):
        resetting.reset(store.database, ["s"], ME, message_uri=MESSAGE_URI, most=2, pause=wake)
    known = {row["shard_id"]: row["state"] for row in rows(store, "shards") if row["source"] == "s"}
    assert known["0a"] == known["read since"] == "done"


def test_a_run_that_slept_does_not_end_a_later_reset(backend: StoreBackend) -> None:
    """It would leave that one half done, with a part of what was read still known, and its rows out of the view."""
    store = filled(backend)
    late: list[Any] = []

    def wake() -> None:
        """In the middle of another reset, which began behind the end of this one."""
        if late:
            return
        late.append(None)
        reset(store)
        us = Pipeline.start(store)
        us.deliver(*"abc")
        stop(us)
        with patch("shard_store.operators.resetting._forget", side_effect=Interrupted), pytest.raises(Interrupted):
            reset(store)

    with pytest.raises(StoreConfigurationError, match="another run of this reset of 's' has ended it"):
        resetting.reset(store.database, ["s"], ME, message_uri=MESSAGE_URI, most=2, pause=wake)
    with pytest.raises(StoreConfigurationError, match="runs, or was interrupted"):
        Pipeline.start(store)
    reset(store)
    known = {row["shard_id"]: row["state"] for row in rows(store, "shards") if row["source"] == "s"}
    assert not {"a", "b", "c"} & {name for name, state in known.items() if state == "done"}
