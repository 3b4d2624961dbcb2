"""The stores that the contract suites run over; the servers are fixtures of `servers/fixtures.py`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shard_store.store import ShardStore, open_store
from support.servers.postgres import new_database
from support.store_backends import BACKENDS, MYSQL_URL, StoreBackend


@pytest.fixture(scope="session")
def postgresql_store_url(postgres_url: str) -> str:
    return new_database(postgres_url)


@pytest.fixture(scope="session")
def mysql_store_url() -> str:
    return new_database(MYSQL_URL)


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with an empty store: copying it takes a tenth of making one."""
    file = tmp_path_factory.mktemp("empty") / "store.db"
    open_store(f"sqlite:///{file}").close()
    return file


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBackend]:
    """An empty store in each kind of database."""
    if request.param == "sqlite":
        file = shutil.copy(request.getfixturevalue("empty_file"), tmp_path / "store.db")
        made = StoreBackend(request.param, f"sqlite:///{file}")
    else:
        made = StoreBackend(request.param, request.getfixturevalue(f"{request.param}_store_url"))
        made.wipe()
    yield made
    made.close()


@pytest.fixture
def store(backend: StoreBackend) -> ShardStore:
    return backend.open()
