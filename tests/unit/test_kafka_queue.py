"""Kafka's adapter without brokers: its URLs, its settings, what may be committed, librdkafka's errors in our names."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt
from queue_source.queues import open_queue
from queue_source.queues.kafka.address import LASTING, parse_address, translated
from queue_source.queues.kafka.messages import KEY, TAG, WIDEST, Held, Ledger, OffsetsGone, first_offset, record_of
from queue_source.queues.kafka.reader import Reader
from queue_source.queues.kafka.service import Service
from queue_source.queues.urls import canonical, queue_name

URL = "kafka://h1:9092,h2:9093/landing?group=g"
SECRET = "n0t-t0-be-sh0wn"


def test_the_url_names_brokers_topic_and_group() -> None:
    address = parse_address("kafka://h1,h2:9093,[::1]:7/landing.v1_a-b?group=read%20ers", {})
    assert address.hosts == "h1:9092,h2:9093,[::1]:7"
    assert (address.topic, address.group) == ("landing.v1_a-b", "read ers")
    assert parse_address("kafka://h/landing", {}).group is None
    assert queue_name(URL) == "landing"
    assert {canonical(url) for url in (URL, "kafka://H2:9093,h1/landing?group=other")} == {
        "kafka://h1:9092,h2:9093/landing"
    }


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://h:9092", "names no topic"),
        ("kafka:///landing", "is not HOST:PORT"),
        ("kafka://h:x/landing", "is not HOST:PORT"),
        ("kafka://h,/landing", "is not HOST:PORT"),
        ("kafka://h/a/b", "names no topic"),
        ("kafka://h/a%20b", "names no topic"),
        ("kafka://h/..", "names no topic"),
        (f"kafka://u:{SECRET}@h/t", "'kafka.sasl.username'"),
        ("kafka://h/t?group=", "an empty group"),
        ("kafka://h/t?sasl.username=u", "options kafka.SETTING"),
    ],
)
def test_other_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(QueueConfigurationError, match=problem) as caught:
        open_queue(url)
    assert SECRET not in str(caught.value)


def test_settings_that_are_the_adapters_own_are_refused() -> None:
    with pytest.raises(QueueConfigurationError, match=r"'kafka.group.id' .*\?group=GROUP"):
        open_queue(URL, settings={"group.id": "g"})
    with pytest.raises(QueueConfigurationError, match="earliest or latest"):
        open_queue(URL, starting_offsets="now")


def test_what_reads_needs_a_group() -> None:
    with open_queue("kafka://127.0.0.1:1/t") as queue, pytest.raises(QueueConfigurationError, match="names no group"):
        queue.receive(1, 60, 0)


@pytest.mark.parametrize("settings", [{"nonsense": "1"}, {"session.timeout.ms": "soon"}, {"ssl.key.pem": SECRET}])
def test_a_wrong_setting_is_named_without_its_secret(settings: dict[str, str]) -> None:
    more = {"security.protocol": "ssl"} if "ssl.key.pem" in settings else {}
    with (
        open_queue(URL, settings={**settings, **more}) as queue,
        pytest.raises(QueueConfigurationError, match=next(iter(settings))) as caught,
    ):
        queue.receive(1, 60, 0)
    assert SECRET not in str(caught.value)


def test_brokers_that_are_away_may_come_back() -> None:
    settings = {"socket.connection.setup.timeout.ms": "1000"}
    with (
        open_queue("kafka://127.0.0.1:1/t?group=g", settings=settings) as queue,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr("queue_source.queues.kafka.service.PATIENCE", 0.3)
        for call in (lambda: queue.receive(1, 60, 0), queue.depth, lambda: queue.send(["x"])):
            with pytest.raises(QueueUnavailable):
                call()


def test_errors_say_whether_waiting_helps_and_hide_secrets() -> None:
    address = parse_address(URL, {"sasl.password": SECRET, "sasl.username": "reader"})
    for code, step in LASTING.items():
        error = translated(KafkaError(code, f"no: {SECRET} of reader"), address, "reading")
        assert isinstance(error, QueueConfigurationError)
        assert step in str(error)
        assert SECRET not in str(error)
        assert "reader" in str(error)
    assert isinstance(translated(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), address, "x"), QueueNotFound)
    for passing in (KafkaError._TRANSPORT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._ALL_BROKERS_DOWN):
        assert isinstance(translated(KafkaError(passing), address, "x"), QueueUnavailable)
    assert SECRET not in repr(address)


# --- what may be committed -------------------------------------------------------------------------------------------


def test_only_what_is_done_without_a_gap_may_be_committed() -> None:
    ledger = Ledger(0, "e", 5, 5)
    held = [ledger.hand_out(offset, None) for offset in (5, 6, 9)]  # 7 and 8 have no records
    assert (ledger.low, ledger.is_dirty) == (5, False)
    _finish(ledger, held[1])
    assert ledger.low == 5
    _finish(ledger, held[0])
    assert (ledger.low, ledger.is_dirty) == (9, True)
    _finish(ledger, held[2])
    assert ledger.low == 10
    ledger.reach_end(12)  # after the marker of a transaction
    assert (ledger.low, ledger.at_end) == (12, True)
    assert ledger.hand_out(11, None) is None


def _finish(ledger: Ledger, held: Held | None) -> None:
    assert held is not None
    ledger.finish(held)


@given(st.data())
def test_in_any_order_the_lowest_unfinished_offset_is_committed(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1)))
    ledger = Ledger(0, "e", 0, 0)
    held: dict[int, Held] = {}
    for offset in offsets:
        record = ledger.hand_out(offset, None)
        assert record is not None
        held[offset] = record
    for offset in data.draw(st.permutations(offsets)):
        ledger.finish(held.pop(offset))
        assert ledger.low == min(held, default=offsets[-1] + 1)
        assert len(ledger._unfinished) == len(held)


def test_a_partition_whose_oldest_message_is_not_done_gets_no_wider() -> None:
    ledger = Ledger(0, "e", 0, 0)
    first = ledger.hand_out(0, None)
    _finish(ledger, ledger.hand_out(WIDEST, None))
    assert ledger.is_wide
    _finish(ledger, first)
    assert not ledger.is_wide


@pytest.mark.parametrize(
    ("committed", "is_new", "starting", "offset"),
    [
        (7, False, "latest", 7),
        (None, True, "earliest", 3),
        (None, True, "latest", 9),
        (None, False, "latest", 3),  # a partition that was added later
        (9, False, "earliest", 9),
        (3, False, "earliest", 3),
    ],
)
def test_a_group_begins_where_it_was_or_where_the_option_says(
    committed: int | None, is_new: bool, starting: str, offset: int
) -> None:
    assert first_offset(committed, (3, 9), is_new_group=is_new, starting=starting) == offset


def test_messages_that_were_deleted_unread_are_told() -> None:
    with pytest.raises(OffsetsGone, match="messages 1 to 2 were deleted"):
        first_offset(1, (3, 9), is_new_group=False, starting="latest")


# --- records ---------------------------------------------------------------------------------------------------------


def test_the_group_or_the_header_becomes_the_key() -> None:
    record = record_of(Outgoing(b"v", "a.b", {KEY: "k", "h": "\u00fc"}), 1000)
    assert (record.key, record.headers) == (b"k", [("h", "\u00fc".encode()), (TAG, b"a.b")])
    assert record_of(Outgoing(b"v", group="g"), 1000).key == b"g"
    assert record_of(Outgoing(b"v"), 1000) == (b"v", None, [])


@pytest.mark.parametrize(
    "message", [Outgoing(b"x" * 900), Outgoing(b"", headers={TAG: "t"}), Outgoing(b"", group="\ud800")]
)
def test_what_kafka_would_refuse_is_refused_before_anything_is_sent(message: Any) -> None:
    with pytest.raises(ValueError, match=r"kafka.message.max.bytes|cuesqueue's own|surrogates"):
        record_of(message, 1000)


# --- what is known of the group --------------------------------------------------------------------------------------


def test_who_lost_its_partitions_or_has_none_yet_has_not_come_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else AvailableNow would end before the others let partitions go, or before the group lets us in again."""
    address = parse_address(URL, {})
    reader = Reader(address, Service(address), lambda _: None, starting="earliest", fails=True)
    client = SimpleNamespace(incremental_assign=lambda _: None, incremental_unassign=lambda _: None)
    assert not reader._is_settled()
    reader._on_assign(client, [])
    assert not reader._is_settled()
    monkeypatch.setattr("queue_source.queues.kafka.reader._UNASSIGNED", -1.0)
    assert reader._is_settled()
    reader._on_lost(client, [])
    assert not reader._is_settled()


