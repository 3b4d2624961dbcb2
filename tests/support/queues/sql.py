"""The SQL queue: SQLite with one view for all and with two, PostgreSQL, and MySQL where a server is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from support.queues.backend import Backend, Clock
from support.servers.postgres import new_database

MYSQL_URL = os.environ.get("CUESQUEUE_TEST_MYSQL_URL", "")
"""The URL of a MySQL or MariaDB server on which databases may be created; PyPI has none, so it may be absent."""


def sqlite_file(folder: Path) -> str:
    return f"sql+sqlite:///{folder / 'queue.db'}?queue=contract"


def _of_file(folder: Path) -> dict[str, Any]:
    """By a link, by a path that is not the shortest, and with the driver's name."""
    link = folder / "link"
    link.symlink_to(folder, target_is_directory=True)
    other = sqlite_file(folder).replace("sqlite:", "sqlite+pysqlite:")
    spellings: list[tuple[str, dict[str, Any]]] = [
        (url, {}) for url in (sqlite_file(link), sqlite_file(folder / ".." / folder.name), other)
    ]
    return {"spellings": spellings, "another": sqlite_file(folder).replace("contract", "another")}


def on_server(database_url: str) -> str:
    return f"sql+{database_url}?queue=contract"


def _of_server(database_url: str) -> dict[str, Any]:
    """By another name of its host, and with a parameter of the driver."""
    url = make_url(database_url)
    others = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}
    host = url.set(host=others.get(url.host or "", url.host)).render_as_string(hide_password=False)
    spellings: list[tuple[str, dict[str, Any]]] = [(on_server(host), {})]
    if url.get_backend_name() == "postgresql":
        spellings.append((f"{on_server(database_url)}&application_name=other", {}))
    return {"spellings": spellings, "another": on_server(database_url).replace("contract", "another")}


@contextmanager
def sqlite(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    yield Backend(sqlite_file(folder), Clock(), shared=True, **_of_file(folder))


@contextmanager
def sqlite_two_views(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    yield Backend(sqlite_file(folder), Clock(), **_of_file(folder))


@contextmanager
def postgresql(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
    url = new_database(request.getfixturevalue("postgres_url"))
    yield Backend(on_server(url), Clock(), **_of_server(url))


@contextmanager
def mysql(_: pytest.FixtureRequest, __: Path) -> Iterator[Backend]:
    url = new_database(MYSQL_URL)
    yield Backend(on_server(url), Clock(), **_of_server(url))


BACKENDS = {
    "sqlite": sqlite,
    "sqlite-two-views": sqlite_two_views,
    "postgresql": postgresql,
    **({"mysql": mysql} if MYSQL_URL else {}),
}
