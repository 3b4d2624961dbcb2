"""Contract: what a receiver records for many sources is read once by each, whoever dies, and is never forgotten."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from shard_store.errors import LostProgress, StoreConfigurationError
from shard_store.model import STORE, Content, ErrorRecord, Shard, ShardState, Split
from shard_store.shards.recording import Receipts
from shard_store.sql.schema import receivers, shards, sources
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend, content, rows

from .test_store_statements import counting


def receive(
    store: ShardStore, announced: Mapping[str, Sequence[Content]], messages: int = 1, seen: int = 0
) -> tuple[int, ...]:
    """New, known and reopened objects."""
    return tuple(store.record("r", announced, Receipts(messages), seen)[:3])


def started(store: ShardStore, *names: str) -> ShardStore:
    store.start_receiver("r", "queue", "host", names)
    return store


def take(us: Pipeline) -> list[Shard]:
    """As a reader does: everything that is recorded and free becomes ours."""
    found = us.store.recorded(us.source, 1000)
    won = us.store.acquire(us.token, {shard.key: shard.token for shard in found})
    return [shard for shard in found if shard.key in won]


def deliver(us: Pipeline, taken: Sequence[Shard]) -> None:
    us.snapshot(*taken)
    us.publish(us.plan(), Split(f"/{us.token.pipeline}-{us.token.incarnation}-{us.seq}", 1, 1))
    us.confirm()


def ids(taken: Sequence[Shard]) -> list[str]:
    return sorted(shard.content.shard_id for shard in taken)


def test_one_message_is_recorded_for_every_source_that_wants_it_and_each_reads_it_once(store: ShardStore) -> None:
    started(store, "a", "b")
    announced = {"a": [content("x"), content("y")], "b": [content("x")]}
    assert receive(store, announced) == (3, 0, 0)
    assert receive(store, announced) == (0, 3, 0)  # delivered again: the receiver died before it acknowledged
    readers = {name: Pipeline.start(store, f"p{name}", name) for name in ("a", "b")}
    taken = {name: take(us) for name, us in readers.items()}
    assert {name: ids(those) for name, those in taken.items()} == {"a": ["x", "y"], "b": ["x"]}
    for name, us in readers.items():
        deliver(us, taken[name])
    assert receive(store, announced) == (0, 3, 0)
    assert [take(us) for us in readers.values()] == [[], []]
    assert {(row["source"], row["state"]) for row in rows(store, "shards")} == {("a", "done"), ("b", "done")}


def test_what_waits_for_each_source_is_counted(backend: StoreBackend) -> None:
    store = started(backend.open(), "a", "b")
    receive(store, {"a": [content("x"), content("y")], "b": [content("x")]})
    backend.clock.advance(30)
    assert [(w.source, w.objects, round(w.oldest_age)) for w in store.waiting()] == [("a", 2, 30), ("b", 1, 30)]
    assert (store.count_waiting("a"), store.count_waiting("c")) == (2, 0)
    take(Pipeline.start(store, "p", "a"))
    assert [w.source for w in store.waiting()] == ["b"]
    assert (store.count_open("a"), store.count_open("b"), store.count_open("c")) == (2, 1, 0)


def test_the_oldest_comes_first_and_no_more_than_was_asked_for(backend: StoreBackend) -> None:
    store = started(backend.open(), "a")
    for name in ("z", "y", "x"):
        receive(store, {"a": [content(name)]})
        backend.clock.advance(1)
    until = store.database_time()
    receive(store, {"a": [content("w")]})
    assert [shard.content.shard_id for shard in store.recorded("a", 2)] == ["z", "y"]
    assert [shard.content.shard_id for shard in store.recorded("a", 9, until - 1_000_000)] == ["z", "y", "x"]


def test_what_a_reader_that_was_killed_had_taken_goes_to_its_restart_or_when_it_is_stale_to_another(
    backend: StoreBackend,
) -> None:
    store = started(backend.open(), "a")
    receive(store, {"a": [content("x"), content("y")]})
    assert ids(take(Pipeline.start(store, "p", "a"))) == ["x", "y"]
    other = Pipeline.start(store, "q", "a")
    assert take(other) == []
    backend.clock.advance(STALE + 1)
    assert ids(take(other)) == ["x", "y"]
    assert [s.content.shard_id for s in store.start("a", "q", stale_after=STALE).unfinished] == ["x", "y"]


def test_what_a_reader_gives_back_waits_again(store: ShardStore) -> None:
    started(store, "a")
    receive(store, {"a": [content("x")]})
    us = Pipeline.start(store, "p", "a")
    (taken,) = take(us)
    store.release(us.token, [taken.key])
    assert ids(take(Pipeline.start(store, "q", "a"))) == ["x"]


def test_what_was_recorded_and_not_read_is_never_pruned(backend: StoreBackend) -> None:
    store = started(backend.open(), "a")
    receive(store, {"a": [content("x")]})
    Pipeline.start(store, "other", "b").open("released")
    backend.run_for(100 * 86_400)
    store.prune(RetentionPolicy(window=timedelta(days=1)))
    assert ids(take(Pipeline.start(store, "p", "a"))) == ["x"]


@pytest.mark.parametrize("group", [None, "g"])
def test_what_a_reader_had_opened_by_a_queue_of_its_own_needs_no_message_from_then_on(
    store: ShardStore, group: str | None
) -> None:
    """The message that would lead to it is the one that the receiver acknowledges."""
    us = Pipeline.start(store, "p", "a")
    opened = store.open_shards(us.token, "a", [content("x")._replace(group=group)])
    store.release(us.token, list(opened))
    assert store.recorded("a", 9) == []
    started(store, "a")
    assert receive(store, {"a": [content("x")._replace(group=group, receive_count=2)]}) == (0, 1, 0)
    (taken,) = take(us)
    assert (taken.content.queue, taken.content.group) == (STORE, None)


def test_a_new_announcement_opens_an_object_that_was_missing_for_any_reader_of_its_source(store: ShardStore) -> None:
    started(store, "a", "b")
    receive(store, {"a": [content("x")], "b": [content("x")]})
    us = Pipeline.start(store, "p", "a")
    us.snapshot(*take(us))
    plan = us.plan()
    record = ErrorRecord("object", "missing-object", "why", "x", plan.identity.delivery_hash, plan.ranges[0].start)
    store.record_errors("a", "p", [record])
    us.publish(plan)
    us.confirm()
    assert us.look("x")["x"].state is ShardState.QUARANTINED
    again = {"a": [content("x")._replace(message_id="later")], "b": [content("x")._replace(message_id="later")]}
    assert receive(store, again) == (0, 2, 1)
    assert receive(store, again) == (0, 2, 0)
    other = Pipeline.start(store, "q", "a")
    assert ids(take(other)) == ["x"]
    deliver(other, store.recorded("a", 9) or list(other.look("x").values()))
    assert other.look("x")["x"].state is ShardState.DONE


def test_of_two_announcements_in_one_call_the_newest_version_is_recorded(store: ShardStore) -> None:
    started(store, "a")
    versions = [content("x", size)._replace(message_id=f"m{size}", sequence=f"s{size}") for size in (2, 3, 1)]
    assert receive(store, {"a": versions}) == (1, 0, 0)
    assert [shard.content.size for shard in store.recorded("a", 9)] == [3]
    newer = content("x", 4)._replace(message_id="m4", sequence="s4")
    assert receive(store, {"a": [newer, versions[0]]}) == (0, 1, 0)
    assert [shard.content.size for shard in store.recorded("a", 9)] == [4]


def test_what_a_readers_options_leave_out_is_forgotten_unless_somebody_has_it(store: ShardStore) -> None:
    started(store, "a")
    receive(store, {"a": [content("x"), content("y")]})
    us, other = Pipeline.start(store, "p", "a"), Pipeline.start(store, "q", "a")
    found = {shard.content.shard_id: shard for shard in store.recorded("a", 9)}
    store.acquire(other.token, {found["y"].key: None})
    store.decline(us.token, [shard.key for shard in found.values()])
    assert [row["shard_id"] for row in rows(store, "shards")] == ["y"]


def test_a_source_with_versions_in_its_ids_is_refused(store: ShardStore) -> None:
    started(store, "a")
    with store.database.engine.begin() as connection:
        connection.execute(sources.update().values(naming='{"versions": true}'))
    with pytest.raises(StoreConfigurationError, match="allowOverwrites=true"):
        receive(store, {"a": [content("x")]})


def test_a_receiver_is_counted_as_long_as_it_works(backend: StoreBackend) -> None:
    store = started(backend.open(), "a", "b")
    backend.clock.advance(10)
    store.record("r", {"a": [content("x")], "b": [content("x")]}, Receipts(3, ignored=1, unrouted=2, malformed=1))
    backend.clock.advance(10)
    store.note_work("r")
    started(store, "a")  # another process of that name
    (found,) = store.receivers()
    numbers = (found.messages, found.recorded, found.duplicates, found.ignored, found.unrouted, found.malformed)
    assert numbers == (3, 2, 0, 1, 2, 1)
    assert found.received_at is not None
    assert [(found.worked_at - found.received_at).seconds, found.queue, found.host] == [10, "queue", "host"]


def test_a_store_that_has_gone_back_in_time_is_noticed_before_a_message_is_acknowledged(store: ShardStore) -> None:
    started(store, "a")
    assert store.record("r", {"a": [content("x")]}, Receipts(3)).messages == 3
    assert store.record("r", {"a": [content("x")]}, Receipts(2), seen=3).messages == 5
    with store.database.engine.begin() as connection:
        connection.execute(receivers.update().values(messages=4))
    for again in (
        lambda: store.record("r", {"a": [content("y")]}, Receipts(1), seen=5),
        lambda: store.note_work("r", 5),
        lambda: store.start_receiver("r", "queue", "host", ["a"], seen=5),
        lambda: store.start_receiver("new", "queue", "host", ["a"], seen=5),
    ):
        with pytest.raises(LostProgress, match=r"counts [04] messages of receiver '\w+', which has had 5"):
            again()
    assert [found.receiver for found in store.receivers()] == ["r"]
    assert [row["shard_id"] for row in rows(store, "shards")] == ["x"]
    assert not store.is_trusted


def test_several_receivers_record_the_same_objects_at_once(backend: StoreBackend) -> None:
    """In any order, for overlapping sources: each object once for each source, and no deadlock that is not solved."""
    started(backend.open(), *"abcd")
    objects = [content(str(number)) for number in range(40)]

    def work(seed: int) -> int:
        store, order = backend.open(), random.Random(seed)
        new = 0
        for _ in range(10):
            names = order.sample("abcd", 3)
            new += receive(store, {name: order.sample(objects, 20) for name in names})[0]
        return new

    with ThreadPoolExecutor(4) as pool:
        new = sum(pool.map(work, range(4)))
    with backend.open().database.engine.connect() as connection:
        stored = connection.execute(sa.select(sa.func.count()).select_from(shards)).scalar_one()
    assert stored <= new if backend.name == "mysql" else stored == new
    assert stored > 100


@pytest.mark.parametrize("known", [False, True])
def test_200_sources_take_as_many_statements_as_one(backend: StoreBackend, known: bool) -> None:
    """For a set of messages; and none has more than 1,000 rows."""
    store = backend.open()
    names = [f"source-{number:03}" for number in range(200)]
    statements = []
    for chosen in (names[:1], names):
        started(store, *chosen)
        announced = {
            name: [content(f"{len(chosen)} {place} {number}") for number in range(1000 // len(chosen))]
            for place, name in enumerate(chosen)
        }
        receive(store, announced if known else {chosen[0]: [content(f"the first of {len(chosen)}")]})
        with counting(store.database) as counts:
            assert receive(store, announced, messages=1000, seen=1) == ((0, 1000, 0) if known else (1000, 0, 0))
        assert counts.largest <= 1000
        assert counts.commits == 1
        statements.append(counts.statements)
    assert statements[1] <= 1.3 * statements[0]
    assert statements[0] <= 10


def test_what_waits_for_a_source_is_found_without_reading_what_waits_for_others(backend: StoreBackend) -> None:
    """Hundreds of readers ask twice a second."""
    if not backend.name.startswith("sqlite"):
        pytest.skip("planners of servers decide by statistics")
    store = started(backend.open(), "a", "b")
    receive(store, {"a": [content("x")], "b": [content("x")]})
    with counting(store.database) as counts:
        store.recorded("a", 10)
        store.count_waiting("a")
    asked = [text for text in counts.texts if "cuesqueue_shards" in text and "IN (" not in text]
    assert len(asked) == 2
    with store.database.engine.connect() as connection:
        for text in asked:
            steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", tuple([1] * text.count("?"))).all()
            assert "cuesqueue_shards_unowned (source=?" in " ".join(step[3] for step in steps), steps
