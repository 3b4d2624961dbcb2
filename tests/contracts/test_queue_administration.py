"""`Administered` of the kinds that live on a server: SQS, Azure and Pub/Sub. RabbitMQ's is in `integration/`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from botocore.stub import Stubber
from google.pubsub_v1 import types
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.errors import QueueConfigurationError, QueueNotFound, QueueUnavailable
from queue_source.queues import open_queue
from queue_source.queues.base import administered
from queue_source.queues.pubsub import PubSubQueue
from queue_source.queues.pubsub.address import EMULATOR
from queue_source.queues.sqs import SqsQueue
from support.servers.azure_queue import ACCOUNT as AZURE_ACCOUNT
from support.servers.azure_queue import AzureQueueServer
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, new_name, new_queue
from support.servers.pubsub import PubSubServer, pubsub_server

_names = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    """One of our own, whose clock is that of this machine: purging goes by it."""
    with pubsub_server() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(
    monkeypatch: pytest.MonkeyPatch, ministack_url: str, server: PubSubServer, azure_queue_server: AzureQueueServer
) -> None:
    """What commands go by: they have no options for this."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    monkeypatch.setenv(EMULATOR, server.host)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_queue_server.connection_string)


URLS: dict[str, Callable[[str], str]] = {
    "sqs": lambda _: f"sqs://{new_name()}",
    "sqs-fifo": lambda _: f"sqs://{new_name()}.fifo",
    "sqs-by-url": lambda server: f"{server}/{ACCOUNT}/{new_name()}",
    "azurequeue": lambda _: f"azurequeue://{AZURE_ACCOUNT}/made-{next(_names)}",
    "pubsub": lambda _: f"pubsub://p/made-{next(_names)}",
}


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, ministack_url: str) -> str:
    return URLS[request.param](ministack_url)


