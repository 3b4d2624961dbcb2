"""The RabbitMQ adapter beyond the contract: topology, filters, faults, permissions, and what brokers refuse."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.test_pages import Reader
from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues import open_queue
from queue_source.queues.amqp import AmqpQueue
from queue_source.tags import matches
from support.driver_loop import until
from support.servers.debian import NotInstalled
from support.servers.proxy import TcpProxy, tcp_proxy
from support.servers.rabbitmq import RabbitServer, rabbitmq_server
from support.snippets import ROOT, blocks
from support.tag_table import TABLE


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    try:
        with rabbitmq_server() as started:
            yield started
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def name() -> str:
    """Of a source and of its pools: every test has its own."""
    return f"t-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def url(server: RabbitServer, name: str) -> str:
    return f"{server.url}?source={name}&pool={name}"


@contextmanager
def native(server: RabbitServer) -> Iterator[Any]:
    """A channel of pika's own, as other programs have."""
    connection = pika.BlockingConnection(pika.URLParameters(f"{server.url}?heartbeat=0"))  # idle for long
    try:
        yield connection.channel()
    finally:
        connection.close()


def receipts(messages: list[Received]) -> list[Receipt]:
    return [message.receipt for message in messages]


def take(queue: AmqpQueue, most: int = 1000, wait: float = 2.0) -> list[Received]:
    return queue.receive(most, 60, wait)


def drained(queue: AmqpQueue) -> list[bytes]:
    seen: list[bytes] = []
    while taken := take(queue, wait=0.3):
        seen += [message.body for message in taken]
        queue.acknowledge(receipts(taken))
    return seen


def patiently(work: Callable[[], Any]) -> Any:
    """Try as a coordinator does, for half a minute."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return work()
        except QueueUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# --- tags ------------------------------------------------------------------------------------------------------------


class Exchange:
    """Asks the broker whether a filter lets a tag pass: which of the queues bound by filters get a message."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._exchange = f"t-{uuid.uuid4().hex}"
        channel.exchange_declare(self._exchange, "topic")
        self._queue = channel.queue_declare("", exclusive=True).method.queue

    def passes(self, tag_filter: str, tag: str) -> bool:
        self._channel.queue_bind(self._queue, self._exchange, tag_filter)
        self._channel.basic_publish(self._exchange, tag, b"x")
        self._channel.queue_unbind(self._queue, self._exchange, tag_filter)
        return bool(self._channel.queue_purge(self._queue).method.message_count)


@pytest.fixture(scope="module")
def exchange(server: RabbitServer) -> Iterator[Exchange]:
    with native(server) as channel:
        yield Exchange(channel)


def test_the_table_of_tags_is_what_the_broker_does(exchange: Exchange) -> None:
    assert [(f, t, exchange.passes(f, t)) for f, t, _ in TABLE] == list(TABLE)


WORDS = st.sampled_from(["a", "b", "A", "", "*", "#"])


@settings(max_examples=400, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5).map(".".join).filter(bool), st.lists(WORDS, max_size=5).map(".".join))
def test_the_matcher_agrees_with_the_broker(exchange: Exchange, tag_filter: str, tag: str) -> None:
    assert matches(tag_filter, tag) is exchange.passes(tag_filter, tag)


# --- sources and pools -----------------------------------------------------------------------------------------------


def test_each_pool_gets_a_copy_and_one_pool_with_two_filters_gets_each_message_once(
    server: RabbitServer, name: str
) -> None:
    source = f"{server.url}?source={name}"
    with (
        AmqpQueue(f"{source}&pool={name}-all") as everything,
        AmqpQueue(f"{source}&pool={name}-two&tags=orders.*,#.eu") as two,
        AmqpQueue(source) as publisher,
    ):
        everything.create()
        two.create()
        for tag in ("orders.eu", "orders.us", "bills.de.eu", "bills", ""):
            publisher.publish([tag], tag=tag)
        assert drained(everything) == [b"orders.eu", b"orders.us", b"bills.de.eu", b"bills", b""]
        assert drained(two) == [b"orders.eu", b"orders.us", b"bills.de.eu"]


def test_a_pool_that_is_there_keeps_its_filters_when_the_url_names_none(server: RabbitServer, name: str) -> None:
    source = f"{server.url}?source={name}"
    with AmqpQueue(f"{source}&pool={name}&tags=a") as first, AmqpQueue(f"{source}&pool={name}") as second:
        first.create()
        second.create()
        with pytest.raises(QueueConfigurationError, match=r"no pool of source .* takes messages with the tag 'b'"):
            second.publish(["x"], tag="b")
        second.publish(["x"], tag="a")
        assert second.depth().ready == 1


