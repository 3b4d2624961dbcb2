"""A client that is gone, or hangs, in a transaction holds its locks for a minute at most; one that works keeps them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from queue_source.foreach_batch import delivery
from queue_source.queues.sql.database import open_database, parse_address
from shard_store.errors import StoreUnavailable
from shard_store.model import ShardState
from shard_store.sql.database import Database, Transaction
from shard_store.sql.dialects import DIALECTS, IDLE
from shard_store.store import open_store
from support.servers.postgres import new_database
from support.servers.proxy import tcp_proxy
from support.store_backends import Pipeline

QUICK = {IDLE: "1500"}
"""Milliseconds, so that these tests do not take a minute."""


@pytest.fixture
def url(postgres_url: str) -> str:
    return new_database(postgres_url)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; one that is started has no shorter time."""
    dialect = DIALECTS["postgresql"]
    monkeypatch.setitem(DIALECTS, "postgresql", replace(dialect, session={**dialect.session, **QUICK}))


def settings(database: Database) -> dict[str, str]:
    names = [*DIALECTS["postgresql"].session]
    asked = "SELECT name, setting FROM pg_settings"
    rows = database.read(lambda t: t.connection.exec_driver_sql(asked).all())
    return {name: setting for name, setting in rows if name in names}


def test_each_session_of_a_store_and_of_a_queue_ends_a_dead_client_within_a_minute(url: str) -> None:
    queue = open_database(parse_address(f"sql+{url}?queue=q"), None, 10.0)
    store = Database(url)
    try:
        for database in (store, queue):
            said = {name: int(value) for name, value in settings(database).items()}
            assert said == {name: int(value) for name, value in DIALECTS["postgresql"].session.items()}
            silent = said["tcp_keepalives_idle"] + said["tcp_keepalives_interval"] * said["tcp_keepalives_count"]
            assert silent <= 60
            assert 1 <= said["tcp_user_timeout"] <= 60_000
            assert 1 <= said[IDLE] <= 60_000
    finally:
        store.close()
        queue.close()


def test_what_the_url_sets_stays_as_it_is(url: str) -> None:
    own = make_url(url).update_query_dict({"options": f"-c {IDLE}=9000 -c tcp_user_timeout=7000"})
    database = Database(own)
    try:
        assert {**settings(database), "others": ""} == {
            **DIALECTS["postgresql"].session,
            IDLE: "9000",
            "tcp_user_timeout": "7000",
            "others": "",
        }
        with database.begin() as connection:
            assert connection.exec_driver_sql(f"SHOW {IDLE}").scalar() == "9s"
    finally:
        database.close()


CLIENT = """
import json, sys, time
from dataclasses import replace
from shard_store.sql.database import Database, Transaction
from shard_store.sql.dialects import DIALECTS
dialect = DIALECTS["postgresql"]
DIALECTS["postgresql"] = replace(dialect, session={**dialect.session, **json.loads(sys.argv[2])})
from shard_store.store import open_store
from shard_store.sql.schema import pipelines
store = open_store(sys.argv[1])

def hang(transaction):
    transaction.execute(pipelines.update().values(report="held"))
    print("held", flush=True)
    time.sleep(600)

store.database.write(hang)
"""


@contextmanager
def holding(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a transaction that has locked every pipeline."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CLIENT, url, json.dumps(QUICK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_locks_of_a_client_that_hangs_are_free_again(url: str) -> None:
    with open_store(url, patience=20.0) as store:
        us = Pipeline.start(store)
        with holding(url) as client:
            client.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            store.heartbeat(us.token, 60.0)
            assert time.monotonic() - began < 15
            assert us.deliver("a")


def test_the_locks_of_a_client_whose_network_swallows_everything_are_free_again(url: str) -> None:
    """It is behind a proxy that goes on to answer for it, so that no keepalive tells."""
    with open_store(url, patience=20.0) as store, tcp_proxy(make_url(url).port or 0) as proxy:
        us = Pipeline.start(store)
        with holding(make_url(url).set(port=proxy.port).render_as_string(hide_password=False)):
            proxy.swallows = True
            store.heartbeat(us.token, 60.0)
            assert us.deliver("a")


@pytest.mark.usefixtures("quick")
def test_a_transaction_of_ours_that_was_ended_is_run_again(url: str) -> None:
    with open_store(url, patience=20.0) as store:
        us = Pipeline.start(store)
        slow = [2.5]

        def work(transaction: Transaction) -> str:
            transaction.execute(sa.select(sa.literal(1)))
            time.sleep(slow.pop() if slow else 0)
            return str(transaction.execute(sa.select(sa.literal("done"))).scalar())

        assert store.database.write(work) == "done"
        assert us.deliver("a")


WORK = ["connection", "output", "held", "published with"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", WORK)
def test_work_of_others_in_our_transaction_may_take_its_time(url: str, what: str) -> None:
    with open_store(url, patience=5.0) as store:
        us = Pipeline.start(store)
        plan = us.planned("a")

        def works(*_: object) -> None:
            time.sleep(2.5)

        if what in ("connection", "output"):
            with delivery(store, "p", 0) as batch:
                if what == "connection":
                    batch.connection.exec_driver_sql("CREATE TABLE mine (a INT)")
                    works()
                else:
                    with batch.output("rows") as output:
                        output.connection.exec_driver_sql("CREATE TABLE mine (a INT)")
                        works()
        elif what == "held":
            with store.held([plan.identity], 0):
                works()
        else:  # as tables of Iceberg in the store
            store.publish_with([plan.identity], works, batch_id=0)
        if what != "held":
            assert us.look("a")["a"].state is ShardState.DONE
        assert settings(store.database)[IDLE] == QUICK[IDLE], "the connection is again as all are"


@pytest.mark.usefixtures("quick")
def test_a_transaction_that_is_ended_each_time_fails_when_patience_does(url: str) -> None:
    open_store(url).close()
    database = Database(url, patience=0.1)

    def work(transaction: Transaction) -> None:
        transaction.execute(sa.select(sa.literal(1)))
        time.sleep(2.5)
        transaction.execute(sa.select(sa.literal(1)))

    try:
        with pytest.raises(StoreUnavailable, match="idle-in-transaction"):
            database.write(work)
    finally:
        database.close()