def record(offset: int) -> Any:
    """A record of the client, which makes none without brokers."""
    raw = MagicMock(**{"error.return_value": None, "partition.return_value": 0, "offset.return_value": offset})
    raw.__len__.return_value = 1
    return raw


def test_a_record_whose_partition_is_lost_while_more_are_fetched_is_not_kept_for_the_next_assignment() -> None:
    """It would be handed out there before those that are not done, which then would be taken for older ones."""
    address = parse_address(URL, {})
    reader = Reader(address, Service(address), lambda _: None, starting="earliest", fails=True)
    place = TopicPartition("landing", 0)
    reader._ledgers[0] = Ledger(0, "before", 5, 5)

    def consume(*_: object) -> list[Any]:
        reader._on_lost(reader._consumer, [place])
        return []

    reader._consumer = SimpleNamespace(consume=consume, incremental_unassign=lambda _: None)
    reader._fill(record(9))
    reader._ledgers[0] = Ledger(0, "after", 5, 5)
    assert reader._take(10, 0.0) == []
    assert reader._ledgers[0].position == 5


def test_whatever_ends_the_polling_thread_is_told_to_who_receives() -> None:
    address = parse_address(URL, {"sasl.password": SECRET})
    reported: list[QueueError] = []
    reader = Reader(address, Service(address), reported.append, starting="earliest", fails=True)

    def poll(_: float) -> None:
        raise RuntimeError(f"no {SECRET}")

    reader._consumer = SimpleNamespace(poll=poll, close=lambda: None)
    reader._run()
    with pytest.raises(QueueUnavailable, match="RuntimeError: no ") as caught:
        reader.receive(1, 60, 0)
    assert SECRET not in str(caught.value)
    assert reported == [caught.value]


