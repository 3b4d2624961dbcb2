"""What is special to a queue in a table: statements in sets, errors at the edge, processes, durability."""

from __future__ import annotations

import gc
import os
import socket
import sqlite3
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, exc
from sqlalchemy.pool import QueuePool

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import QueueRows, open_database, parse_address
from shard_store.sql.database import Transaction
from shard_store.sql.dialects import Trouble


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sql+sqlite:///{tmp_path / 'queue.db'}?queue=unit"


@pytest.fixture
def queue(url: str) -> Iterator[SqlQueue]:
    with SqlQueue(url) as opened:
        yield opened


@contextmanager
def statements(queue: SqlQueue) -> Iterator[list[str]]:
    """The statements sent, without what begins and ends transactions."""
    engine, seen = queue._opened().engine, list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if not statement.startswith("BEGIN"):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_every_verb_sends_statements_for_a_thousand_messages_at_most(queue: SqlQueue) -> None:
    with statements(queue) as seen:
        queue.send([b"x"] * 10_000)
        assert len(seen) == 10
    with statements(queue) as seen:
        taken = [message.receipt for message in queue.receive(10_000, 60, 0)]
        assert len(taken) == 10_000
        assert len(seen) <= 21
    with statements(queue) as seen:
        assert queue.extend(taken, 60) == set()
        assert len(seen) == 20
    with statements(queue) as seen:
        queue.nack(taken[:5_000])
        assert len(seen) == 10
    with statements(queue) as seen:
        assert len(queue.acknowledge(taken)) == 5_000
        assert len(seen) == 15
    assert queue.depth().total == 5_000


def test_one_call_is_one_transaction(queue: SqlQueue) -> None:
    begun: list[object] = []
    event.listen(queue._opened().engine, "begin", begun.append)
    queue.send([b"x"] * 3_000)
    taken = queue.receive(3_000, 60, 0)
    queue.extend([message.receipt for message in taken], 60)
    queue.acknowledge([message.receipt for message in taken])
    assert len(begun) == 4


def test_taking_looks_at_the_index_and_sorts_nothing(queue: SqlQueue, tmp_path: Path) -> None:
    queue.send([b"x"], group="g")
    with statements(queue) as seen:
        queue.receive(10, 60, 0)
    queries = [statement for statement in seen if statement.startswith("SELECT")]
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        for query in queries:
            parameters = [1] * query.count("?")
            plan = " ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters))
            assert "USING" in plan
            assert "SCAN cuesqueue_messages" not in plan
            assert "TEMP B-TREE" not in plan


