"""Passing trouble, really provoked: locks, deadlocks, lost connections, a COMMIT of which nobody knows the outcome."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url

from shard_store.errors import StoreConfigurationError, StoreUnavailable
from shard_store.model import ShardState, Split
from shard_store.sql.database import Database, Transaction
from shard_store.sql.dialects import Trouble
from shard_store.sql.schema import leases
from shard_store.store import open_store
from support.servers.postgres import new_database
from support.servers.proxy import CommitCutter, commit_cutter
from support.store_backends import SERVERS, Pipeline, StoreBackend, rows

SPLIT = Split("/x", 1, 1)
servers = pytest.mark.parametrize("backend", SERVERS, indirect=True)
sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
postgresql = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)


@servers
def test_a_connection_that_the_server_ended_is_replaced_and_the_transaction_run_again(backend: StoreBackend) -> None:
    store, killer = backend.open(), backend.open()
    us = Pipeline.start(store)
    plan = us.planned("a")
    mine = "SELECT pg_backend_pid()" if backend.name == "postgresql" else "SELECT connection_id()"
    kill = "SELECT pg_terminate_backend({})" if backend.name == "postgresql" else "KILL {}"
    runs: list[int] = []

    def die_once(connection: Connection) -> None:
        """In the middle of the transaction, after its first write."""
        if not runs:
            runs.append(connection.exec_driver_sql(mine).scalar_one())
            with killer.database.engine.begin() as other:
                other.exec_driver_sql(kill.format(runs[0]))

    @sa.event.listens_for(store.database.engine, "after_cursor_execute")
    def after(connection: Connection, _c: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE cuesqueue_shards"):
            die_once(connection)

    assert us.publish(plan, SPLIT).shards == 1
    assert len(runs) == 1
    assert len(rows(store, "attempts")) == 1


@servers
def test_the_victim_of_a_deadlock_is_run_again(backend: StoreBackend) -> None:
    one, two = backend.open(), backend.open()
    for name in ("a", "b"):
        one.win_interval(name, 0.0)
    meet = threading.Barrier(2)
    runs: dict[str, int] = {"ab": 0, "ba": 0}

    def work(order: str) -> None:
        def cross(t: Transaction) -> None:
            runs[order] += 1
            for place, name in enumerate(order):
                t.execute(leases.update().where(leases.c.name == name).values(holder=order))
                if place == 0 and runs[order] == 1:
                    meet.wait(30)

        (one if order == "ab" else two).database.write(cross)

    threads = [threading.Thread(target=work, args=(order,)) for order in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(runs.values()) == [1, 2]


@postgresql
def test_a_serialization_failure_is_run_again(backend: StoreBackend) -> None:
    store, other = backend.open(), backend.open()
    store.win_interval("a", 0.0)
    runs: list[int] = []

    def work(t: Transaction) -> None:
        t.connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        t.execute(sa.select(leases)).all()
        runs.append(1)
        if len(runs) == 1:
            other.database.write(lambda c: c.execute(leases.update().values(holder="other")))
        t.execute(leases.update().values(holder="us"))

    store.database.write(work)
    assert len(runs) == 2


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@pytest.fixture
def locker(backend: StoreBackend) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the SQLite file's lock until it is told to let go."""
    backend.open()
    command = [sys.executable, "-c", LOCKER, str(make_url(backend.url).database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        if process.poll() is None:
            process.communicate("\n")


@sqlite
def test_a_file_that_another_process_locks_for_a_while_is_waited_for(
    backend: StoreBackend, locker: subprocess.Popen[str]
) -> None:
    store = backend.open(patience=0.01)
    tried: list[Trouble] = []

    @sa.event.listens_for(store.database.engine, "handle_error")
    def seen(context: sa.engine.ExceptionContext) -> None:
        assert context.original_exception is not None
        tried.append(store.database.dialect.trouble(context.original_exception))
        locker.communicate("\n")  # after the first refusal the lock is let go

    store.database.patience = 20.0
    assert store.start("s", "p").token.incarnation == 1
    assert tried == [Trouble.PASSING]


@sqlite
def test_a_file_that_stays_locked_is_an_error_of_our_own(backend: StoreBackend, locker: subprocess.Popen[str]) -> None:
    store = backend.open(patience=0.05)
    with pytest.raises(StoreUnavailable, match=r"did not serve us within 0.05 s: database is locked") as error:
        store.start("s", "p")
    assert isinstance(error.value.__cause__, sa.exc.OperationalError)


@servers
def test_a_table_that_stays_locked_is_an_error_of_our_own(backend: StoreBackend) -> None:
    store, blocker = backend.open(), backend.open()
    us = Pipeline.start(store)
    plan = us.planned("a")
    impatient = backend.open(patience=1.0)
    lock = "LOCK TABLE cuesqueue_attempts" if backend.name == "postgresql" else "LOCK TABLES cuesqueue_attempts WRITE"
    with blocker.database.engine.begin() as connection:
        connection.exec_driver_sql(lock)
        with pytest.raises(StoreUnavailable, match="did not serve us within 1 s") as error:
            impatient.publish([plan.identity], [SPLIT])
        assert isinstance(error.value.__cause__, sa.exc.DBAPIError)
        if backend.name == "mysql":
            connection.exec_driver_sql("UNLOCK TABLES")
    assert us.look("a")["a"].state is ShardState.OPEN
    assert us.publish(plan, SPLIT).shards == 1


@servers
def test_a_server_that_is_not_there_is_unavailable_and_tried_for_as_long_as_we_are_patient(
    backend: StoreBackend,
) -> None:
    gone = make_url(backend.url).set(port=1).render_as_string(hide_password=False)
    with pytest.raises(StoreUnavailable, match=r"did not serve us within 0.1 s"):
        open_store(gone, patience=0.1)


@pytest.fixture
def cutter(backend: StoreBackend) -> Iterator[CommitCutter]:
    port = make_url(backend.url).port
    assert port is not None
    with commit_cutter(port) as proxy:
        yield proxy


@postgresql
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_publish_whose_commit_nobody_heard_of_is_published_exactly_once(
    backend: StoreBackend, cutter: CommitCutter, cut: str
) -> None:
    through = make_url(backend.url).set(port=cutter.port).render_as_string(hide_password=False)
    us = Pipeline.start(backend.open())
    plan = us.planned("a", "b")
    with open_store(through, clock=backend.clock) as store:
        cutter.cut = "before" if cut == "before" else "after"
        published = store.publish([plan.identity], [SPLIT], batch_id=0)
    assert cutter.cuts == 1
    assert published.already is (cut == "after")  # settled by the delivery hash, not guessed
    assert [row["path"] for row in rows(us.store, "splits")] == ["/x"]
    assert [row["shards"] for row in rows(us.store, "attempts")] == [2]


@postgresql
@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("step", ["start", "open", "advance", "plan", "acquire", "confirm", "win"])
def test_every_other_step_may_lose_its_commit_too(
    backend: StoreBackend, cutter: CommitCutter, cut: str, step: str
) -> None:
    through = make_url(backend.url).set(port=cutter.port).render_as_string(hide_password=False)
    direct = Pipeline.start(backend.open())
    [a] = direct.open("a").values()
    direct.store.release(direct.token, [direct.open("free")["free"].key])
    with open_store(through, clock=backend.clock) as store:
        us = Pipeline(store, direct.token, "s")

        def armed(name: str) -> None:
            if name == step:
                cutter.cut = "before" if cut == "before" else "after"

        armed("win")
        assert store.win_interval("work", 60.0)
        armed("open")
        assert set(us.open("a", "b")) == {"a", "b"}
        armed("acquire")
        assert store.acquire(us.token, {us.look("free")["free"].key: None}) == {us.look("free")["free"].key}
        armed("advance")
        us.snapshot(a)
        armed("plan")
        plan = us.plan()
        assert [r.key for r in plan.ranges] == [a.key]
        armed("confirm")
        assert us.confirm([a.key]) == {a.key}
        armed("start")
        assert store.start("s", "p").confirmed_seq == 1
    assert cutter.cuts == 1
    assert len(rows(direct.store, "attempts")) == 1


@servers
def test_trouble_inside_the_callers_transaction_is_mapped_and_not_run_again(backend: StoreBackend) -> None:
    store, killer = backend.open(), backend.open()
    us = Pipeline.start(store)
    plan = us.planned("a")
    mine = "SELECT pg_backend_pid()" if backend.name == "postgresql" else "SELECT connection_id()"
    kill = "SELECT pg_terminate_backend({})" if backend.name == "postgresql" else "KILL {}"
    with store.database.engine.connect() as connection:
        transaction = connection.begin()
        pid = connection.exec_driver_sql(mine).scalar_one()
        with killer.database.engine.begin() as other:
            other.exec_driver_sql(kill.format(pid))
        with pytest.raises(StoreUnavailable):
            us.publish(plan, SPLIT, connection=connection)
        transaction.rollback()
    assert us.publish(plan, SPLIT).shards == 1


def test_a_postgresql_database_in_sql_ascii_is_refused_with_what_to_do(postgres_url: str) -> None:
    url = new_database(postgres_url, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(StoreConfigurationError, match=r"encoding is SQL_ASCII.* CREATE DATABASE .* ENCODING 'UTF8'"):
        open_store(url)


def test_a_forked_child_leaves_its_parents_connections_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    parents = database.engine
    child = os.fork()
    if child == 0:
        os._exit(0 if database.engine is not parents else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert database.engine is parents
    database.close()