def test_what_nobody_takes_is_an_error_unless_the_url_says_otherwise(server: RabbitServer, name: str) -> None:
    with (
        AmqpQueue(f"{server.url}?source={name}") as strict,
        AmqpQueue(f"{server.url}?source={name}&mandatory=false") as free,
    ):
        with pytest.raises(QueueConfigurationError, match=r"3 of 3 were not sent.*mandatory=false"):
            strict.publish(["x", "y", "z"])
        assert len(free.publish(["x"])) == 1


def test_a_republished_message_goes_to_its_own_pool_only_and_keeps_its_tag(server: RabbitServer, name: str) -> None:
    source = f"{server.url}?source={name}"
    with AmqpQueue(f"{source}&pool={name}-1") as one, AmqpQueue(f"{source}&pool={name}-2") as two:
        one.create()
        two.create()
        one.publish(["x"], tag="a.b", headers={"trace": "7"})
        (message,) = take(one)
        assert one.republish(message)
        (copy,) = take(one)
        assert (copy.tag, copy.headers) == ("a.b", {"trace": "7", "Republish-Count": "1"})
        assert len(drained(two)) == 1


def test_source_and_pool_exist_until_they_are_deleted(server: RabbitServer, name: str) -> None:
    with (
        AmqpQueue(f"{server.url}?source={name}") as source,
        AmqpQueue(f"{server.url}?source={name}&pool={name}") as pool,
    ):
        assert not source.exists()
        assert not pool.exists()
        pool.create()
        assert source.exists()
        assert pool.exists()
        pool.publish(["1", "2"])
        assert [message.body for message in pool.peek(1)] == [b"1"]
        assert pool.purge() == 2
        pool.delete()
        assert not pool.exists()
        source.delete()
        assert not source.exists()
        with pytest.raises(QueueConfigurationError, match="does not exist"):
            pool.purge()


def test_a_deleted_queue_is_made_again_by_the_next_call(url: str) -> None:
    with AmqpQueue(url) as queue, AmqpQueue(url) as admin:
        queue.publish(["gone"])
        with ThreadPoolExecutor(1) as pool:
            assert len(take(queue)) == 1
            waiting = pool.submit(queue.receive, 10, 60, 20)
            time.sleep(0.3)
            admin.delete()
            with pytest.raises(QueueUnavailable, match=r"was queue .* deleted"):
                waiting.result(20)
        queue.publish(["new"])
        assert drained(queue) == [b"new"]


def test_a_source_alone_cannot_be_read(server: RabbitServer, name: str) -> None:
    with AmqpQueue(f"{server.url}?source={name}") as queue:
        for use in (lambda: take(queue), queue.depth, queue.purge):
            with pytest.raises(QueueConfigurationError, match=r"add pool=NAME"):
                use()


# --- listeners -------------------------------------------------------------------------------------------------------


def test_listeners_each_get_what_is_sent_while_they_listen_and_leave_nothing_behind(
    server: RabbitServer, name: str
) -> None:
    source = f"{server.url}?source={name}&mandatory=false"
    with AmqpQueue(source) as publisher:
        publisher.publish(["before"], tag="a")
        with AmqpQueue(f"{source}&listener=true&tags=a.%23") as one, AmqpQueue(f"{source}&listener=true") as two:
            assert one.capabilities.loses_while_closed
            assert take(one, wait=0) == take(two, wait=0) == []
            publisher.publish(["1"], tag="a.b")
            publisher.publish(["2"], tag="c")
            assert drained(one) == [b"1"]
            assert drained(two) == [b"1", b"2"]
        assert name not in server.control("list_queues", "name")


# --- connections that end --------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: RabbitServer) -> Iterator[TcpProxy]:
    with tcp_proxy(server.port) as started:
        yield started


@pytest.fixture
def through(proxy: TcpProxy, url: str, server: RabbitServer) -> Iterator[AmqpQueue]:
    with AmqpQueue(url.replace(f":{server.port}/", f":{proxy.port}/")) as queue:
        yield queue