def test_depth_counts_a_message_whose_lease_ends_meanwhile(queue: SqlQueue) -> None:
    """A queue that looks empty for a moment ends whoever drains it."""
    queue.send(["body"])
    assert queue.receive(1, 0.5, 0)

    def slow(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "count" in statement:
            time.sleep(0.6)

    event.listen(queue._opened().engine, "after_cursor_execute", slow)
    assert queue.depth().total == 1


def test_peeking_takes_nothing(queue: SqlQueue) -> None:
    ids = queue.send([b"1", b"2", b"3"], tag="t")
    assert [(message.message_id, message.receive_count) for message in queue.peek(2)] == [(ids[0], 0), (ids[1], 0)]
    assert queue.depth().ready == 3


def test_purging_empties_this_queue_and_no_other(queue: SqlQueue, url: str) -> None:
    queue.send([b"1", b"2"])
    queue.receive(1, 60, 0)
    with SqlQueue(url.replace("=unit", "=other")) as other:
        other.send([b"kept"])
        assert queue.exists()
        assert queue.purge() == 2
        assert (queue.exists(), queue.depth().total) == (True, 0)
        assert other.depth().ready == 1


def test_what_is_acknowledged_is_on_the_disk(queue: SqlQueue) -> None:
    with queue._opened().engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000


def test_the_database_tells_the_time(queue: SqlQueue) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        (seconds,) = connection.execute("SELECT strftime('%s', 'now')").fetchone()
    queue.send([b"x"])
    assert queue.peek(1)[0].sent_at == pytest.approx(float(seconds), abs=30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(queue: SqlQueue) -> None:
    queue.send([b"1"])
    child = os.fork()
    if child == 0:
        try:
            ok = len(queue.receive(1, 60, 0)) == 1 and queue.send([b"2"])
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [message.body for message in queue.receive(10, 60, 0)] == [b"2"]


def test_many_open_a_new_queue_at_once(url: str) -> None:
    queues = [SqlQueue(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one.send([b"x"]), queues))
    assert queues[0].depth().ready == 8
    for one in queues:
        one.close()


def test_a_consumer_waits_with_pauses_that_differ(url: str) -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    with SqlQueue(url, clock=lambda: now[0], sleep=sleep) as queue:
        assert queue.receive(1, 60, 20) == []
    assert sum(pauses) == pytest.approx(20)
    assert max(pauses) <= 0.2
    assert len(set(pauses)) > 50


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_a_lease_takes_time(queue: SqlQueue, lease: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        queue.receive(1, lease, 0)


@pytest.mark.parametrize(("tag", "group"), [("\0", None), ("\ud800", None), ("", "g" * 256), ("", "\0")])
def test_a_tag_or_group_that_some_database_could_not_keep_is_refused(
    queue: SqlQueue, tag: str, group: str | None
) -> None:
    with pytest.raises(ValueError, match=r"tag|group|surrogates"):
        queue.send([b"x"], tag=tag, group=group)


# --- errors ----------------------------------------------------------------------------------------------------------


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sql+sqlite:///x.db", "needs queue=NAME"),
        ("sql+sqlite:///x.db?queue=", "needs queue=NAME"),
        ("sql+sqlite:///x.db?queue=a&queue=b", "several queue="),
        ("sql+sqlite://?queue=q", "SQLite needs a file"),
        ("sql+sqlite:///:memory:?queue=q", "SQLite needs a file"),
        ("sql+oracle://u:hunter2@h/db?queue=q", "'oracle' is not supported"),
        ("sql+postgresql://u:hunter2@h:port/db?queue=q", "not a database URL"),
    ],
)
def test_a_wrong_url_is_told_when_the_queue_is_opened(url: str, problem: str) -> None:
    with pytest.raises(QueueConfigurationError, match=problem) as caught:
        SqlQueue(url)
    assert "hunter2" not in told(caught.value)


def test_a_folder_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with SqlQueue(f"sql+sqlite:///{tmp_path}/missing/queue.db?queue=q") as queue:
        with pytest.raises(QueueConfigurationError, match="unable to open database file"):
            queue.depth()
        with pytest.raises(QueueConfigurationError, match="unable to open database file"):
            queue.receive(1, 60, 0)


def test_a_file_that_is_no_database_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_text("some text that is no database at all" * 100)
    with SqlQueue(f"sql+sqlite:///{tmp_path}/queue.db?queue=q") as queue:
        with pytest.raises(QueueConfigurationError, match="not a database"):
            queue.depth()


def test_a_missing_driver_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_args: object, **_options: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr("shard_store.sql.database.make_engine", absent)
    with SqlQueue("sql+postgresql://u:hunter2@h/db?queue=q") as queue:
        with pytest.raises(QueueConfigurationError, match=r"pip install 'cuesqueue\[postgres\]'"):
            queue.depth()


def test_a_locked_database_is_passing_trouble(queue: SqlQueue, url: str, tmp_path: Path) -> None:
    queue.send([b"x"])
    with SqlQueue(url, patience=0.01) as hasty:
        with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            assert hasty.depth().ready == 1  # looking needs no lock
            with pytest.raises(QueueUnavailable, match="locked"):
                hasty.send([b"y"])
        hasty.send([b"y"])


def test_a_server_that_does_not_answer_is_passing_trouble_and_no_secret_is_told() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = taken.getsockname()[1]
        with SqlQueue(f"sql+postgresql://someone:hunter2@127.0.0.1:{port}/db?queue=q") as queue:
            with pytest.raises(QueueUnavailable, match=r"someone:\*\*\*@") as caught:
                queue.depth()
    assert "hunter2" not in told(caught.value)


def test_bodies_and_headers_stay_out_of_errors(queue: SqlQueue) -> None:
    queue.depth()
    with queue._opened().engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE cuesqueue_messages")
    secret = "hunter2"[::-1]
    with pytest.raises(QueueConfigurationError, match="no such table") as caught:
        queue.send([secret], headers={"token": secret}, tag=secret)
    assert secret not in told(caught.value)


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', QueueConfigurationError),
        ('connection failed: FATAL:  database "db" does not exist', QueueConfigurationError),
        ("connection failed: hunter2 could not be sent", QueueUnavailable),
        ("server closed the connection unexpectedly\n\tThis probably means", QueueUnavailable),
    ],
)
def test_what_waiting_cannot_mend_is_told_apart_from_passing_trouble(
    says: str, kind: type[QueueError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_transaction: Transaction) -> None:
        raise exc.OperationalError("SELECT 1", {}, psycopg.OperationalError(says))

    database = open_database(parse_address("sql+postgresql://u:hunter2@h/db?queue=q"), None, 1.0)
    monkeypatch.setattr(database, "_once", lambda work, *_: work(None))
    with pytest.raises(kind) as caught:
        database.read(fail)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_victim_of_a_deadlock_is_run_again(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    undone = replace(queue._database.dialect, trouble=lambda error: Trouble.ROLLED_BACK)
    monkeypatch.setattr(queue._database, "dialect", undone)
    insert, failures = QueueRows.insert, [1, 2]

    def fail_twice(*arguments: Any) -> None:
        insert(*arguments)
        if failures:
            failures.pop()
            raise exc.OperationalError("INSERT", {}, Exception("victim"))

    monkeypatch.setattr(QueueRows, "insert", fail_twice)
    queue.send([b"x"])
    assert queue.depth().ready == 1


def test_a_connection_in_use_while_the_queue_is_closed_is_closed_after_use(queue: SqlQueue) -> None:
    pool = queue._opened().engine.pool
    assert isinstance(pool, QueuePool)
    queue._run(lambda _connection: queue.close())
    assert pool.checkedin() == 0


def test_a_closed_queue_leaves_no_open_file(url: str) -> None:
    with SqlQueue(url) as queue:
        queue.send([b"x"])
    del queue
    gc.collect()  # an unclosed connection would be a warning, and warnings are errors


def test_the_table_keeps_its_id_where_old_messages_are_deleted_by_sql(queue: SqlQueue, tmp_path: Path) -> None:
    """With another id the messages that are in flight meanwhile would be others after a crash, and be read twice."""
    queue.send([b"x"])
    identity = queue.identity
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection, connection:
        connection.execute("DELETE FROM cuesqueue_messages WHERE sent_at <= strftime('%s', 'now', '+1 day') * 1000000")
    assert (queue.depth().ready, queue.identity) == (0, identity)
