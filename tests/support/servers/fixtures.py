"""Servers shared by all suites: started when the first test asks, ended with the session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from support.servers.azure_queue import AzureQueueServer
from support.servers.azure_queue import azure_queue_server as started_azure_queue
from support.servers.gcs import GcsServer
from support.servers.gcs import gcs_server as started_gcs
from support.servers.kafka import Kafka, NoKafka, mock_cluster, tansu_broker
from support.servers.ministack import ministack_server
from support.servers.postgres import NoPostgres, postgres_server
from support.servers.pubsub import PubSubServer
from support.servers.pubsub import pubsub_server as started_pubsub


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


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """A server that speaks Google Cloud Storage; whoever is to find it by its variable has to start later."""
    with started_gcs() as server:
        yield server


@pytest.fixture(scope="session")
def azure_queue_server() -> Iterator[AzureQueueServer]:
    """A server that speaks Azure Storage Queue; it makes queues."""
    with started_azure_queue() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Kafka]:
    """A Kafka broker in a process of its own; each test makes topics of its own on it."""
    try:
        with tansu_broker() as server:
            yield server
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_mock() -> Iterator[Kafka]:
    """librdkafka's mock cluster, in this process."""
    with mock_cluster() as server:
        yield server


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[PubSubServer]:
    """A server that speaks Google Cloud Pub/Sub; it makes topics and subscriptions."""
    with started_pubsub() as server:
        yield server


@pytest.fixture(scope="session")
def iceberg_threads() -> Iterator[None]:
    """The threads that PyIceberg keeps for all tables of a process, started and ended here."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    executor = ExecutorFactory.get_or_create()
    assert isinstance(executor, ThreadPoolExecutor)
    together = Barrier(executor._max_workers)
    list(executor.map(lambda _: together.wait(60), range(executor._max_workers)))
    yield
    executor.shutdown()
    ExecutorFactory._instance = None
