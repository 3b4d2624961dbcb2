"""What only Azure Storage Queue has, over the tests' own server: changing receipts, a week, encodings, errors."""

from __future__ import annotations

import base64
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.queue import QueueClient

from queue_source.errors import QueueConfigurationError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt
from queue_source.queues.azurequeue import AzureQueue
from support.servers.azure_queue import ACCOUNT, KEY, TOKEN, AzureQueueServer, azure_queue_server

Open = Callable[..., AzureQueue]
_names = itertools.count(1)
DAY = 86_400


@pytest.fixture(scope="module")
def server() -> Iterator[AzureQueueServer]:
    """One of our own: its clock jumps, and what was asked of it is counted."""
    with azure_queue_server() as server:
        yield server


@pytest.fixture
def opened(server: AzureQueueServer) -> Iterator[Open]:
    """Opens a new queue, or (`url`) one that is there."""
    queues: list[AzureQueue] = []

    def make(url: str = "", **options: Any) -> AzureQueue:
        access = {"endpoint_url": server.url} if "sas_token" in options else server.access
        queue = AzureQueue(url or f"azurequeue://{ACCOUNT}/special-{next(_names)}", **{**access, **options})
        queues.append(queue)
        if not url:
            queue.create()
        return queue

    yield make
    for queue in queues:
        queue.close()


def senders_own(server: AzureQueueServer, queue: AzureQueue) -> QueueClient:
    """Azure's client, as another sender has it."""
    credential = AzureNamedKeyCredential(ACCOUNT, KEY)
    return QueueClient(f"{server.url}/{ACCOUNT}", queue.name.rpartition("/")[2], credential)


def content_of_next(receiver: QueueClient) -> str:
    message = receiver.receive_message()
    assert message is not None
    return str(message.content)


# --- receipts that change --------------------------------------------------------------------------------------------


def test_the_receipt_that_was_received_serves_until_the_end_however_often_it_is_extended(
    server: AzureQueueServer, opened: Open
) -> None:
    queue, other = opened(), None
    queue.send(["a", "b"])
    messages = queue.receive(10, 60, 0)
    receipts = [message.receipt for message in messages]
    for _ in range(5):
        server.advance(40)
        assert queue.extend(receipts, 60) == set()
    other = opened(queue.name)
    assert other.receive(10, 60, 0) == []
    assert queue.acknowledge(receipts) == set()
    assert queue.depth().total == 0