def test_after_a_cut_the_receipts_are_stale_and_the_messages_come_again(
    through: AmqpQueue, proxy: TcpProxy, url: str
) -> None:
    through.publish(["1", "2", "3"])
    before = take(through)
    assert through.acknowledge(receipts(before[:1])) == set()
    proxy.cut_all()
    patiently(through.depth)
    assert through.extend(receipts(before), 60) == set(receipts(before))
    assert through.acknowledge(receipts(before)) == set(receipts(before))
    through.nack(receipts(before))
    through.reject(receipts(before))
    assert through.republish(before[1]) is False
    again = patiently(lambda: take(through))
    assert [message.body for message in again] == [b"2", b"3"]
    assert {message.receive_count for message in again} == {2}
    assert {message.message_id for message in again} == {message.message_id for message in before[1:]}
    assert through.acknowledge(receipts(again)) == set()
    with AmqpQueue(url) as other:
        assert take(other, wait=0.2) == []


def test_a_lost_connection_is_told_to_the_hook_with_what_it_held(
    proxy: TcpProxy, url: str, server: RabbitServer
) -> None:
    told: list[QueueError] = []
    there = url.replace(f":{server.port}/", f":{proxy.port}/")
    with open_queue(there, max_outstanding=2, on_error=told.append) as queue:
        queue.send(["1", "2", "3"])
        assert len(queue.receive(10, 60, 5)) == 2
        assert queue.receive(10, 60, 0) == []
        proxy.cut_all()
        until(lambda: bool(told), lambda: time.sleep(0.05))
        assert len(patiently(lambda: queue.receive(10, 60, 5))) == 2  # the cap counts no message of the lost connection
    (error,) = told  # and nothing of our own end
    assert isinstance(error, QueueUnavailable)
    assert "2 message(s) in flight come again" in error.problem


def test_a_receive_that_waits_when_the_connection_ends_says_so(through: AmqpQueue, proxy: TcpProxy) -> None:
    through.create()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(through.receive, 10, 60, 60)
        time.sleep(0.3)
        proxy.cut_all()
        with pytest.raises(QueueUnavailable, match="the connection failed"):
            waiting.result(20)
    through.publish(["x"])
    assert drained(through) == [b"x"]


def test_what_was_published_is_there_at_least_once_when_the_connection_ends_in_the_middle(
    through: AmqpQueue, proxy: TcpProxy, url: str
) -> None:
    bodies = [str(number) for number in range(40_000)]
    with ThreadPoolExecutor(1) as pool, AmqpQueue(url) as other:
        other.create()
        sending = pool.submit(through.publish, bodies)
        while other.depth().ready < 500:
            time.sleep(0.005)
        proxy.cut_all()
        with pytest.raises(QueueUnavailable):
            sending.result(30)
        through.publish(bodies)
        seen = drained(other)
    assert len(bodies) < len(seen) < 2 * len(bodies)
    assert set(seen) == {body.encode() for body in bodies}


def test_a_broker_that_falls_silent_is_noticed_by_its_heartbeats(server: RabbitServer, url: str) -> None:
    with AmqpQueue(f"{url}&heartbeat=2&stack_timeout=3&socket_timeout=3") as queue:
        queue.publish(["x"])
        (message,) = take(queue)
        server.freeze()
        try:
            with pytest.raises(QueueUnavailable):
                queue.receive(10, 60, 60)
            assert queue.acknowledge([message.receipt]) == {message.receipt}
            with pytest.raises(QueueUnavailable):
                queue.depth()
        finally:
            server.thaw()
        assert patiently(lambda: drained(queue)) == [b"x"]


def test_a_broker_short_of_memory_refuses_to_be_sent_to(server: RabbitServer, url: str) -> None:
    with AmqpQueue(f"{url}&blocked_connection_timeout=1") as queue:
        queue.create()
        server.control("set_vm_memory_high_watermark", "0")
        try:
            with pytest.raises(QueueUnavailable):
                queue.publish(["x"])
        finally:
            server.control("set_vm_memory_high_watermark", "0.4")
        patiently(lambda: queue.publish(["x"]))
        assert b"x" in drained(queue)


def test_an_interrupted_receive_gives_back_what_it_took_and_takes_no_more(url: str) -> None:
    with AmqpQueue(url) as queue, AmqpQueue(url) as other:
        other.create()
        queue.create()
        loop = queue._thread._loop
        assert loop is not None
        waiting = asyncio.run_coroutine_threadsafe(queue._session.receive(10, 60), loop)
        time.sleep(0.5)
        waiting.cancel()
        time.sleep(0.2)
        other.publish(["x"] * 20)
        assert len(drained(other)) == 20
        assert queue.depth().total == 0


