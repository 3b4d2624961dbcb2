"""Fixtures of the tests on a cluster: one cluster for all of a module, and a world whose store is a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import leaks
from support.engine import class_archive
from support.engine.cluster import Cluster
from support.engine.code import Code, installed, shipped
from support.engine.world import World
from support.servers.postgres import new_database


@pytest.fixture(scope="module")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    class_archive.use()
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "cluster")
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(started_cluster: Cluster, pytestconfig: pytest.Config) -> Cluster:
    """Two workers that have nothing to do."""
    with leaks.allowing(pytestconfig):  # a worker that takes the place of one that a test has killed
        started_cluster.heal()
    return started_cluster


@pytest.fixture(scope="module")
def installed_code(tmp_path_factory: pytest.TempPathFactory) -> Code:
    return installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def shipped_code(tmp_path_factory: pytest.TempPathFactory) -> Code:
    return shipped(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def shared_world(tmp_path: Path, postgres_url: str) -> World:
    """Its store is a PostgreSQL of its own, as executors on several machines need it."""
    return World(tmp_path / "world", store=new_database(postgres_url))
