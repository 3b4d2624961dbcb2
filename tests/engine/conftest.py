"""One Spark for all engine tests that kill nothing, and a world for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.engine.harness import Driver, environment
from support.engine.queries import Query, build_session
from support.engine.recording import RecordingSource
from support.engine.world import World
from support.servers.gcs import VARIABLE as GCS
from support.servers.gcs import GcsServer

DriverFactory = Callable[..., Driver]


@pytest.fixture(scope="session")
def spark(gcs_server: GcsServer) -> Iterator[SparkSession]:
    os.environ.update({**environment(), GCS: gcs_server.url})  # what Spark's processes know is settled here
    session = build_session()
    session.dataSource.register(RecordingSource)
    yield session
    session.stop()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture
def new_driver(tmp_path: Path) -> Iterator[DriverFactory]:
    """Starts drivers that are killed at the test's end."""
    numbers = count(1)
    drivers: list[Driver] = []

    def make(queries: Sequence[Query], **how: Any) -> Driver:
        drivers.append(Driver(tmp_path / f"driver-{next(numbers)}", queries, **how))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
