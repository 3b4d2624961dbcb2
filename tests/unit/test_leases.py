"""Visibility extensions by an injected clock, over a queue that keeps its leases by the same clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queue_source.coordinator.acknowledging import LeaseKeeper
from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.messages import State
from queue_source.coordinator.ready import Limits
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities
from queue_source.queues.leases import Terms, terms_of
from support.deliveries import hold
from support.sessions import make_session

LEASE = 60.0
BATCHES_OF_TEN = Capabilities(max_batch_size=10)
SHORT: dict[str, Any] = {"visibilityTimeout": "200ms", "commitTimeout": "400ms", "waitTime": "100ms"}


class LeasingQueue:
    """Only what a lease keeper calls. A lease that has ended is lost; `down` makes every call fail."""

    name = "q"

    def __init__(self, clock: Callable[[], float], capabilities: Capabilities) -> None:
        self._clock = clock
        self.capabilities = capabilities
        self.asked: list[float] = []
        self.until: dict[Receipt, float] = {}
        self.calls: list[int] = []
        self.down = False

    def deliver(self, count: int) -> list[Received]:
        delivered = []
        for _ in range(count):
            receipt = Receipt(f"r{len(self.until)}")
            self.until[receipt] = self._clock() + LEASE
            delivered.append(Received("q", receipt, receipt, b"", 1, self._clock() + LEASE))
        return delivered

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        if self.down:
            raise QueueUnavailable("q", "is down")
        self.calls.append(len(receipts))
        self.asked.append(lease)
        lost = {r for r in receipts if self.until[r] <= self._clock()}
        for receipt in set(receipts) - lost:
            self.until[receipt] = self._clock() + lease
        return lost


class Scene:
    def __init__(self, capabilities: Capabilities = BATCHES_OF_TEN) -> None:
        self.now = 1000.0
        self.queue = LeasingQueue(lambda: self.now, capabilities)
        self.in_flight = InFlight(["q"], Limits(10_000, 10_000))
        self.session = make_session(None, {"q": self.queue}, clock=lambda: self.now, visibilityTimeout="60s")
        self.keeper = LeaseKeeper(self.session, self.in_flight)
        self._received: list[MessageKey] = []

    def hold(self, messages: Sequence[Received]) -> None:
        hold(self.in_flight, messages, terms_of(self.queue.capabilities, LEASE))
        self._received += map(key_of, messages)

    @property
    def held(self) -> int:
        return self.in_flight.counts().in_flight

    @property
    def lost(self) -> list[MessageKey]:
        """Those that are in nobody's hands; each was counted once."""
        gone = [key for key in self._received if not self.in_flight.has(list(State), [key])]
        assert self.session.metrics.snapshot()["lostLeases"] == len(gone)
        return gone

    def run(self, seconds: float) -> None:
        """As the keeper's thread: tick, and sleep until the next is due, at most a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + min(1.0, max(0.01, self.keeper.tick())))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_message_stays_leased_as_long_as_it_is_held(scene: Scene) -> None:
    scene.hold(scene.queue.deliver(25))
    for _ in range(20):
        scene.run(LEASE / 2)
        assert min(scene.queue.until.values()) > scene.now
    assert scene.lost == []


def test_extensions_go_out_in_the_batches_of_the_queue(scene: Scene) -> None:
    scene.hold(scene.queue.deliver(1000))
    scene.run(LEASE * 5)
    assert set(scene.queue.calls) == {10}
    periods = len(scene.queue.calls) / 100
    assert 5 <= periods <= 5 * 2 + 1, "one call for 10 messages, at most twice a lease"


def test_messages_received_at_different_moments_share_calls(scene: Scene) -> None:
    for _ in range(50):
        scene.hold(scene.queue.deliver(1))
        scene.now += 0.1
    scene.run(LEASE)
    assert len(scene.queue.calls) <= 20


def test_the_lease_of_a_message_that_has_left_is_not_extended(scene: Scene) -> None:
    messages = scene.queue.deliver(2)
    hold(scene.in_flight, messages, Terms(LEASE))
    scene.in_flight.leave([("q", messages[0].receipt)])
    scene.run(LEASE * 2)
    assert scene.queue.until[messages[0].receipt] == 1000 + LEASE
    assert scene.queue.until[messages[1].receipt] > scene.now
    assert (scene.held, scene.lost) == (1, [])


def test_a_lease_is_not_extended_while_its_message_is_acknowledged_and_no_more_is_lost_by_that(scene: Scene) -> None:
    messages = scene.queue.deliver(3)
    scene.hold(messages)
    keys = [key_of(message) for message in messages]
    scene.in_flight.begin_opening(3, 0.0)
    scene.in_flight.announce(Opened(key, {}) for key in keys)
    assert scene.in_flight.begin_acknowledging("q", 2) == dict.fromkeys(keys[:2], False)
    scene.queue.until[messages[0].receipt] = 0  # deleted by now
    scene.run(LEASE * 0.8)
    assert scene.queue.calls == [1]
    scene.in_flight.put_off("q", keys[:2])  # it was not taken
    scene.run(LEASE)
    assert scene.lost == keys[:1]
    assert scene.queue.until[messages[1].receipt] > scene.now


@pytest.mark.parametrize("down", [False, True])
def test_an_extension_that_fails_since_its_message_was_acknowledged_meanwhile_loses_no_lease(
    scene: Scene, down: bool
) -> None:
    scene.hold(scene.queue.deliver(1))
    scene.in_flight.begin_opening(1, 0.0)
    scene.in_flight.announce([Opened(("q", Receipt("r0")), {})])
    extend, asked = scene.queue.extend, list[float]()

    def acknowledged_meanwhile(receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        assert scene.in_flight.begin_acknowledging("q", 1)
        asked.append(scene.now)
        scene.now += LEASE
        scene.queue.down = down
        return extend(receipts, lease)

    scene.queue.extend = acknowledged_meanwhile  # type: ignore[method-assign]
    scene.run(LEASE * 0.6)
    assert len(asked) == 1
    assert (scene.held, scene.lost) == (1, [])


def test_what_is_kept_of_messages_that_are_done_does_not_grow(scene: Scene) -> None:
    for _ in range(100):
        messages = scene.queue.deliver(10)
        hold(scene.in_flight, messages, Terms(LEASE))
        scene.in_flight.leave([("q", message.receipt) for message in messages[1:]])
    assert scene.held == 100
    assert len(scene.in_flight._messages.leases._heap) < 300
    scene.run(LEASE * 3)
    assert scene.lost == []


def test_a_message_whose_lease_is_lost_leaves_at_the_next_extension(scene: Scene) -> None:
    messages = scene.queue.deliver(2)
    scene.hold(messages)
    scene.queue.until[messages[0].receipt] = 0
    scene.run(LEASE * 3)
    assert scene.lost == [("q", messages[0].receipt)]
    assert scene.held == 1


def test_a_failed_extension_is_tried_again_before_the_deadline(scene: Scene) -> None:
    scene.hold(scene.queue.deliver(15))
    scene.queue.down = True
    scene.run(LEASE * 0.8)
    scene.queue.down = False
    scene.run(LEASE)
    assert scene.lost == []
    assert min(scene.queue.until.values()) > scene.now


def test_a_lease_counts_from_the_request_however_late_its_answer_comes(scene: Scene) -> None:
    scene.hold(scene.queue.deliver(3))
    extend = scene.queue.extend

    def slowly(receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        lost = extend(receipts, lease)
        scene.now += LEASE * 0.7
        return lost

    scene.queue.extend = slowly  # type: ignore[method-assign]
    scene.run(LEASE * 10)
    assert scene.lost == []


def test_a_queue_that_stays_down_past_the_deadline_costs_the_leases_and_says_so(scene: Scene) -> None:
    scene.hold(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(LEASE * 1.5)
    assert sorted(scene.lost) == [("q", "r0"), ("q", "r1"), ("q", "r2")]
    assert scene.held == 0


def test_no_more_is_asked_for_than_one_call_may_ask_for() -> None:
    scene = Scene(Capabilities(max_batch_size=10, max_lease=20.0))
    messages = scene.queue.deliver(10)
    for message in messages:
        scene.queue.until[message.receipt] = 1000 + 20
    scene.hold([replace(message, lease_until=1020.0) for message in messages])
    scene.run(200)
    assert set(scene.queue.asked) == {20.0}
    assert (scene.lost, scene.held) == ([], 10)


def test_a_message_held_to_its_cap_is_extended_up_to_it_and_then_told_as_lost() -> None:
    scene = Scene(Capabilities(max_batch_size=10, lease_cap=100.0))
    scene.hold(scene.queue.deliver(2))
    scene.run(99)
    assert scene.lost == []
    assert set(scene.queue.until.values()) == {1000.0 + 100}
    scene.run(2)
    assert sorted(scene.lost) == [("q", "r0"), ("q", "r1")]
    assert scene.held == 0


def test_a_queue_that_takes_late_extensions_in_silence_is_not_believed() -> None:
    scene = Scene(Capabilities(max_batch_size=10, reports_stale=False))
    scene.hold(scene.queue.deliver(1))
    scene.now += LEASE + 1  # the process stood still
    scene.keeper.tick()
    assert scene.lost == [("q", "r0")]
    assert scene.queue.calls == []


def test_a_queue_that_does_not_answer_keeps_no_other_from_being_extended() -> None:
    slow, quick = LeasingQueue(time.monotonic, BATCHES_OF_TEN), LeasingQueue(time.monotonic, BATCHES_OF_TEN)
    answer, extended, stopping = threading.Event(), threading.Event(), threading.Event()

    def hang(_: object, __: float) -> set[Receipt]:
        answer.wait(20)
        return set()

    def extend(_: object, __: float) -> set[Receipt]:
        extended.set()
        return set()

    slow.extend, quick.extend = hang, extend  # type: ignore[method-assign,assignment]
    queues = {"slow": slow, "quick": quick}
    session = make_session(None, queues, stopping=stopping, **SHORT)
    in_flight = InFlight(queues, Limits(10, 10))
    keeper = LeaseKeeper(session, in_flight)
    now = time.monotonic()
    hold(in_flight, [Received(name, Receipt("r"), Receipt("r"), b"", 1, now + 0.1) for name in queues], Terms(0.2))
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        assert extended.wait(20)
        assert not answer.is_set()
    finally:
        answer.set()
        stopping.set()
        thread.join(20)


def test_a_lease_shorter_than_the_keepers_pause_is_extended_from_its_first_moment_on() -> None:
    """A queue of a user's own may allow no longer ones."""
    queue, stopping, extended = LeasingQueue(time.monotonic, BATCHES_OF_TEN), threading.Event(), threading.Event()
    session = make_session(None, {"q": queue}, stopping=stopping)  # asks for leases of minutes
    in_flight = InFlight(["q"], Limits(10, 10))
    queue.extend = lambda receipts, lease: extended.set() or set()  # type: ignore[method-assign,func-returns-value]
    thread = threading.Thread(target=LeaseKeeper(session, in_flight).run)
    thread.start()
    try:
        time.sleep(0.1)  # it has nothing to do, and waits
        hold(in_flight, [Received("q", "m", Receipt("r"), b"", 1, time.monotonic() + 0.4)], Terms(0.4))
        assert extended.wait(0.4)
    finally:
        stopping.set()
        in_flight.wake()
        thread.join(20)


def test_what_a_call_fails_with_ends_the_keeper_and_not_in_silence() -> None:
    broken = LeasingQueue(time.monotonic, BATCHES_OF_TEN)
    broken.until = {}  # an unknown receipt is a KeyError
    in_flight = InFlight(["q"], Limits(10, 10))
    keeper = LeaseKeeper(make_session(None, {"q": broken}, **SHORT), in_flight)
    hold(in_flight, [Received("q", "m", Receipt("r"), b"", 1, time.monotonic() + 0.1)], Terms(0.2))
    with pytest.raises(KeyError):
        keeper.run()