def test_a_stale_receipt_is_reported_and_changes_nothing(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    other = opened(queue.name)
    queue.send(["contested"])
    (slow,) = queue.receive(1, 20, 0)
    server.advance(40)
    (fresh,) = other.receive(1, 60, 0)
    assert queue.extend([slow.receipt], 600) == {slow.receipt}
    assert queue.acknowledge([slow.receipt]) == {slow.receipt}
    queue.nack([slow.receipt])
    queue.reject([slow.receipt])
    assert queue.depth().in_flight == 1
    assert other.extend([fresh.receipt], 60) == set()
    assert other.acknowledge([fresh.receipt]) == set()


def test_an_extension_whose_answer_was_lost_is_a_lost_lease_and_stops_nothing(
    server: AzureQueueServer, opened: Open
) -> None:
    """The service has given a receipt that nobody knows: the message comes again after its lease."""
    queue = opened()
    queue.send(["a"])
    (message,) = queue.receive(1, 60, 0)
    server.lose_answer("PUT")
    with pytest.raises(QueueUnavailable):
        queue.extend([message.receipt], 60)
    assert queue.extend([message.receipt], 60) == {message.receipt}
    assert queue.acknowledge([message.receipt]) == {message.receipt}
    server.advance(61)
    assert [again.message_id for again in queue.receive(1, 60, 0)] == [message.message_id]


def test_an_acknowledgement_while_the_lease_is_extended_in_another_thread_is_not_lost(opened: Open) -> None:
    queue = opened()
    queue.send_messages([Outgoing(b"x")] * 200)
    receipts: list[Receipt] = []
    while more := queue.receive(32, 60, 0):
        receipts += [message.receipt for message in more]
    done = threading.Event()

    def extend() -> set[Receipt]:
        lost: set[Receipt] = set()
        while not done.is_set():
            lost |= queue.extend(receipts, 60)
        return lost

    with ThreadPoolExecutor(1) as pool:
        extending = pool.submit(extend)
        stale = queue.acknowledge(receipts)
        done.set()
        assert extending.result() <= set(receipts)  # what is acknowledged has no lease any more
    assert stale == set()
    assert queue.depth().total == 0


def test_a_receipt_of_another_process_serves_as_long_as_its_lease_was_not_extended(opened: Open) -> None:
    queue = opened()
    queue.send(["a", "b"])
    first, second = queue.receive(2, 60, 0)
    queue.extend([second.receipt], 60)
    other = opened(queue.name)
    assert other.acknowledge([first.receipt, second.receipt]) == {second.receipt}


# --- times -----------------------------------------------------------------------------------------------------------


def test_a_lease_may_be_a_week_and_no_longer(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    assert queue.capabilities.max_lease == 7 * DAY
    queue.send(["a"])
    (message,) = queue.receive(1, 30 * DAY, 0)
    assert message.lease_until - time.monotonic() == pytest.approx(7 * DAY, abs=10)
    server.advance(6 * DAY)
    assert queue.extend([message.receipt], 30 * DAY) == set()
    server.advance(6 * DAY)
    assert queue.receive(1, 60, 0) == []
    server.advance(2 * DAY)
    (again,) = queue.receive(1, 60, 0)
    assert (again.message_id, again.receive_count) == (message.message_id, 2)


def test_messages_that_are_sent_by_us_never_expire(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    queue.send(["ours"])
    senders_own(server, queue).send_message("theirs", time_to_live=7 * DAY)
    server.advance(8 * DAY)
    assert [message.body for message in queue.receive(10, 60, 0)] == [b"ours"]


def test_a_message_that_expires_before_its_lease_would_end_is_lost_and_stops_nothing(
    server: AzureQueueServer, opened: Open
) -> None:
    queue = opened()
    senders_own(server, queue).send_message("short", time_to_live=100)
    queue.send(["long"])
    receipts = {message.body: message.receipt for message in queue.receive(10, 60, 0)}
    assert queue.extend(list(receipts.values()), 300) == {receipts[b"short"]}


def test_an_empty_queue_is_asked_again_after_growing_pauses(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    queue.receive(1, 60, 0)
    before = server.calls()["GET"]
    queue.receive(1, 60, 2.0)
    assert server.calls()["GET"] - before <= 8


# --- content ---------------------------------------------------------------------------------------------------------

EVENT = b'{"eventType": "Microsoft.Storage.BlobCreated", "data": {"url": "https://a.blob.core.windows.net/c/\xc3\xbc"}}'


def test_messages_of_other_senders_come_decoded_and_ours_can_be_read_by_them(
    server: AzureQueueServer, opened: Open
) -> None:
    queue = opened()
    sender = senders_own(server, queue)
    sender.send_message(base64.b64encode(EVENT).decode())
    sender.send_message(EVENT.decode())
    sender.send_message("plain <text> & more")
    bodies = sorted(message.body for message in queue.receive(10, 60, 0))
    assert bodies == [b"plain <text> & more", EVENT, EVENT]
    queue.purge()
    queue.send([EVENT])
    assert content_of_next(sender) == EVENT.decode()


def test_with_base64_all_is_sent_and_read_in_base64(server: AzureQueueServer, opened: Open) -> None:
    queue = opened(message_encoding="base64")
    sender = senders_own(server, queue)
    queue.send(["hello"])
    assert content_of_next(sender) == base64.b64encode(b"hello").decode()
    sender.send_message(base64.b64encode(b"\xff\x00").decode())
    sender.send_message("no base64!")
    assert sorted(message.body for message in queue.receive(10, 60, 0)) == [b"no base64!", b"\xff\x00"]


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(QueueConfigurationError, match="'utf-16'"):
        AzureQueue("azurequeue://account/files", message_encoding="utf-16")


# --- depth and looks -------------------------------------------------------------------------------------------------


def test_the_depth_is_exact_while_few_are_visible_and_else_counts_our_own_as_in_flight(opened: Open) -> None:
    queue = opened()
    queue.send_messages([Outgoing(b"x")] * 100)
    held = queue.receive(10, 60, 0)
    assert (queue.depth().ready, queue.depth().in_flight) == (90, 10)
    while len(held) < 80:
        held += queue.receive(10, 60, 0)
    other = opened(queue.name)
    assert (other.depth().ready, other.depth().in_flight) == (20, 80)


def test_a_look_counts_as_no_delivery(opened: Open) -> None:
    queue = opened()
    queue.send(["a"], tag="t", headers={"k": "v"})
    (seen,) = queue.peek(5)
    assert (seen.body, seen.tag, seen.headers, seen.receive_count) == (b"a", "t", {"k": "v"}, 0)
    assert queue.receive(1, 60, 0)[0].receive_count == 1


# --- access and errors -----------------------------------------------------------------------------------------------


def test_a_token_serves_as_well_as_a_key(opened: Open) -> None:
    url = opened().name
    for token in (TOKEN, f"?{TOKEN}"):
        queue = opened(url, sas_token=token)
        queue.send(["a"])
        receipts = [message.receipt for message in queue.receive(1, 60, 0)]
        assert queue.extend(receipts, 60) == set()
        assert queue.acknowledge(receipts) == set()


def test_a_connection_string_serves_too(server: AzureQueueServer, opened: Open) -> None:
    url = opened().name
    with AzureQueue(url, connection_string_secret=server.connection_string) as queue:
        queue.send(["a"])
        assert queue.depth().ready == 1


def test_a_wrong_token_is_refused_with_the_next_step_and_shown_nowhere(opened: Open) -> None:
    queue = opened(opened().name, sas_token="sv=1&sig=wrong")
    for use in (
        lambda: queue.receive(1, 60, 0),
        lambda: queue.extend([Receipt("6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1/AgAA")], 60),
    ):
        with pytest.raises(QueueConfigurationError, match="check the key or the token") as raised:
            use()
        assert "wrong" not in str(raised.value)
        assert raised.value.__cause__ is None


def test_a_queue_that_is_not_there_says_so_also_when_it_is_deleted_under_way(opened: Open) -> None:
    queue = opened()
    queue.send(["a"])
    (message,) = queue.receive(1, 60, 0)
    opened(queue.name).delete()
    for use in (
        lambda: queue.receive(1, 60, 0),
        lambda: queue.extend([message.receipt], 60),
        lambda: queue.acknowledge([message.receipt]),
        lambda: queue.send(["b"]),
        lambda: queue.depth(),
    ):
        with pytest.raises(QueueNotFound, match="create it"):
            use()


def test_the_other_messages_are_acknowledged_though_one_request_fails(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    queue.send_messages([Outgoing(b"x")] * 20)
    receipts = [message.receipt for message in queue.receive(32, 60, 0)]
    server.fail("DELETE", 503, "ServerBusy", times=1)
    with pytest.raises(QueueUnavailable, match="1 of 20 messages were not changed"):
        queue.acknowledge(receipts)
    assert queue.depth().total == 1
    assert len(queue.acknowledge(receipts)) == 19


def test_sending_says_how_many_were_sent_before_it_failed(server: AzureQueueServer, opened: Open) -> None:
    queue = opened()
    server.fail("POST", 403, "AuthorizationFailure")
    with pytest.raises(QueueConfigurationError, match="0 of 2 messages were sent"):
        queue.send(["a", "b"])


def test_nothing_is_asked_before_the_first_use(server: AzureQueueServer) -> None:
    before = server.calls()
    with AzureQueue(f"azurequeue://{ACCOUNT}/files", **server.access) as queue:
        assert queue.capabilities.max_batch_size == 32
        assert queue.identity == f"azurequeue://{ACCOUNT}/files"
    assert server.calls() == before


def test_a_host_that_does_not_answer_is_passing_trouble() -> None:
    with AzureQueue("azurequeue://account/files", access_key=KEY, endpoint_url="http://127.0.0.1:9") as queue:
        with pytest.raises(QueueUnavailable, match="cannot be reached"):
            queue.receive(1, 60, 0)
        with pytest.raises(QueueUnavailable, match="cannot be reached"):
            queue.acknowledge([Receipt("6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1/AgAA")])


def test_a_host_that_takes_a_request_and_never_answers_is_passing_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.queues.azurequeue.address._READ_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with AzureQueue("azurequeue://account/files", access_key=KEY, endpoint_url=endpoint) as queue:
            with pytest.raises(QueueUnavailable, match="timed out"):
                queue.acknowledge([Receipt("6ea5bd4d-0ab3-4c0f-a5b5-1f3bb3a1a1a1/AgAA")])


def test_what_a_request_brings_after_the_queue_was_closed_is_given_back_at_once_and_nothing_else_is_asked(
    server: AzureQueueServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened()
    other = opened(queue.name)
    queue.send(["a", "b"])
    (held,) = queue.receive(1, 60, 0)
    client = queue._client()
    receive = client.receive_messages

    def closed_under_way(**options: Any) -> Any:
        queue.close()
        return receive(**options)

    monkeypatch.setattr(client, "receive_messages", closed_under_way)
    assert queue.receive(10, 600, 0) == []
    assert [message.body for message in other.receive(10, 60, 0)] == [b"b"]
    before = server.calls()
    for use in (queue.acknowledge, queue.nack, lambda receipts: queue.extend(receipts, 60)):
        with pytest.raises(QueueConfigurationError, match="is closed"):
            use([held.receipt])
    assert server.calls() == before