def test_a_broker_that_was_stopped_and_started_again_is_used_again() -> None:
    with rabbitmq_server() as server, AmqpQueue(f"{server.url}?source=s&pool=p") as queue:
        queue.publish([str(number) for number in range(100)])
        held = take(queue, 10)
        server.stop()
        with pytest.raises(QueueUnavailable):
            queue.receive(1, 60, 0)
        assert queue.acknowledge(receipts(held)) == set(receipts(held))
        server.start()
        assert sorted(map(int, patiently(lambda: drained(queue)))) == list(range(100))


def test_messages_in_flight_are_to_be_had_at_once_when_their_consumer_closes(url: str) -> None:
    with AmqpQueue(url) as other:
        with AmqpQueue(url) as leaving:
            leaving.publish(["held", "delayed"])
            leaving.nack(receipts(take(leaving))[1:], delay=3600)
            assert leaving.depth().in_flight == leaving.depth().delayed == 1
            assert take(other, wait=0) == []
        assert sorted(drained(other)) == [b"delayed", b"held"]


def test_what_is_held_too_long_goes_back_alone_before_the_broker_takes_everything(url: str) -> None:
    told: list[QueueError] = []
    with AmqpQueue(f"{url}&consumer_timeout=2") as queue:
        queue.on_error = told.append
        assert queue.capabilities.lease_cap == pytest.approx(1.8)
        queue.publish(["early", "late"])
        (early,) = take(queue, 1)
        time.sleep(1.2)
        (late,) = take(queue, 1)
        (again,) = take(queue, 10, wait=5)
        assert again.body == b"early"
        assert queue.extend([early.receipt, late.receipt, again.receipt], 60) == {early.receipt}
        assert queue.acknowledge([late.receipt, again.receipt]) == set()
        assert ["1 message(s) were held for 2 s" in error.problem for error in told] == [True]


def test_a_broker_that_takes_back_what_was_held_too_long_is_understood() -> None:
    with rabbitmq_server("consumer_timeout = 1000\n", "-rabbit channel_tick_interval 1000") as server:
        with AmqpQueue(f"{server.url}?source=s&pool=p&consumer_timeout=0") as unaware:
            assert unaware.capabilities.lease_cap is None
            unaware.publish(["held"])
            (message,) = take(unaware)
            with pytest.raises(QueueUnavailable, match=r"longer than its consumer_timeout.*consumer_timeout=SECONDS"):
                unaware.receive(1, 60, 100)
            assert unaware.acknowledge([message.receipt]) == {message.receipt}
            assert drained(unaware) == [b"held"]


# --- many, and at once -----------------------------------------------------------------------------------------------


def test_ten_thousand_messages_are_held_unacknowledged_and_ended_in_any_order(url: str) -> None:
    with AmqpQueue(url) as queue:
        queue.publish([str(number) for number in range(10_000)])
        held: list[Received] = []
        while len(held) < 10_000:
            held += take(queue)
        assert queue.depth().in_flight == 10_000
        assert take(queue, wait=0) == []
        assert queue.extend(receipts(held), 60) == set()
        even, odd = receipts(held[::2]), receipts(held[1::2])
        assert queue.acknowledge(even) == set()
        assert queue.acknowledge(even) == set(even)
        queue.nack(odd)
        assert sorted(drained(queue)) == sorted(message.body for message in held[1::2])


def test_threads_that_acknowledge_at_once_each_end_a_message_once(url: str) -> None:
    with AmqpQueue(url) as queue:
        queue.publish(["x"] * 2_000)
        held: list[Received] = []
        while len(held) < 2_000:
            held += take(queue)
        with ThreadPoolExecutor(8) as pool:
            stale = list(pool.map(lambda message: queue.acknowledge([message.receipt]), [*held, *held]))
        assert sorted(map(len, stale)) == [0] * 2_000 + [1] * 2_000
        assert queue.depth().total == 0


def test_a_second_action_on_a_message_never_reaches_the_broker(url: str) -> None:
    with AmqpQueue(url) as queue:
        queue.publish(["x", "kept"])
        message, kept = take(queue)
        assert queue.acknowledge([message.receipt]) == set()
        assert queue.acknowledge([message.receipt]) == {message.receipt}
        queue.reject([message.receipt])
        queue.nack([message.receipt])
        assert not queue.republish(message)
        assert queue.extend([kept.receipt], 60) == set()  # the channel lives: the broker closes it for such a thing


