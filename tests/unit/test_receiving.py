"""Receiving ahead: how long a receive waits, and when a queue is known to be dry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from queue_source.coordinator.crew import Crew
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import LeaseKeeper
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.receiving import Receivers
from queue_source.messages import Received
from queue_source.options import parse_reader_options
from queue_source.queues.base import Capabilities, Queue

PATIENCE = 30.0


class EmptyQueue:
    """Has nothing, ever; knows for how long each receive was to wait."""

    def __init__(self, *, certain: bool) -> None:
        self.capabilities = Capabilities(max_batch_size=10, reports_depth=False, empty_is_certain=certain)
        self.waits: list[float] = []
        self._never = threading.Event()

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        self.waits.append(wait)
        self._never.wait(wait)
        return []


@contextmanager
def receiving(queue: EmptyQueue) -> Iterator[tuple[Receivers, HoldingPen]]:
    options = parse_reader_options(
        {"queueUrl": "sql+sqlite:///q.db?queue=q", "fileFormat": "text", "receiveThreads": "2"}
    ).queue
    queues = cast("dict[str, Queue]", {"q": queue})
    pen = HoldingPen(100)
    receivers = Receivers(queues, options, 60.0, pen, LeaseKeeper(queues, 60.0, _nothing), Metrics())
    crew = Crew(pen.wake)
    receivers.start(crew)
    try:
        yield receivers, pen
    finally:
        crew.stop(PATIENCE)
        crew.check()


def _nothing(keys: Any) -> None:
    raise AssertionError("nothing was received, so no lease can be lost")


def until_dry(receivers: Receivers, pen: HoldingPen) -> None:
    with pen.changed:
        assert pen.changed.wait_for(receivers.dry, PATIENCE)


def test_a_queue_that_is_certain_to_be_empty_is_found_dry_without_waiting() -> None:
    queue = EmptyQueue(certain=True)
    with receiving(queue) as (receivers, pen):
        until_dry(receivers, pen)
        assert set(queue.waits) == {0.0}
        with pen.changed:
            receivers.drain()
            assert not receivers.dry(), "only a receive that begins after the start of AvailableNow proves anything"
        until_dry(receivers, pen)


def test_a_dry_queue_is_not_polled_without_pause_while_it_is_drained() -> None:
    queue = EmptyQueue(certain=True)
    with receiving(queue) as (receivers, pen):
        receivers.drain()
        until_dry(receivers, pen)
        seen = len(queue.waits)
        with pen.changed:
            assert pen.changed.wait_for(lambda: len(queue.waits) >= seen + 6, PATIENCE)
        assert all(wait > 0 for wait in queue.waits[seen + 2 :]), "one receive a thread may have been under way"


@pytest.mark.parametrize("drained", [False, True])
def test_a_queue_that_may_hide_messages_is_waited_for(drained: bool) -> None:
    queue = EmptyQueue(certain=False)
    with receiving(queue) as (receivers, pen):
        if drained:
            receivers.drain()
        until_dry(receivers, pen)
    assert all(wait > 0 for wait in queue.waits)
