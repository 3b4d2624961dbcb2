"""Kafka's reader where brokers go, answers fail, and other programs write what nobody should. Over the mock cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Producer

from queue_source.errors import QueueNotFound, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import administered
from queue_source.queues.kafka.messages import received
from queue_source.queues.kafka.service import Service
from support.servers.kafka import AT_ONCE, SINGLE, Kafka, tansu_broker

OPTIONS: dict[str, Any] = {"settings": {**AT_ONCE, "partitioner": "consistent"}}
"""Records without a key go to one partition."""
PATIENCE = 40.0


@pytest.fixture
def url(kafka_mock: Kafka) -> str:
    topic = f"trouble-{time.monotonic_ns()}"
    Producer({"bootstrap.servers": kafka_mock.hosts, "log_level": 0}).list_topics(topic, timeout=10)
    return kafka_mock.url(topic, f"group-of-{topic}")


def everything(queue: Queue, until: Callable[[list[Received]], bool] = bool) -> list[Received]:
    taken: list[Received] = []
    deadline = time.monotonic() + PATIENCE
    while not until(taken):
        assert time.monotonic() < deadline, [message.body for message in taken]
        taken += queue.receive(100, 60, 0.2)
    return taken


# --- what other programs write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("milliseconds", [1_795_630_105_726_000_000, 1_795_630_105_726_000])
def test_a_time_that_is_none_is_left_out(url: str, kafka_mock: Kafka, milliseconds: int) -> None:
    """Nanoseconds are too large for the store, microseconds for Python's dates."""
    producer = Producer({"bootstrap.servers": kafka_mock.hosts, "log_level": 0})
    producer.produce(url.partition("?")[0].rpartition("/")[2], b"late", timestamp=milliseconds)
    assert producer.flush(10) == 0
    with open_queue(url, **OPTIONS) as queue:
        queue.send(["now"])
        sent = {message.body: message.sent_at for message in everything(queue, lambda taken: len(taken) == 2)}
    assert sent[b"late"] is None
    now = sent[b"now"]
    assert now is not None
    assert datetime.fromtimestamp(now, timezone.utc).year == datetime.now(timezone.utc).year


def test_headers_that_the_client_cannot_read_keep_no_message_back(caplog: pytest.LogCaptureFixture) -> None:
    """The client raises SystemError for a name that is not UTF-8; no sender of it writes one."""

    def headers() -> list[Any]:
        raise SystemError("returned a result with an exception set")

    raw = SimpleNamespace(
        headers=headers,
        key=lambda: None,
        value=lambda: b"s3://b/k",
        topic=lambda: "t",
        partition=lambda: 1,
        offset=lambda: 7,
        timestamp=lambda: (TIMESTAMP_CREATE_TIME, 5),
    )
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        message = received(raw, "q", Receipt("r"), 1, 0.0)
    assert (message.body, message.headers, message.sent_at) == (b"s3://b/k", {}, 0.005)
    assert "t/1/7" in caplog.text


# --- questions that fail ---------------------------------------------------------------------------------------------


def test_a_question_that_fails_keeps_no_message_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> tuple[int, int]:
        raise QueueUnavailable("q", "the leader moved")

    with open_queue(url, **OPTIONS) as queue:
        assert queue.receive(10, 60, 0) == []
        monkeypatch.setattr(Service, "bounds", unavailable)
        queue.send(["1"])
        deadline = time.monotonic() + PATIENCE
        taken: list[Received] = []
        while not taken:
            assert time.monotonic() < deadline
            try:
                taken += queue.receive(10, 60, 0)
            except QueueUnavailable:
                time.sleep(0.05)
        assert taken[0].body == b"1"


def test_a_topic_that_is_deleted_under_way_is_not_taken_for_an_empty_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers of these tests delete none without a crash of librdkafka: what they would answer is made up."""

    def absent(*_: object) -> tuple[int, int]:
        raise QueueNotFound("q", "reading offsets: the topic does not exist")

    with open_queue(url, **OPTIONS) as queue:
        assert queue.receive(10, 60, 0) == []
        monkeypatch.setattr(Service, "bounds", absent)
        with pytest.raises(QueueNotFound, match="the topic does not exist"):
            queue.receive(10, 60, 0)


def test_messages_that_are_deleted_while_they_wait_here_end_no_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_queue(url, **OPTIONS) as queue:
        queue.send(["1", "2"])
        messages = everything(queue, lambda taken: len(taken) == 2)
        queue.nack([message.receipt for message in messages])
        monkeypatch.setattr(Service, "bounds", lambda *_: (2, 2))  # as retention leaves it
        assert queue.depth().ready == 0


def test_a_look_at_less_than_is_asked_for_waits_for_nothing(url: str) -> None:
    with open_queue(url, **OPTIONS) as queue:
        queue.send(["1", "2"])
        manager = administered(queue)
        assert manager is not None
        started = time.monotonic()
        assert [message.body for message in manager.peek(10)] == [b"1", b"2"]
        assert time.monotonic() - started < 4


# --- memory ----------------------------------------------------------------------------------------------------------


def test_large_messages_that_nobody_takes_fill_no_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.queues.kafka.reader._BYTES", 500_000)
    settings = {**OPTIONS["settings"], "queued.max.messages.kbytes": "500", "fetch.message.max.bytes": "300000"}
    with open_queue(url, settings=settings) as queue:
        for number in range(16):  # the mock cluster keeps five megabytes of a partition
            queue.send([number.to_bytes(1, "big") * 300_000])
        taken = queue.receive(1, 60, 10)
        time.sleep(2)
        reader = getattr(queue, "_reader")  # noqa: B009
        assert sum(map(len, reader._buffer)) < 2_500_000
        taken += everything(queue, lambda more: len(more) == 15)
        assert [message.body[0] for message in taken] == [*range(16)]


# --- brokers that are away -------------------------------------------------------------------------------------------


def test_brokers_that_are_silent_are_waited_for_with_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_source.queues.kafka.service._SILENCE", 0.1)
    monkeypatch.setattr("queue_source.queues.kafka.service.PATIENCE", 0.5)
    with (
        open_queue("kafka://127.0.0.1:1/absent?group=g") as queue,
        caplog.at_level(logging.WARNING, "cuesqueue"),
    ):
        for _ in range(2):
            with pytest.raises(QueueUnavailable):
                queue.depth()
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "reading the topic: the brokers do not answer yet; they have 0 s"
    ]


def test_a_reader_without_brokers_acknowledges_and_closes_soon() -> None:
    """librdkafka itself tries a commit for all of the session's time-out, here six seconds."""
    with ExitStack() as brokers:
        broker = brokers.enter_context(tansu_broker())
        url = broker.url(broker.new_topic(1))
        with open_queue(url, settings=dict(SINGLE)) as queue:
            queue.send(["1"])
            (message,) = everything(queue)
            time.sleep(1.0)
            brokers.close()
            started = time.monotonic()
            with pytest.raises(QueueUnavailable, match="committing offsets"):
                queue.acknowledge([message.receipt])
            acknowledged = time.monotonic()
            queue.close()
            assert max(acknowledged - started, time.monotonic() - acknowledged) < 4.5
