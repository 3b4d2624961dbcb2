"""The stores that the contract suites run over; the servers are fixtures of `servers/fixtures.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shard_store.store import ShardStore
from support.servers.postgres import new_database
from support.store_backends import BACKENDS, MYSQL_URL, StoreBackend


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