# --- messages of other programs --------------------------------------------------------------------------------------


def test_messages_of_other_programs_come_as_they_are(server: RabbitServer, url: str, name: str) -> None:
    odd = {"n": 5, "deep": {"a": [1, None, True]}, "raw": b"\xff", "text": "\u00fc"}
    with AmqpQueue(url) as queue, native(server) as channel:
        queue.create()
        channel.basic_publish(
            name, "a.b", b"1", pika.BasicProperties(headers=odd, message_id="mine", timestamp=1_700_000_000)
        )
        channel.basic_publish(name, "", b"2")
        first, second = take(queue, wait=5)
        if second.body == b"1":
            first, second = second, first
        assert (first.message_id, first.sent_at, first.tag) == ("mine", 1_700_000_000.0, "a.b")
        assert first.headers == {"n": "5", "deep": '{"a": [1, null, true]}', "raw": "\\xff", "text": "\u00fc"}
        assert (second.sent_at, second.tag, second.headers) == (None, "", {})
        assert queue.republish(first)
        (copy,) = take(queue)
        assert copy.headers == {**first.headers, "Republish-Count": "1"}


def test_a_message_without_an_id_has_the_same_one_at_each_delivery_and_another_than_other_messages(
    server: RabbitServer, url: str, name: str
) -> None:
    with AmqpQueue(url) as queue, native(server) as channel:
        queue.create()
        for body, tag in ((b"1", "a"), (b"2", "a"), (b"1", "b")):
            channel.basic_publish(name, tag, body)
        messages = [take(queue, 1)[0] for _ in range(3)]
        queue.nack(receipts(messages))
        again = [take(queue, 1)[0] for _ in range(3)]
        ids = {message.message_id for message in messages}
        assert len(ids) == 3
        assert {message.message_id for message in again} == ids


def test_a_rejected_message_goes_to_the_dead_letter_exchange_of_its_queue(
    server: RabbitServer, url: str, name: str
) -> None:
    with native(server) as channel:
        channel.queue_declare(f"{name}-dead", durable=True)
        channel.queue_declare(
            name,
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"},
        )
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_bind(name, name, "#")
        with AmqpQueue(url) as queue:
            queue.publish(["poison", "good"])
            queue.reject(receipts(take(queue, 1)))
            assert drained(queue) == [b"good"]
        dead = channel.basic_get(f"{name}-dead", auto_ack=True)
        assert dead[2] == b"poison"


# --- what is refused -------------------------------------------------------------------------------------------------


def expect_refusal(url: str, *texts: str) -> None:
    with AmqpQueue(url) as queue, pytest.raises(QueueConfigurationError) as told:
        queue.create()
    for text in texts:
        assert text in str(told.value)
    assert "hunter2" not in str(told.value)


def test_a_wrong_password_a_missing_host_and_a_wrong_source_are_told_apart(server: RabbitServer, name: str) -> None:
    port = server.port
    expect_refusal(f"amqp://guest:hunter2@127.0.0.1:{port}/?source={name}", "refused the user or the password")
    expect_refusal(
        f"amqp://guest:guest@127.0.0.1:{port}/absent?source={name}", "virtual host", "vhost absent not found"
    )
    with native(server) as channel:
        channel.exchange_declare(name, "fanout", durable=True)
    expect_refusal(f"{server.url}?source={name}", "in another form", "'fanout'", "choose another name")


def test_a_broker_that_is_not_there_is_passing_trouble(name: str) -> None:
    with AmqpQueue(f"amqp://guest:hunter2@127.0.0.1:1/?source={name}&pool=p") as queue:
        for use in (queue.create, queue.depth, lambda: queue.publish(["x"]), lambda: take(queue)):
            with pytest.raises(QueueUnavailable, match="refused") as told:
                use()
            assert "hunter2" not in str(told.value)


