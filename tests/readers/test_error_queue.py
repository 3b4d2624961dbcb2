"""Errors reach the error queue before anything is acknowledged (the driver loop: no Spark)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import OptionError, QueueConfigurationError
from queue_source.options import connection_options
from queue_source.options.checks import check_error_queue
from queue_source.queues import Depth, open_queue
from queue_source.queues.sim import Fault
from shard_store import failpoints
from shard_store.model import ErrorRecord, Plan, position_at
from support.coordinator_world import EMPTY, World, patiently, uris
from support.driver_loop import DriverLoop, reader_options, states, until
from support.servers.azure_queue import ACCOUNT, KEY, AzureQueueServer
from support.servers.ministack import KEYS, new_queue
from support.store_backends import rows


@pytest.fixture(params=["of its own", "in the store's database"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ErrorWorld:
    return ErrorWorld(tmp_path, request.param == "in the store's database")


class ErrorWorld(World):
    def __init__(self, folder: Path, inside: bool) -> None:
        super().__init__(folder)
        self.inside = inside

    @property
    def error_url(self) -> str:
        file = "store.db" if self.inside else "errors.db"
        return f"sql+sqlite:///{self.folder}/{file}?queue=errors"

    def sent(self) -> list[dict[str, Any]]:
        with open_queue(self.error_url) as queue:
            return [json.loads(message.body) for message in queue.peek(1000)]  # type: ignore[attr-defined]


def bad(plan: Plan, uri: str, scope: str, at: int | None = None) -> ErrorRecord:
    position = position_at(at) if at is not None else plan.ranges[0].start
    return ErrorRecord(scope, "corrupt-object", "why", uri, plan.identity.delivery_hash, position, input=b"x\xff")


def one_bad_of_each(world: ErrorWorld, loop: DriverLoop) -> None:
    """A batch of three objects: one is bad, one has a bad record."""
    end = loop.latest(0)
    plan = loop.coordinator.plan(0, end)
    with world.store() as store:
        store.record_errors("files", "files", [bad(plan, uris(2)[0], "object"), bad(plan, uris(2)[1], "record", 7)])
    loop._deliver(plan, 0)


def test_a_bad_message_a_bad_object_and_a_bad_record_end_in_the_error_queue_once(world: ErrorWorld) -> None:
    world.publish("no notification", *uris(3), tag="a.b")
    with world.loop(errorQueueUrl=world.error_url) as loop:
        one_bad_of_each(world, loop)
        assert [error["scope"] for error in world.sent()] == ["message"], "the plan is published, not confirmed yet"
        assert loop.latest(1) == 1
        assert loop.coordinator.report()["errorsDelivered"] == 3
    assert world.depth() == EMPTY
    with world.store() as store:
        assert states(store) == {"done": 2, "quarantined": 1}
        told = {row["error_id"]: row["state"] for row in rows(store, "errors")}
    message, *others = world.sent()
    assert {error["error_id"] for error in world.sent()} == set(told)
    assert set(told.values()) == {"delivered"}
    assert (message["input"], message["tag"], message["plan"]) == ("no notification", "a.b", None)
    found = {error["scope"]: error for error in others}
    assert found["record"]["position"] == 7
    assert found["object"]["input_base64"] == "eP8="
    for error in others:
        assert error["plan"] == {"start_seq": 0, "end_seq": 1}
        assert len(error["delivery_hash"]) == 64
    with open_queue(world.error_url) as queue:
        headers = [m.headers for m in queue.receive(10, 60.0, 0.0)]
    assert headers[1]["Delivery-Hash"] == others[0]["delivery_hash"]
    assert [h["Error-Scope"] for h in headers] == ["message", *(error["scope"] for error in others)]
    assert [h["Error-Id"] for h in headers] == [error["error_id"] for error in world.sent()]


@pytest.fixture
def fails_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the reader fail at a named point, once."""

    def arm(point: str) -> None:
        monkeypatch.setattr(failpoints, "_armed", {point: (1, "", "raise")})
        monkeypatch.setattr(failpoints, "_reached", {})

    return arm


def test_a_crash_between_publishing_and_sending_loses_no_error_and_sends_none_twice(
    world: ErrorWorld, fails_at: Callable[[str], None]
) -> None:
    world.publish(*uris(3))
    with world.loop(errorQueueUrl=world.error_url, commitTimeout="500ms") as loop:
        one_bad_of_each(world, loop)
        fails_at("errors-due")
        with pytest.raises(failpoints.FailpointReached):
            loop.latest(1)
        assert world.depth() == Depth(ready=0, in_flight=3), "nothing is acknowledged"
    assert world.sent() == []
    with world.loop(errorQueueUrl=world.error_url) as loop:
        assert len(world.sent()) == 2, "sent by the start, before anything is received"
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert len(world.sent()) == 2


def test_an_error_that_is_sent_twice_is_known_by_its_id(tmp_path: Path, fails_at: Callable[[str], None]) -> None:
    world = ErrorWorld(tmp_path, inside=False)
    world.publish(*uris(3))
    with world.loop(errorQueueUrl=world.error_url, visibilityTimeout="5m") as loop:
        one_bad_of_each(world, loop)
        fails_at("errors-sent")
        with pytest.raises(failpoints.FailpointReached):
            loop.latest(1)
        assert world.depth() == Depth(ready=0, in_flight=3), "nothing is acknowledged"
    with world.loop(errorQueueUrl=world.error_url):
        pass
    ids = [error["error_id"] for error in world.sent()]
    assert len(ids) == 4
    assert len(set(ids)) == 2


