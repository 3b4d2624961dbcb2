"""The contracts on the servers that users have: Debian's MariaDB, PostgreSQL and RabbitMQ; SQS in full, on two servers;
Azurite, where npm can install it; Google's emulator of Pub/Sub where it is found.

What Debian has is installed where that may be. CUESQUEUE_TEST_MYSQL_URL names another MySQL or MariaDB server instead,
whose user may create databases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers import azurite, postgres, seaweedfs
from support.servers.debian import NotInstalled, install
from support.servers.mariadb import mariadb_server
from support.servers.ministack import moto_server
from support.servers.pubsub_emulator import VARIABLE as PUBSUB_VARIABLE
from support.servers.pubsub_emulator import NoEmulator, pubsub_emulator
from support.servers.rabbitmq import rabbitmq_server

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "CUESQUEUE_TEST_MYSQL_URL"


@pytest.fixture
def mariadb() -> Iterator[str]:
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
        return
    try:
        with mariadb_server(install=True) as url:
            yield url
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def google_emulator() -> Iterator[str]:
    try:
        with pubsub_emulator() as host:
            yield host
    except NoEmulator as error:
        pytest.skip(str(error))


def expect_contracts(kind: str, **variables: str) -> None:
    """In a process of its own, because the list of databases is made when the contracts are imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", kind, "tests/contracts"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@pytest.mark.timeout(1200)
def test_every_contract_of_the_store_and_the_sql_queue_holds_on_mariadb(mariadb: str) -> None:
    expect_contracts("mysql", **{VARIABLE: mariadb})


@pytest.mark.timeout(1200)
def test_every_contract_of_the_store_and_the_sql_queue_holds_on_the_systems_postgresql() -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        try:
            install("postgresql")
        except NotInstalled as error:
            pytest.skip(str(error))
    expect_contracts("postgresql", **{postgres.VARIABLE: "system"})


@pytest.mark.timeout(1200)
def test_the_queue_contract_holds_on_googles_pubsub_emulator(google_emulator: str) -> None:
    # after a nack it gives the next message of the group first, against what Google documents of the service
    differs = "test_a_group_given_back_comes_again_in_its_order and ordered-0]"
    expect_contracts(f"google-emulator and not ({differs})", **{PUBSUB_VARIABLE: google_emulator})


@pytest.mark.timeout(1200)
def test_every_contract_of_queues_holds_on_sqs_with_all_that_takes_long() -> None:
    expect_contracts("sqs", CUESQUEUE_TEST_SQS="everything")


@pytest.mark.timeout(1200)
def test_every_contract_of_queues_that_moto_keeps_holds_on_moto() -> None:
    with moto_server() as url:
        expect_contracts("sqs", CUESQUEUE_TEST_SQS_URL=url)


@pytest.mark.timeout(1200)
def test_every_contract_of_queues_and_containers_holds_on_azurite() -> None:
    try:
        azurite.install()
        with azurite.azurite_server() as server:
            expect_contracts("azurequeue or azurite", CUESQUEUE_TEST_AZURE_QUEUE_URL=server.queues)
    except azurite.NoAzurite as error:
        pytest.skip(str(error))


def test_the_contract_of_buckets_holds_on_seaweedfs() -> None:
    try:
        seaweedfs.install()
    except seaweedfs.NoSeaweed as error:
        pytest.skip(str(error))
    expect_contracts("seaweedfs")


@pytest.mark.timeout(1200)
def test_every_contract_of_queues_holds_on_a_kafka_broker() -> None:
    expect_contracts("kafka", CUESQUEUE_TEST_KAFKA="everything")


@pytest.mark.timeout(1200)
def test_every_contract_of_queues_holds_on_rabbitmq() -> None:
    try:
        with rabbitmq_server() as server:
            expect_contracts("rabbitmq", CUESQUEUE_TEST_AMQP_URL=server.url)
    except NotInstalled as error:
        pytest.skip(str(error))
