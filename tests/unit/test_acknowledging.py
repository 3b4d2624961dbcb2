"""Acknowledging: a queue that is away for less than a lease costs no second delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.leases import LeaseKeeper
from queue_source.coordinator.threads import Threads
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities
from support.sessions import make_session

LEASE = 300.0


class Queue:
    """A queue by an injected clock, whose calls fail while it is `down`."""

    name = "q"
    capabilities = Capabilities(max_batch_size=10)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.leased: dict[Receipt, float] = {}
        self.down = False
        self.asked = 0
        self.extended = 0
        self.takes = 0  # of what is acknowledged although the call fails

    def deliver(self, count: int) -> list[Received]:
        found = [Receipt(f"r{number}") for number in range(count)]
        self.leased.update(dict.fromkeys(found, self._clock() + LEASE))
        return [Received("q", receipt, receipt, b"", 1, self._clock() + LEASE) for receipt in found]

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        self._serve()
        self.extended += len(receipts)
        return {receipt for receipt in receipts if not self._held(receipt, lease)}

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        self.asked += 1
        if self.down:
            for receipt in receipts[: self.takes]:
                self.leased.pop(receipt, None)
        self._serve()
        return {receipt for receipt in receipts if self.leased.pop(receipt, 0.0) <= self._clock()}

    def _held(self, receipt: Receipt, lease: float) -> bool:
        if self.leased.get(receipt, 0.0) <= self._clock():
            return False
        self.leased[receipt] = self._clock() + lease
        return True

    def _serve(self) -> None:
        if self.down:
            raise QueueUnavailable("q", "is down")


class InFlight:
    def __init__(self) -> None:
        self.left: list[MessageKey] = []

    def leave(self, keys: Sequence[MessageKey]) -> None:
        self.left += keys


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.lost: list[MessageKey] = []
        self.queue = Queue(self.clock)
        self.in_flight = InFlight()
        queues = {"q": self.queue}
        self.keeper = LeaseKeeper(cast("Any", queues), LEASE, self.lost.extend, self.clock)
        self.session = make_session(None, queues, clock=self.clock, stopping=threading.Event())
        self.acknowledger = Acknowledger(self.session, cast("Any", self.in_flight), self.keeper)

    def clock(self) -> float:
        return self.now

    def run(self, seconds: float) -> None:
        """As the threads of the keeper and of the acknowledger, each second."""
        for _ in range(int(seconds)):
            self.now += 1
            self.keeper.tick()
            self.acknowledger.try_again("q")

    def counted(self, name: str) -> int:
        return int(self.session.metrics.snapshot()[name])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def delivered(scene: Scene, count: int) -> list[MessageKey]:
    messages = scene.queue.deliver(count)
    scene.keeper.hold(messages)
    return [key_of(message) for message in messages]


def test_what_could_not_be_acknowledged_is_tried_again_while_its_lease_is_kept(scene: Scene) -> None:
    keys = delivered(scene, 25)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.run(120)
    assert len(scene.queue.leased) == 25
    assert scene.in_flight.left == []
    scene.queue.down = False
    scene.run(10)
    assert scene.queue.leased == {}
    assert sorted(scene.in_flight.left) == sorted(keys)
    assert (scene.counted("acknowledged"), scene.counted("acknowledgeFailures"), scene.lost) == (25, 25, [])


def test_what_a_failed_call_had_acknowledged_is_no_lost_lease(scene: Scene) -> None:
    """A call for many messages may be several requests."""
    keys = delivered(scene, 12)
    scene.queue.down, scene.queue.takes = True, 2
    scene.acknowledger.now(keys)
    scene.queue.down = False
    scene.run(10)
    assert scene.queue.leased == {}
    assert (scene.counted("acknowledged"), scene.counted("lostLeases"), scene.lost) == (12, 0, [])


def test_however_often_it_is_tried_again_each_lease_is_extended_once_in_its_time(scene: Scene) -> None:
    keys = delivered(scene, 10)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.run(115)
    scene.queue.down = False
    scene.acknowledger._lines["q"].due = float("inf")  # only the leases are looked at
    scene.run(4 * LEASE)
    assert scene.lost == []
    assert scene.queue.extended <= 10 * (1 + 4 * 2)


def test_a_queue_that_is_away_is_asked_one_thing_at_a_time_and_seldom(scene: Scene) -> None:
    keys = delivered(scene, 1000)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.run(100)
    assert scene.queue.asked <= 1 + 100 / 5


def test_a_message_whose_lease_has_ended_is_left_to_its_next_delivery(scene: Scene) -> None:
    keys = delivered(scene, 3)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.run(LEASE + 10)
    assert sorted(scene.lost) == sorted(keys)
    asked = scene.queue.asked
    scene.queue.down = False
    scene.run(10)
    assert scene.queue.asked == asked
    assert set(scene.in_flight.left) == set(keys)


def test_available_now_does_not_end_before_it_is_acknowledged(scene: Scene) -> None:
    keys = delivered(scene, 3)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    waiting = threading.Thread(target=scene.acknowledger.finish)
    waiting.start()
    assert waiting.is_alive()
    scene.queue.down = False
    scene.run(10)
    waiting.join(10)
    assert not waiting.is_alive()
    assert scene.queue.leased == {}


def test_available_now_does_not_end_while_it_is_tried_again(scene: Scene) -> None:
    """The query may end as soon as it is said to be done: an acknowledgement that fails then is tried no more."""
    keys = delivered(scene, 3)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.queue.down = False
    scene.now += 10
    looked, done, unacknowledged = threading.Event(), threading.Event(), list[int]()
    changed = scene.acknowledger._changed
    wait, serve = changed.wait, scene.queue._serve

    def finish() -> None:
        scene.acknowledger.finish()
        unacknowledged.append(len(scene.queue.leased))
        looked.set()
        done.set()

    def waits(timeout: float | None = None) -> bool:
        if threading.current_thread() is waiting:
            looked.set()  # it is not done yet
        return wait(timeout)

    def slowly() -> None:
        waiting.start()
        assert looked.wait(60)
        serve()

    waiting = threading.Thread(target=finish)
    changed.wait = waits  # type: ignore[method-assign]
    scene.queue._serve = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    assert done.wait(60)
    scene.session.stopping.set()
    scene.acknowledger.wake()
    thread.join(60)
    assert unacknowledged == [0]


def test_at_the_end_it_is_tried_once_more(scene: Scene) -> None:
    keys = delivered(scene, 3)
    scene.queue.down = True
    scene.acknowledger.now(keys)
    scene.queue.down = False
    scene.acknowledger.now(scene.acknowledger.rest())
    assert scene.queue.leased == {}


def test_a_queue_that_is_away_is_not_asked_for_each_message_that_waits(scene: Scene) -> None:
    keys = delivered(scene, 1000)
    scene.queue.down = True
    scene.acknowledger.later(keys)
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    with scene.acknowledger._changed:
        assert scene.acknowledger._changed.wait_for(lambda: len(scene.acknowledger._lines["q"].failed) == 1000, 60)
    scene.session.stopping.set()
    thread.join(60)
    assert scene.queue.asked == 1
    scene.queue.down = False
    scene.acknowledger.now(scene.acknowledger.rest())
    assert (scene.queue.leased, scene.counted("acknowledged")) == ({}, 1000)


def test_a_lease_that_ends_while_its_message_waits_its_turn_is_lost_once(scene: Scene) -> None:
    """The keeper has counted it, and nobody asks the queue for what it delivers again."""
    keys = delivered(scene, 40)
    scene.acknowledger.later(keys)
    scene.now += LEASE + 1  # the thread waited for another answer
    scene.keeper.tick()
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    scene.acknowledger.finish()
    scene.session.stopping.set()
    thread.join(60)
    assert sorted(scene.lost) == sorted(keys)
    assert (scene.queue.asked, scene.counted("lostLeases"), scene.counted("acknowledged")) == (0, 0, 0)


def test_the_end_does_not_wait_for_more_than_one_call_and_acknowledges_the_rest(scene: Scene) -> None:
    """Spark ends a query in the middle of a long acknowledgement: what was not asked for is, and nothing twice."""
    keys = delivered(scene, 1000)
    at_once, begun, answer = scene.queue.acknowledge, threading.Event(), threading.Event()

    def slowly(receipts: Sequence[Receipt]) -> set[Receipt]:
        begun.set()
        assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    scene.acknowledger.later(keys)
    assert begun.wait(60)
    scene.session.stopping.set()
    answer.set()
    thread.join(60)
    assert not thread.is_alive()
    assert scene.queue.asked == 1
    scene.acknowledger.now(scene.acknowledger.rest())
    assert scene.queue.leased == {}
    assert (scene.queue.asked, scene.counted("acknowledged"), scene.lost) == (10, 1000, [])


def test_a_queue_that_does_not_answer_delays_no_other(scene: Scene) -> None:
    other = Queue(scene.clock)
    queues = {"q": scene.queue, "other": other}
    keeper = LeaseKeeper(cast("Any", queues), LEASE, scene.lost.extend, scene.clock)
    answer, at_once = threading.Event(), scene.queue.acknowledge

    def hangs(receipts: Sequence[Receipt]) -> set[Receipt]:
        assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = hangs  # type: ignore[method-assign]
    messages = [*scene.queue.deliver(300), *(replace(message, queue="other") for message in other.deliver(300))]
    keeper.hold(messages)
    threads = Threads()
    session = make_session(None, queues, clock=scene.clock, stopping=threads.stopping)
    acknowledger = Acknowledger(session, cast("Any", scene.in_flight), keeper)
    threads.on_stop(acknowledger.wake)
    acknowledger.start(threads)
    acknowledger.later([key_of(message) for message in messages])
    with acknowledger._changed:
        assert acknowledger._changed.wait_for(lambda: not acknowledger._lines["other"].busy, 60)
    assert (other.leased, len(scene.queue.leased)) == ({}, 300)
    answer.set()
    acknowledger.finish()
    threads.stop(60)
    assert scene.queue.leased == {}


def test_what_a_queue_has_not_answered_at_the_end_is_not_given_back(scene: Scene) -> None:
    """It may be deleted by now, and a message that is given back is delivered at once."""
    keys = delivered(scene, 150)
    at_once, begun, answer = scene.queue.acknowledge, threading.Event(), threading.Event()

    def hangs(receipts: Sequence[Receipt]) -> set[Receipt]:
        if not begun.is_set():
            begun.set()
            assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = hangs  # type: ignore[method-assign]
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    scene.acknowledger.later(keys)
    assert begun.wait(60)
    scene.session.stopping.set()
    scene.acknowledger.now(scene.acknowledger.rest())  # the thread was waited for in vain
    assert set(scene.in_flight.left) == set(keys)
    answer.set()
    thread.join(60)
    assert scene.queue.leased == {}
