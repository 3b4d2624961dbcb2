"""What only a real server shows: locks that are skipped, connections that break, plans, errors of the server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from queue_source.errors import QueueConfigurationError
from queue_source.queues.sql import SqlQueue
from queue_source.queues.urls import canonical
from support.queues.sql import on_server
from support.servers.postgres import new_database


@pytest.fixture
def database(postgres_url: str) -> str:
    return new_database(postgres_url)


@pytest.fixture
def queue(database: str) -> Iterator[SqlQueue]:
    with SqlQueue(on_server(database)) as opened:
        yield opened


def test_a_consumer_does_not_wait_for_the_message_that_another_is_taking(queue: SqlQueue) -> None:
    queue.send(["first", "second"])
    with queue._opened().engine.begin() as connection:
        connection.execute(text("SELECT id FROM cuesqueue_messages ORDER BY id LIMIT 1 FOR UPDATE"))
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(queue.receive, 10, 60, 0).result(timeout=10)
        assert [message.body for message in taken] == [b"second"]
    assert [message.body for message in queue.receive(10, 60, 0)] == [b"first"]


def test_a_group_is_looked_at_again_after_waiting_for_its_first_message(queue: SqlQueue) -> None:
    """While a consumer waits for the lock, the first message of the group is leased: the second must not be taken."""
    queue.send(["1", "2"], group="g")
    with ThreadPoolExecutor(1) as pool:
        with queue._opened().engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE cuesqueue_messages SET visible_at = visible_at + 60000000, receipt = 'other'"
                    " WHERE id = (SELECT min(id) FROM cuesqueue_messages)"
                )
            )
            waiting = pool.submit(queue.receive, 10, 60, 0)
            with pytest.raises(NotDone):
                waiting.result(timeout=0.5)
        assert waiting.result(timeout=10) == []
    assert queue.depth().in_flight == 1


def test_taking_uses_the_index_by_the_clock_of_the_database(queue: SqlQueue) -> None:
    queue.send([str(number) for number in range(5_000)])
    visible = queue._opened().read(queue._rows._visible).limit(100).with_for_update(skip_locked=True)
    engine = queue._opened().engine
    query = visible.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(text("ANALYZE cuesqueue_messages"))
        plan = "\n".join(connection.execute(text(f"EXPLAIN {query}")).scalars())
    assert "Index Scan using ix_cuesqueue_messages_visible" in plan
    assert "Sort" not in plan


def test_connections_that_the_server_ended_are_replaced(queue: SqlQueue, postgres_url: str) -> None:
    queue.send(["x"])
    server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        name = make_url(queue._database.url).database
        ended = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        assert connection.execute(ended, {"name": name}).all()
    server.dispose()
    assert queue.depth().ready == 1


def test_a_database_that_is_not_there_is_a_configuration_error(postgres_url: str) -> None:
    missing = make_url(postgres_url).set(database="missing").render_as_string(hide_password=False)
    with SqlQueue(on_server(missing)) as queue:
        with pytest.raises(QueueConfigurationError, match='"missing" does not exist'):
            queue.depth()


def test_a_user_without_rights_is_a_configuration_error(queue: SqlQueue, database: str) -> None:
    queue.send(["x"])
    with queue._opened().engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS guest"))
        connection.execute(text("CREATE ROLE guest LOGIN"))
    guest = make_url(database).set(username="guest").render_as_string(hide_password=False)
    with SqlQueue(on_server(guest)) as denied:
        with pytest.raises(QueueConfigurationError, match="permission denied"):
            denied.receive(1, 60, 0)


def test_text_of_any_language_and_a_url_without_a_driver_are_fine(database: str) -> None:
    plain = on_server(database).replace("+psycopg", "").replace("queue=contract", "queue=Sch%C3%B6n%20%F0%9F%A6%80")
    with SqlQueue(plain) as queue:
        queue.send(["x"], tag="ü.你", group="🦀")
        (message,) = queue.receive(1, 60, 0)
        assert (message.tag, message.group) == ("ü.你", "🦀")


def test_a_reader_that_may_not_insert_knows_its_queue_by_its_url_until_somebody_has_given_it_an_id(
    database: str, queue: SqlQueue
) -> None:
    queue.send(["first"])
    name = f"reader_{uuid.uuid4().hex}"
    with queue._opened().engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"))
        connection.execute(text(f"GRANT SELECT, UPDATE, DELETE ON cuesqueue_messages TO {name}"))
    url = make_url(database).set(username=name, password="secret").render_as_string(hide_password=False)
    with SqlQueue(on_server(url)) as limited:
        assert limited.identity == canonical(on_server(url))
        assert [message.body for message in limited.receive(10, 60, 0)] == [b"first"]
        assert queue.identity == limited.identity != canonical(on_server(url))
    with queue._opened().engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))
