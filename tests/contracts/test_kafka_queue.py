"""What is Kafka's alone: groups that are shared, offsets, rebalances. Over a broker process and the mock cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from queue_source.announcements.parser import parse_notification
from queue_source.commands.main import app
from queue_source.errors import QueueConfigurationError, QueueNotFound
from queue_source.messages import Received
from queue_source.queues import Depth, Queue, open_queue
from queue_source.queues.base import administered
from support.queues.kafka import EVERYTHING
from support.servers.kafka import AT_ONCE, SINGLE, Kafka, tansu_broker, tls_before
from support.servers.programs import free_port

PATIENCE = 40.0
ROOT = Path(__file__).resolve().parents[2]


SETTINGS = SINGLE if EVERYTHING else AT_ONCE


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """On the mock cluster, which lets a reader in at once; on the broker where all contracts are to hold there."""
    if EVERYTHING:
        broker: Kafka = request.getfixturevalue("kafka_broker")
        return broker.url(broker.new_topic(2))
    mock: Kafka = request.getfixturevalue("kafka_mock")
    topic = f"topic-{time.monotonic_ns()}"
    Producer({"bootstrap.servers": mock.hosts, "log_level": 0}).list_topics(topic, timeout=10)
    return mock.url(topic, f"group-of-{topic}")


@contextmanager
def opened(url: str, **options: Any) -> Iterator[Queue]:
    with open_queue(url, settings=dict(SETTINGS), **options) as queue:
        yield queue


@contextmanager
def broker_queue(url: str, **options: Any) -> Iterator[Queue]:
    settings = {**SINGLE, **options.pop("settings", {})}
    with open_queue(url, settings=settings, **options) as queue:
        yield queue


def bodies(messages: list[Received]) -> list[bytes]:
    return sorted(message.body for message in messages)


def everything(queue: Queue, until: Callable[[list[Received]], bool]) -> list[Received]:
    taken: list[Received] = []
    deadline = time.monotonic() + PATIENCE
    while not until(taken):
        assert time.monotonic() < deadline, [message.body for message in taken]
        taken += queue.receive(100, 60, 0.2)
    return taken


def committed(url: str) -> dict[int, int]:
    """The group's offsets, as another program sees them."""
    hosts, _, rest = url.removeprefix("kafka://").partition("/")
    topic, _, group = rest.partition("?group=")
    consumer = Consumer({"bootstrap.servers": hosts, "group.id": group, "log_level": 0})
    try:
        places = [TopicPartition(topic, number) for number in consumer.list_topics(topic).topics[topic].partitions]
        return {place.partition: place.offset for place in consumer.committed(places, timeout=10)}
    finally:
        consumer.close()


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_what_is_done_out_of_order_is_committed_when_the_gap_closes_and_the_rest_comes_again(url: str) -> None:
    with opened(url) as queue:
        queue.send([str(number) for number in range(6)], headers={"Kafka-Key": "one partition"})
        messages = everything(queue, lambda taken: len(taken) == 6)
        partition = int(messages[0].message_id.split("/")[1])
        queue.acknowledge([message.receipt for message in messages[2:5]])
        assert committed(url)[partition] == 0
        queue.acknowledge([messages[0].receipt])
        assert committed(url)[partition] == 1
        assert queue.depth() == Depth(0, 2, 0)
    with opened(url) as queue:
        again = everything(queue, lambda taken: len(taken) == 5)
        assert [message.message_id for message in again] == [message.message_id for message in messages[1:]]
        queue.acknowledge([message.receipt for message in again])
        assert committed(url)[partition] == 6
        assert queue.depth() == Depth(0, 0, 0)


def test_latest_leaves_out_what_is_there_and_nothing_of_what_comes_between_two_starts(url: str) -> None:
    with opened(url, starting_offsets="latest") as queue:
        queue.send(["before"])
        assert queue.receive(10, 60, 0) == []
        queue.send(["held by the dead"])
        (message,) = everything(queue, bool)
        queue.nack([message.receipt], delay=1000)  # as if it died: nothing of it is committed
    with opened(url, starting_offsets="latest") as queue:
        queue.send(["after"])
        assert bodies(everything(queue, lambda taken: len(taken) == 2)) == [b"after", b"held by the dead"]


def test_what_is_given_back_comes_again_here_and_counts(url: str) -> None:
    with opened(url) as queue:
        queue.send(["a", "b"], headers={"Kafka-Key": "k"})
        first = everything(queue, lambda taken: len(taken) == 2)
        queue.nack([first[0].receipt])
        queue.nack([first[1].receipt], delay=1.0)
        assert queue.depth() == Depth(1, 0, 1)
        (again,) = queue.receive(10, 60, 0)
        assert (again.body, again.receive_count) == (b"a", 2)
        assert bodies(queue.receive(10, 60, 5)) == [b"b"]


