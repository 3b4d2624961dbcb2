"""Contract: publishing is one transaction, once for each plan, and fenced (invariants 2 and 4)."""

from __future__ import annotations

import pickle

import pytest
import sqlalchemy as sa

from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost, ShardStoreError, StoreConfigurationError
from shard_store.model import (
    BEGINNING,
    SINK,
    AttemptKind,
    ErrorRecord,
    Noted,
    Plan,
    Position,
    Range,
    ShardState,
    Split,
    end_at,
    position_at,
)
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, rows

SPLIT = Split("/data/a.parquet", 7, 700)


def bad(plan: Plan, shard_id: str, scope: str = "object", position: str = "") -> ErrorRecord:
    return ErrorRecord(
        scope, "corrupt-object", "why", shard_id, plan.identity.delivery_hash, Position(position), input=b"\0\xff"
    )


def everything(store: ShardStore) -> list[list[object]]:
    return [[row for page in store.pages(view) for row in page] for view in ("shards", "attempts", "splits", "errors")]


def test_a_publish_makes_splits_positions_and_attempt_visible_together(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b")
    published = us.publish(plan, SPLIT, Split("/data/b.parquet", 1, 30), batch_id=3, row_schema="{}")
    assert (published.already, published.kind, published.shards) == (False, AttemptKind.OUTPUT, 2)
    assert [row["path"] for row in rows(store, "splits")] == ["/data/a.parquet", "/data/b.parquet"]
    assert {row["state"] for row in rows(store, "shards")} == {"done"}
    [attempt] = rows(store, "attempts")
    told = {name: attempt[name] for name in ("batch_id", "shards", "splits", "rows", "bytes", "errors", "lost")}
    assert told == {"batch_id": 3, "shards": 2, "splits": 2, "rows": 8, "bytes": 730, "errors": 0, "lost": 0}
    assert store.row_schema("p") == store.row_schema() == "{}"


def test_a_plan_is_published_once_its_attempt_is_there_and_another_sinks_once_it_is_confirmed(
    store: ShardStore,
) -> None:
    us = Pipeline.start(store)
    own = us.planned("a")
    assert not store.is_published(own.identity)
    us.publish(own, Split("/a", 1, 1))
    assert store.is_published(own.identity)
    us.confirm()
    others = us.planned("b")
    assert not store.is_published(others.identity)
    us.confirm()
    assert store.is_published(others.identity)


def test_a_plan_is_published_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, SPLIT, batch_id=0)
    before = everything(store)
    assert us.publish(plan, Split("/second", 1, 1), batch_id=0).already
    assert us.publish(plan, Split("/third", 1, 1)).already  # a caller that tells no batch id repeats
    assert everything(store) == before


def test_an_old_incarnation_is_refused_even_where_there_is_nothing_to_do(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, SPLIT, batch_id=0)
    Pipeline.start(store)
    with pytest.raises(PipelineTakenOver):
        us.publish(plan, SPLIT, batch_id=0)


def test_shards_that_end_at_different_places_are_published_together(store: ShardStore) -> None:
    us = Pipeline.start(store)
    found = list(us.open(*(f"k{i}" for i in range(1200))).values())
    ends = [end_at(i) if i % 3 else Position(f"{i + 1:020}") for i in range(len(found))]
    us.snapshot(*found, ends=ends)
    assert us.publish(us.plan(), SPLIT).shards == 1200
    expected = dict(zip([shard.key for shard in found], ends, strict=True))
    assert {key: shard.position for key, shard in store.look(expected).items()} == expected


@pytest.mark.parametrize("where", [0, 1500])
def test_one_lost_shard_undoes_the_whole_publish_and_is_named(backend: StoreBackend, where: int) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    names = [f"k{i}" for i in range(1501)]
    plan = us.planned(*names)
    backend.clock.advance(STALE + 1)
    lost = sorted(plan.ranges, key=lambda r: r.key)[where]
    store.acquire(other.token, {lost.key: us.token})
    before = everything(store)
    with pytest.raises(ShardsLost, match="lost 1 shard") as error:
        us.publish(plan, SPLIT, batch_id=0)
    assert error.value.shard_ids == (lost.content.shard_id,)
    assert pickle.loads(pickle.dumps(error.value)).shard_ids == error.value.shard_ids
    assert everything(store) == before


