"""Acknowledging: a queue that is away for less than a lease costs no second delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from queue_source.coordinator.acknowledging import Acknowledger, LeaseKeeper
from queue_source.coordinator.in_flight import InFlight, Leftovers, Opened
from queue_source.coordinator.ready import Limits
from queue_source.coordinator.session import Threads
from queue_source.errors import QueueUnavailable
from queue_source.messages import MessageKey, Receipt, Received, key_of
from queue_source.queues.base import Capabilities
from queue_source.queues.leases import Terms
from support.deliveries import hold
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


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.queue = Queue(self.clock)
        self.use({"q": self.queue}, threading.Event())

    def use(self, queues: Mapping[str, Queue], stopping: threading.Event) -> None:
        self.session = make_session(None, queues, clock=self.clock, stopping=stopping)
        self.in_flight = InFlight(queues, Limits(10_000, 10_000))
        self.keeper = LeaseKeeper(self.session, self.in_flight)
        self.acknowledger = Acknowledger(self.session, self.in_flight)

    def clock(self) -> float:
        return self.now

    def complete(self, messages: Sequence[Received]) -> list[MessageKey]:
        """Received, opened, and found done."""
        keys = [key_of(message) for message in messages]
        hold(self.in_flight, messages, Terms(LEASE))
        self.in_flight.begin_opening(len(keys), 0.0)
        self.in_flight.announce(Opened(key, {}) for key in keys)
        self.in_flight.end_opening()
        return keys

    def run(self, seconds: float) -> None:
        """As the threads of the keeper and of the acknowledger, each second."""
        for _ in range(int(seconds)):
            self.now += 1
            self.keeper.tick()
            while self.acknowledger.acknowledge("q"):
                pass

    @property
    def held(self) -> int:
        return self.in_flight.counts().in_flight

    def counted(self, name: str) -> int:
        return int(self.session.metrics.snapshot()[name])


@pytest.fixture
def scene() -> Scene:
    return Scene()


@contextmanager
def running(scene: Scene) -> Iterator[threading.Thread]:
    """The thread of the queue; it ends with the others."""
    thread = threading.Thread(target=scene.acknowledger.run, args=("q",))
    thread.start()
    try:
        yield thread
    finally:
        scene.session.stopping.set()
        scene.in_flight.wake()
        thread.join(60)
    assert not thread.is_alive()


def test_what_could_not_be_acknowledged_is_tried_again_while_its_lease_is_kept(scene: Scene) -> None:
    scene.complete(scene.queue.deliver(25))
    scene.queue.down = True
    scene.run(120)
    assert (len(scene.queue.leased), scene.held) == (25, 25)
    scene.queue.down = False
    scene.run(10)
    assert (scene.queue.leased, scene.held) == ({}, 0)
    assert (scene.counted("acknowledged"), scene.counted("acknowledgeFailures"), scene.counted("lostLeases")) == (
        25,
        25,
        0,
    )


def test_what_a_failed_call_had_acknowledged_is_no_lost_lease(scene: Scene) -> None:
    """A call for many messages may be several requests."""
    scene.complete(scene.queue.deliver(12))
    scene.queue.down, scene.queue.takes = True, 2
    scene.run(1)
    scene.queue.down = False
    scene.run(10)
    assert scene.queue.leased == {}
    assert (scene.counted("acknowledged"), scene.counted("lostLeases")) == (12, 0)


def test_however_often_it_is_tried_again_each_lease_is_extended_once_in_its_time(scene: Scene) -> None:
    scene.complete(scene.queue.deliver(10))
    scene.queue.down = True
    scene.run(115)
    scene.queue.down = False
    for _ in range(int(4 * LEASE)):  # only the leases are looked at
        scene.now += 1
        scene.keeper.tick()
    assert scene.counted("lostLeases") == 0
    assert scene.queue.extended <= 10 * (1 + 4 * 2)


def test_a_queue_that_is_away_is_asked_one_thing_at_a_time_and_seldom(scene: Scene) -> None:
    messages = scene.queue.deliver(1100)
    scene.complete(messages[:1000])
    scene.queue.down = True
    for message in messages[1000:]:
        scene.run(1)
        scene.complete([message])
    assert scene.queue.asked <= 1 + 100 / 5
    scene.run(5)
    assert scene.counted("acknowledgeFailures") == 1100, "each of them once"


def test_a_message_whose_lease_has_ended_is_left_to_its_next_delivery(scene: Scene) -> None:
    scene.complete(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(LEASE + 10)
    assert scene.counted("lostLeases") == 3
    asked = scene.queue.asked
    scene.queue.down = False
    scene.run(10)
    assert (scene.queue.asked, scene.held) == (asked, 0)


def test_available_now_does_not_end_before_it_is_acknowledged(scene: Scene) -> None:
    scene.complete(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(1)
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
    scene.complete(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(1)
    scene.queue.down = False
    scene.now += 10
    looked, done, unacknowledged = threading.Event(), threading.Event(), list[int]()
    changed = scene.in_flight._changed
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
    with running(scene):
        assert done.wait(60)
    assert unacknowledged == [0]


def test_whoever_waits_for_the_answers_of_a_queue_that_is_away_goes_on_after_the_first_try(scene: Scene) -> None:
    keys = scene.complete(scene.queue.deliver(300))
    scene.queue.down = True
    with running(scene):
        scene.acknowledger.wait_for_answers(keys)
        assert scene.queue.asked == 1
    assert scene.held == 300


def test_whoever_waits_for_answers_does_not_wait_for_a_queue_that_is_away_to_be_asked_again(scene: Scene) -> None:
    """At-most-once: a batch begins although its messages cannot be deleted."""
    first = scene.complete(scene.queue.deliver(3))
    scene.queue.down = True
    with running(scene):
        scene.acknowledger.wait_for_answers(first)
        later = scene.complete(scene.queue.deliver(4)[3:])
        waiting = threading.Thread(target=scene.acknowledger.wait_for_answers, args=(later,))
        waiting.start()
        waiting.join(5)
        assert not waiting.is_alive()
    assert (scene.queue.asked, scene.held) == (1, 4)


def test_at_the_end_it_is_tried_once_more(scene: Scene) -> None:
    scene.complete(scene.queue.deliver(3))
    scene.queue.down = True
    scene.run(1)
    scene.queue.down = False
    scene.acknowledger.end(scene.in_flight.empty().complete)
    assert scene.queue.leased == {}


def test_a_queue_that_is_away_is_not_asked_for_each_message_that_waits(scene: Scene) -> None:
    keys = scene.complete(scene.queue.deliver(1000))
    scene.queue.down = True
    with running(scene):
        scene.acknowledger.wait_for_answers(keys)
        assert scene.held == 1000
    assert scene.queue.asked == 1
    scene.queue.down = False
    scene.acknowledger.end(scene.in_flight.empty().complete)
    assert (scene.queue.leased, scene.counted("acknowledged")) == ({}, 1000)


def test_a_lease_that_ends_while_its_message_waits_its_turn_is_lost_once(scene: Scene) -> None:
    """The keeper has counted it, and nobody asks the queue for what it delivers again."""
    scene.complete(scene.queue.deliver(40))
    scene.now += LEASE + 1  # the thread waited for another answer
    scene.keeper.tick()
    with running(scene):
        scene.acknowledger.finish()
    assert (scene.queue.asked, scene.counted("lostLeases"), scene.counted("acknowledged")) == (0, 40, 0)


def test_the_end_does_not_wait_for_more_than_one_call_and_acknowledges_the_rest(scene: Scene) -> None:
    """Spark ends a query in the middle of a long acknowledgement: what was not asked for is, and nothing twice."""
    at_once, begun, answer = scene.queue.acknowledge, threading.Event(), threading.Event()

    def slowly(receipts: Sequence[Receipt]) -> set[Receipt]:
        begun.set()
        assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = slowly  # type: ignore[method-assign]
    with running(scene):
        scene.complete(scene.queue.deliver(1000))
        assert begun.wait(60)
        scene.session.stopping.set()
        answer.set()
    assert scene.queue.asked == 1
    scene.acknowledger.end(scene.in_flight.empty().complete)
    assert scene.queue.leased == {}
    assert (scene.queue.asked, scene.counted("acknowledged"), scene.counted("lostLeases")) == (10, 1000, 0)


def test_a_queue_that_does_not_answer_delays_no_other(scene: Scene) -> None:
    other, threads = Queue(scene.clock), Threads()
    scene.use({"q": scene.queue, "other": other}, threads.stopping)
    answer, at_once = threading.Event(), scene.queue.acknowledge

    def hangs(receipts: Sequence[Receipt]) -> set[Receipt]:
        assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = hangs  # type: ignore[method-assign]
    threads.on_stop(scene.in_flight.wake)
    scene.acknowledger.start(threads)
    scene.complete([*scene.queue.deliver(300), *(replace(message, queue="other") for message in other.deliver(300))])
    scene.in_flight.wait(60, lambda: scene.held == 300)
    assert (other.leased, len(scene.queue.leased)) == ({}, 300)
    answer.set()
    scene.acknowledger.finish()
    threads.stop(60)
    assert scene.queue.leased == {}


def test_what_a_queue_has_not_answered_at_the_end_is_not_given_back(scene: Scene) -> None:
    """It may be deleted by now, and a message that is given back is delivered at once."""
    at_once, begun, answer = scene.queue.acknowledge, threading.Event(), threading.Event()

    def hangs(receipts: Sequence[Receipt]) -> set[Receipt]:
        if not begun.is_set():
            begun.set()
            assert answer.wait(60)
        return at_once(receipts)

    scene.queue.acknowledge = hangs  # type: ignore[method-assign]
    with running(scene):
        keys = scene.complete(scene.queue.deliver(150))
        assert begun.wait(60)
        left = scene.in_flight.empty()  # the thread was waited for in vain
        assert left == Leftovers([], [], keys[100:], keys[:100], [])
        scene.acknowledger.end(left.complete)
        answer.set()
    assert (scene.queue.leased, scene.held) == ({}, 0)


def test_what_a_queue_refuses_to_acknowledge_ends_the_thread_and_is_tried_at_the_end(scene: Scene) -> None:
    keys, at_once = scene.complete(scene.queue.deliver(3)), scene.queue.acknowledge

    def refuses(receipts: Sequence[Receipt]) -> set[Receipt]:
        raise PermissionError("no longer allowed")

    scene.queue.acknowledge = refuses  # type: ignore[method-assign]
    with pytest.raises(PermissionError):
        scene.acknowledger.run("q")
    scene.queue.acknowledge = at_once  # type: ignore[method-assign]
    left = scene.in_flight.empty()
    assert left == Leftovers([], [], keys, [], [])
    scene.acknowledger.end(left.complete)
    assert scene.queue.leased == {}


def test_the_last_extension_ends_the_task(scene: Scene) -> None:
    (message,) = scene.queue.deliver(1)
    hold(scene.in_flight, [message], Terms(LEASE))
    left = scene.in_flight.empty()
    assert left == Leftovers([key_of(message)], [], [], [], [])
    scene.acknowledger.extend_last(left.unplanned, 1000.0)
    assert scene.queue.leased == {message.receipt: scene.now + 1000}
    scene.run(3 * LEASE)
    assert scene.queue.leased == {message.receipt: 1000 + 1000}
    assert scene.counted("lostLeases") == 0
