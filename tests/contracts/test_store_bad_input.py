"""Contract: bad input is an error of our own that says what to do; cause kept, no password, nothing half-done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from shard_store.errors import ShardStoreError, StoreConfigurationError, StoreUnavailable
from shard_store.model import Split
from shard_store.redaction import redact_text, redact_url
from shard_store.store import open_store
from support.servers.postgres import new_database
from support.store_backends import Pipeline, StoreBackend, content, rows

SPLIT = Split("/x", 1, 1)
postgresql = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not a database URL"),
        ("store.db", "not a database URL"),
        ("postgresql://u:hunter2@h:port/db", "not a database URL"),
        ("oracle://u:hunter2@h/db", "'oracle' is not supported; use one of mariadb, mysql, postgresql, sqlite"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        (
            "postgresql+nothing://u:hunter2@h/db",
            r"driver of 'postgresql\+nothing' .* pip install 'cuesqueue\[postgres\]'",
        ),
        ("sqlite:///x.db?timeout=soon", "does not suit its driver"),
        ("postgresql://u:hunter2@127.0.0.1/db?bogus=1", "cannot be used: .*bogus"),
        ("sqlite:////no/such/folder/x.db", "cannot be used: unable to open database file"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(
    url: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigurationError, match=problem) as error:
        open_store(url, patience=0.1)
    assert "hunter2" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql+psycopg://u:p@h/db", "psycopg", "postgres"),
        ("postgresql://u:p@h/db", "psycopg", "postgres"),
        ("mysql://u:p@h/db", "pymysql", "mysql"),
    ],
)
def test_a_missing_driver_is_named_with_the_extra_that_brings_it(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        StoreConfigurationError, match=rf"is not installed.*pip install 'cuesqueue\[{extra}\]'"
    ) as error:
        open_store(url)
    assert isinstance(error.value.__cause__, ImportError)
    assert "or write" not in str(error.value), "the driver is named right"


def test_a_driver_that_is_not_ours_is_told_which_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(StoreConfigurationError, match=r"is not installed.*, or write postgresql\+psycopg://"):
        open_store("postgresql+psycopg2://u:p@h/db")


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_bytes(b"not a database at all, but long enough to look like one" * 50)
    before = file.read_bytes()
    with pytest.raises(StoreConfigurationError, match="file is not a database"):
        open_store(f"sqlite:///{file}")
    assert file.read_bytes() == before


PASSWORDS = [
    "hunter2",
    "hun@ter2",
    "hun/ter2",
    "hun:ter2",
    "hun?ter2",
    "hun?ter2=x",
    "hun#ter2",
    "hun%40ter2",
    "hun@t@er2",
]


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("rest", ["h/db", "h:5432/db?sslmode=require", "127.0.0.1", "h/db?options=a@b"])
def test_no_part_of_a_password_is_shown_however_it_was_written(password: str, rest: str) -> None:
    url = f"postgresql+psycopg://user:{password}@{rest}"
    texts = [redact_url(url), redact_text(f"cannot reach {url}: no"), redact_url(f"sqs://q,sql+{url},sqs://r")]
    for text in texts:
        assert "ter2" not in text
        assert "hun" not in text
        assert "***" in text
    with pytest.raises(ShardStoreError) as error:
        open_store(url, patience=0.01)
    assert "ter2" not in str(error.value)


@postgresql
def test_a_wrong_password_is_a_configuration_error_that_does_not_show_it(backend: StoreBackend) -> None:
    """The test server trusts everybody; a user that does not exist is refused in the same way."""
    wrong = make_url(backend.url).set(username="nobody", password="hun@ter2").render_as_string(hide_password=False)
    with pytest.raises(StoreConfigurationError, match=r"cannot be used: .*check the URL, the password") as error:
        open_store(wrong)
    assert "ter2" not in str(error.value)
    assert isinstance(error.value.__cause__, sa.exc.OperationalError)


@postgresql
def test_a_database_that_is_not_there_fails_at_once(backend: StoreBackend) -> None:
    missing = make_url(backend.url).set(database="missing").render_as_string(hide_password=False)
    with pytest.raises(StoreConfigurationError, match='database "missing" does not exist'):
        open_store(missing)


@postgresql
def test_a_server_that_only_reads_is_a_configuration_error(backend: StoreBackend) -> None:
    us = Pipeline.start(backend.open())
    plan = us.planned("a")
    url = make_url(backend.url).update_query_dict({"options": "-c default_transaction_read_only=on"})
    with open_store(url.render_as_string(hide_password=False)) as store:
        with pytest.raises(StoreConfigurationError, match="read-only transaction"):
            store.publish([plan.identity], [SPLIT])
    assert rows(us.store, "attempts") == []


@postgresql
def test_an_empty_server_that_only_reads_is_a_configuration_error(postgres_url: str, backend: StoreBackend) -> None:
    url = make_url(new_database(postgres_url)).update_query_dict({"options": "-c default_transaction_read_only=on"})
    with pytest.raises(StoreConfigurationError, match="read-only transaction"):
        open_store(url.render_as_string(hide_password=False))


@sqlite
def test_a_file_that_may_only_be_read_is_a_configuration_error(backend: StoreBackend) -> None:
    us = Pipeline.start(backend.open())
    plan = us.planned("a")
    file = make_url(backend.url).database
    with open_store(f"sqlite:///file:{file}?mode=ro&uri=true", clock=backend.clock) as store:
        assert rows(store, "shards")
        with pytest.raises(StoreConfigurationError, match="attempt to write a readonly database"):
            store.publish([plan.identity], [SPLIT])
    assert rows(us.store, "attempts") == []


@sqlite
def test_a_full_disk_is_unavailable_and_leaves_nothing_half_written(backend: StoreBackend) -> None:
    store = backend.open(patience=0.05)
    us = Pipeline.start(store)
    us.deliver("a")

    @sa.event.listens_for(store.database.engine, "checkout")
    def full(connection: sa.engine.interfaces.DBAPIConnection, *_: object) -> None:
        pages = connection.cursor().execute("PRAGMA page_count").fetchone()[0]
        connection.cursor().execute(f"PRAGMA max_page_count = {pages + 2}")

    before = rows(store, "shards")
    with pytest.raises(StoreUnavailable, match="database or disk is full; free space on its disk"):
        store.open_shards(us.token, "s", [content(f"{i}" * 100) for i in range(2000)])
    assert rows(store, "shards") == before
    sa.event.remove(store.database.engine, "checkout", full)


@postgresql
def test_a_table_that_somebody_dropped_is_a_configuration_error(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = us.planned("a")
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE cuesqueue_attempts RENAME TO elsewhere")
    try:
        with pytest.raises(StoreConfigurationError, match='"cuesqueue_attempts" does not exist'):
            us.publish(plan, SPLIT)
    finally:
        with store.database.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO cuesqueue_attempts")
    assert us.publish(plan, SPLIT).shards == 1


def test_no_store_shows_its_password(tmp_path: Path) -> None:
    from shard_store.sql.database import Database

    database = Database("postgresql://u:hunter2@h/db")
    assert "hunter2" not in repr(database) + database.name
