"""Visibility-extension tasks by an injected clock, over a queue that keeps its leases by the same clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from queue_source.coordinator.leases import LeaseKeeper
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt, Received
from queue_source.queues.base import Capabilities

LEASE = 60.0
BATCHES_OF_TEN = Capabilities(max_batch_size=10)


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
        self.lost: list[MessageKey] = []
        self.queue = LeasingQueue(lambda: self.now, capabilities)
        self.keeper = LeaseKeeper({"q": self.queue}, LEASE, self.lost.extend, lambda: self.now)  # type: ignore[dict-item]

    def run(self, seconds: float) -> None:
        """As the keeper's thread: tick, and sleep until the next is due, at most a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + min(1.0, max(0.01, self.keeper.tick())))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_message_stays_leased_as_long_as_it_is_held(scene: Scene) -> None:
    scene.keeper.hold(scene.queue.deliver(25))
    for _ in range(20):
        scene.run(LEASE / 2)
        assert min(scene.queue.until.values()) > scene.now
    assert scene.lost == []


def test_extensions_go_out_in_the_batches_of_the_queue(scene: Scene) -> None:
    scene.keeper.hold(scene.queue.deliver(1000))
    scene.run(LEASE * 5)
    assert set(scene.queue.calls) == {10}
    periods = len(scene.queue.calls) / 100
    assert 5 <= periods <= 5 * 2 + 1, "one call for 10 messages, at most twice a lease"


def test_messages_received_at_different_moments_share_calls(scene: Scene) -> None:
    for _ in range(50):
        scene.keeper.hold(scene.queue.deliver(1))
        scene.now += 0.1
    scene.run(LEASE)
    assert len(scene.queue.calls) <= 20


def test_the_task_of_a_message_that_is_done_ends(scene: Scene) -> None:
    messages = scene.queue.deliver(2)
    scene.keeper.hold(messages)
    scene.keeper.stop([("q", messages[0].receipt)])
    scene.run(LEASE * 2)
    assert scene.queue.until[messages[0].receipt] == 1000 + LEASE
    assert scene.queue.until[messages[1].receipt] > scene.now
    assert scene.keeper.held() == 1


def test_what_is_kept_of_messages_that_are_done_does_not_grow(scene: Scene) -> None:
    for _ in range(100):
        messages = scene.queue.deliver(10)
        scene.keeper.hold(messages)
        scene.keeper.stop([("q", message.receipt) for message in messages[1:]])
    assert scene.keeper.held() == 100
    assert len(scene.keeper._order) < 300
    scene.run(LEASE * 3)
    assert scene.lost == []


def test_a_lease_that_is_lost_is_told_once_and_at_the_next_extension(scene: Scene) -> None:
    messages = scene.queue.deliver(2)
    scene.keeper.hold(messages)
    scene.queue.until[messages[0].receipt] = 0
    scene.run(LEASE * 3)
    assert scene.lost == [("q", messages[0].receipt)]
    assert scene.keeper.held() == 1


def test_a_failed_extension_is_tried_again_before_the_deadline(scene: Scene) -> None:
    scene.keeper.hold(scene.queue.deliver(15))
    scene.queue.down = True
    scene.run(LEASE * 0.8)
    scene.queue.down = False
    scene.run(LEASE)
    assert scene.lost == []
    assert min(scene.queue.until.values()) > scene.now


def test_a_queue_that_stays_down_past_the_deadline_costs_the_leases_and_says_so(scene: Scene) -> None:
    scene.keeper.hold(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(LEASE * 1.5)
    assert sorted(scene.lost) == [("q", "r0"), ("q", "r1"), ("q", "r2")]
    assert scene.keeper.held() == 0


def test_the_last_extension_ends_the_task(scene: Scene) -> None:
    messages = scene.queue.deliver(1)
    scene.keeper.hold(messages)
    scene.keeper.extend_last([("q", messages[0].receipt)], 120.0)
    assert scene.queue.until[messages[0].receipt] == scene.now + 120
    scene.run(LEASE * 3)
    assert scene.queue.until[messages[0].receipt] == 1000 + 120
    assert scene.lost == []


def test_no_more_is_asked_for_than_one_call_may_ask_for() -> None:
    scene = Scene(Capabilities(max_batch_size=10, max_lease=20.0))
    messages = scene.queue.deliver(10)
    for message in messages:
        scene.queue.until[message.receipt] = 1000 + 20
    scene.keeper.hold([replace(message, lease_until=1020.0) for message in messages])
    scene.run(200)
    assert set(scene.queue.asked) == {20.0}
    assert (scene.lost, scene.keeper.held()) == ([], 10)


def test_a_message_held_to_its_cap_is_extended_up_to_it_and_then_told_as_lost() -> None:
    scene = Scene(Capabilities(max_batch_size=10, lease_cap=100.0))
    scene.keeper.hold(scene.queue.deliver(2))
    scene.run(99)
    assert scene.lost == []
    assert set(scene.queue.until.values()) == {1000.0 + 100}
    scene.run(2)
    assert sorted(scene.lost) == [("q", "r0"), ("q", "r1")]
    assert scene.keeper.held() == 0


def test_a_queue_that_takes_late_extensions_in_silence_is_not_believed() -> None:
    scene = Scene(Capabilities(max_batch_size=10, reports_stale=False))
    scene.keeper.hold(scene.queue.deliver(1))
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
    keeper = LeaseKeeper({"slow": slow, "quick": quick}, 0.2, lambda _: None)  # type: ignore[dict-item]
    now = time.monotonic()
    keeper.hold([Received(name, Receipt("r"), Receipt("r"), b"", 1, now + 0.1) for name in ("slow", "quick")])
    thread = threading.Thread(target=keeper.run, args=(stopping,))
    thread.start()
    try:
        assert extended.wait(20)
        assert not answer.is_set()
    finally:
        answer.set()
        stopping.set()
        thread.join(20)


def test_what_a_call_fails_with_ends_the_keeper_and_not_in_silence() -> None:
    broken = LeasingQueue(time.monotonic, BATCHES_OF_TEN)
    broken.until = {}  # an unknown receipt is a KeyError
    keeper = LeaseKeeper({"q": broken}, 0.2, lambda _: None)  # type: ignore[dict-item]
    keeper.hold([Received("q", "m", Receipt("r"), b"", 1, time.monotonic() + 0.1)])
    with pytest.raises(KeyError):
        keeper.run(threading.Event())
