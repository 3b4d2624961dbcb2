"""Pub/Sub's adapter without a service: its URLs, its requests' sizes, and Google's errors in our names."""

# mypy: disable-error-code="no-untyped-call"
# Google's exceptions have no types

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.pubsub_v1 import types
from google.rpc import error_details_pb2

import queue_source
from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues import open_queue
from queue_source.queues.pubsub import LARGEST_REQUEST, MOST_RECEIPTS, PubSubQueue
from queue_source.queues.pubsub.address import LASTING, NEEDED, PASSING, our_error, receipt_failures
from support.servers.pubsub import PubSubServer

PATH = "projects/p/subscriptions/files"

# --- URLs ------------------------------------------------------------------------------------------------------------


def test_the_url_names_project_and_subscription() -> None:
    assert open_queue("pubsub://my-project/files").name == "pubsub://my-project/files"
    assert open_queue("pubsub://example.com:old-project/files.v1~a+b%c").name.endswith("/files.v1~a+b%c")


def test_the_project_may_come_from_an_option() -> None:
    assert PubSubQueue("pubsub:///files", project="mine").name == "pubsub://mine/files"
    assert PubSubQueue("pubsub://theirs/files", project="mine").name == "pubsub://theirs/files"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("pubsub:///files", "names no project.*'gcp.project'"),
        ("pubsub://files", "pubsub://PROJECT/SUBSCRIPTION"),
        ("pubsub://p/", "pubsub://PROJECT/SUBSCRIPTION"),
        ("pubsub://p/subscriptions/files", "pubsub://PROJECT/SUBSCRIPTION"),
        ("pubsub://p/1", "pubsub://PROJECT/SUBSCRIPTION"),
    ],
)
def test_other_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(QueueConfigurationError, match=problem):
        open_queue(url)


# --- sizes -----------------------------------------------------------------------------------------------------------


class Recorder:
    """Takes the place of Google's client: keeps the requests, and fails as it is told."""

    def __init__(self, *failures: Exception | None) -> None:
        self.requests: list[Any] = []
        self._failures = [*failures]

    def acknowledge(self, request: Any, **_: object) -> None:
        self.requests.append(type(request).pb(request))
        if self._failures and (failure := self._failures.pop(0)) is not None:
            raise failure

    modify_ack_deadline = acknowledge


@pytest.fixture
def made() -> Iterator[list[PubSubQueue]]:
    queues: list[PubSubQueue] = []
    yield queues
    for queue in queues:
        queue.close()


def queue_of(recorder: Recorder, made: list[PubSubQueue], subscription: str = "files") -> PubSubQueue:
    queue = PubSubQueue(f"pubsub://p/{subscription}", endpoint="http://127.0.0.1:1")
    queue._open = lambda: (recorder, recorder)  # type: ignore[assignment,return-value,method-assign]
    made.append(queue)
    return queue


@pytest.mark.parametrize("length", [1, 200, 523, 1_000, 40_000])
@pytest.mark.parametrize("subscription", ["files", "s" * 255])
def test_receipts_go_out_under_the_services_limit_of_bytes(
    made: list[PubSubQueue], length: int, subscription: str
) -> None:
    recorder = Recorder()
    ids = [Receipt(f"{number:0{length}}") for number in range(60 if length > 10_000 else 2_500)]
    queue = queue_of(recorder, made, subscription)
    queue.extend(ids, 600)
    queue.acknowledge(ids)
    sent = [ack_id for request in recorder.requests for ack_id in request.ack_ids]
    assert sent == [*ids, *ids]
    sizes = [request.ByteSize() for request in recorder.requests]
    assert max(sizes) <= LARGEST_REQUEST
    counts = [len(request.ack_ids) for request in recorder.requests]
    assert max(counts) <= MOST_RECEIPTS
    full = [
        n == MOST_RECEIPTS or size > LARGEST_REQUEST - length - 5_000 for n, size in zip(counts, sizes, strict=True)
    ]
    assert full.count(False) <= 2, "the last of each verb"


