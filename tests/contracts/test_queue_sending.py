"""What every queue that takes many messages at once promises (`queue_source.queues.base.SendsMany`)."""

from __future__ import annotations

import pytest

from contracts.test_queue_contract import backend as backend
from contracts.test_queue_contract import expect_depth, receipts, take
from contracts.test_queue_contract import queue as queue
from queue_source.errors import QueueUnavailable
from queue_source.messages import Outgoing, Received
from queue_source.queues import Queue, open_queue
from queue_source.queues.adapter import BaseQueue
from queue_source.queues.base import Unsendable, send_messages
from queue_source.queues.sim import Fault, SimQueue
from queue_source.queues.sqs import SqsQueue
from support.servers.ministack import KEYS, new_queue


def take_all(queue: Queue, count: int) -> list[Received]:
    taken: list[Received] = []
    while len(taken) < count:
        some = take(queue, 100, wait=20)
        assert some, f"{len(taken)} of {count} came"
        queue.acknowledge(receipts(some))
        taken += some
    return taken


def test_each_message_is_received_with_what_was_its_own(queue: Queue) -> None:
    wanted = {
        f"body {n}".encode(): (f"tag.{n % 3}" if n % 4 else "", {"n": str(n), "\u00fc": "\U0001f980"} if n % 5 else {})
        for n in range(25)
    }
    send_messages(queue, [Outgoing(body, tag, headers) for body, (tag, headers) in wanted.items()])
    found = take_all(queue, 25)
    assert {message.body: (message.tag, dict(message.headers)) for message in found} == wanted
    assert len({message.message_id for message in found}) == 25


@pytest.mark.needs("groups")
def test_messages_of_a_group_keep_their_order_among_those_of_others(queue: Queue) -> None:
    send_messages(queue, [Outgoing(f"{n}".encode(), group=f"g{n % 3}") for n in range(12)])
    found = take_all(queue, 12)
    for group in ("g0", "g1", "g2"):
        numbers = [int(message.body) for message in found if message.group == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 4


def test_one_that_cannot_be_sent_is_named_and_nothing_is_sent(queue: Queue) -> None:
    bad = Outgoing(b"b", "\ud800", {}, None)
    with pytest.raises(Unsendable) as caught:
        send_messages(queue, [Outgoing(b"a"), bad, Outgoing(b"c")])
    assert caught.value.place == 1
    expect_depth(queue, total=0)


def test_sending_nothing_sends_nothing(queue: Queue) -> None:
    send_messages(queue, [])
    assert take(queue) == []


class OneByOne:
    """A queue of a user's own that has the eight verbs and no more."""

    def __init__(self, queue: Queue) -> None:
        self.send = queue.send


def test_a_queue_without_the_verb_sends_one_by_one(queue: Queue) -> None:
    plain = OneByOne(queue)
    send_messages(plain, [Outgoing(b"a", "x", {"k": "1"}), Outgoing(b"b")])  # type: ignore[arg-type]
    found = {message.body: (message.tag, dict(message.headers)) for message in take_all(queue, 2)}
    assert found == {b"a": ("x", {"k": "1"}), b"b": ("", {})}
    with pytest.raises(Unsendable) as caught:
        send_messages(plain, [Outgoing(b"a"), Outgoing(b"b", "\ud800")])  # type: ignore[arg-type]
    assert caught.value.place == 1


@pytest.mark.parametrize("url", ["sqs://q.fifo", "sql+sqlite:///q.db?queue=q", "amqp://h/v?source=s", "sim://s?dir=."])
def test_the_kinds_that_come_with_it_have_the_verb(url: str) -> None:
    with open_queue(url) as queue:
        assert isinstance(queue, BaseQueue)
        assert queue.extras.sends_many


def test_a_fifo_queue_takes_a_deduplication_id_once_also_without_a_group(ministack_url: str) -> None:
    with SqsQueue(new_queue(ministack_url, fifo=True), **KEYS) as queue:
        for group in (None, "g"):
            once = Outgoing(b"once", group=group, deduplication_id=f"id-of-{group}")
            queue.send_messages([once, Outgoing(b"other")])
            queue.send_messages([once])
        found = [message.body for message in take_all(queue, 4)]
        assert sorted(found) == [b"once", b"once", b"other", b"other"]
        assert queue.receive(10, 30, 0) == []


def test_messages_of_a_fifo_queue_without_a_group_do_not_wait_for_each_other_and_hide_their_group(
    ministack_url: str,
) -> None:
    with SqsQueue(new_queue(ministack_url, fifo=True), **KEYS) as queue:
        queue.send_messages([Outgoing(b"a", deduplication_id="1"), Outgoing(b"b", deduplication_id="2")])
        found = [message for _ in range(2) for message in queue.receive(1, 30, 1)]
        assert {message.body for message in found} == {b"a", b"b"}
        assert [message.group for message in found] == [None, None]


def test_the_simulator_sends_to_each_pool_whose_filter_lets_the_tag_pass(tmp_path: object) -> None:
    with (
        SimQueue(f"sim://s?dir={tmp_path}&pool=all") as everything,
        SimQueue(f"sim://s?dir={tmp_path}&pool=eu&tags=*.eu") as europe,
    ):
        everything.create()
        europe.create()
        everything.send_messages([Outgoing(b"1", "orders.eu"), Outgoing(b"2", "orders.us")])
        assert sorted(message.body for message in everything.peek(10)) == [b"1", b"2"]
        assert [message.body for message in europe.peek(10)] == [b"1"]
        europe.order(Fault.DISCONNECT, verb="send")
        with pytest.raises(QueueUnavailable):
            europe.send_messages([Outgoing(b"3", "a.eu")])
        everything.delete()
        with pytest.raises(Exception, match=r"no pool of source 's' takes messages with the tag 'orders.us': 1 were"):
            europe.send_messages([Outgoing(b"4", "orders.eu"), Outgoing(b"5", "orders.us")])
        assert [message.body for message in europe.peek(10)] == [b"1"]