def cuesqueue(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["queue", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_queue_is_created_looked_at_emptied_and_deleted(url: str) -> None:
    assert cuesqueue("info", url) == {"queue": url, "exists": False}
    assert CliRunner().invoke(app, ["queue", "peek", url]).exit_code == 2
    assert cuesqueue("delete", url, "--yes")["deleted"] is False
    assert cuesqueue("create", url)["created"] is True
    assert cuesqueue("create", url)["created"] is False
    with open_queue(url) as queue:
        ids = queue.send(["text", b"\xff"], tag="a.b", headers={"k": "v"})
        told = cuesqueue("info", url)
        assert (told["exists"], told.get("ready", 2)) == (True, 2)
        shown = {message["message_id"]: message for message in cuesqueue("peek", url)["messages"]}
        assert shown.keys() == set(ids)
        assert (shown[ids[0]]["body"], shown[ids[0]]["tag"], shown[ids[0]]["headers"]) == ("text", "a.b", {"k": "v"})
        assert shown[ids[1]]["body_base64"] == "/w=="
        assert len(cuesqueue("peek", url, "--max-messages", "1")["messages"]) == 1
        taken = queue.receive(10, 30, 2)
        assert {message.message_id for message in taken} == set(ids)  # what was looked at is to be had at once
        queue.nack([message.receipt for message in taken])
        assert cuesqueue("purge", url, "--yes")["messages"] == (2 if queue.capabilities.reports_depth else None)
        assert queue.receive(10, 30, 0) == []
        queue.send(["more"])
    assert cuesqueue("delete", url, "--yes")["deleted"] is True
    assert cuesqueue("info", url)["exists"] is False


def test_an_open_queue_may_be_deleted_twice_and_made_again(url: str) -> None:
    with open_queue(url) as queue:
        manager = administered(queue)
        assert manager
        manager.create()
        queue.send(["gone"])
        manager.delete()
        manager.delete()
        assert not manager.exists()
        with pytest.raises(QueueNotFound):
            manager.purge()
        manager.create()
        queue.send(["new"])
        assert [message.body for message in queue.receive(10, 30, 2)] == [b"new"]


# --- SQS -------------------------------------------------------------------------------------------------------------


def test_a_new_queue_of_sqs_keeps_messages_for_a_fortnight_and_is_fifo_where_its_name_says_so() -> None:
    name = new_name()
    for queue_url, ordered in ((f"sqs://{name}", False), (f"sqs://{name}.fifo", True)):
        with open_queue(queue_url) as queue:
            manager = administered(queue)
            assert manager
            manager.create()
            assert (queue.capabilities.retention, queue.capabilities.ordered_groups) == (14 * 86_400, ordered)


def test_what_is_there_already_stays_as_it_is(ministack_url: str) -> None:
    with SqsQueue(new_queue(ministack_url, MessageRetentionPeriod="3600"), **KEYS) as queue:
        queue.send(["kept"])
        queue.create()
        assert queue.capabilities.retention == 3600
        assert queue.depth().total == 1


def test_more_messages_than_one_receive_brings_are_shown_and_all_are_free_again(ministack_url: str) -> None:
    with SqsQueue(new_queue(ministack_url), **KEYS) as queue:
        queue.send([str(number) for number in range(35)])
        assert len({message.message_id for message in queue.peek(25)}) == 25
        assert (queue.depth().ready, queue.depth().in_flight) == (35, 0)


def test_a_look_counts_as_a_receive_of_sqs(ministack_url: str) -> None:
    with SqsQueue(new_queue(ministack_url), **KEYS) as queue:
        queue.send(["x"])
        assert [message.receive_count for message in [*queue.peek(1), *queue.peek(1)]] == [1, 2]


def test_messages_of_a_look_that_fails_are_free_again(ministack_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqsQueue(new_queue(ministack_url), **KEYS) as queue:
        queue.send([str(number) for number in range(12)])
        receive, calls = queue.receive, itertools.count()

        def fails_later(most: int, lease: float, wait: float) -> Any:
            if next(calls):
                raise QueueUnavailable(queue.name, "the line broke")
            return receive(most, lease, wait)

        monkeypatch.setattr(queue, "receive", fails_later)
        with pytest.raises(QueueUnavailable, match="the line broke"):
            queue.peek(12)
        assert queue.depth().ready == 12


@pytest.mark.parametrize(
    ("operation", "code", "use"),
    [
        ("purge_queue", "AWS.SimpleQueueService.PurgeQueueInProgress", lambda queue: queue.purge()),
        ("create_queue", "AWS.SimpleQueueService.QueueDeletedRecently", lambda queue: queue.create()),
    ],
)
def test_what_sqs_does_once_a_minute_says_so(operation: str, code: str, use: Callable[[SqsQueue], object]) -> None:
    with SqsQueue(f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/files", **KEYS) as queue:
        with Stubber(queue._client()) as stub:
            if operation == "purge_queue":
                stub.add_response("get_queue_attributes", {"Attributes": {}})
            else:
                stub.add_client_error("get_queue_attributes", "AWS.SimpleQueueService.NonExistentQueue")
            stub.add_client_error(operation, code, "said the stub.", http_status_code=400)
            with pytest.raises(QueueUnavailable, match=r"60 seconds.*try again"):
                use(queue)


def test_a_queue_that_was_made_in_another_account_than_that_of_the_url_is_told(ministack_url: str) -> None:
    name = new_name()
    with SqsQueue(f"https://sqs.{REGION}.amazonaws.com/111122223333/{name}", **KEYS) as queue:
        with Stubber(queue._client()) as stub:
            stub.add_client_error("get_queue_attributes", "AWS.SimpleQueueService.NonExistentQueue")
            made = f"https://sqs.{REGION}.amazonaws.com/444455556666/{name}"
            stub.add_response("create_queue", {"QueueUrl": made})
            with pytest.raises(QueueConfigurationError, match=f"there is {made} now.*of account 111122223333"):
                queue.create()


def test_a_refusal_to_look_is_not_taken_for_a_queue_that_is_not_there() -> None:
    with SqsQueue(f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/files", **KEYS) as queue:
        with Stubber(queue._client()) as stub:
            stub.add_client_error("get_queue_attributes", "AccessDenied", http_status_code=403)
            with pytest.raises(QueueConfigurationError, match="permissions"):
                queue.exists()


def test_deleting_leaves_other_queues_alone(ministack_url: str) -> None:
    kept = new_queue(ministack_url)
    with SqsQueue(new_queue(ministack_url), **KEYS) as queue:
        queue.delete()
    with closing(client(ministack_url, "sqs")) as sqs:
        assert sqs.get_queue_url(QueueName=kept.rpartition("/")[2])["QueueUrl"] == kept


# --- Pub/Sub ---------------------------------------------------------------------------------------------------------


def config_of(server: PubSubServer, url: str) -> Any:
    """What the server has of a subscription."""
    project, _, subscription = url.removeprefix("pubsub://").partition("/")
    request = types.GetSubscriptionRequest.pb()(subscription=f"projects/{project}/subscriptions/{subscription}")
    return server._call("google.pubsub.v1.Subscriber/GetSubscription", request, types.Subscription.pb())


def test_a_new_subscription_is_of_a_topic_of_its_name_and_never_expires(server: PubSubServer) -> None:
    url = f"pubsub://p/made-{next(_names)}"
    with PubSubQueue(url) as queue:
        queue.create()
        assert queue.capabilities.reports_stale
    config = config_of(server, url)
    assert config.topic == config.name.replace("subscriptions", "topics")
    assert config.ack_deadline_seconds == 60
    assert config.HasField("expiration_policy")
    assert not config.expiration_policy.HasField("ttl")


def test_a_topic_that_is_there_is_used_and_outlives_the_subscription(server: PubSubServer) -> None:
    name = f"made-{next(_names)}"
    topic = server.create_topic("p", name)
    other = server.create_subscription("p", f"{name}-other", topic)
    with PubSubQueue(f"pubsub://p/{name}", shortest_wait=0.1) as queue:
        before = len(server.calls().get("CreateTopic", []))
        queue.create()
        assert len(server.calls()["CreateTopic"]) == before
        queue.send(["x"])
        queue.delete()
    with PubSubQueue(other, shortest_wait=0.1) as queue:
        queue.send(["y"])
    assert server.depth(other) == (2, 0)


def test_a_subscription_of_another_topic_stays_as_it_is_and_no_topic_is_made(server: PubSubServer) -> None:
    topic = server.create_topic("p", f"topic-{next(_names)}")
    url = server.create_subscription("p", f"made-{next(_names)}", topic)
    before = len(server.calls().get("CreateTopic", []))
    with PubSubQueue(url) as queue:
        queue.create()
    assert config_of(server, url).topic == topic
    assert len(server.calls()["CreateTopic"]) == before


def test_only_one_subscription_is_purged_and_later_messages_stay(server: PubSubServer) -> None:
    topic = server.create_topic("p", f"topic-{next(_names)}")
    url, other = (server.create_subscription("p", f"made-{next(_names)}", topic) for _ in range(2))
    with PubSubQueue(url, shortest_wait=0.1) as queue:
        queue.send(["a", "b"])
        assert queue.receive(1, 60, 1)  # those that are held go as well
        queue.purge()
        queue.send(["c"])
        assert [message.body for message in queue.receive(10, 60, 1)] == [b"c"]
    assert server.depth(other) == (3, 0)


@pytest.mark.parametrize(
    ("verb", "use", "permission"),
    [
        ("CreateSubscription", lambda queue: queue.create(), "pubsub.subscriptions.create"),
        ("CreateTopic", lambda queue: queue.create(), "pubsub.topics.create"),
        ("DeleteSubscription", lambda queue: queue.delete(), "pubsub.subscriptions.delete"),
        ("Seek", lambda queue: queue.purge(), "pubsub.subscriptions.consume"),
    ],
)
def test_a_missing_permission_of_an_administrator_is_named(
    server: PubSubServer, verb: str, use: Callable[[PubSubQueue], object], permission: str
) -> None:
    server.fail(verb, "PERMISSION_DENIED")
    with PubSubQueue(f"pubsub://p/made-{next(_names)}") as queue, pytest.raises(QueueConfigurationError) as caught:
        use(queue)
    assert permission in str(caught.value)
