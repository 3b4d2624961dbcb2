"""Receiving ahead: how long a receive waits, and when a queue is known to be empty."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.opening import Receivers
from queue_source.coordinator.ready import Limits
from queue_source.coordinator.session import Threads
from queue_source.errors import QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues import Depth
from queue_source.queues.base import Capabilities
from queue_source.queues.leases import Terms
from support.sessions import make_session

PATIENCE = 30.0


class EmptyQueue:
    """Has nothing, ever; knows for how long each receive was to wait."""

    def __init__(self, *, certain: bool, failures: int = 0, depth: bool = False) -> None:
        self.capabilities = Capabilities(max_batch_size=10, reports_depth=depth, empty_is_certain=certain)
        self.failures = failures
        self.waits: list[float] = []
        self._never = threading.Event()

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        self.waits.append(wait)
        if len(self.waits) <= self.failures:
            raise QueueUnavailable("q", "is away for a moment")
        self._never.wait(wait)
        return []

    def depth(self) -> Depth:
        return Depth(0, 0)


class Impatient(threading.Event):
    """Stops nobody's work for long: waits are written down, and over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return self.is_set()


@contextmanager
def receiving(
    queue: EmptyQueue, stopping: threading.Event | None = None, **others: EmptyQueue
) -> Iterator[tuple[Receivers, InFlight]]:
    """The queue is named q; they are asked in the order of their names."""
    threads, queues = Threads(), dict(sorted({"q": queue, **others}.items()))
    threads.stopping = stopping or threads.stopping
    session = make_session(queues=queues, stopping=threads.stopping, receiveThreads="2")
    in_flight = InFlight(queues, Limits(messages=100, work=100))
    receivers = Receivers(session, in_flight)
    threads.on_stop(in_flight.wake)
    receivers.start(threads)
    try:
        yield receivers, in_flight
    finally:
        threads.stop(PATIENCE)
    threads.check()


def until_empty(in_flight: InFlight) -> None:
    in_flight.wait(PATIENCE, lambda: in_flight.proven_empty("q"))
    assert in_flight.proven_empty("q")


def until_held(in_flight: InFlight, messages: int) -> None:
    in_flight.wait(PATIENCE, lambda: in_flight.counts().in_flight == messages)
    assert in_flight.counts().in_flight == messages


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
    in_flight.end_receive(under_way, [], Terms(60.0))
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
    queue, stopping = EmptyQueue(certain=True, depth=True), Impatient()
    failures = [QueueUnavailable("q", "is away for a moment")]

    def depth() -> Depth:
        if failures:
            raise failures.pop()
        return Depth(0, 0)

    queue.depth = depth  # type: ignore[method-assign]
    with receiving(queue, stopping) as (receivers, in_flight):
        receivers.drain()
        until_empty(in_flight)
    assert failures == []


class SlowToAnswer(EmptyQueue):
    """Had four messages, sent in the future by our clock; its answer with two of them is on its way until `answer`.

    `hidden`: these two are in no count from the request on; else until the answer.
    """

    def __init__(self, *, hidden: bool = True, depth: bool = True, failure: Exception | None = None) -> None:
        super().__init__(certain=True)
        self.capabilities = Capabilities(max_batch_size=2, reports_depth=depth, empty_is_certain=True)
        self.hidden, self.failure = hidden, failure
        self.asked, self.answer = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._left: list[Received] = []
        self.send(4)

    def send(self, count: int) -> None:
        now, later = time.monotonic(), time.time() + 3600
        with self._lock:
            for _ in range(count):
                name = str(next(self._names))
                self._left.append(Received("q", name, Receipt(name), b"{}", 1, now + 60, later))

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        with self._lock:
            first = not self.asked.is_set()
            self.asked.set()
            taken = self._take(most) if self.answer.is_set() or (first and self.hidden) else []
        if first:
            assert self.answer.wait(PATIENCE)
            if self.failure is not None:
                raise self.failure
            with self._lock:
                taken = taken or self._take(most)
        return taken or super().receive(most, lease, wait)

    def depth(self) -> Depth:
        return Depth(len(self._left), 0)

    def _take(self, most: int) -> list[Received]:
        taken, self._left = self._left[:most], self._left[most:]
        return taken


@contextmanager
def draining(receivers: Receivers) -> Iterator[None]:
    """While another thread waits for what a queue is about to answer; then until AvailableNow has begun."""
    threads, begun = Threads(), threading.Event()

    def drain() -> None:
        receivers.drain()
        begun.set()

    threads.start("drain", drain)
    assert not begun.wait(0.1), "what a receive is bringing is in no count"
    yield
    assert begun.wait(PATIENCE)
    threads.check()


@pytest.mark.parametrize("hidden", [False, True])
def test_as_many_messages_as_there_were_are_read_although_some_were_on_their_way_when_they_were_counted(
    hidden: bool,
) -> None:
    queue, quiet = SlowToAnswer(hidden=hidden), EmptyQueue(certain=True, depth=True)
    with receiving(queue, first=quiet, then=quiet) as (receivers, in_flight):
        assert queue.asked.wait(PATIENCE)
        with draining(receivers):
            queue.answer.set()
        until_held(in_flight, 4)
        queue.send(3)
        until_held(in_flight, 7)
        assert len(in_flight.begin_opening(10, 0.0)) == 4, "what was there, and nothing that was sent later"


def test_a_queue_that_cannot_be_counted_holds_up_no_available_now_query() -> None:
    slow, counted = SlowToAnswer(depth=False), SlowToAnswer()
    counted.answer.set()
    with receiving(counted, slow=slow) as (receivers, in_flight):
        assert slow.asked.wait(PATIENCE)
        receivers.drain()
        until_held(in_flight, 4)
        slow.answer.set()


def drain_while_it_fails(queue: SlowToAnswer) -> None:
    with receiving(queue) as (receivers, _):
        assert queue.asked.wait(PATIENCE)
        with draining(receivers):
            queue.answer.set()


def test_a_receive_that_fails_ends_an_available_now_query_that_waits_for_it() -> None:
    with pytest.raises(PermissionError):
        drain_while_it_fails(SlowToAnswer(failure=PermissionError("no longer allowed")))


def test_receives_go_on_at_once_after_a_pause() -> None:
    in_flight, threads = InFlight(["q"], Limits(messages=100, work=100)), Threads()
    waiting, gone_on = threading.Event(), threading.Event()

    def begin() -> None:
        waiting.set()
        while in_flight.begin_receive("q", 0, 10, 3600.0) is None:
            pass
        gone_on.set()

    with in_flight.pausing(["q"], until=lambda: False):
        threads.start("receive", begin)
        assert waiting.wait(PATIENCE)
        assert not gone_on.wait(0.1)
    assert gone_on.wait(PATIENCE)
