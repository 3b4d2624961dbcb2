"""A graceful stop while a message is in each of its states, and the next reader: nothing is lost, doubled or left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_source.coordinator import coordinator
from queue_source.coordinator.messages import State
from queue_source.errors import QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues import Depth, Queue, open_queue
from shard_store.store import ShardStore
from support.coordinator_world import EMPTY, World, assert_published_once, patiently, uris
from support.driver_loop import DriverLoop, until

LEASE: dict[str, Any] = {"visibilityTimeout": "2s", "commitTimeout": "1s"}
GIVEN_BACK, KEPT = Depth(ready=1, in_flight=0), Depth(ready=0, in_flight=1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(coordinator, "_STOP_PATIENCE", 0.3)
    return World(tmp_path)


def queue_of(loop: DriverLoop) -> Queue:
    (queue,) = loop.coordinator.session.queues.values()
    return queue


def wait_for(loop: DriverLoop, state: State) -> None:
    until(lambda: loop.in_flight.has({state}), lambda: time.sleep(0.01))


def read_the_rest(world: World, expected: list[str]) -> None:
    with world.loop(**LEASE) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert_published_once(world, expected)


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Iterator[Callable[[], None]]:
    """Hold calls of the method until the yielded function is called, or the block ends."""
    go_on, work = threading.Event(), getattr(owner, name)

    def hang(*arguments: Any, **more: Any) -> Any:
        assert go_on.wait(60)
        return work(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, hang)
        yield go_on.set
    go_on.set()


def test_while_it_is_opened_it_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(*uris(1))
    with hanging(monkeypatch, ShardStore, "open_shards"):
        with world.loop(**LEASE) as loop:
            wait_for(loop, State.RECEIVED)
        assert world.depth() == GIVEN_BACK
    read_the_rest(world, uris(1))


def test_while_it_is_left_for_the_next_run_it_is_given_back(world: World) -> None:
    with world.loop(**LEASE) as loop:
        loop.coordinator.drain()
        time.sleep(0.01)
        world.publish(*uris(1))
        wait_for(loop, State.LATE)
    assert world.depth() == GIVEN_BACK
    read_the_rest(world, uris(1))


def test_while_one_of_its_objects_is_in_a_batch_and_others_are_not_it_is_kept(world: World) -> None:
    with open_queue(world.queue_url) as queue:
        queue.publish([uris(5)])
    with world.loop(maxFilesPerTrigger="2", **LEASE) as loop:
        loop.batch()
        assert loop.in_flight.counts().ready == 3
    assert world.depth() == KEPT
    read_the_rest(world, uris(5))


def test_while_another_pipeline_has_its_object_it_is_given_back(world: World) -> None:
    common: dict[str, Any] = {"source": "files", "visibilityTimeout": "60s", "commitTimeout": "30s"}
    world.publish(*uris(1))
    with world.loop(pipeline="other", checkpoint="other", maxInFlightMessages="1", **common) as other:
        plan = other.coordinator.plan(0, other.latest(0))
        world.publish(*uris(1))
        with world.loop(**common) as loop:
            wait_for(loop, State.IDLE)
        assert world.depth() == Depth(ready=1, in_flight=1)
        other._deliver(plan, 0)
        until(lambda: world.depth() == EMPTY, lambda: other.latest(1))
    assert_published_once(world, uris(1))


def test_while_its_queue_is_away_it_is_acknowledged_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(*uris(1))
    asked: list[int] = []

    def fail(receipts: Sequence[Receipt]) -> set[Receipt]:
        asked.append(len(receipts))
        raise QueueUnavailable("q", "is down")

    with world.loop(**LEASE) as loop, monkeypatch.context() as patched:
        patched.setattr(queue_of(loop), "acknowledge", fail)
        loop.batch()
        loop.batch()
        assert asked
        wait_for(loop, State.COMPLETE)
        patched.undo()
        loop.stop()
    assert world.depth() == EMPTY
    assert_published_once(world, uris(1))


def test_while_its_queue_does_not_answer_it_is_not_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(*uris(1))
    with world.loop(**LEASE) as loop, hanging(monkeypatch, queue_of(loop), "acknowledge"):
        loop.batch()
        loop.overlapping = True
        loop.batch()
        wait_for(loop, State.ACKNOWLEDGING)
        loop.stop()
        assert world.depth() == KEPT
    read_the_rest(world, uris(1))


def test_while_it_is_being_received_its_next_delivery_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.loop(**LEASE) as loop:
        with hanging(monkeypatch, queue_of(loop), "_receive"):
            time.sleep(0.3)  # longer than a receive that has begun
            world.publish(*uris(1))
            loop.stop()
        time.sleep(0.3)
    read_the_rest(world, uris(1))


def test_a_queue_that_is_away_keeps_no_other_from_getting_its_messages_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [world.queue_url, world.queue_url.replace("queue=files", "queue=more")]
    for number, url in enumerate(urls):
        with open_queue(url) as queue:
            queue.publish(uris(1, first=number))
    options: dict[str, Any] = {**LEASE, "queueUrl": ",".join(urls), "source": "s"}

    def fail(receipts: Sequence[Receipt], delay: float) -> None:
        raise QueueUnavailable("files", "is down")

    with world.loop(**options) as loop, monkeypatch.context() as patched:
        until(lambda: loop.in_flight.counts().ready == 2, lambda: time.sleep(0.01))
        first, _ = loop.coordinator.session.queues.values()
        patched.setattr(first, "nack", fail)
        loop.stop()
    with open_queue(urls[1]) as queue:
        assert queue.depth() == GIVEN_BACK
    assert world.depth() == KEPT