def test_a_shard_that_comes_back_to_us_further_on_is_not_moved_by_the_plan_from_before(backend: StoreBackend) -> None:
    """It is ours again, but of its rows those that the other pipeline has published would be there twice."""
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    plan = us.planned("a")
    backend.clock.advance(STALE + 1)
    [shard] = other.open("a").values()
    store.acquire(other.token, {shard.key: us.token})
    other.snapshot(shard, ends=[position_at(4)])
    other.publish(other.plan(), SPLIT)
    store.release(other.token, [shard.key])
    store.acquire(us.token, {shard.key: None})
    assert us.look("a")["a"].token == us.token
    with pytest.raises(ShardsLost):
        us.publish(plan, Split("/data/ours.parquet", 10, 900))
    assert us.look("a")["a"].position == position_at(4)
    assert [row["path"] for row in rows(store, "splits")] == [SPLIT.path]


def test_a_plan_that_is_not_the_last_one_is_refused(store: ShardStore) -> None:
    us = Pipeline.start(store)
    first = us.planned("a")
    us.planned("b")
    with pytest.raises(ShardStoreError, match="not the one that was planned last"):
        us.publish(first, SPLIT)


def test_batches_without_input_publish_their_rows_once_each_and_move_no_shard(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, SPLIT, batch_id=0)
    us.confirm()
    for batch in (1, 2):
        made = us.publish(plan, Split(f"/state-{batch}", 1, 1), batch_id=batch)
        assert (made.already, made.shards) == (False, 0)
        assert us.publish(plan, Split(f"/again-{batch}", 1, 1), batch_id=batch).already
    assert [row["path"] for row in rows(store, "splits")] == [SPLIT.path, "/state-1", "/state-2"]
    assert us.planned("b").ranges[0].content.shard_id == "b"


def test_snapshots_for_which_spark_asked_no_plan_are_done_with_the_batch_that_our_sink_commits(
    store: ShardStore,
) -> None:
    """Spark reads nothing where no row can come of it: limit(0), a filter that is never true, an empty table."""
    us = Pipeline.start(store)
    us.deliver("read")
    for batch, names in ((1, ("a", "b")), (2, ("c",))):
        us.snapshot(*us.open(*names).values())
        for _ in range(2):
            published = store.publish([store.current_plan("p")], [Split(f"/beside {batch}", 1, 1)], batch_id=batch)
        assert published.already
        assert us.confirm([shard.key for shard in us.look(*names).values()])
    assert {row["state"] for row in rows(store, "shards")} == {"done"}
    assert [row["path"] for row in rows(store, "splits")] == ["/split-1", "/beside 1", "/beside 2"]
    again = Pipeline.start(store)
    assert (again.confirmed, again.seq) == (3, 3)
    again.deliver("read after it")


@pytest.mark.parametrize(("new_seq", "state"), [(0, ShardState.OPEN), (1, ShardState.DONE)])
def test_a_snapshot_without_a_plan_is_done_only_with_the_batch_for_which_it_was_written(
    store: ShardStore, new_seq: int, state: ShardState
) -> None:
    """A store that went back may have lost the plan, and the batch that comes then has no input."""
    us = Pipeline.start(store)
    us.snapshot(*us.open("a").values())
    identity = store.take_plan("p", None, SINK, lambda *of: Noted(us.token.incarnation, "", new_seq))
    store.publish([identity], [Split("/state", 1, 1)], batch_id=1)
    assert us.look("a")["a"].state is state
    if not new_seq:
        with pytest.raises(LostProgress, match="has nothing that the cuesqueue sink published for it"):
            Pipeline.start(store).confirm()