def test_tls_to_a_port_that_speaks_none_is_refused(server: RabbitServer, name: str) -> None:
    with AmqpQueue(f"amqps://guest:hunter2@127.0.0.1:{server.port}/?source={name}&pool=p") as queue:
        with pytest.raises(QueueConfigurationError, match="TLS failed") as told:
            queue.create()
    assert "hunter2" not in str(told.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = f"listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.verify = verify_none\n" + "".join(
        f"ssl_options.{name} = {file}\n"
        for name, file in (("cacertfile", certificate), ("certfile", certificate), ("keyfile", key))
    )
    with rabbitmq_server(settings):
        url = f"amqps://guest:guest@127.0.0.1:{port}/?source=s&pool=p"
        with AmqpQueue(f"{url}&ssl_options={{'ca_certs':'{certificate}'}}") as queue:
            queue.publish(["x"] * 2000)
            assert len(drained(queue)) == 2000
        with AmqpQueue(url) as queue, pytest.raises(QueueConfigurationError, match=r"TLS failed.*ssl_options"):
            queue.create()


def permissions(name: str) -> dict[str, list[str]]:
    """Who -> (configure, write, read), as the page has it, for a source and a pool of these names."""
    page = (ROOT / "docs" / "how-to" / "rabbitmq.md").read_text("utf-8")
    rows = re.findall(r"^- (.+?): `(\^.*\$)`, `(\^.*\$)`, `(\^.*\$)`$", page, re.MULTILINE)
    named = {who: list(cells) for who, *cells in rows}
    assert len(named) == 4
    return {
        who: [cell.replace("uploads", name).replace("loader", f"{name}-p") for cell in cells]
        for who, cells in named.items()
    }


def test_the_permissions_that_the_page_names_are_enough_and_each_is_needed(server: RabbitServer, name: str) -> None:
    urls = []
    for number, cells in enumerate(permissions(name).values()):
        server.control("add_user", f"{name}-{number}", "hunter2")
        server.control("set_permissions", f"{name}-{number}", *cells)
        urls.append(f"amqp://{name}-{number}:hunter2@127.0.0.1:{server.port}/?source={name}")
    publisher, reader, republisher, creator = urls
    pool = f"&pool={name}-p"
    expect_refusal(publisher, "lacks a permission", "configure")  # nothing is there yet
    expect_refusal(reader + pool, "lacks a permission", "configure")
    with AmqpQueue(creator + pool) as admin:
        admin.create()
    with AmqpQueue(publisher) as sender, AmqpQueue(reader + pool) as taker:
        sender.publish(["x"], tag="a")
        (message,) = take(taker)
        assert taker.depth().in_flight == 1
        with pytest.raises(QueueConfigurationError, match=r"lacks a permission.*amq\.default"):
            taker.republish(message)
        assert taker.acknowledge([message.receipt]) == set()
        with pytest.raises(QueueConfigurationError, match="lacks a permission"):
            taker.publish(["x"])
        sender.publish(["y"])
    with AmqpQueue(republisher + pool) as queue:
        assert queue.republish(take(queue)[0])
        assert drained(queue) == [b"y"]
    with AmqpQueue(publisher + pool) as queue, pytest.raises(QueueConfigurationError, match="lacks a permission"):
        take(queue)
    expect_refusal(f"{reader}&pool={name}-other", "lacks a permission", "configure")


def test_what_the_page_shows_runs(server: RabbitServer, tmp_path: Path) -> None:
    here = Reader(tmp_path)
    page = blocks(ROOT / "docs" / "how-to" / "rabbitmq.md")
    local = replace(page[0], text=page[0].text.replace("localhost:5672", f"127.0.0.1:{server.port}"))
    assert local.language == "bash"
    here.follow([local])
    with AmqpQueue(f"{server.url}?source=uploads&pool=loader") as queue:
        assert queue.exists()
        (message,) = queue.receive(10, 300, 5)
        assert (message.tag, message.body) == ("files.new", b"s3://bucket/a.json")
        assert queue.acknowledge([message.receipt]) == set()
        assert queue.depth().total == 0


def test_each_stream_has_its_pool_as_the_page_about_several_streams_shows(server: RabbitServer, tmp_path: Path) -> None:
    here = Reader(tmp_path)
    here.environment["RABBIT"] = server.url
    (commands,) = [b.text for b in blocks(ROOT / "docs" / "how-to" / "routes.md") if "$RABBIT" in b.text]
    here.run(commands)
    with AmqpQueue(f"{server.url}?source=landing") as sender:
        sender.publish(["s3://landing/orders/2.json"], tag="orders.eu")
        sender.publish(["s3://landing/returns/1.json"], tag="returns.new")
    for pool, expected in (("orders", ["1", "2"]), ("returns", ["1"])):
        with AmqpQueue(f"{server.url}?source=landing&pool={pool}") as queue:
            assert drained(queue) == [f"s3://landing/{pool}/{number}.json".encode() for number in expected]