def test_of_an_error_that_is_sent_twice_a_fifo_queue_takes_one(
    tmp_path: Path, fails_at: Callable[[str], None], ministack_url: str
) -> None:
    world, url = ErrorWorld(tmp_path, inside=False), new_queue(ministack_url, fifo=True)
    options: dict[str, Any] = {"errorQueueUrl": url, "sqs.accessKeyId": "test", "sqs.secretAccessKey": "test"}
    world.publish(*uris(3))
    with world.loop(visibilityTimeout="5m", **options) as loop:
        one_bad_of_each(world, loop)
        fails_at("errors-sent")
        with pytest.raises(failpoints.FailpointReached):
            loop.latest(1)
    with world.loop(**options) as loop:
        assert loop.coordinator.report()["errorsDelivered"] == 2, "sent again by the start"
    with open_queue(url, **KEYS) as queue:
        assert queue.depth().ready == 2


def test_an_error_queue_comes_to_what_a_query_without_one_left_in_the_table(world: ErrorWorld) -> None:
    with world.store() as store:
        store.start("files", "earlier", stale_after=0.0)
        store.record_errors("files", "earlier", [ErrorRecord("message", "c", "", "m", input=b"")])
    with world.loop(errorQueueUrl=world.error_url):
        assert [error["message_id"] + error["input"] for error in world.sent()] == [""]


def test_errors_that_cannot_be_sent_fail_the_query_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    world = ErrorWorld(tmp_path, inside=False)
    elsewhere = f"sql+sqlite:///{tmp_path}/absent/errors.db?queue=errors"
    world.publish(*uris(3))
    with world.loop(errorQueueUrl=elsewhere, commitTimeout="500ms") as loop:
        one_bad_of_each(world, loop)
        with pytest.raises(QueueConfigurationError, match=r"absent/errors\.db"):
            loop.latest(1)
        assert world.depth() == Depth(ready=0, in_flight=3)
    with world.store() as store:
        assert {row["state"] for row in rows(store, "errors")} == {"recorded"}
    (tmp_path / "absent").mkdir()
    with world.loop(errorQueueUrl=elsewhere) as loop:
        with open_queue(elsewhere) as queue:
            assert queue.depth().ready == 2
        until(lambda: world.depth() == EMPTY, patiently(loop))


def test_a_bad_message_whose_error_cannot_be_sent_is_not_acknowledged(tmp_path: Path) -> None:
    world = ErrorWorld(tmp_path, inside=False)
    world.publish("no notification")
    with world.loop(errorQueueUrl=f"sql+sqlite:///{tmp_path}/absent/errors.db?queue=errors") as loop:
        with pytest.raises(QueueConfigurationError, match=r"absent/errors\.db"):
            until(lambda: False, patiently(loop))
    assert world.depth().total == 1


def test_of_an_error_that_its_queue_cannot_carry_the_beginning_is_sent(
    tmp_path: Path, azure_queue_server: AzureQueueServer
) -> None:
    world = ErrorWorld(tmp_path, inside=False)
    world.publish("short", '"' * 60_000)
    url = f"azurequeue://{ACCOUNT}/errors-{uuid.uuid4().hex[:8]}"
    with open_queue(url, **azure_queue_server.access) as errors:
        errors.create()  # type: ignore[attr-defined]
        access: dict[str, Any] = {"azureQueue.endpointUrl": azure_queue_server.url, "azure.accessKey": KEY}
        with world.loop(errorQueueUrl=url, **access) as loop:
            until(lambda: world.depth() == EMPTY, patiently(loop))
        sent = [json.loads(message.body) for message in errors.receive(32, 60, 0)]
    short, long = sorted(sent, key=lambda error: error["input_bytes"])
    assert short["input"] == "short"
    assert (long["input_bytes"], long["cause"]) == (60_000, "malformed-message")
    assert long["input"] + '"' * (60_000 - len(long["input"])) == '"' * 60_000


def test_an_error_queue_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    world = ErrorWorld(tmp_path, inside=False)
    url = f"sim://errors?dir={tmp_path}"
    world.publish("no notification")
    with open_queue(url) as errors:
        errors.create()  # type: ignore[attr-defined]
        errors.order(Fault.DISCONNECT, verb="publish")  # type: ignore[attr-defined]
        with world.loop(errorQueueUrl=url) as loop:
            until(lambda: world.depth() == EMPTY, patiently(loop))
        assert errors.ordered() == {}  # type: ignore[attr-defined]
        assert errors.depth().ready == 1


def test_an_error_queue_that_is_read_by_the_same_query_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(OptionError, match=r"'errorQueueUrl': .* is the queue that is read"):
        reader_options(world.queue_url, world.store_url, errorQueueUrl=world.queue_url)
    with pytest.raises(OptionError, match=r"'errorQueueUrl': .* names 2 queues"):
        reader_options(world.queue_url, world.store_url, errorQueueUrl="sqs://a,sqs://b")


def test_an_error_queue_is_reached_as_the_queues_that_are_read(tmp_path: Path) -> None:
    world, half = World(tmp_path), {"sqs.accessKeyId": "id"}
    with pytest.raises(OptionError, match=r"secretAccessKey"):
        reader_options(world.queue_url, world.store_url, errorQueueUrl="sqs://errors", **half)
    whole = {**half, "sqs.secretAccessKey": "key", "aws.region": "eu-west-1", "errorQueueUrl": "sqs://errors"}
    options = reader_options(world.queue_url, world.store_url, **whole)
    assert options.delivery.error_queue_url is not None
    assert connection_options(options.delivery.error_queue_url, options.queue) == {
        "access_key_id": "id", "secret_access_key": "key", "region": "eu-west-1",
    }  # fmt: skip


def test_a_listener_is_no_error_queue() -> None:
    with open_queue("amqp://h/v?source=s&listener=true") as queue, pytest.raises(OptionError, match="is a listener"):
        check_error_queue(queue)
