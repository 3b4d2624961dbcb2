"""What only Pub/Sub has, over the tests' own server: deadlines, dead letters, request limits, errors on the wire."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Received
from queue_source.queues import pubsub
from queue_source.queues.pubsub import LARGEST_REQUEST, PubSubQueue
from support.servers.pubsub import PubSubServer, pubsub_server

Open = Callable[..., PubSubQueue]
_names = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    """One of our own: what was asked of it is counted."""
    with pubsub_server() as server:
        yield server


@pytest.fixture
def opened(server: PubSubServer) -> Iterator[Open]:
    """Opens a new subscription, or (`url`) one that is there."""
    queues: list[PubSubQueue] = []

    def make(url: str = "", **config: Any) -> PubSubQueue:
        if not url:
            number = next(_names)
            url = server.create_subscription("p", f"files-{number}", server.create_topic("p", f"t-{number}"), **config)
        queues.append(PubSubQueue(url, endpoint=f"http://{server.host}", shortest_wait=0.1))
        return queues[-1]

    yield make
    for queue in queues:
        queue.close()


# --- what the subscription says --------------------------------------------------------------------------------------


def test_the_capabilities_are_those_of_the_subscription(opened: Open) -> None:
    plain = opened(message_retention_duration={"seconds": 86_400}).capabilities
    assert (plain.retention, plain.ordered_groups, plain.reports_stale) == (86_400, False, False)
    assert (plain.max_lease, plain.lease_cap, plain.reports_depth) == (600, None, False)
    other = opened(enable_message_ordering=True, enable_exactly_once_delivery=True).capabilities
    assert (other.retention, other.ordered_groups, other.reports_stale) == (7 * 86_400, True, True)


def test_nobody_is_asked_before_the_first_use_and_only_once_after_it(server: PubSubServer, opened: Open) -> None:
    queue = opened()
    before = len(server.calls().get("GetSubscription", []))
    assert queue.name
    assert len(server.calls().get("GetSubscription", [])) == before
    queue.send(["x"])
    queue.receive(1, 60, 0)
    assert queue.capabilities
    assert len(server.calls()["GetSubscription"]) == before + 1


def test_the_depth_is_not_told_but_where_to_look_is(opened: Open) -> None:
    with pytest.raises(QueueConfigurationError, match="num_undelivered_messages"):
        opened().depth()


# --- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [10, 600])
def test_the_lease_is_the_one_asked_for_whatever_the_subscriptions_deadline(
    server: PubSubServer, opened: Open, deadline: int
) -> None:
    queue = opened(ack_deadline_seconds=deadline)
    queue.send(["x"])
    before = time.monotonic()
    (message,) = queue.receive(1, 60, 0)
    assert before + 60 <= message.lease_until <= time.monotonic() + 60
    server.advance(55)
    assert queue.receive(1, 60, 0) == []
    server.advance(6)
    assert len(queue.receive(1, 60, 0)) == 1


def test_when_the_first_extension_fails_the_lease_is_told_to_be_the_subscriptions(
    server: PubSubServer, opened: Open
) -> None:
    queue = opened(ack_deadline_seconds=30)
    queue.send(["x"])
    server.fail("ModifyAckDeadline", "UNAVAILABLE")
    before = time.monotonic()
    (message,) = queue.receive(1, 60, 0)
    assert before + 30 <= message.lease_until <= time.monotonic() + 30
    assert queue.extend([message.receipt], 60) == set()


def test_a_message_that_was_lost_before_its_first_extension_is_not_given_out(
    server: PubSubServer, opened: Open
) -> None:
    queue = opened(enable_exactly_once_delivery=True)
    queue.send(["a", "b"])
    server.fail("ModifyAckDeadline", "INVALID_ARGUMENT", failure="PERMANENT_FAILURE_INVALID_ACK_ID")
    assert [message.body for message in queue.receive(2, 60, 0)] == [b"b"]


def test_the_receive_count_is_the_services_where_it_counts_and_else_one(server: PubSubServer, opened: Open) -> None:
    dead = server.create_topic("p", f"dead-{next(_names)}")
    counting = opened(dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 9})
    for queue, counts in ((opened(), [1, 1, 1]), (counting, [1, 2, 3])):
        queue.send(["x"])
        seen = []
        for _ in counts:
            (message,) = queue.receive(1, 60, 0)
            seen.append(message.receive_count)
            queue.nack([message.receipt])
        assert seen == counts


# --- requests --------------------------------------------------------------------------------------------------------


def test_thousands_of_receipts_go_out_in_requests_that_the_service_takes(server: PubSubServer, opened: Open) -> None:
    queue = opened(enable_exactly_once_delivery=True)
    queue.send([str(number) for number in range(3_000)])
    messages: list[Received] = []
    while len(messages) < 3_000:  # a busy service has none at times
        messages += queue.receive(1_000, 600, 1)
    assert len({message.message_id for message in messages}) == 3_000
    receipts = [message.receipt for message in messages]
    before = {verb: len(sizes) for verb, sizes in server.calls().items()}
    assert queue.extend(receipts, 600) == set()
    assert queue.acknowledge(receipts) == set()
    for verb in ("ModifyAckDeadline", "Acknowledge"):
        sizes = server.calls()[verb][before.get(verb, 0) :]
        assert len(sizes) == 3
        assert max(sizes) <= LARGEST_REQUEST
    assert server.depth(queue.name) == (0, 0)


def test_large_messages_are_published_in_requests_that_the_service_takes(server: PubSubServer, opened: Open) -> None:
    queue = opened()
    bodies = [bytes([number]) * 3_000_000 for number in range(7)]
    before = len(server.calls().get("Publish", []))
    assert len(set(queue.send(bodies))) == 7
    assert len(server.calls()["Publish"]) == before + 3
    received: list[bytes] = []
    while len(received) < 7:  # a pull whose time is over while its answer comes would be lost for a lease
        received += [message.body for message in queue.receive(100, 60, 20)]
    assert sorted(received) == bodies


def test_receipts_that_fail_for_the_moment_are_sent_again_and_lost_ones_are_told(
    server: PubSubServer, opened: Open
) -> None:
    queue = opened(enable_exactly_once_delivery=True)
    queue.send(["a", "b"])
    receipts = [message.receipt for message in queue.receive(2, 60, 0)]
    server.fail("Acknowledge", "UNAVAILABLE", failure="TRANSIENT_FAILURE_OTHER")
    assert queue.acknowledge(receipts[:1]) == set()
    assert server.depth(queue.name) == (0, 1)
    server.advance(61)
    assert queue.acknowledge(receipts[1:]) == set(receipts[1:])
    assert server.depth(queue.name) == (1, 0)


# --- attributes ------------------------------------------------------------------------------------------------------


def test_attributes_of_other_senders_come_as_headers_and_are_republished_with_the_copy(opened: Open) -> None:
    queue = opened()
    attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k \u00fc", "payloadFormat": "NONE"}
    queue.send([b""], headers=attributes)
    (message,) = queue.receive(1, 60, 0)
    assert (message.body, message.tag, message.headers) == (b"", "", attributes)
    assert queue.republish(message)
    (copy,) = queue.receive(1, 60, 0)
    assert copy.headers == {**attributes, "Republish-Count": "1"}


def test_every_subscription_of_a_topic_gets_what_is_published_and_its_own_leases(
    server: PubSubServer, opened: Open
) -> None:
    first = opened()
    topic = f"projects/p/topics/t-{first.name.rpartition('-')[2]}"
    second = opened(server.create_subscription("p", f"files-{next(_names)}", topic))
    first.send(["x"])
    (one,), (two,) = first.receive(1, 60, 0), second.receive(1, 60, 0)
    assert one.message_id == two.message_id
    first.acknowledge([one.receipt])
    assert server.depth(second.name) == (0, 1)
    second.republish(two)  # this is why republishing wants a topic of its own
    assert len(first.receive(1, 60, 0)) == 1


def test_the_copy_of_a_republished_message_stays_in_its_group(opened: Open) -> None:
    queue = opened(enable_message_ordering=True)
    queue.send(["1", "2"], group="g")
    first, second = queue.receive(2, 60, 0)
    queue.republish(first)
    queue.acknowledge([second.receipt])
    (copy,) = queue.receive(2, 60, 0)
    assert (copy.body, copy.group, copy.headers) == (b"1", "g", {"Republish-Count": "1"})


# --- dead letters ----------------------------------------------------------------------------------------------------


@pytest.fixture
def dead_letters(server: PubSubServer, opened: Open) -> tuple[PubSubQueue, dict[str, Any]]:
    """A subscription of a dead-letter topic, and what another one needs to have it."""
    queue = opened()
    topic = f"projects/p/topics/t-{queue.name.rpartition('-')[2]}"
    return queue, {"dead_letter_policy": {"dead_letter_topic": topic, "max_delivery_attempts": 5}}


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_rejected_message_is_in_the_dead_letter_topic_before_it_is_deleted(
    server: PubSubServer, opened: Open, dead_letters: tuple[PubSubQueue, dict[str, Any]], exactly_once: bool
) -> None:
    dead, config = dead_letters
    queue = opened(enable_exactly_once_delivery=exactly_once, enable_message_ordering=True, **config)
    queue.send([b"\xff"], tag="a.b", headers={"trace": "1"}, group="g")
    queue.send(["free", "good"])
    first, second, good = sorted(queue.receive(10, 60, 0), key=lambda message: message.message_id)
    server.fail("Publish", "UNAVAILABLE")
    with pytest.raises(QueueUnavailable):
        queue.reject([first.receipt])
    assert server.depth(queue.name) == (0, 3)
    queue.extend([first.receipt], 60)
    queue.reject([first.receipt, second.receipt])
    assert server.depth(queue.name) == (0, 1)
    found = sorted(dead.receive(10, 60, 0), key=lambda message: message.message_id)
    assert [(message.body, message.tag, message.group) for message in found] == [
        (b"\xff", "a.b", "g"),
        (b"free", "", None),
    ]
    assert found[0].headers == {
        "trace": "1",
        "CloudPubSubDeadLetterSourceSubscription": queue.name.rpartition("/")[2],
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
    }
    queue.reject([first.receipt])
    assert server.depth(dead.name) == (0, 2)
    assert queue.acknowledge([good.receipt]) == set()


def test_what_somebody_else_has_by_now_is_not_rejected(
    server: PubSubServer, opened: Open, dead_letters: tuple[PubSubQueue, dict[str, Any]]
) -> None:
    dead, config = dead_letters
    queue = opened(enable_exactly_once_delivery=True, **config)
    queue.send(["x"])
    (slow,) = queue.receive(1, 20, 0)
    server.advance(30)
    assert len(opened(queue.name).receive(1, 60, 0)) == 1
    queue.reject([slow.receipt])
    assert server.depth(dead.name) == (0, 0)
    assert server.depth(queue.name) == (0, 1)


def test_a_message_whose_deliveries_are_used_up_is_moved_by_the_service(
    server: PubSubServer, opened: Open, dead_letters: tuple[PubSubQueue, dict[str, Any]]
) -> None:
    dead, config = dead_letters
    queue = opened(**config)
    queue.send(["poison"])
    for _ in range(5):
        (message,) = queue.receive(1, 60, 0)
        queue.nack([message.receipt])
    assert queue.receive(1, 60, 0) == []
    assert [message.body for message in dead.receive(1, 60, 0)] == [b"poison"]


def test_messages_are_kept_for_rejection_only_while_they_are_held(
    opened: Open, dead_letters: tuple[PubSubQueue, dict[str, Any]]
) -> None:
    plain, keeping = opened(), opened(**dead_letters[1])
    for queue in (plain, keeping):
        queue.send(["x"] * 3)
        receipts = [message.receipt for message in queue.receive(3, 60, 0)]
        assert len(queue._rejectable) == (3 if queue is keeping else 0)
        queue.acknowledge(receipts[:1])
        queue.nack(receipts[1:2], 60)
        queue.reject(receipts[2:])
        assert not queue._rejectable


# --- errors on the wire ----------------------------------------------------------------------------------------------


def test_a_subscription_that_does_not_exist_is_a_clear_error(opened: Open) -> None:
    queue = opened("pubsub://p/nowhere")
    with pytest.raises(QueueConfigurationError, match=r"pubsub://p/nowhere.*create it"):
        queue.receive(1, 60, 0)


@pytest.mark.parametrize(
    ("verb", "role"),
    [
        ("GetSubscription", "roles/pubsub.viewer"),
        ("Pull", "roles/pubsub.subscriber"),
        ("ModifyAckDeadline", "roles/pubsub.subscriber"),
        ("Publish", "roles/pubsub.publisher"),
    ],
)
def test_a_missing_permission_names_the_role_to_give(server: PubSubServer, opened: Open, verb: str, role: str) -> None:
    queue = opened()
    server.fail(verb, "PERMISSION_DENIED")

    def use() -> None:
        queue.send(["x"])
        queue.receive(1, 60, 0)

    with pytest.raises(QueueConfigurationError, match=role):
        use()


def test_trouble_of_a_moment_while_the_subscription_is_read_is_waited_for(server: PubSubServer, opened: Open) -> None:
    server.fail("GetSubscription", "UNAVAILABLE", times=2)
    assert opened().send(["x"])


def test_a_pull_ended_by_its_deadline_brought_nothing(server: PubSubServer, opened: Open) -> None:
    queue = opened()
    server.fail("Pull", "DEADLINE_EXCEEDED")
    assert queue.receive(1, 60, 0) == []


def test_after_a_long_silence_empty_pulls_are_believed_only_of_a_service_that_answers(
    server: PubSubServer, opened: Open
) -> None:
    queue = opened()
    assert queue.receive(1, 60, 0) == []
    queue._heard -= 3600
    server.fail("Pull", "DEADLINE_EXCEEDED")
    server.fail("GetSubscription", "UNAVAILABLE")
    with pytest.raises(QueueUnavailable):
        queue.receive(1, 60, 0)
    assert queue.receive(1, 60, 0) == []


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED"])
def test_calls_are_not_repeated_in_secret(server: PubSubServer, opened: Open, status: str) -> None:
    queue = opened()
    queue.send(["x"])
    (message,) = queue.receive(1, 60, 0)
    for verb, call in (
        ("Pull", lambda: queue.receive(1, 60, 0)),
        ("Acknowledge", lambda: queue.acknowledge([message.receipt])),
        ("ModifyAckDeadline", lambda: queue.extend([message.receipt], 60)),
        ("Publish", lambda: queue.send(["y"])),
    ):
        before = len(server.calls()[verb]) if verb in server.calls() else 0
        server.fail(verb, status)
        with pytest.raises(QueueUnavailable):
            call()
        assert len(server.calls()[verb]) == before + 1


def test_a_service_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "_READ", pubsub._READ.with_timeout(1.0))
    with (
        PubSubQueue("pubsub://p/files", endpoint="http://127.0.0.1:1") as queue,
        pytest.raises(QueueUnavailable, match="pubsub://p/files"),
    ):
        queue.receive(1, 60, 0)