def test_offsets_that_the_brokers_refuse_are_told_once_until_they_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    address = parse_address(URL, {})
    reported: list[QueueError] = []
    reader = Reader(address, Service(address), reported.append, starting="earliest", fails=True)
    reader._ledgers[0] = Ledger(0, "epoch", 5, 3)
    errors: list[KafkaError | None] = [KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)] * 2

    def commit(offsets: list[Any], asynchronous: bool) -> list[Any]:
        error = errors.pop(0) if errors else None
        return [SimpleNamespace(partition=0, offset=place.offset, error=error) for place in offsets]

    reader._consumer = SimpleNamespace(commit=commit)
    reader._heard = time.monotonic()
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        reader._commit()
        reader._commit()
    assert [error.problem.partition(":")[0] for error in reported] == ["committing partition 0"]
    assert caplog.text.count("committing partition 0") == 1
    reader._commit()
    assert reader._ledgers[0].committed == 5
    assert not reader._uncommitted


def test_partitions_that_pass_to_others_with_messages_in_flight_are_told() -> None:
    address = parse_address(URL, {})
    reported: list[QueueError] = []
    reader = Reader(address, Service(address), reported.append, starting="earliest", fails=True)
    client = SimpleNamespace(incremental_unassign=lambda _: None)
    reader._ledgers |= {0: Ledger(0, "e", 0, 0), 1: Ledger(1, "e", 0, 0)}
    reader._ledgers[0].hand_out(0, record(0))
    held = next(iter(reader._ledgers[0]._unfinished.values()))
    reader._receipts[Receipt("r")] = held
    reader._on_lost(client, [TopicPartition("landing", 1)])
    assert reported == []
    reader._on_lost(client, [TopicPartition("landing", 0)])
    assert [error.problem for error in reported] == [
        "1 partition(s) passed to other members of the group; 1 message(s) in flight come again there"
    ]