class ClosesAfterPull:
    """Takes the place of Google's client: the queue is closed by another thread while a pull brings a message."""

    def __init__(self, queue: PubSubQueue) -> None:
        self._queue = queue
        queue._open = self._opened  # type: ignore[assignment,method-assign]

    def _opened(self) -> tuple[ClosesAfterPull, ClosesAfterPull]:
        self._queue._refuse_closed()
        return self, self

    def get_subscription(self, **_: object) -> types.Subscription:
        return types.Subscription(name=PATH, ack_deadline_seconds=60)

    def pull(self, **_: object) -> types.PullResponse:
        self._queue.close()
        return types.PullResponse(received_messages=[{"ack_id": "1", "message": {"data": b"a"}}])


def test_a_queue_that_is_closed_between_pull_and_extension_brings_nothing() -> None:
    queue = PubSubQueue("pubsub://p/files")
    ClosesAfterPull(queue)
    assert queue.receive(10, 60, 5) == []


# --- receipts that fail one by one -----------------------------------------------------------------------------------


def refused(failures: Mapping[str, str]) -> api.InvalidArgument:
    info = error_details_pb2.ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", metadata=failures)
    return api.InvalidArgument("some ids were invalid", details=[info], error_info=info)


def receipts(letters: str) -> list[Receipt]:
    return list(map(Receipt, letters))


def test_a_receipt_that_the_service_refuses_for_good_is_stale_and_the_others_are_not(made: list[PubSubQueue]) -> None:
    recorder = Recorder(refused({"b": "PERMANENT_FAILURE_INVALID_ACK_ID", "d": "PERMANENT_FAILURE_OTHER"}))
    assert queue_of(recorder, made).acknowledge(receipts("abcd")) == {"b", "d"}
    assert len(recorder.requests) == 1


def test_only_receipts_that_fail_for_the_moment_are_sent_again(made: list[PubSubQueue]) -> None:
    first = refused({"a": "TRANSIENT_FAILURE_UNORDERED_ACK_ID", "b": "PERMANENT_FAILURE_INVALID_ACK_ID"})
    recorder = Recorder(first, refused({"a": "TRANSIENT_FAILURE_OTHER"}), None)
    assert queue_of(recorder, made).acknowledge(receipts("abc")) == {"b"}
    assert [list(request.ack_ids) for request in recorder.requests] == [["a", "b", "c"], ["a"], ["a"]]


def test_receipts_that_keep_failing_for_the_moment_make_the_queue_unavailable(made: list[PubSubQueue]) -> None:
    recorder = Recorder(*[refused({"a": "TRANSIENT_FAILURE_OTHER"})] * 20)
    with pytest.raises(QueueUnavailable, match=r"1 receipts.*TRANSIENT_FAILURE_OTHER"):
        queue_of(recorder, made).extend(receipts("abc"), 60)
    assert len(recorder.requests) < 10


def test_a_refusal_that_names_no_receipt_is_an_error(made: list[PubSubQueue]) -> None:
    for failure in (refused({}), refused({"service": "pubsub.googleapis.com"}), api.InvalidArgument("no")):
        with pytest.raises(QueueConfigurationError):
            queue_of(Recorder(failure), made).acknowledge(receipts("abc"))


def test_other_metadata_of_errors_is_not_taken_for_receipts() -> None:
    assert receipt_failures(refused({"consumer": "projects/1", "x": "TRANSIENT_FAILURE_OTHER"})) == {
        "x": "TRANSIENT_FAILURE_OTHER"
    }


# --- errors ----------------------------------------------------------------------------------------------------------

UPLOADS = getattr(api, "ResumableTransferError", ())  # older libraries lack it, and Pub/Sub uploads nothing
CALL_ERRORS = [
    kind
    for _, kind in inspect.getmembers(api, inspect.isclass)
    if issubclass(kind, api.GoogleAPICallError) and kind is not api.GoogleAPICallError and not issubclass(kind, UPLOADS)
]
MAY_PASS = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
}