def test_a_batch_of_which_spark_reads_nothing_leaves_shards_that_passed_on_to_their_owner(
    backend: StoreBackend,
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.snapshot(*us.open("a", "b").values())
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.acquire(other.token, {us.look("b")["b"].key: us.token})
    store.publish([store.current_plan("p")], [], batch_id=0)
    us.confirm()
    assert {name: shard.state for name, shard in us.look("a", "b").items()} == {
        "a": ShardState.DONE,
        "b": ShardState.OPEN,
    }


def test_the_kind_of_an_attempt_tells_what_it_left_behind(store: ShardStore) -> None:
    us = Pipeline.start(store)
    assert us.publish(us.planned("rows"), SPLIT).kind is AttemptKind.OUTPUT
    us.confirm()
    assert us.publish(us.planned("none"), Split("/empty", 0, 10)).kind is AttemptKind.NIL
    us.confirm()
    assert us.publish(us.planned("nothing")).kind is AttemptKind.NIL
    us.confirm()
    plan = us.planned("error")
    store.record_errors("s", "p", [bad(plan, "error", "record", "5")])
    assert us.publish(plan).kind is AttemptKind.ERROR
    us.confirm()
    plan = us.planned("foreign")
    store.record_errors("s", "p", [bad(plan, "foreign")])
    us.confirm()
    assert {row["kind"] for row in rows(store, "attempts") if row["rows"] is None} == {"attempt-error"}


def test_objects_with_an_error_are_quarantined_and_the_rest_is_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a", "b", "c")
    store.record_errors("s", "p", [bad(plan, "a"), bad(plan, "b", "record"), bad(plan, "elsewhere")])
    published = us.publish(plan, SPLIT)
    assert (published.kind, published.shards, published.quarantined) == (AttemptKind.OUTPUT, 3, 1)
    states = {i: s.state for i, s in us.look("a", "b", "c").items()}
    assert states == {"a": ShardState.QUARANTINED, "b": ShardState.DONE, "c": ShardState.DONE}


def test_the_same_error_is_recorded_once_and_another_one_beside_it(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    records = [bad(plan, "a"), bad(plan, "a", "record", "1"), bad(plan, "a", "record", "2")]
    for _ in range(2):
        store.record_errors("s", "p", [*records, *records])
    assert len(rows(store, "errors")) == 3
    message = ErrorRecord("message", "malformed-message", "why", "m1", queue="q", input=b"\0")
    store.record_errors("s", "p", [message, message])
    assert len(rows(store, "errors")) == 4
    store.record_errors("s", "p", [])


def test_what_an_attempt_found_bad_is_not_read_by_another_attempt_at_its_plan(store: ShardStore) -> None:
    """Rows of a shard that is quarantined with the plan must not go out, nor a shard count as done without its rows."""
    us = Pipeline.start(store)
    first = us.planned("a", "b", "c", "d")
    skipped, record = bad(first, "b", "skipped"), bad(first, "c", "record")
    store.record_errors("s", "p", [bad(first, "a"), skipped, record])
    assert {key for key, _ in store.found_bad(first.identity)} == {r.key for r in first.ranges[:2]}
    again = Pipeline.start(store)
    second = again.plan()
    assert [r.content.shard_id for r in second.ranges] == ["c", "d"]
    assert (second.identity.delivery_hash, second.lost) == (first.identity.delivery_hash, ())
    published = again.publish(second, SPLIT)
    assert (published.shards, published.quarantined) == (4, 1)
    states = {i: s.state for i, s in us.look("a", "b", "c", "d").items()}
    assert states == {i: ShardState.QUARANTINED if i == "a" else ShardState.DONE for i in "abcd"}


def test_a_later_part_of_a_bad_range_s_shard_is_judged_by_itself(store: ShardStore) -> None:
    us = Pipeline.start(store)
    (shard,) = us.open("a").values()
    us.write(Range(shard.key, shard.content, BEGINNING, position_at(5)))
    us.write(Range(shard.key, shard.content, position_at(5), end_at(10)))
    plan = us.plan()
    store.record_errors("s", "p", [bad(plan, "a", position=position_at(5))])
    assert [r.start for r in us.plan().ranges] == [BEGINNING]


def test_an_error_that_comes_after_the_publish_is_not_written(store: ShardStore) -> None:
    """A copy of a task (speculation), or a task of a dead driver, is late: the plan is final without it."""
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, SPLIT)
    message = ErrorRecord("message", "malformed-message", "why", "m1")
    store.record_errors("s", "p", [bad(plan, "a"), message])
    assert [row["scope"] for row in rows(store, "errors")] == ["message"]
    assert us.look("a")["a"].state is ShardState.DONE


def test_an_error_is_final_when_its_plan_is_published(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    store.record_errors("s", "p", [bad(plan, "a"), ErrorRecord("message", "malformed-message", "", "m1")])
    assert {row["scope"]: bool(row["final"]) for row in rows(store, "errors")} == {"object": False, "message": True}
    us.publish(plan)
    assert all(row["final"] for row in rows(store, "errors"))


# --- inside the caller's own transaction ---


@pytest.fixture
def own_table(store: ShardStore) -> sa.Table:
    """A table of the user's, in the same database."""
    table = sa.Table("users_own", sa.MetaData(), sa.Column("value", sa.Integer))
    with store.database.engine.begin() as connection:
        table.drop(connection, checkfirst=True)
        table.create(connection)
    return table


def count(store: ShardStore, table: sa.Table) -> int:
    with store.database.engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_a_publish_in_the_callers_transaction_is_committed_by_the_caller(
    backend: StoreBackend, store: ShardStore, own_table: sa.Table
) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    with store.database.engine.connect() as connection:
        with connection.begin():
            connection.execute(own_table.insert().values(value=1))
            us.publish(plan, SPLIT, connection=connection)
            assert connection.in_transaction()
        assert count(store, own_table) == 1
    assert us.look("a")["a"].state is ShardState.DONE


@pytest.mark.parametrize("own_engine", [False, True], ids=["our engine", "an engine of the user's"])
def test_a_rollback_by_the_caller_undoes_everything(store: ShardStore, own_table: sa.Table, own_engine: bool) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    before = everything(store)
    engine = sa.create_engine(store.database.url) if own_engine else store.database.engine
    for publish_first in (True, False):
        with engine.connect() as connection:
            transaction = connection.begin()
            if publish_first:
                us.publish(plan, SPLIT, connection=connection)
            connection.execute(own_table.insert().values(value=1))
            if not publish_first:
                us.publish(plan, SPLIT, connection=connection)
            transaction.rollback()
        assert everything(store) == before
        assert count(store, own_table) == 0
    if own_engine:
        engine.dispose()
    assert not us.publish(plan, SPLIT).already


def test_what_fails_in_the_callers_transaction_leaves_nothing_of_ours_in_it(
    backend: StoreBackend, store: ShardStore, own_table: sa.Table
) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    plan = us.planned(*(f"k{i}" for i in range(1100)))
    backend.clock.advance(STALE + 1)
    last = max(plan.ranges, key=lambda r: r.key)
    store.acquire(other.token, {last.key: us.token})
    before = everything(store)
    with store.database.engine.begin() as connection:
        connection.execute(own_table.insert().values(value=1))
        with pytest.raises(ShardsLost):
            us.publish(plan, SPLIT, connection=connection)
    assert everything(store) == before  # though the caller has committed
    assert count(store, own_table) == 1


def test_a_repeat_in_the_callers_transaction_writes_nothing(store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, SPLIT)
    with store.database.engine.begin() as connection:
        assert us.publish(plan, SPLIT, connection=connection).already


def test_a_connection_that_commits_each_statement_is_refused(backend: StoreBackend, store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    if store.database.dialect.one_writer:
        pytest.skip("SQLite's autocommit cannot be told from a transaction that has not begun: we begin it")
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(StoreConfigurationError, match="autocommit"):
            us.publish(plan, SPLIT, connection=connection)
    assert rows(store, "attempts") == []