def test_another_program_that_commits_for_the_group_is_believed_at_the_next_start(kafka_broker: Kafka) -> None:
    """The mock cluster takes commits of members only, once the group had some."""
    url = kafka_broker.url(kafka_broker.new_topic(2))
    with broker_queue(url) as queue:
        queue.send([str(number) for number in range(4)], headers={"Kafka-Key": "k"})
        partition = int(everything(queue, lambda taken: len(taken) == 4)[0].message_id.split("/")[1])
    hosts, _, rest = url.removeprefix("kafka://").partition("/")
    other = Consumer({"bootstrap.servers": hosts, "group.id": rest.partition("group=")[2], "log_level": 0})
    other.commit(offsets=[TopicPartition(rest.partition("?")[0], partition, 3)], asynchronous=False)
    other.close()
    with broker_queue(url) as queue:
        assert bodies(everything(queue, bool)) == [b"3"]


def test_offsets_that_are_gone_end_the_reader_unless_that_is_allowed(kafka_mock: Kafka) -> None:
    topic = f"gone-{time.monotonic_ns()}"
    Producer({"bootstrap.servers": kafka_mock.hosts, "log_level": 0}).list_topics(topic, timeout=10)
    url = kafka_mock.url(topic, f"group-of-{topic}")
    options: dict[str, Any] = {"settings": {**AT_ONCE, "partitioner": "consistent"}}
    with open_queue(url, **options) as queue:
        queue.send(["left"])
    consumer = Consumer({"bootstrap.servers": kafka_mock.hosts, "group.id": f"group-of-{topic}", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 99)], asynchronous=False)  # as if the topic was made anew
    consumer.close()
    with (
        open_queue(url, **options) as queue,
        pytest.raises(QueueConfigurationError, match=r"partition 0 has messages 0 to 0, and 99 was .*failOnDataLoss"),
    ):
        queue.receive(10, 60, 20)
    with open_queue(url, fail_on_data_loss=False, **options) as queue:
        (message,) = everything(queue, bool)
        assert message.body == b"left"
        queue.acknowledge([message.receipt])
        assert committed(url)[0] == 1


# --- notifications ---------------------------------------------------------------------------------------------------


def test_notifications_of_minio_and_ceph_are_read_as_they_come_through_kafka(url: str) -> None:
    """MinIO makes bucket and name the record's key; Ceph sets none."""
    events = ROOT / "tests" / "data" / "notifications"
    with opened(url) as queue:
        queue.send([(events / "minio" / "encoded-keys.json").read_bytes()], group="lake/in/\u00e9 1+1=100%.json")
        queue.send([(events / "s3" / "ceph.json").read_bytes()])
        messages = everything(queue, lambda taken: len(taken) == 2)
        announced = {
            notice.uri: message.headers.get("Kafka-Key")
            for message in messages
            for notice in parse_notification(message.body, message.headers, "auto", None).objects
        }
    assert announced == {
        "s3://lake/in/\u00e9 1+1=100%.json": "lake/in/\u00e9 1+1=100%.json",
        "s3://acme-landing/in/a+b %41.csv": None,
    }


# --- rebalances ------------------------------------------------------------------------------------------------------


CLASSIC = {**AT_ONCE, "group.protocol": "classic", "session.timeout.ms": "6000"}


