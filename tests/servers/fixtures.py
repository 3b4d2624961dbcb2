"""Servers shared by all suites: started when the first test asks, ended with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.ministack import ministack_server
from servers.postgres import NoPostgres, postgres_server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server; `servers.postgres.new_database(url)` makes an empty database on it."""
    try:
        with postgres_server() as url:
            yield url
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def ministack_url() -> Iterator[str]:
    """The URL of a server for SQS, S3, SNS and EventBridge; `servers.ministack` makes queues and buckets on it."""
    with ministack_server() as url:
        yield url
