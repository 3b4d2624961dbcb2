"""A shard that can only be read with its message is left to whoever gets the message, when the message has gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from queue_source.messages import MessageKey
from queue_source.queues import open_queue
from shard_store.store import ShardStore
from support.coordinator_world import World, patiently
from support.driver_loop import DriverLoop, published, until

MESSAGES: dict[str, Any] = {"content": "message", "fileFormat": "", "allowedPrefixes": ""}
PATIENT: dict[str, Any] = {"commitTimeout": "30s", "visibilityTimeout": "60s"}  # nobody's shards go stale meanwhile


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def receive_no_more(loop: DriverLoop) -> None:
    held, queues = loop.in_flight, loop.coordinator.session.queues
    with held._changed:
        held._room.paused = set(queues)
        held._changed.wait_for(lambda: not held._room.receiving(queues))


def lose(loop: DriverLoop, message: MessageKey) -> None:
    """As when the queue says that the lease has ended: it delivers the message again."""
    assert loop.in_flight.end_extending([message], 0.0, {message}) == [message]
    (queue,) = loop.coordinator.session.queues.values()
    queue.nack([message[1]], 0.0)


def count(world: World) -> int:
    with world.store() as store:
        return published(store).total()


def finish(world: World, expected: int, loop: DriverLoop) -> None:
    """The other pipeline has a heartbeat, and no batch."""
    until(lambda: count(world) == expected, patiently(loop), 100)


@pytest.mark.parametrize("kind", ["messages", "ordered objects"])
def test_a_message_lost_while_it_is_opened_is_read_by_the_pipeline_that_gets_it_next(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    options = MESSAGES if kind == "messages" else {}
    world.publish("s3://bucket/a", group=None if kind == "messages" else "g")
    opened: list[str] = []
    open_shards = ShardStore.open_shards
    loops: list[DriverLoop] = []

    def lose_first(store: ShardStore, token: Any, source: str, contents: Any) -> Any:
        found = open_shards(store, token, source, contents)
        if not opened:
            opened.append(token.pipeline)
            until(lambda: bool(loops), lambda: time.sleep(0.01))
            receive_no_more(loops[0])
            lose(loops[0], loops[0].in_flight._messages.keys()[0])
        return found

    monkeypatch.setattr(ShardStore, "open_shards", lose_first)
    with world.loop(pipeline="one", source="s", checkpoint="one", **PATIENT, **options) as one:
        loops.append(one)
        until(lambda: one.in_flight.counts().in_flight == 0 and bool(opened), lambda: time.sleep(0.01))
        with world.loop(pipeline="two", source="s", checkpoint="two", **PATIENT, **options) as two:
            finish(world, 1, two)


def test_a_message_of_a_reader_that_died_is_read_by_the_pipeline_that_gets_it_next(world: World) -> None:
    world.publish("a")
    options = {**PATIENT, **MESSAGES, "source": "s"}
    with world.loop(pipeline="one", checkpoint="one", **options) as one:
        until(lambda: one.in_flight.counts().ready == 1, lambda: time.sleep(0.01))
        one.freeze()
        ((_, receipt),) = one.in_flight.empty().unplanned
        one.die()
    with world.loop(pipeline="one", checkpoint="one", **options) as one:
        receive_no_more(one)
        with open_queue(world.queue_url) as queue:
            queue.nack([receipt], 0.0)  # as when its lease ends
        with world.loop(pipeline="two", checkpoint="two", **options) as two:
            finish(world, 1, two)


def test_a_shard_that_is_looked_at_before_its_message_waits_for_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may find it in the store, and ours, before the opener has said which message it belongs to."""
    world.publish("a", "b")
    loops: list[DriverLoop] = []
    open_shards = ShardStore.open_shards

    def look_first(store: ShardStore, token: Any, source: str, contents: Any) -> Any:
        found = open_shards(store, token, source, contents)
        until(lambda: bool(loops), lambda: time.sleep(0.01))
        loops[0].coordinator.ownership.get_again(list(found))
        return found

    monkeypatch.setattr(ShardStore, "open_shards", look_first)
    with world.loop(**PATIENT, **MESSAGES) as loop:
        loops.append(loop)
        finish(world, 2, loop)
