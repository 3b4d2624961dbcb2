"""Contract: `delivery` for foreachBatch brings the user's rows and the progress of their batch together, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_source.errors import OptionError
from queue_source.foreach_batch import delivery
from shard_store.batches import starting
from shard_store.errors import PipelineTakenOver, ShardsLost, StoreConfigurationError, StoreUnavailable
from shard_store.model import ShardState
from shard_store.sql import schema
from shard_store.store import ShardStore, open_store
from support.readings import Spark, opens
from support.store_backends import STALE, Pipeline, StoreBackend, rows

OWN = sa.Table("users_own", sa.MetaData(), sa.Column("value", sa.Integer))


def values(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(OWN.c.value)).scalars())


def empty(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for table in (OWN, schema.outputs):
            table.drop(connection, checkfirst=True)
        OWN.create(connection)


@pytest.fixture
def engine(store: ShardStore) -> sa.Engine:
    """The store's database, with a table of the user's."""
    empty(store.database.engine)
    return store.database.engine


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[sa.Engine]:
    """Another database of the user's."""
    other = sa.create_engine(f"sqlite:///{tmp_path / 'warehouse.db'}")
    empty(other)
    yield other
    other.dispose()


def write(connection: sa.Connection, value: int) -> None:
    connection.execute(OWN.insert().values(value=value))


def fail_after_writing(store: ShardStore, pipelines: str | Sequence[str], value: int) -> str:
    """An attempt at batch 0 that fails; returns its hash."""
    hashes = []
    with suppress(ZeroDivisionError), delivery(store, pipelines, 0) as batch:
        hashes.append(batch.hash)
        write(batch.connection, value)
        raise ZeroDivisionError
    return hashes[0]


def test_rows_and_progress_are_committed_together(store: ShardStore, engine: sa.Engine) -> None:
    us = Pipeline.start(store)
    us.planned("a", "b")
    with delivery(store, "p", 3) as batch:
        assert not batch.already
        write(batch.connection, 1)
    assert values(engine) == [1]
    [attempt] = rows(store, "attempts")
    told = {name: attempt[name] for name in ("delivery_hash", "batch_id", "shards", "kind", "rows")}
    assert told == {"delivery_hash": batch.hash, "batch_id": 3, "shards": 2, "kind": "attempt-output", "rows": None}
    assert us.look("a")["a"].state is ShardState.DONE


def test_what_fails_leaves_neither_rows_nor_progress_and_the_next_attempt_has_the_same_hash(
    store: ShardStore, engine: sa.Engine
) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    failed = fail_after_writing(store, "p", 1)
    assert (values(engine), rows(store, "attempts")) == ([], [])
    Pipeline.start(store).plan()
    with delivery(store, "p", 0) as batch:
        write(batch.connection, 2)
    assert (values(engine), batch.hash) == ([2], failed)


def test_a_repeated_batch_is_told_and_what_is_written_again_is_rolled_back(
    store: ShardStore, engine: sa.Engine
) -> None:
    Pipeline.start(store).planned("a")
    for attempt in range(3):
        with delivery(store, "p", 0) as batch:
            assert batch.already is (attempt > 0)
            if attempt < 2:  # and once as one should
                write(batch.connection, attempt)
    assert values(engine) == [0]


def test_a_batch_may_be_published_without_rows_in_the_stores_database(store: ShardStore) -> None:
    Pipeline.start(store).planned("a")
    with delivery(store, ["p"], 0):
        pass
    assert [attempt["shards"] for attempt in rows(store, "attempts")] == [1]


def test_the_store_may_be_named_by_its_url(backend: StoreBackend, store: ShardStore) -> None:
    Pipeline.start(store).planned("a")
    with delivery(backend.url, "p", 0) as batch:
        batch.connection.execute(sa.select(1))
    with delivery(backend.url, "p", 0) as batch:
        assert batch.already


def test_what_a_users_connection_leaves_behind_is_not_there_in_the_next_batch(
    backend: StoreBackend, store: ShardStore
) -> None:
    """A table to upsert from, say, which lives as long as its connection: it could not be created twice."""
    us = Pipeline.start(store)
    for number in range(2):
        us.planned(f"object {number}")
        with delivery(backend.url, "p", number) as batch:
            batch.connection.exec_driver_sql("CREATE TEMPORARY TABLE arrived (value INTEGER)")
        us.confirm()


def test_batches_without_new_input_have_hashes_of_their_own(store: ShardStore, engine: sa.Engine) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    hashes = set()
    for number in range(3):
        for _ in range(2):
            with delivery(store, "p", number) as batch:
                write(batch.connection, number)
            hashes.add(batch.hash)
        us.confirm()
    assert (values(engine), len(hashes)) == ([0, 1, 2], 3)