@pytest.mark.parametrize("settings", [AT_ONCE, CLASSIC], ids=["consumer", "classic"])
def test_a_rebalance_is_a_lost_lease_and_what_was_lost_is_the_other_readers(
    kafka_mock: Kafka, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """integration/test_kafka_spark.py has it on the broker. Of the classic protocol a new member hears twice."""
    monkeypatch.setattr("queue_source.queues.kafka.reader._UNASSIGNED", 40.0)  # this server rebalances in rounds of 5 s
    topic = f"shared-{time.monotonic_ns()}"
    Producer({"bootstrap.servers": kafka_mock.hosts, "log_level": 0}).list_topics(topic, timeout=10)
    url, options = kafka_mock.url(topic, f"group-of-{topic}"), {"settings": dict(settings)}
    with open_queue(url, **options) as first, open_queue(url, **options) as second:
        for number in range(40):
            first.send([str(number)], group=str(number))
        held = everything(first, lambda taken: len(taken) == 40)
        receipts = [message.receipt for message in held]
        assert first.extend(receipts, 60) == set()
        moved = second.receive(100, 60, 0)  # it joins, and gets some of the partitions: none yet is not empty
        assert moved
        lost = first.extend(receipts, 60)
        partitions = {message.message_id.split("/")[1] for message in held if message.receipt in lost}
        assert 0 < len(lost) < 40
        of_lost = {message.message_id for message in held if message.receipt in lost}
        moved += everything(second, lambda taken: of_lost <= {m.message_id for m in [*moved, *taken]})
        assert {message.message_id.split("/")[1] for message in moved} == partitions
        assert first.acknowledge(receipts) == lost  # what was lost is not committed by this one
        assert second.acknowledge([message.receipt for message in moved]) == set()
        assert first.depth().total == 0


@pytest.mark.skipif(not EVERYTHING, reason="on the broker, which lets a second member wait for ten seconds")
def test_a_reader_without_a_partition_finds_nothing_and_takes_over_from_one_that_leaves(
    kafka_broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_source.queues.kafka.reader._UNASSIGNED", 1.0)  # seconds until it believes that
    url = kafka_broker.url(kafka_broker.new_topic(1))
    with broker_queue(url) as idle:
        with broker_queue(url) as busy:
            busy.send(["1"])
            assert len(everything(busy, bool)) == 1
            assert idle.receive(10, 60, 0) == []
        assert bodies(everything(idle, bool)) == [b"1"]


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_absent_ends_the_reader_and_is_not_created(kafka_broker: Kafka) -> None:
    """One that is deleted while it is read is not tried: librdkafka dies of what tansu answers then."""
    with broker_queue(kafka_broker.url("never-made")) as queue:
        for call in (lambda: queue.receive(1, 60, 0), lambda: queue.send(["x"]), queue.depth):
            with pytest.raises(QueueNotFound, match="does not exist"):
                call()
        manager = administered(queue)
        assert manager is not None
        assert not manager.exists()


def cuesqueue(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["queue", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_topic_is_created_looked_at_emptied_and_deleted(kafka_broker: Kafka) -> None:
    url = kafka_broker.url(f"made-{time.monotonic_ns()}")
    assert cuesqueue("info", url)["exists"] is False
    assert cuesqueue("create", url)["created"] is True
    assert cuesqueue("create", url)["created"] is False
    with broker_queue(url) as queue:
        ids = queue.send(["text", b"\xff"], tag="a.b", headers={"Kafka-Key": "k"})
        told = cuesqueue("info", url)
        assert (told["exists"], told["ready"]) == (True, 2)
        shown = cuesqueue("peek", url)["messages"]
        assert [message["message_id"] for message in shown] == ids
        assert (shown[0]["body"], shown[0]["tag"], shown[0]["headers"]) == ("text", "a.b", {"Kafka-Key": "k"})
        assert len(cuesqueue("peek", url, "--max-messages", "1")["messages"]) == 1
        assert len(everything(queue, lambda taken: len(taken) == 2)) == 2
        refused = CliRunner().invoke(app, ["queue", "purge", url, "--yes"])
        assert refused.exit_code != 0
        assert "the group has members" in refused.output
    assert cuesqueue("purge", url, "--yes")["messages"] == 2
    with broker_queue(url) as queue:
        assert queue.receive(10, 60, 0) == []
    assert cuesqueue("delete", url, "--yes")["deleted"] is True
    assert cuesqueue("info", url)["exists"] is False


# --- security --------------------------------------------------------------------------------------------------------


def test_brokers_behind_tls_are_read_with_their_authority_and_refused_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    with tansu_broker(advertised=port) as broker, tls_before(broker, port, certificate, key) as kafka:
        settings = {"security.protocol": "ssl", "ssl.ca.location": str(certificate)}
        url = kafka.url("secured")
        with broker_queue(url, settings=settings) as queue:
            manager = administered(queue)
            assert manager is not None
            manager.create()
            queue.send(["secret"])
            assert bodies(everything(queue, bool)) == [b"secret"]
        monkeypatch.setattr("queue_source.queues.kafka.service.PATIENCE", 2.0)
        with (
            broker_queue(url, settings={"security.protocol": "ssl"}) as queue,
            pytest.raises(QueueConfigurationError, match=r"TLS failed; check options 'kafka.ssl.ca.location'"),
        ):
            queue.depth()


def test_a_refused_login_ends_the_reader_without_showing_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.queues.kafka.service.PATIENCE", 2.0)
    settings = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "reader",
        "sasl.password": "n0t-t0-be-sh0wn",
    }
    with (
        tansu_broker("--authentication") as kafka,
        broker_queue(kafka.url("t"), settings=settings) as queue,
        pytest.raises(QueueConfigurationError, match="the brokers refused the login; check options") as caught,
    ):
        queue.receive(1, 60, 0)
    assert "n0t-t0" not in str(caught.value)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, which is its own authority, and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(private, hashes.SHA256())
    )
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key
