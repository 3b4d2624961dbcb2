"""A store goes back in time under a query that runs: whoever has written to it notices, and acknowledges nothing.

A SQLite file is replaced by an older copy; a PostgreSQL replica takes the place of its primary, and lacks the newest.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from queue_source.foreach_batch import delivery
from queue_source.queues.sql.database import messages
from shard_store.errors import LostProgress
from shard_store.model import Plan
from shard_store.store import ShardStore, open_store
from support.coordinator_world import EMPTY, MovingWorld, assert_published_once, patiently, uris
from support.driver_loop import DriverLoop, taken_by_foreign_sink, until
from support.servers.postgres import new_database, postgres
from support.servers.proxy import tcp_proxy
from support.store_backends import Pipeline
from support.sweep_sinks import USERS, database, users_rows

QUIET: dict[str, Any] = {"commitTimeout": "60s", "visibilityTimeout": "150s"}
"""No heartbeat comes between."""


class Past:
    """A moment to which the store goes back."""

    def __init__(self, world: MovingWorld) -> None:
        self.world = world
        self.remember: Callable[[], object] = self._copy
        self.come_back: Callable[[], object] = self._replace

    def _copy(self) -> None:
        with closing(sqlite3.connect(self.world.folder / "store.db")) as origin:
            with closing(sqlite3.connect(self.world.folder / "older.db")) as copy:
                origin.backup(copy)

    def _replace(self) -> None:
        for rest in ("-wal", "-shm"):
            (self.world.folder / f"store.db{rest}").unlink(missing_ok=True)
        (self.world.folder / "older.db").replace(self.world.folder / "store.db")


@pytest.fixture(params=["sqlite-file", "postgresql-standby"])
def past(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Past]:
    past = Past(MovingWorld(tmp_path))
    with ExitStack() as stack:
        if request.param == "postgresql-standby":
            primary = stack.enter_context(postgres())
            url = new_database(primary.url)
            standby = stack.enter_context(primary.standby())
            proxy = stack.enter_context(tcp_proxy(primary.port))
            past.world.at = make_url(url).set(port=proxy.port).render_as_string(hide_password=False)

            def fail_over() -> None:
                standby.promote()
                proxy.lead_to(standby.port)

            past.remember, past.come_back = standby.cut_off, fail_over
        yield past


@pytest.fixture
def file(tmp_path: Path) -> Past:
    """For what is the same with two servers, which take seconds."""
    return Past(MovingWorld(tmp_path))


def end_leases(world: MovingWorld) -> None:
    """As time would: what a reader had received becomes visible."""
    engine = sa.create_engine(f"sqlite:///{world.folder}/queue.db")
    with engine.begin() as connection:
        connection.execute(sa.update(messages).values(visible_at=0))
    engine.dispose()


def run_batches(loop: DriverLoop, count: int) -> None:
    until(lambda: len(loop._done) == count, patiently(loop))


def goes_on(world: MovingWorld, expected: list[str], **options: Any) -> None:
    end_leases(world)
    with world.loop(**options) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, expected)


def openings_go(past: Past, semantics: str) -> None:
    world = past.world
    with world.loop(**QUIET, deliverySemantics=semantics) as loop:
        past.remember()
        world.publish(*uris(2))
        until(lambda: loop.in_flight.counts().ready == 2, lambda: time.sleep(0.02))
        past.come_back()
        with pytest.raises(LostProgress, match=r"has gone back in time .* it lacks 2 shard\(s\) that this reader has"):
            loop.batch()
        loop.wait_for_acknowledgements()
    assert world.depth().total == 2


def test_a_message_whose_shard_was_opened_and_is_gone_is_not_acknowledged_unread(past: Past) -> None:
    openings_go(past, "exactly-once")
    goes_on(past.world, uris(2))


def test_with_at_most_once_it_is_not_either(file: Past) -> None:
    openings_go(file, "at-most-once")


def test_a_batch_that_was_published_and_is_not_any_more_is_not_called_done(past: Past) -> None:
    world = past.world
    with world.loop(**QUIET) as loop:
        world.publish(*uris(1))
        run_batches(loop, 1)
        world.publish(*uris(1, first=1))
        loop.work = past.remember
        run_batches(loop, 2)
        past.come_back()
        loop.work = lambda: None
        with pytest.raises(LostProgress, match="has nothing that the cuesqueue sink published for it"):
            loop.latest(2)
    assert world.depth().total == 1
    with pytest.raises(LostProgress, match="has nothing that the cuesqueue sink"), world.loop() as loop:
        loop.drain()
    goes_on(world, uris(2), failOnDataLoss="false")


def test_a_batch_that_another_sink_has_taken_loses_nothing(past: Past) -> None:
    world = past.world
    with world.loop(publishes=False, **QUIET) as loop:
        world.publish(*uris(1))
        loop.work = past.remember
        run_batches(loop, 1)
        past.come_back()
        loop.work = lambda: None
        world.publish(*uris(1, first=1))
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert taken_by_foreign_sink(world.folder / "output") == dict.fromkeys(uris(2), 1)


def delivered(loop: DriverLoop, plan: Plan, number: int) -> None:
    """A function of foreachBatch: the rows and the progress in one transaction of the store."""
    with delivery(loop.options.store.reveal(), loop.options.pipeline, number) as batch:
        found = [{"value": entry.content.shard_id} for entry in plan.ranges]
        if not batch.already and found:
            batch.connection.execute(USERS.insert(), found)


def test_a_batch_that_delivery_has_brought_and_is_gone_is_not_called_done(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = past.world
    monkeypatch.setattr(DriverLoop, "_deliver", delivered)
    with database(world.store_url) as engine:
        USERS.create(engine)
    with world.loop(publishes=False, **QUIET) as loop:
        world.publish(*uris(1))
        run_batches(loop, 1)
        world.publish(*uris(1, first=1))
        loop.work = past.remember
        run_batches(loop, 2)
        past.come_back()
        loop.work = lambda: None
        with pytest.raises(LostProgress, match="has nothing that 'delivery' published for it"):
            loop.latest(2)
    assert world.depth().total == 1
    with pytest.raises(LostProgress, match="has nothing that 'delivery'"), world.loop(publishes=False) as loop:
        loop.drain()
    end_leases(world)
    with world.loop(publishes=False, failOnDataLoss="false") as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert users_rows(world.store_url) == dict.fromkeys(uris(2), 1)


def test_a_reader_whose_own_changes_are_gone_stops_and_acknowledges_nothing_more(file: Past) -> None:
    world = file.world
    with world.loop(**QUIET) as loop:
        file.remember()
        world.publish(*uris(1))
        run_batches(loop, 1)
        file.come_back()
        for call in (lambda: loop.latest(1), lambda: loop.coordinator.confirm(1)):
            with pytest.raises(LostProgress, match="it has 1 changes of this reader, which has made 3"):
                call()
        _acknowledges_nothing(loop)
    assert world.depth().total == 1
    with pytest.raises(LostProgress, match="the checkpoint is at offset 1"), world.loop() as loop:
        loop.drain()


def _acknowledges_nothing(loop: DriverLoop) -> None:
    """Not even what the store had called done before."""
    assert len(loop.in_flight.finish(loop.in_flight.confirm(1)).complete) == 1
    loop.wait_for_acknowledgements()


@pytest.fixture
def store(file: Past) -> Iterator[ShardStore]:
    with open_store(file.world.store_url) as opened:
        yield opened


def test_heartbeats_notice_it_too(file: Past, store: ShardStore) -> None:
    us = Pipeline.start(store)
    file.remember()
    store.heartbeat(us.token, 60.0)
    file.come_back()
    with pytest.raises(LostProgress, match="has gone back in time"):
        store.heartbeat(us.token, 60.0)
    assert not store.is_trusted


def test_a_shard_of_another_pipeline_that_is_gone_does_not_count_as_finished(file: Past, store: ShardStore) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    file.remember()
    other.open("a")
    assert us.open("a")["a"].token == other.token  # its message waits
    file.come_back()
    assert us.look("a") == {}
    with pytest.raises(LostProgress, match="has gone back in time"):  # what is asked before anything is acknowledged
        store.heartbeat(us.token, 60.0)


def test_an_announcement_that_opened_a_quarantined_object_again_is_not_acknowledged_when_that_is_gone(
    file: Past,
) -> None:
    world = file.world
    with world.loop(**QUIET) as loop:
        world.publish(*uris(1))
        loop.bad = {uris(1)[0]: "missing-object"}
        until(lambda: world.depth() == EMPTY, patiently(loop))
        loop.bad = {}
        file.remember()
        world.publish(*uris(1))
        until(lambda: loop.in_flight.counts().ready == 1, lambda: time.sleep(0.02))
        file.come_back()
        with pytest.raises(LostProgress, match="has gone back in time"):
            until(lambda: world.depth() == EMPTY, patiently(loop), tries=5)
    assert world.depth().total == 1
    goes_on(world, uris(1))


def test_an_incarnation_that_another_driver_was_given_too_is_not_ours(file: Past, store: ShardStore) -> None:
    file.remember()
    us = Pipeline.start(store, driver="one")
    file.come_back()
    with open_store(file.world.store_url) as elsewhere:
        assert Pipeline.start(elsewhere, driver="two").token == us.token
        with pytest.raises(LostProgress, match="its incarnation 1 was started by another driver"):
            us.open("a")


def test_an_incarnation_that_is_gone_was_not_taken_over_by_a_newer_one(file: Past, store: ShardStore) -> None:
    Pipeline.start(store)
    file.remember()
    us = Pipeline.start(store)
    file.come_back()
    with pytest.raises(LostProgress, match="it knows incarnations only up to 1"):
        us.open("a")


def test_what_other_processes_change_and_what_is_rolled_back_is_no_evidence(file: Past, store: ShardStore) -> None:
    us = Pipeline.start(store)
    with open_store(file.world.store_url) as sink:
        plan = us.planned("a")
        sink.publish([plan.identity], [])
        us.confirm()

    def fails(transaction: object) -> None:
        from shard_store.shards import ownership

        ownership.heartbeat(transaction, us.token, 60.0)  # type: ignore[arg-type]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.database.write(fails)
    store.heartbeat(us.token, 60.0)
