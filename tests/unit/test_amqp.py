"""RabbitMQ without a broker: URLs, and what AMQP's properties say. The rest is in integration/test_rabbitmq.py."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from pika import BasicProperties

from queue_source.errors import OptionError, QueueConfigurationError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.options import parse_reader_options
from queue_source.options.checks import check_suitability
from queue_source.queues import open_queue, queue_name
from queue_source.queues.adapter import Consumers
from queue_source.queues.amqp.address import parse_address
from queue_source.queues.amqp.messages import Delivery, properties_of_copy, received, shown_header
from queue_source.queues.base import administered
from support.sessions import LEAST


def test_a_url_is_taken_apart() -> None:
    address = parse_address(
        "amqp://me:hunt%40er@rabbit:5673/%2Fjobs?source=orders&pool=files&tags=a.*,b.#&heartbeat=30&queue_type=quorum"
    )
    assert (address.source, address.queue_type) == ("orders", "quorum")
    assert address.consumers == Consumers("files", listener=False, filters=("a.*", "b.#"), mandatory=True)
    parameters = address.parameters()
    assert (parameters.host, parameters.port, parameters.virtual_host) == ("rabbit", 5673, "/jobs")
    assert (parameters.credentials.username, parameters.credentials.password) == ("me", "hunt@er")
    assert (parameters.heartbeat, parameters.blocked_connection_timeout) == (30, 60)
    assert address.name == (
        "amqp://me:***@rabbit:5673/%2Fjobs?source=orders&pool=files&tags=a.*,b.#&heartbeat=30&queue_type=quorum"
    )


@pytest.mark.parametrize(
    ("tags", "filters"), [("", None), ("&tags=%23", ("#",)), ("&tags=#", ("#",)), ("&tags=a&tags=b,a", ("a", "b"))]
)
def test_filters_may_be_written_in_several_ways(tags: str, filters: tuple[str, ...] | None) -> None:
    address = parse_address(f"amqp://h/v?source=s&pool=p{tags}")
    assert address.consumers.filters == filters
    assert address.bindings == (filters or ("#",))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("amqp://h/v?source=s&pool=p", "p"),
        ("amqp://h/v?tags=a.#&source=s&pool=p", "p"),
        ("amqps://u:p#w@h/v?source=s", "s"),
        ("sim://orders?dir=d", "orders"),
        ("sim://orders?dir=d&tags=#&pool=p", "p"),
    ],
)
def test_the_short_name_is_that_of_the_pool(url: str, name: str) -> None:
    assert queue_name(url) == name


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("", "needs source=NAME"),
        ("?pool=p", "needs source=NAME"),
        ("?source=s&pool=", "pool= needs 1 to 255 bytes"),
        (f"?source={'s' * 256}", "source= needs 1 to 255 bytes"),
        ("?source=amq.topic", "the broker's own"),
        ("?source=s&pool=p&listener=true", "leave pool= or listener=true out"),
        ("?source=s&listener=1", "neither true nor false"),
        ("?source=s&pool=p&tags=", "write '#' for all"),
        ("?source=s&tags=a", "add pool=NAME or listener=true"),
        ("?source=s&pool=p&queue_type=lazy", "classic or quorum"),
        ("?source=s&pool=p&consumer_timeout=30m", "a number of seconds"),
        ("/extra?source=s", "write it as %2F"),
        ("?source=s&heartbeat=soon", "check heartbeat"),
        ("?source=s&ssl_options={'ca_certs':'/absent.pem'}", "check ssl_options"),
    ],
)
def test_a_wrong_url_says_what_to_write_and_keeps_the_password(rest: str, problem: str) -> None:
    scheme = "amqps" if "ssl" in rest else "amqp"
    with pytest.raises(QueueConfigurationError) as told:
        open_queue(f"{scheme}://me:hunter2@rabbit/vhost{rest}")
    assert problem in str(told.value)
    assert "hunter2" not in str(told.value)


def test_opening_connects_to_nothing_and_starts_nothing() -> None:
    with open_queue("amqp://me:hunter2@rabbit/vhost?source=s&pool=p") as queue:
        assert administered(queue)
        assert queue.capabilities.lease_cap == 1620
    with pytest.raises(QueueConfigurationError, match="closed"):
        queue.depth()


def test_a_port_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://me:hunter2@127.0.0.1:{silent.getsockname()[1]}/?source=s&pool=p&socket_timeout=1&stack_timeout=1"
        with open_queue(url) as queue, pytest.raises(QueueUnavailable) as told:
            queue.send(["x"])
    assert "hunter2" not in str(told.value)


def test_closing_ends_a_call_that_is_still_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        queue = open_queue(f"amqp://127.0.0.1:{silent.getsockname()[1]}/?source=s&pool=p&stack_timeout=600")
        calling = pool.submit(queue.depth)
        connection, _ = silent.accept()
        with connection:
            queue.close()
            with pytest.raises(QueueConfigurationError, match="closed"):
                calling.result(20)


def test_what_amqp_cannot_carry_is_refused_before_anything_is_sent() -> None:
    with open_queue("amqp://h:1/?source=s&pool=p") as queue:
        for wrong in ({"tag": "x" * 256}, {"headers": {"k" * 256: "v"}}, {"headers": {"k": "\ud800"}}, {"group": "g"}):
            with pytest.raises(ValueError):  # noqa: PT011 - texts of several kinds
                queue.send(["x"], **wrong)


# --- properties ------------------------------------------------------------------------------------------------------


def delivered(
    body: bytes = b"x", key: str = "a.b", exchange: str = "s", redelivered: bool = False, **properties: Any
) -> Received:
    method = SimpleNamespace(routing_key=key, exchange=exchange, redelivered=redelivered)
    return received(Delivery(method, BasicProperties(**properties), body), "q", Receipt("r"), 1.0)


def test_the_receive_count_is_what_the_broker_tells() -> None:
    assert delivered().receive_count == 1
    assert delivered(redelivered=True).receive_count == 2
    assert delivered(redelivered=True, headers={"x-delivery-count": 4}).receive_count == 5


def test_what_a_sender_may_write_in_the_place_of_ids_times_and_counts_ends_nothing() -> None:
    assert delivered(message_id=b"\xff1").message_id == "\\xff1"
    assert delivered(timestamp=1_764_500_000).sent_at == 1_764_500_000
    for wrong in (1_764_500_000_000, 2**64 - 1):  # milliseconds; in AMQP it is seconds
        assert delivered(timestamp=wrong).sent_at is None
    for count in (2**40, -5):
        assert delivered(headers={"x-delivery-count": count}).receive_count == 1


def nested(depth: int) -> bytes:
    field = b"V"
    for _ in range(depth):
        field = b"A" + struct.pack(">I", len(field)) + field
    return field


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (struct.pack(">cQ", b"T", 1_764_500_000), "2025-11-30T10:53:20+00:00"),
        (struct.pack(">cQ", b"T", 1_764_500_000_000), "1764500000000"),
        (struct.pack(">cQ", b"T", 2**64 - 1), str(2**64 - 1)),
        (nested(2), "[[null]]"),
        (nested(20_000), None),
    ],
    ids=["time", "milliseconds", "the last", "nested", "deeply nested"],
)
def test_a_header_that_pika_cannot_decode_does_not_end_the_connection(field: bytes, text: str | None) -> None:
    table = b"\x01t" + field + b"\x01u\x53" + struct.pack(">I", 1) + b"x"
    properties = BasicProperties()
    properties.decode(struct.pack(">HI", properties.FLAG_HEADERS, len(table)) + table)
    shown = delivered(headers=properties.headers).headers
    assert shown["u"] == "x"
    assert text is None or shown["t"] == text


def test_headers_are_text() -> None:
    assert shown_header("text") == "text"
    assert shown_header(5) == "5"
    assert shown_header(True) == "true"
    assert shown_header(None) == "null"
    assert shown_header([{"a": b"x"}, datetime(2024, 1, 1, tzinfo=timezone.utc)]) == (
        '[{"a": "x"}, "2024-01-01T00:00:00+00:00"]'
    )


def test_a_message_without_an_id_is_what_it_says() -> None:
    same = [delivered(), delivered(redelivered=True), delivered(headers={"x-delivery-count": 3, "x-death": [1]})]
    assert len({message.message_id for message in same}) == 1
    others = [delivered(b"y"), delivered(key="c"), delivered(headers={"k": "v"}), delivered(timestamp=5)]
    assert len({message.message_id for message in [*same, *others]}) == 5
    assert delivered(message_id="mine").message_id == "mine"


def test_a_copy_keeps_what_it_may_and_says_where_it_came_from() -> None:
    original = BasicProperties(
        headers={"n": 5, "CC": ["other"], "x-delivery-count": 2, "Republish-Count": "3"},
        content_type="text/plain",
        user_id="somebody",
        message_id="first",
        timestamp=7,
    )
    copy = properties_of_copy(original, "a.b")
    assert copy.headers == {"n": 5, "Republish-Count": "4", "Republish-Tag": "a.b"}
    assert (copy.content_type, copy.user_id, copy.timestamp) == ("text/plain", None, 7)
    assert copy.message_id != "first"
    back = delivered(key="pool", exchange="", headers=copy.headers)
    assert (back.tag, back.headers) == ("a.b", {"n": "5", "Republish-Count": "4"})


def test_a_tag_in_a_header_counts_only_for_what_came_straight_to_the_queue() -> None:
    assert delivered(headers={"Republish-Tag": "forged"}).tag == "a.b"


# --- listeners -------------------------------------------------------------------------------------------------------


LISTENERS = ("amqp://h/v?source=s&listener=true", "sim://s?dir=d&listener=true")


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("url", LISTENERS)
def test_a_listener_is_refused_where_nothing_may_be_lost(url: str, semantics: str) -> None:
    options = parse_reader_options({**LEAST, "queueUrl": url, "deliverySemantics": semantics})
    told = f"'queueUrl'.*is a listener.*lost.*at-most-once and not with {semantics}.*pool=NAME"
    with open_queue(url) as queue, pytest.raises(OptionError, match=told):
        check_suitability([queue], options)


@pytest.mark.parametrize("url", LISTENERS)
def test_a_listener_is_suitable_for_at_most_once(url: str) -> None:
    options = parse_reader_options({**LEAST, "queueUrl": url, "deliverySemantics": "at-most-once"})
    with open_queue(url) as queue:
        check_suitability([queue], options)


def test_a_pool_is_suitable() -> None:
    url = "amqp://h/v?source=s&pool=p"
    with open_queue(url) as queue:
        check_suitability([queue], parse_reader_options({**LEAST, "queueUrl": url}))