@pytest.mark.parametrize("kind", CALL_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_class_of_googles_library_has_a_place(kind: type[api.GoogleAPICallError]) -> None:
    assert issubclass(kind, (*PASSING, *LASTING)), f"put {kind.__name__} into a table of pubsub/errors.py"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_grpc_status_is_either_passing_or_lasting(code: grpc.StatusCode) -> None:
    error = api.exception_class_for_grpc_status(code)("told by the service")
    assert type(error) is not api.GoogleAPICallError
    found = our_error("pubsub://p/files", "receive", PATH, error)
    assert isinstance(found, QueueUnavailable if code in MAY_PASS else QueueConfigurationError)
    assert "told by the service" in str(found)
    assert "pubsub://p/files" in str(found)


@pytest.mark.parametrize("kind", NEEDED)
def test_a_missing_permission_is_named(kind: str) -> None:
    found = our_error("q", kind, PATH, api.PermissionDenied("User not authorized to perform this action."))
    assert NEEDED[kind] in str(found)


def test_tries_that_used_up_their_time_may_succeed_later() -> None:
    error = api.RetryError("Timeout of 15.0s exceeded", api.ServiceUnavailable("down"))
    assert isinstance(our_error("q", "read", PATH, error), QueueUnavailable)


@pytest.mark.parametrize("retryable", [True, False])
def test_errors_of_credentials_pass_only_where_the_library_says_so(retryable: bool) -> None:
    found = our_error("q", "read", PATH, auth.RefreshError("no token", retryable=retryable))
    assert isinstance(found, QueueUnavailable if retryable else QueueConfigurationError)


@pytest.mark.parametrize("content", [None, "not JSON", "{}"])
def test_a_bad_file_of_credentials_names_the_option(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    with (
        PubSubQueue("pubsub://p/files", credentials_file=str(file)) as queue,
        pytest.raises(QueueConfigurationError, match=r"gcp\.credentialsFile"),
    ):
        queue.publish(["x"])


def test_no_credentials_at_all_name_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # or it looks for Google's metadata server
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    with (
        PubSubQueue("pubsub://p/files") as queue,
        pytest.raises(QueueConfigurationError, match="gcloud auth application-default login"),
    ):
        queue.receive(1, 60, 0)


# --- what is published -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"headers": {str(number): "x" for number in range(101)}}, "100 headers"),
        ({"headers": {"n" * 257: "x"}}, "256"),
        ({"headers": {"": "x"}}, "256"),
        ({"headers": {"n": "x" * 1025}}, "1024"),
        ({"headers": {"cuesqueue-tag": "x"}}, "own"),
        ({"tag": "\u00fc" * 513}, "1024"),
        ({"group": "g" * 1025}, "groups"),
    ],
)
def test_what_the_service_would_refuse_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], problem: str
) -> None:
    with PubSubQueue("pubsub://p/files") as queue, pytest.raises(ValueError, match=problem):
        queue.publish(["x"], **arguments)


def test_a_lease_that_the_service_cannot_give_is_refused() -> None:
    with PubSubQueue("pubsub://p/files") as queue:
        for lease, problem in ((0, "more than 0"), (-1, "more than 0"), (float("nan"), "more than 0"), (600.5, "600")):
            with pytest.raises(ValueError, match=problem):
                queue.receive(1, lease, 0)


def test_googles_library_is_loaded_only_for_such_a_queue() -> None:
    program = "import sys, json; import queue_source.queues; print(json.dumps(sorted(sys.modules)))"
    environment = {"PYTHONPATH": str(Path(queue_source.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    assert not [name for name in json.loads(done.stdout) if name.startswith(("google", "grpc"))]


STARTS_PROGRAMS = """
import os, subprocess, sys
from queue_source.queues.pubsub import PubSubQueue
import grpc

channel = grpc.insecure_channel(sys.argv[1])
grpc.channel_ready_future(channel).result(30)
ended = []
for _ in range(100):
    for _ in range(3):
        try:
            channel.unary_unary("/no/such")(b"", timeout=30)
        except grpc.RpcError:
            pass
    ended.append(subprocess.Popen(["true"], preexec_fn=os.getpid).wait())
print(len(ended), sum(map(bool, ended)))
"""
"""As PySpark starts a JVM: what runs before the new program begins keeps Python from another way than fork."""


def test_programs_that_are_started_after_a_queue_was_used_run(pubsub_server: PubSubServer) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", STARTS_PROGRAMS, pubsub_server.host]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["100", "0"]
