"""Receiving ahead: how long a receive waits, and when a queue is known to be empty."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.leases import LeaseKeeper
from queue_source.coordinator.receiving import Receivers
from queue_source.coordinator.room import Limits
from queue_source.coordinator.threads import Threads
from queue_source.errors import QueueUnavailable
from queue_source.messages import Received
from queue_source.queues import Depth
from queue_source.queues.base import Capabilities
from support.sessions import make_session

PATIENCE = 30.0


class EmptyQueue:
    """Has nothing, ever; knows for how long each receive was to wait."""

    def __init__(self, *, certain: bool, failures: int = 0) -> None:
        self.capabilities = Capabilities(max_batch_size=10, reports_depth=False, empty_is_certain=certain)
        self.failures = failures
        self.waits: list[float] = []
        self._never = threading.Event()

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        self.waits.append(wait)
        if len(self.waits) <= self.failures:
            raise QueueUnavailable("q", "is away for a moment")
        self._never.wait(wait)
        return []


class Impatient(threading.Event):
    """Stops nobody's work for long: waits are written down, and over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return self.is_set()


@contextmanager
def receiving(queue: EmptyQueue, stopping: threading.Event | None = None) -> Iterator[tuple[Receivers, InFlight]]:
    threads = Threads()
    threads.stopping = stopping or threads.stopping
    session = make_session(queues={"q": queue}, stopping=threads.stopping, receiveThreads="2")
    in_flight = InFlight(["q"], Limits(messages=100, work=100))
    receivers = Receivers(session, in_flight, LeaseKeeper(session.queues, 60.0, _nothing))
    threads.on_stop(in_flight.wake)
    receivers.start(threads)
    try:
        yield receivers, in_flight
    finally:
        threads.stop(PATIENCE)
        threads.check()


def _nothing(keys: Any) -> None:
    raise AssertionError("nothing was received, so no lease can be lost")


def until_empty(in_flight: InFlight) -> None:
    in_flight.wait(PATIENCE, lambda: in_flight.proven_empty("q"))
    assert in_flight.proven_empty("q")


def test_a_queue_that_is_certain_to_be_empty_is_found_so_without_waiting() -> None:
    queue = EmptyQueue(certain=True)
    with receiving(queue) as (receivers, in_flight):
        until_empty(in_flight)
        assert set(queue.waits) == {0.0}
        seen = len(queue.waits)
        receivers.drain()
        until_empty(in_flight)
        assert len(queue.waits) > seen, "only a receive that begins after the start of AvailableNow proves anything"


def test_what_was_proved_before_counts_no_more_when_available_now_starts() -> None:
    in_flight = InFlight(["q"], Limits(messages=100, work=100))
    under_way = in_flight.begin_receive("q", 0, 10)
    in_flight.forget_proofs()
    assert under_way is not None
    in_flight.end_receive(under_way, [])
    assert not in_flight.proven_empty("q")


def test_an_empty_queue_is_not_polled_without_pause_while_it_is_drained() -> None:
    queue = EmptyQueue(certain=True)
    with receiving(queue) as (receivers, in_flight):
        receivers.drain()
        until_empty(in_flight)
        seen = len(queue.waits)
        in_flight.wait(PATIENCE, lambda: len(queue.waits) >= seen + 6)
        assert len(queue.waits) >= seen + 6
        assert all(wait > 0 for wait in queue.waits[seen + 2 :]), "one receive a thread may have been under way"


@pytest.mark.parametrize("drained", [False, True])
def test_a_queue_that_may_hide_messages_is_waited_for(drained: bool) -> None:
    queue = EmptyQueue(certain=False)
    with receiving(queue) as (receivers, in_flight):
        if drained:
            receivers.drain()
        until_empty(in_flight)
    assert all(wait > 0 for wait in queue.waits)


def test_a_queue_that_is_away_for_a_moment_is_waited_for_and_ends_no_query() -> None:
    queue, stopping = EmptyQueue(certain=False, failures=3), Impatient()
    with receiving(queue, stopping) as (_, in_flight):
        until_empty(in_flight)
    assert len(stopping.seconds) == 3


def test_a_depth_that_is_not_known_for_a_moment_ends_no_available_now_query() -> None:
    queue, stopping = EmptyQueue(certain=True), Impatient()
    queue.capabilities = Capabilities(max_batch_size=10, reports_depth=True, empty_is_certain=True)
    failures = [QueueUnavailable("q", "is away for a moment")]

    def depth() -> Depth:
        if failures:
            raise failures.pop()
        return Depth(0, 0)

    queue.depth = depth  # type: ignore[attr-defined]
    with receiving(queue, stopping) as (receivers, in_flight):
        receivers.drain()
        until_empty(in_flight)
    assert failures == []
