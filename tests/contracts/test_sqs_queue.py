"""What only SQS has: attributes, redrive policies, limits, foreign messages, errors.

Over a real server, except where none can be made to fail in that way: then botocore's own stubber answers.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from botocore.stub import Stubber

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues import open_queue
from queue_source.queues.adapter import in_batches
from queue_source.queues.sqs import SqsQueue
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, new_queue

SECRET = "n0t-t0-be-sh0wn"


@pytest.fixture
def queue_url(ministack_url: str) -> str:
    return new_queue(ministack_url)


@pytest.fixture
def queue(queue_url: str) -> Iterator[SqsQueue]:
    with SqsQueue(queue_url, **KEYS) as opened:
        yield opened


@pytest.fixture
def sqs(ministack_url: str) -> Iterator[Any]:
    """The plain client: what others do with the queue."""
    with closing(client(ministack_url, "sqs")) as plain:
        yield plain


def arn(url: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{url.rpartition('/')[2]}"


def redrive(target: str, most: int) -> dict[str, Any]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(target), "maxReceiveCount": most})}


# --- what a message carries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ['{"Records": []}', "dGV4dA==", "-", " \n", "\U0001f980"])
def test_a_foreign_message_comes_as_it_is_with_its_attributes_as_headers(queue: SqsQueue, sqs: Any, body: str) -> None:
    attributes = {
        "trace": {"DataType": "String", "StringValue": "7"},
        "size": {"DataType": "Number", "StringValue": "12"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
    }
    sqs.send_message(QueueUrl=queue.name, MessageBody=body, MessageAttributes=attributes)
    (message,) = queue.receive(10, 30, 0)
    assert message.body == body.encode()
    assert message.headers == {"trace": "7", "size": "12", "raw": "/w=="}
    assert (message.tag, message.group) == ("", None)


def test_what_fits_is_sent_so_that_others_can_read_it(queue: SqsQueue, sqs: Any) -> None:
    queue.send(["text"], tag="orders.eu", headers={"trace": "1"})
    (message,) = sqs.receive_message(QueueUrl=queue.name, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == "text"
    assert {name: value["StringValue"] for name, value in message["MessageAttributes"].items()} == {
        "cuesqueue.tag": "orders.eu",
        "trace": "1",
    }


@pytest.mark.parametrize(
    "headers",
    [
        {f"h{number}": "x" for number in range(30)},
        {"": "no name", "with space": "x", "aws.x": "reserved", "\u00fc": "\x00\ud7ff\uffff"},
        {"empty": ""},
        {"cuesqueue.encoding": "base64"},
        {"AWS.trace": "1", "a..b": "2", ".c": "3", "x" * 300: "4"},
    ],
)
def test_headers_that_are_no_attributes_of_sqs_come_back_all_the_same(queue: SqsQueue, headers: dict[str, str]) -> None:
    queue.send([b"\xff"], tag="t", headers=headers)
    (message,) = queue.receive(10, 30, 0)
    assert (message.body, message.tag, message.headers) == (b"\xff", "t", headers)


@pytest.mark.parametrize("given", [{"tag": "\x01"}, {"tag": "\ud800"}, {"group": "a b"}, {"group": "g" * 129}])
def test_what_sqs_cannot_carry_is_refused_before_anything_is_sent(queue: SqsQueue, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"SQS|surrogates"):
        queue.send(["x"], **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogates"):
        queue.send(["x"], headers={"h": "\ud800"})
    with pytest.raises(ValueError, match="at most 1048576"):
        queue.send(["small", "x" * (1 << 20) + "x"])
    assert queue.depth().total == 0


def test_large_messages_share_no_request_that_would_be_too_long(queue: SqsQueue) -> None:
    bodies = [bytes([65 + number]) * 400_000 for number in range(5)] + [b"z" * (1 << 20)]
    assert len(queue.send(bodies)) == 6
    seen = []
    while messages := queue.receive(10, 30, 0):
        seen += [message.body for message in messages]
        queue.acknowledge([message.receipt for message in messages])
    assert sorted(seen) == sorted(bodies)


def test_batches_hold_ten_and_a_mebibyte_at_most_and_leave_nothing_out() -> None:
    assert [list(places) for places in in_batches([1] * 12, 10, 1 << 20)] == [list(range(10)), [10, 11]]
    assert [list(places) for places in in_batches([1 << 20, 1, 1 << 20], 10, 1 << 20)] == [[0], [1], [2]]
    assert in_batches([], 10, 1 << 20) == []


def test_the_same_text_twice_is_two_messages_of_a_fifo_queue(ministack_url: str) -> None:
    url = new_queue(ministack_url, fifo=True, ContentBasedDeduplication="true")
    with SqsQueue(url, **KEYS) as queue:
        queue.send(["same", "same"], group="g")
        queue.send(["same"])
        assert len(queue.receive(10, 30, 0)) == 3


# --- the queue's own settings ----------------------------------------------------------------------------------------


def test_the_retention_of_the_queue_is_told(ministack_url: str) -> None:
    with SqsQueue(new_queue(ministack_url, MessageRetentionPeriod="1209600"), **KEYS) as queue:
        assert queue.capabilities.retention == 14 * 86_400
        assert queue.capabilities.lease_cap == 12 * 3600
        assert not queue.capabilities.ordered_groups
    with SqsQueue(new_queue(ministack_url, fifo=True), **KEYS) as queue:
        assert queue.capabilities.ordered_groups


@pytest.mark.parametrize(("most", "warned"), [(3, "after 3 receives"), (50, None), (None, None)])
def test_a_redrive_policy_that_restarts_would_trigger_is_warned_of_once(
    ministack_url: str, caplog: pytest.LogCaptureFixture, most: int | None, warned: str | None
) -> None:
    attributes: dict[str, Any] = {} if most is None else redrive(new_queue(ministack_url), most)
    with caplog.at_level(logging.WARNING), SqsQueue(new_queue(ministack_url, **attributes), **KEYS) as queue:
        for _ in range(2):
            assert queue.capabilities.max_batch_size == 10
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == (warned is not None)
    assert warned is None or warned in texts[0]


def test_a_message_that_is_rejected_without_a_dead_letter_queue_is_deleted_with_a_warning(
    queue: SqsQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(["bad"])
    (bad,) = queue.receive(1, 30, 0)
    with caplog.at_level(logging.WARNING):
        queue.reject([bad.receipt])
    assert "has no dead-letter queue: 1 message(s) that were rejected are deleted" in caplog.text
    assert queue.depth().total == 0


@pytest.mark.parametrize("fifo", [False, True])
def test_what_is_rejected_goes_to_the_dead_letter_queue_as_it_was(ministack_url: str, fifo: bool) -> None:
    target = new_queue(ministack_url, fifo=fifo)
    url = new_queue(ministack_url, fifo=fifo, **redrive(target, 50))
    with SqsQueue(url, **KEYS) as queue, SqsQueue(target, **KEYS) as dead:
        queue.send([b"\xff poison", "good"], tag="t", headers={"h": "1"}, group="g")
        bad, good = queue.receive(10, 30, 0)
        queue.reject([bad.receipt])
        (moved,) = dead.receive(10, 30, 0)
        assert (moved.body, moved.tag, moved.headers, moved.group) == (b"\xff poison", "t", {"h": "1"}, "g")
        assert queue.acknowledge([good.receipt]) == set()
        assert queue.depth().total == 0


def test_what_is_rejected_but_no_longer_remembered_goes_back_and_is_not_lost(ministack_url: str) -> None:
    url = new_queue(ministack_url, **redrive(new_queue(ministack_url), 50))
    with SqsQueue(url, **KEYS) as first, SqsQueue(url, **KEYS) as second:
        first.send(["x"])
        (message,) = first.receive(10, 30, 0)
        second.reject([message.receipt])
        assert [again.receive_count for again in second.receive(10, 30, 0)] == [2]


def test_a_queue_is_found_by_its_name_alone(ministack_url: str, queue_url: str) -> None:
    name = f"sqs://{queue_url.rpartition('/')[2]}"
    with open_queue(name, endpoint_url=ministack_url, region=REGION, **KEYS) as queue:
        queue.send(["x"])
        assert queue.name == name
        assert [message.queue for message in queue.receive(10, 30, 0)] == [name]


def test_a_role_is_assumed_with_the_keys_of_the_options(
    ministack_url: str, queue_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", ministack_url)
    role = f"arn:aws:iam::{ACCOUNT}:role/reader"
    with SqsQueue(queue_url, **KEYS, role_arn=role, role_external_id="id") as queue:
        queue.send(["x"])
        keys = queue._client()._get_credentials()
        assert keys.method == "cuesqueue-role"
        assert keys.access_key != "test"
        assert keys.token


# --- stale receipts --------------------------------------------------------------------------------------------------


def test_a_receipt_that_the_server_calls_stale_is_told_alone(queue: SqsQueue) -> None:
    queue.send(["a", "b"])
    (old,) = queue.receive(1, 1, 0)
    fresh = queue.receive(10, 30, 3)
    while old.message_id not in {message.message_id for message in fresh}:
        fresh += queue.receive(10, 30, 3)
    good = [message.receipt for message in fresh]
    assert queue.extend([old.receipt, *good], 30) == {old.receipt}
    assert queue.republish(old) is False
    assert queue.acknowledge([old.receipt, *good, Receipt("")]) == {old.receipt, Receipt("")}
    assert queue.depth().total == 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
        ("AWS.SimpleQueueService.MessageNotInflight", "The message referred to is not in flight."),
        (
            "InvalidParameterValue",
            "Value AQ== for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
        ),
        (
            "InvalidParameterValue",
            "Value AQ== for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "
            "visibility timeout change.",
        ),
        (
            "InvalidParameterValue",
            "Value 600 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
            "beyond the limit [43200 seconds].",
        ),
    ],
)
def test_every_documented_way_to_say_stale_is_understood(code: str, text: str) -> None:
    with stubbed() as (queue, stub):
        failed = [{"Id": "1", "Code": code, "Message": text, "SenderFault": True}]
        stub.add_response("change_message_visibility_batch", {"Successful": [{"Id": "0"}], "Failed": failed})
        assert queue.extend([Receipt("a"), Receipt("b")], 60) == {Receipt("b")}


# --- failures --------------------------------------------------------------------------------------------------------


@contextmanager
def stubbed() -> Iterator[tuple[SqsQueue, Stubber]]:
    with SqsQueue(f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/files", **KEYS) as queue:
        with Stubber(queue._client()) as stub:
            yield queue, stub
            stub.assert_no_pending_responses()


def failure(place: int, code: str, *, sender: bool) -> dict[str, Any]:
    return {"Id": str(place), "Code": code, "Message": "said the stub", "SenderFault": sender}


def sent(place: int) -> dict[str, str]:
    return {"Id": str(place), "MessageId": f"m{place}", "MD5OfMessageBody": "0" * 32}


@pytest.mark.parametrize("code", ["RequestThrottled", "InternalError", "AWS.Whatever"])
def test_only_the_messages_that_sqs_failed_to_take_are_sent_again(code: str) -> None:
    with stubbed() as (queue, stub):
        stub.add_response(
            "send_message_batch", {"Successful": [sent(0), sent(2)], "Failed": [failure(1, code, sender=False)]}
        )
        again = {"QueueUrl": queue.name, "Entries": [{"Id": "1", "MessageBody": "b"}]}
        stub.add_response("send_message_batch", {"Successful": [sent(1)], "Failed": []}, again)
        assert queue.send(["a", "b", "c"]) == ["m0", "m1", "m2"]  # fmt: skip


def test_a_message_that_is_refused_is_told_with_how_many_were_sent() -> None:
    with stubbed() as (queue, stub):
        stub.add_response(
            "send_message_batch",
            {"Successful": [sent(0)], "Failed": [failure(1, "InvalidMessageContents", sender=True)]},
        )
        with pytest.raises(QueueError, match="1 of 2 messages were sent before this: InvalidMessageContents") as caught:
            queue.send(["a", "b"])
        assert not isinstance(caught.value, QueueUnavailable)


def test_throttling_that_does_not_end_is_passing_trouble_for_the_caller_to_wait_for() -> None:
    with stubbed() as (queue, stub):
        for _ in range(3):
            stub.add_response(
                "delete_message_batch", {"Successful": [], "Failed": [failure(0, "RequestThrottled", sender=False)]}
            )
        with pytest.raises(QueueUnavailable, match="1 of 1 messages: RequestThrottled"):
            queue.acknowledge([Receipt("a")])  # fmt: skip


def test_a_batch_that_is_too_long_for_the_queue_goes_in_halves() -> None:
    with stubbed() as (queue, stub):
        stub.add_client_error("send_message_batch", "AWS.SimpleQueueService.BatchRequestTooLong")
        for half in ([0, 1], [2, 3]):
            entries = [{"Id": str(place), "MessageBody": "abcd"[place]} for place in half]
            stub.add_response(
                "send_message_batch",
                {"Successful": [sent(place) for place in half], "Failed": []},
                {"QueueUrl": queue.name, "Entries": entries},
            )
        assert queue.send(list("abcd")) == ["m0", "m1", "m2", "m3"]


@pytest.mark.parametrize(
    ("code", "status", "kind", "hint"),
    [
        ("RequestThrottled", 400, QueueUnavailable, "RequestThrottled"),
        ("ThrottlingException", 400, QueueUnavailable, "Throttling"),
        ("OverLimit", 403, QueueUnavailable, "OverLimit"),
        ("Strange", 503, QueueUnavailable, "Strange"),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, QueueNotFound, "create it, or check name"),
        ("com.amazonaws.sqs#QueueDoesNotExist", 400, QueueNotFound, "create it, or check name"),
        ("AccessDenied", 403, QueueConfigurationError, "docs/how-to/sqs.md"),
        ("KmsAccessDenied", 400, QueueConfigurationError, "KMS"),
        ("InvalidClientTokenId", 403, QueueConfigurationError, "sqs.accessKeyId"),
        ("SignatureDoesNotMatch", 403, QueueConfigurationError, "sqs.secretAccessKey"),
        ("ExpiredToken", 403, QueueConfigurationError, "renew them"),
    ],
)
def test_every_answer_is_passing_or_names_the_next_step(
    code: str, status: int, kind: type[QueueError], hint: str
) -> None:
    calls: list[tuple[str, Callable[[SqsQueue], object]]] = [
        ("receive_message", lambda queue: queue.receive(1, 60, 0)),
        ("get_queue_attributes", lambda queue: queue.depth()),
        ("delete_message_batch", lambda queue: queue.acknowledge([Receipt("a")])),
        ("send_message_batch", lambda queue: queue.send(["x"])),
    ]
    with stubbed() as (queue, stub):
        stub.add_response("get_queue_attributes", {"Attributes": {}})
        for operation, call in calls:
            stub.add_client_error(operation, code, "said the stub.", http_status_code=status)
            with pytest.raises(kind, match=hint) as caught:
                call(queue)
            assert type(caught.value) is kind
            assert queue.name in str(caught.value)


def test_a_queue_that_is_missing_at_a_start_is_said_with_region_and_address() -> None:
    with stubbed() as (queue, stub):
        stub.add_client_error("get_queue_attributes", "AWS.SimpleQueueService.NonExistentQueue", "No.", 400)
        with pytest.raises(QueueNotFound, match=r"GetQueueAttributes in [a-z0-9-]+ at https?://\S+: NonExistentQueue"):
            _ = queue.capabilities


def test_a_server_that_is_not_there_is_passing_trouble() -> None:
    with SqsQueue("http://127.0.0.1:1/000000000000/files", **KEYS) as queue:
        with pytest.raises(QueueUnavailable, match="cannot be reached"):
            queue.depth()


def test_a_queue_that_does_not_exist_says_what_to_do(ministack_url: str) -> None:
    for url, options in (
        (f"{ministack_url}/{ACCOUNT}/nowhere", {}),
        ("sqs://nowhere", {"endpoint_url": ministack_url, "region": REGION}),
    ):
        with open_queue(url, **KEYS, **options) as queue:
            with pytest.raises(QueueConfigurationError, match="create it, or check name, account and region"):
                queue.receive(1, 60, 0)


def test_without_credentials_region_or_profile_the_option_to_set_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    for options, hint in (
        ({"region": REGION}, "sqs.accessKeyId"),
        (KEYS, "sqs.region"),
        ({"profile": "nobody"}, "sqs.profile"),
        ({"region": REGION, "endpoint_url": "no url", **KEYS}, "sqs"),
    ):
        with SqsQueue("sqs://files", **options) as queue, pytest.raises(QueueConfigurationError, match=hint):
            queue.depth()


@pytest.mark.parametrize(
    "url",
    [
        "sqs://",
        "sqs://files/more",
        "sqs://fi les",
        "https://sqs.eu-central-1.amazonaws.com/files",
        "https://sqs.eu-central-1.amazonaws.com/123456789012/fi%20les",
        f"https://key:{SECRET}@sqs.eu-central-1.amazonaws.com/123456789012/files",
        "https://sqs.eu-central-1.amazonaws.com/123456789012/files?region=x",
        "http://127.0.0.1:port/000000000000/files",
        f"sqs://{'x' * 81}",
    ],
)
def test_a_url_that_names_no_queue_is_refused_without_a_request(url: str) -> None:
    with pytest.raises(QueueConfigurationError, match=r"write|options") as caught:
        open_queue(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "region", "endpoint"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/1/q", "eu-central-1", "https://sqs.eu-central-1.amazonaws.com"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1", "https://sqs.cn-north-1.amazonaws.com.cn"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1", "https://sqs.us-gov-west-1.amazonaws.com"),
        (
            "https://vpce-1a-2b.sqs.eu-west-1.vpce.amazonaws.com/1/q",
            "eu-west-1",
            "https://vpce-1a-2b.sqs.eu-west-1.vpce.amazonaws.com",
        ),
        ("http://localhost:4566/1/q", "us-west-2", "http://localhost:4566"),
    ],
)
def test_endpoint_and_region_are_those_of_the_url(url: str, region: str, endpoint: str) -> None:
    with SqsQueue(url, region="us-west-2", **KEYS) as queue:
        meta = queue._client().meta
        assert (meta.region_name, meta.endpoint_url) == (region, endpoint)


def test_secrets_are_in_no_error_and_no_representation(ministack_url: str) -> None:
    keys = {"access_key_id": SECRET, "secret_access_key": SECRET, "role_external_id": SECRET}
    with SqsQueue(f"{ministack_url}/{ACCOUNT}/nowhere", **keys) as queue:
        assert SECRET not in repr(queue._access)
        with pytest.raises(QueueError) as caught:
            queue.depth()
        assert SECRET not in f"{caught.value!r}"


# --- calls -----------------------------------------------------------------------------------------------------------


def test_extending_and_acknowledging_take_one_call_for_ten_messages_whatever_the_threads(queue: SqsQueue) -> None:
    queue.send([str(number) for number in range(100)])
    receipts = []
    while taken := queue.receive(10, 60, 0):
        receipts += [message.receipt for message in taken]
    calls: list[str] = []
    lock = threading.Lock()

    def count(model: Any, **_: object) -> None:
        with lock:
            calls.append(model.name)

    queue._client().meta.events.register("before-call.sqs", count)
    assert queue.extend(receipts, 60) == set()
    assert calls == ["ChangeMessageVisibilityBatch"] * 10
    calls.clear()
    assert queue.acknowledge(receipts) == set()
    assert calls == ["DeleteMessageBatch"] * 10


def test_what_a_poll_brings_after_the_queue_was_closed_is_given_back_at_once(queue_url: str) -> None:
    with SqsQueue(queue_url, **KEYS) as queue, SqsQueue(queue_url, **KEYS) as other:
        queue.send(["x"])
        queue._client().meta.events.register("before-call.sqs.ReceiveMessage", lambda **_: queue.close())
        assert queue.receive(10, 600, 0) == []
        assert [message.receive_count for message in other.receive(10, 30, 0)] == [2]
