"""Servers shared by the contract suites: started when the first test asks, ended with the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.store_backends import BACKENDS, MYSQL_URL, StoreBackend
from servers import pubsub
from servers.postgres import NoPostgres, new_database, postgres_server
from servers.pubsub import PubSubServer
from shard_store.store import ShardStore


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server; `servers.postgres.new_database(url)` makes an empty database on it."""
    try:
        with postgres_server() as url:
            yield url
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[PubSubServer]:
    with pubsub.pubsub_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_store_url(postgres_url: str) -> str:
    return new_database(postgres_url)


@pytest.fixture(scope="session")
def mysql_store_url() -> str:
    return new_database(MYSQL_URL)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBackend]:
    """An empty store in each kind of database."""
    if request.param.startswith("sqlite"):
        made = StoreBackend(request.param, f"sqlite:///{tmp_path / 'store.db'}")
    else:
        made = StoreBackend(request.param, request.getfixturevalue(f"{request.param}_store_url"))
        made.wipe()
    yield made
    made.close()


@pytest.fixture
def store(backend: StoreBackend) -> ShardStore:
    return backend.open()
