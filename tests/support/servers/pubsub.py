"""A Pub/Sub server in a process of its own: `with pubsub_server() as server:`; what it does is in `pubsub_model.py`.

Google's package has no servicer classes: its message types over generic gRPC handlers make a server that the real
client talks to. What no client of Google's can do (move the clock, look into a subscription, break calls) goes over a
fourth service of our own, in JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import any_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from support.servers.pubsub_model import LARGEST_REQUEST, Refused, Service

_CONTROL = "cuesqueue.tests.Control"
_MARGIN = 0.05  # seconds before the caller's deadline: what is delivered at that moment would be lost for a lease
_LONGEST_PULL = 90.0
_MESSAGES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class PubSubServer:
    """A running server; `host` is what PUBSUB_EMULATOR_HOST takes."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._channel = grpc.insecure_channel(host, options=_MESSAGES)

    def close(self) -> None:
        self._channel.close()

    def create_topic(self, project: str, topic: str) -> str:
        name = f"projects/{project}/topics/{topic}"
        self._call("google.pubsub.v1.Publisher/CreateTopic", types.Topic.pb()(name=name), types.Topic.pb())
        return name

    def create_subscription(self, project: str, subscription: str, topic: str, **config: Any) -> str:
        """`config`: fields of Google's Subscription. Returns our URL of it."""
        name = f"projects/{project}/subscriptions/{subscription}"
        kind = types.Subscription.pb()
        self._call("google.pubsub.v1.Subscriber/CreateSubscription", kind(name=name, topic=topic, **config), kind)
        return f"pubsub://{project}/{subscription}"

    def topic(self, project: str, topic: str) -> Any:
        name = f"projects/{project}/topics/{topic}"
        return self._call(
            "google.pubsub.v1.Publisher/GetTopic", types.GetTopicRequest.pb()(topic=name), types.Topic.pb()
        )

    def subscription(self, project: str, subscription: str) -> Any:
        """Google's Subscription, as the service has it."""
        request = types.GetSubscriptionRequest.pb()(subscription=f"projects/{project}/subscriptions/{subscription}")
        return self._call("google.pubsub.v1.Subscriber/GetSubscription", request, types.Subscription.pb())

    def publish(self, topic: str, body: bytes, attributes: Mapping[str, str]) -> None:
        message = types.PubsubMessage.pb()(data=body, attributes=attributes)
        request = types.PublishRequest.pb()(topic=topic, messages=[message])
        self._call("google.pubsub.v1.Publisher/Publish", request, types.PublishResponse.pb())

    def policy(self, resource: str) -> Any:
        """Google's Policy of a topic or subscription."""
        request = iam_policy_pb2.GetIamPolicyRequest(resource=resource)
        request.options.requested_policy_version = 3
        return self._call("google.iam.v1.IAMPolicy/GetIamPolicy", request, policy_pb2.Policy)

    def set_policy(self, resource: str, policy: Any) -> None:
        request = iam_policy_pb2.SetIamPolicyRequest(resource=resource, policy=policy)
        self._call("google.iam.v1.IAMPolicy/SetIamPolicy", request, policy_pb2.Policy)

    def advance(self, seconds: float) -> None:
        """Let the server's clock jump."""
        self._control("Advance", seconds=seconds)

    def depth(self, url: str) -> tuple[int, int]:
        """Messages that are ready and outstanding."""
        project, _, subscription = url.removeprefix("pubsub://").partition("/")
        ready, outstanding = self._control("Depth", name=f"projects/{project}/subscriptions/{subscription}")
        return ready, outstanding

    def fail(self, verb: str, status: str, times: int = 1, failure: str = "") -> None:
        """The next calls of a method fail with a status; with `failure` it is told of the request's first ack id."""
        self._control("Fail", verb=verb, status=status, times=times, failure=failure)

    def calls(self) -> Mapping[str, list[int]]:
        """The bytes of each request so far, by method."""
        found: dict[str, list[int]] = self._control("Calls")
        return found

    def _call(self, path: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{path}", request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return call(request, timeout=30)

    def _control(self, method: str, **arguments: object) -> Any:
        call = self._channel.unary_unary(f"/{_CONTROL}/{method}", json_dumps, json.loads)
        return call(arguments, timeout=30)["told"]  # gRPC takes no plain null


@contextmanager
def pubsub_server() -> Iterator[PubSubServer]:
    """A server on a free port of 127.0.0.1, empty at first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.servers.pubsub"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().decode().strip()
        if not port:
            raise RuntimeError(f"the Pub/Sub server ended with {process.wait(10)} before it listened")
        server = PubSubServer(f"127.0.0.1:{port}")
        try:
            yield server
        finally:
            server.close()
    finally:
        process.stdin.close()  # it ends with its input: also when we are killed
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def json_dumps(value: object) -> bytes:
    return json.dumps(value).encode()


class _Faults:
    """Which calls are to fail, and how large the requests were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.sizes: dict[str, list[int]] = defaultdict(list)

    def plan(self, verb: str, status: str, times: int, failure: str) -> None:
        with self._lock:
            self._planned[verb] += [(status, failure)] * times

    def check(self, method: str, request: Any) -> None:
        with self._lock:
            self.sizes[method].append(request.ByteSize())
            planned = self._planned[method].pop(0) if self._planned[method] else None
        if planned is not None:
            status, failure = planned
            raise Refused(status, "as the test wished", {request.ack_ids[0]: failure} if failure else None)


class _Server:
    """The four services over one `Service`."""

    def __init__(self) -> None:
        self._service = service = Service()
        self._faults = _Faults()
        empty = empty_pb2.Empty
        self._methods: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
            "Publisher/CreateTopic": (lambda r, _: service.create_topic(r), types.Topic.pb()),
            "Publisher/GetTopic": (lambda r, _: service.get_topic(r.topic), types.GetTopicRequest.pb()),
            "Publisher/DeleteTopic": (lambda r, _: service.delete_topic(r.topic), types.DeleteTopicRequest.pb()),
            "Publisher/Publish": (self._publish, types.PublishRequest.pb()),
            "Subscriber/CreateSubscription": (lambda r, _: service.create_subscription(r), types.Subscription.pb()),
            "Subscriber/GetSubscription": (
                lambda r, _: service.get_subscription(r.subscription),
                types.GetSubscriptionRequest.pb(),
            ),
            "Subscriber/UpdateSubscription": (
                lambda r, _: service.update_subscription(r.subscription, r.update_mask.paths),
                types.UpdateSubscriptionRequest.pb(),
            ),
            "Subscriber/DeleteSubscription": (
                lambda r, _: service.delete_subscription(r.subscription),
                types.DeleteSubscriptionRequest.pb(),
            ),
            "Subscriber/Seek": (self._seek, types.SeekRequest.pb()),
            "Subscriber/Pull": (self._pull, types.PullRequest.pb()),
            "Subscriber/Acknowledge": (self._acknowledge, types.AcknowledgeRequest.pb()),
            "Subscriber/ModifyAckDeadline": (self._modify, types.ModifyAckDeadlineRequest.pb()),
            "IAMPolicy/GetIamPolicy": (
                lambda r, _: service.get_policy(r.resource),
                iam_policy_pb2.GetIamPolicyRequest,
            ),
            "IAMPolicy/SetIamPolicy": (
                lambda r, _: service.set_policy(r.resource, r.policy),
                iam_policy_pb2.SetIamPolicyRequest,
            ),
        }
        self._empty = empty

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        made = defaultdict(dict)  # type: ignore[var-annotated]
        for path in self._methods:
            service, _, method = path.partition("/")
            package = "google.iam.v1" if service == "IAMPolicy" else "google.pubsub.v1"
            made[f"{package}.{service}"][method] = self._handler(path)
        control = {
            "Advance": lambda seconds: self._service.advance(seconds),
            "Depth": lambda name: self._service.depth(name),
            "Fail": self._faults.plan,
            "Calls": lambda: self._faults.sizes,
        }
        for name, work in control.items():
            made[_CONTROL][name] = grpc.unary_unary_rpc_method_handler(
                lambda arguments, _, work=work: {"told": work(**arguments)},
                request_deserializer=json.loads,
                response_serializer=json_dumps,
            )
        return [grpc.method_handlers_generic_handler(service, methods) for service, methods in made.items()]

    def _handler(self, path: str) -> Any:
        work, kind = self._methods[path]

        def answer(request: Any, context: Any) -> Any:
            try:
                self._faults.check(path.partition("/")[2], request)
                answered = work(request, context)
                return self._empty() if answered is None else answered
            except Refused as refused:
                context.abort_with_status(rpc_status.to_status(_status(refused)))

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=kind.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _publish(self, request: Any, _: Any) -> Any:
        if request.ByteSize() > 10 * 1024 * 1024:
            raise Refused("INVALID_ARGUMENT", "Request payload size exceeds the limit: 10485760 bytes.")
        return types.PublishResponse.pb()(message_ids=self._service.publish(request.topic, request.messages))

    def _pull(self, request: Any, context: Any) -> Any:
        """Waits until there is something, or nearly until the caller gives up."""
        service = self._service
        with service.changed:
            while context.is_active():
                found = service.pull(request.subscription, request.max_messages)
                left = min(context.time_remaining() or _LONGEST_PULL, _LONGEST_PULL) - _MARGIN
                if found or left <= 0:
                    return types.PullResponse.pb()(received_messages=found)
                # also looks whether the caller is still there
                service.changed.wait(min(left, service.next_change(request.subscription), 0.2))
        raise Refused("CANCELLED", "the caller is gone")

    def _acknowledge(self, request: Any, _: Any) -> None:
        _check_size(request)
        self._service.acknowledge(request.subscription, request.ack_ids)

    def _modify(self, request: Any, _: Any) -> None:
        _check_size(request)
        self._service.modify(request.subscription, request.ack_ids, request.ack_deadline_seconds)

    def _seek(self, request: Any, _: Any) -> None:
        if not request.HasField("time"):
            raise Refused("UNIMPLEMENTED", "There are no snapshots here.")
        self._service.seek(request.subscription, request.time.ToNanoseconds())


def _check_size(request: Any) -> None:
    if request.ByteSize() > LARGEST_REQUEST:
        raise Refused("INVALID_ARGUMENT", f"Request payload size exceeds the limit: {LARGEST_REQUEST} bytes.")


def _status(refused: Refused) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.Code.Value(refused.status), message=refused.text)
    if refused.failures:
        detail = any_pb2.Any()
        detail.Pack(
            error_details_pb2.ErrorInfo(
                reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=refused.failures
            )
        )
        status.details.append(detail)
    return status


def main() -> None:
    """Serve until the standard input ends."""
    server = grpc.server(ThreadPoolExecutor(64), options=_MESSAGES)
    server.add_generic_rpc_handlers(_Server().handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
