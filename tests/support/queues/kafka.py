"""Kafka: over librdkafka's mock cluster, and over a real broker where CUESQUEUE_TEST_KAFKA is `everything`.

A broker makes the first member of a group wait for three seconds, and the second for ten: all tests of the contract
take minutes there. The mock cluster has the protocol of KIP-848 too, in which nobody waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from support.queues.backend import Backend, RealClock
from support.servers.kafka import AT_ONCE, SINGLE, Kafka

EVERYTHING = os.environ.get("CUESQUEUE_TEST_KAFKA") == "everything"

LACKS = {
    "expiry": "a message is held as long as its partition, and comes again when that passes to another member",
    "groups": "Kafka keeps the records of a key in order, and holds none back for another",
    "depth": "Kafka does not tell what other members of the group hold",
    "count": "Kafka counts no deliveries: a reader only knows its own",
    "exclusive": "when a partition passes to another member, what is held of it is delivered there as well",
}
ONE_PARTITION = {"partitioner": "consistent"}
"""All records without a key go to one partition: records keep their order in one partition only."""
_PACE = 1 / 50


class JoiningClock(RealClock):
    """The clock of a server; what is received was sent before the group let the reader in."""

    precision = 20.0


@contextmanager
def mocked(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
    server: Kafka = request.getfixturevalue("kafka_mock")
    topics = [f"contract-{os.getpid()}-{time.monotonic_ns()}-{number}" for number in range(2)]
    producer = Producer({"bootstrap.servers": server.hosts, "log_level": 0})
    for topic in topics:  # it makes the topic that is written to, with four partitions
        producer.list_topics(topic, timeout=10)
    yield _backend(server, topics, {**AT_ONCE, **ONE_PARTITION})


@contextmanager
def tansu(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
    server: Kafka = request.getfixturevalue("kafka_broker")
    backend = _backend(server, [server.new_topic(), server.new_topic()], dict(SINGLE))
    yield replace(backend, clock=JoiningClock(_PACE))


def _backend(server: Kafka, topics: list[str], settings: dict[str, str]) -> Backend:
    options: dict[str, Any] = {"settings": settings}
    url, another = (server.url(topic, f"group-of-{topic}") for topic in topics)
    other_host = url.replace("127.0.0.1", "localhost").replace("group-of", "another-group-of")
    return Backend(
        url,
        RealClock(_PACE),
        lacks=LACKS,
        options=options,
        spellings=[(other_host, options), (url.replace("://", "://127.0.0.1:1,"), options)],
        another=another,
    )


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Backend]]] = {"kafka-mock": mocked}
if EVERYTHING:
    BACKENDS["kafka-tansu"] = tansu