def test_several_pipelines_of_one_query_advance_together(store: ShardStore, engine: sa.Engine) -> None:
    Pipeline.start(store, "orders", "s1").planned("a")
    Pipeline.start(store, "payments", "s2").planned("b")
    fail_after_writing(store, ("orders", "payments"), 1)
    with delivery(store, ("orders", "payments"), 0) as batch:
        write(batch.connection, 2)
    assert (values(engine), {s["state"] for s in rows(store, "shards")}) == ([2], {"done"})
    with pytest.raises(OptionError, match="pipeline"), delivery(store, ("orders", "orders"), 0):
        pass


# --- drivers that were replaced, shards that were taken over ---


def replaced(store: ShardStore, backend: StoreBackend, us: Pipeline) -> None:
    Pipeline.start(store)


def robbed(store: ShardStore, backend: StoreBackend, us: Pipeline) -> None:
    backend.clock.advance(STALE + 1)
    other = Pipeline.start(store, "other")
    other.store.acquire(other.token, {r.key: us.token for r in us.plan().ranges})


Happening = Callable[[ShardStore, StoreBackend, Pipeline], None]


@pytest.mark.parametrize(("happens", "error"), [(replaced, PipelineTakenOver), (robbed, ShardsLost)])
@pytest.mark.parametrize("where", ["output", "output elsewhere", "last transaction", "publication alone"])
def test_a_driver_that_is_no_longer_the_owner_commits_nothing(
    backend: StoreBackend,
    store: ShardStore,
    engine: sa.Engine,
    warehouse: sa.Engine,
    happens: Happening,
    error: type[Exception],
    where: str,
) -> None:
    us = Pipeline.start(store)
    us.planned("a", "b")

    def deliver() -> None:
        with delivery(store, "p", 0) as batch:
            happens(store, backend, us)
            if where.startswith("output"):
                with batch.output("x", warehouse if "elsewhere" in where else None) as out:
                    write(out.connection, 1)
                pytest.fail("the output was committed")
            elif where.startswith("last"):
                write(batch.connection, 1)

    with pytest.raises(error):
        deliver()
    assert (values(engine), values(warehouse), rows(store, "attempts")) == ([], [], [])


