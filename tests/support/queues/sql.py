"""The SQL queue: SQLite with one view for all and with two, PostgreSQL, and MySQL where a server is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.queues.backend import Backend, Clock
from support.servers.postgres import new_database

MYSQL_URL = os.environ.get("CUESQUEUE_TEST_MYSQL_URL", "")
"""The URL of a MySQL or MariaDB server on which databases may be created; PyPI has none, so it may be absent."""


def sqlite_file(folder: Path) -> str:
    return f"sql+sqlite:///{folder / 'queue.db'}?queue=contract"


def on_server(database_url: str) -> str:
    return f"sql+{database_url}?queue=contract"


@contextmanager
def sqlite(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    yield Backend(sqlite_file(folder), Clock(), shared=True)


@contextmanager
def sqlite_two_views(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    yield Backend(sqlite_file(folder), Clock())


@contextmanager
def postgresql(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
    yield Backend(on_server(new_database(request.getfixturevalue("postgres_url"))), Clock())


@contextmanager
def mysql(_: pytest.FixtureRequest, __: Path) -> Iterator[Backend]:
    yield Backend(on_server(new_database(MYSQL_URL)), Clock())


BACKENDS = {
    "sqlite": sqlite,
    "sqlite-two-views": sqlite_two_views,
    "postgresql": postgresql,
    **({"mysql": mysql} if MYSQL_URL else {}),
}