def test_a_driver_finds_only_plans_of_its_own(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was paused before its function asks: the plan on record is that of its replacement."""
    Pipeline.start(store, driver="replacement").planned("a")
    monkeypatch.setattr("queue_source.foreach_batch.driver_identity", lambda: "paused")
    with pytest.raises(PipelineTakenOver), delivery(store, "p", 0):
        pass


# --- several outputs ---


def test_outputs_that_a_killed_attempt_delivered_are_not_delivered_again(
    store: ShardStore, engine: sa.Engine, warehouse: sa.Engine
) -> None:
    Pipeline.start(store).planned("a")

    def attempt(number: int, *, fails: str) -> list[bool]:
        told = []
        with delivery(store, "p", 0) as batch:
            for name, database in (("own", None), ("warehouse", warehouse)):
                with batch.output(name, database) as out:
                    told.append(out.already)
                    if not out.already:
                        write(out.connection, number)
                    if fails == name:
                        raise ZeroDivisionError
            write(batch.connection, number + 10)
            if fails == "last":
                raise ZeroDivisionError
        return told

    for number, fails in enumerate(("own", "warehouse", "last")):
        with pytest.raises(ZeroDivisionError):
            attempt(number, fails=fails)
        assert rows(store, "attempts") == []
    assert attempt(3, fails="") == [True, True]
    assert attempt(4, fails="") == [True, True]
    assert (values(engine), values(warehouse)) == ([1, 13], [2])


def test_an_output_is_found_again_when_a_shard_of_its_batch_has_passed_to_another_pipeline(
    backend: StoreBackend, store: ShardStore, warehouse: sa.Engine
) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    us.planned("a", "b")
    with suppress(ZeroDivisionError), delivery(store, "p", 0) as batch:
        with batch.output("audit", warehouse) as out:
            write(out.connection, 1)
        raise ZeroDivisionError
    backend.clock.advance(STALE + 1)
    store.heartbeat(other.token, STALE)
    assert store.settle(["p"], lambda _: "it cannot be looked there", repeats=True) == {}
    assert store.acquire(other.token, {us.look("b")["b"].key: us.token})
    assert len(Pipeline.start(store).plan().ranges) == 1
    with delivery(store, "p", 0) as again:
        assert again.hash == batch.hash
        with again.output("audit", warehouse) as out:
            assert out.already


@pytest.mark.parametrize("in_own_transaction", [True, False])
def test_what_is_found_bad_stays_bad_where_an_output_has_rows_of_an_attempt_that_the_store_has_lost(
    store: ShardStore, engine: sa.Engine, warehouse: sa.Engine, in_own_transaction: bool
) -> None:
    """A backup was restored: by the store, the reading that found the object missing was the only one."""
    spark = Spark.batch(store)
    with suppress(ZeroDivisionError), delivery(store, "p", 0) as batch:
        with batch.output("audit", warehouse) as out:
            write(out.connection, 1)
        raise ZeroDivisionError
    tasks = spark.stage()
    spark.judge(tasks[1])
    with delivery(store, "p", 0) as batch:
        with batch.output("audit", warehouse) as out:
            assert out.already
        if in_own_transaction:
            write(batch.connection, 2)
    spark.us.confirm()
    assert not opens(spark)


@pytest.mark.parametrize("restarts", [True, False])
def test_what_the_only_reading_found_bad_is_opened_again_though_an_output_in_the_stores_database_was_there_before(
    store: ShardStore, engine: sa.Engine, restarts: bool
) -> None:
    """A backup of the database has both or none: the store knows of whatever left the output there."""
    spark = Spark.batch(store)
    tasks = spark.stage()
    spark.judge(tasks[1])
    with suppress(ZeroDivisionError), delivery(store, "p", 0) as batch:
        with batch.output("audit") as out:
            write(out.connection, 1)
        raise ZeroDivisionError
    if restarts:
        spark = spark.again()
        spark.stage()
    with delivery(store, "p", 0) as batch, batch.output("audit") as out:
        assert out.already
    spark.us.confirm()
    assert opens(spark)


@pytest.mark.parametrize("pipeline", ["p", "p" * 200])
def test_a_pipeline_of_the_same_name_in_another_store_does_not_have_an_output_delivered_again(
    store: ShardStore, warehouse: sa.Engine, tmp_path: Path, pipeline: str
) -> None:
    Pipeline.start(store, pipeline).planned("a")
    with suppress(ZeroDivisionError), delivery(store, pipeline, 0) as batch:
        with batch.output("audit", warehouse):
            pass
        raise ZeroDivisionError
    with open_store(f"sqlite:///{tmp_path / 'another.db'}") as another:
        Pipeline.start(another, pipeline).planned("b")
        with delivery(another, pipeline, 7) as batch, batch.output("audit", warehouse) as out:
            assert not out.already
    with delivery(store, pipeline, 0) as again, again.output("audit", warehouse) as out:
        assert out.already


def test_of_each_output_the_last_batch_is_remembered(store: ShardStore, engine: sa.Engine) -> None:
    us = Pipeline.start(store)
    for number in range(3):
        us.planned(f"k{number}")
        with delivery(store, "p", number) as batch:
            for name in ("one", "two"):
                with batch.output(name) as out:
                    assert not out.already
        us.confirm()
    with engine.connect() as connection:
        found = connection.execute(sa.select(schema.outputs.c.output, schema.outputs.c.batch_id)).all()
    assert sorted(map(tuple, found)) == [("one", 2), ("two", 2)]


def test_while_a_batch_is_held_nobody_takes_its_shards_over(backend: StoreBackend, store: ShardStore) -> None:
    us = Pipeline.start(store)
    plan = us.planned("a")
    impatient = backend.open(patience=1.0)
    other = Pipeline.start(impatient, "other")
    backend.clock.advance(STALE + 1)
    with store.held([plan.identity], 0), pytest.raises(StoreUnavailable):
        impatient.acquire(other.token, {plan.ranges[0].key: us.token})
    assert impatient.acquire(other.token, {plan.ranges[0].key: us.token})


def test_what_cannot_be_held_in_time_is_reported_as_by_any_other_call(backend: StoreBackend, store: ShardStore) -> None:
    plan = Pipeline.start(store).planned("a")
    impatient = backend.open(patience=1.0)
    with store.held([plan.identity], 0):
        with pytest.raises(StoreUnavailable), impatient.held([plan.identity], 0):
            pass
        if impatient.database.dialect.one_writer:
            with pytest.raises(StoreUnavailable), delivery(impatient, "p", 0) as batch:
                _ = batch.connection
    with impatient.held([plan.identity], 0):
        pass


def test_outputs_come_before_the_transaction_that_publishes(store: ShardStore, engine: sa.Engine) -> None:
    Pipeline.start(store).planned("a")
    with delivery(store, "p", 0) as batch:
        write(batch.connection, 1)
        with pytest.raises(OptionError, match="before it"), batch.output("late"):
            pass
    assert values(engine) == [1]


def test_an_output_has_a_name_that_every_database_keeps(store: ShardStore, engine: sa.Engine) -> None:
    Pipeline.start(store).planned("a")
    with delivery(store, "p", 0) as batch, pytest.raises(StoreConfigurationError, match="output"), batch.output(" a"):
        pass


def test_an_engine_for_the_stores_own_sqlite_file_is_refused_as_it_would_wait_for_itself(
    backend: StoreBackend, store: ShardStore, warehouse: sa.Engine
) -> None:
    file = store.database.file()
    if file is None:
        pytest.skip("servers let two connections write")
    own = sa.create_engine(f"sqlite:///{file}")
    Pipeline.start(store).planned("a")
    with delivery(store, "p", 0) as batch, pytest.raises(OptionError, match="leave it out"), batch.output("x", own):
        pass
    own.dispose()


def test_a_store_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreConfigurationError, match="no such file"),
        delivery(f"sqlite:///{tmp_path / 'typo.db'}", "orders", 0),
    ):
        raise AssertionError("the block must not run")
    assert not list(tmp_path.iterdir())


def told(store: ShardStore) -> list[tuple[str, str, str, str]]:
    return [(row["scope"], row["cause"], row["detail"], row["subject"]) for row in rows(store, "errors")]


def test_an_object_that_the_users_reader_cannot_read_is_quarantined_when_the_rest_is_published(
    store: ShardStore, engine: sa.Engine
) -> None:
    us = Pipeline.start(store)
    us.planned("a", "b")
    with delivery(store, "p", 3) as batch:
        for _ in range(2):
            batch.quarantine("a", "not well-formed" + " and so on" * 1000)
        assert us.look("a")["a"].state is ShardState.OPEN
        write(batch.connection, 1)
    found = us.look("a", "b")
    assert [found[name].state for name in "ab"] == [ShardState.QUARANTINED, ShardState.DONE]
    ((scope, cause, detail, subject),) = told(store)
    assert (scope, cause, subject) == ("object", "unreadable-object", "a")
    assert detail.startswith("not well-formed and so on")
    assert len(detail) <= 1000
    assert [row["kind"] for row in rows(store, "attempts")] == ["attempt-output"]
    with delivery(store, "p", 3) as batch:
        batch.quarantine("a", "again")  # published already: nothing is written
    assert len(told(store)) == 1


def test_a_batch_whose_objects_are_all_given_up_is_published_as_one_of_errors(store: ShardStore) -> None:
    Pipeline.start(store).planned("a")
    with delivery(store, "p", 0) as batch:
        batch.quarantine("a", "no", cause="no-xml")
    assert [row["kind"] for row in rows(store, "attempts")] == ["attempt-error"]
    assert [cause for _, cause, *_ in told(store)] == ["no-xml"]


def test_an_object_is_given_up_in_the_transaction_that_is_open_and_comes_again_if_that_fails(
    store: ShardStore, engine: sa.Engine
) -> None:
    us = Pipeline.start(store)
    us.planned("a", "b")
    with suppress(ZeroDivisionError), delivery(store, "p", 0) as batch:
        write(batch.connection, 1)
        batch.quarantine("a", "no")
        raise ZeroDivisionError
    assert (values(engine), told(store)) == ([], [])


def test_an_object_whose_rows_are_in_the_batch_is_not_given_up(store: ShardStore) -> None:
    """Its rows and the verdict would both be final."""
    us = Pipeline(store, store.start("s", "p", stale_after=STALE, settings={"content": "object"}).token, "s")
    us.planned("a")
    with delivery(store, "p", 0) as batch, pytest.raises(OptionError, match="are content object; use reject_rows"):
        batch.quarantine("a", "no")
    assert us.look("a")["a"].state is ShardState.DONE


def test_only_objects_of_the_batch_are_given_up(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.planned("a")
    with delivery(store, "p", 0) as batch:
        with pytest.raises(OptionError, match="'b' is no object of this micro-batch"):
            batch.quarantine("b", "no")
        with pytest.raises(ValueError, match="printable"):
            batch.quarantine("a", "no", cause="")
    assert us.look("a")["a"].state is ShardState.DONE


def test_an_output_that_another_process_has_recorded_meanwhile_is_not_recorded_over_it(tmp_path: Path) -> None:
    """It has looked before: whoever comes second rolls its rows back."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/rows.db")
    starting.create(engine)
    for name, fails in (("first", False), ("second", False), ("second", True)):
        with engine.begin() as connection, pytest.raises(sa.exc.IntegrityError) if fails else nullcontext():
            starting.record(connection, name, "o", "p", batch_id=1)
    with engine.connect() as connection:
        assert starting.recent(connection, "o", "p", 0) == ["second"]
    engine.dispose()
