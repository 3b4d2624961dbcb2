"""Back-off: a queue that is away is waited for, longer and longer, for `queueRetryTimeout`; then the query fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import tenacity

from queue_source.coordinator.session import with_back_off
from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable

MINUTES = 10 * 60.0


class Waits(threading.Event):
    """Says for how long it was waited, and does not wait; `now` is the time by its own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.now += timeout
        return self.is_set()

    def patiently(self) -> tenacity.Retrying:
        return with_back_off(self, MINUTES, lambda: self.now)


def failing(times: int, error: QueueError) -> Callable[[], str]:
    failures = iter([error] * times)

    def call() -> str:
        for failure in failures:
            raise failure
        return "served"

    return call


def test_a_queue_that_comes_back_is_waited_for_at_random_and_longer_each_time() -> None:
    waits = [Waits() for _ in range(50)]
    for event in waits:
        assert event.patiently()(failing(5, QueueUnavailable("q", "is down"))) == "served"
    for number, longest in enumerate((1, 2, 4, 8, 16)):
        waited = [event.seconds[number] for event in waits]
        assert all(0 <= seconds <= longest for seconds in waited)
        assert max(waited) > longest / 2
    assert {len(event.seconds) for event in waits} == {5}


def test_a_queue_that_stays_away_fails_with_its_name() -> None:
    waits = Waits()
    with pytest.raises(QueueUnavailable, match=r"q.*is down"):
        waits.patiently()(failing(1_000_000, QueueUnavailable("q", "is down")))
    assert MINUTES <= waits.now <= MINUTES + 30


def test_a_queue_that_answers_errors_for_two_minutes_ends_no_query(caplog: pytest.LogCaptureFixture) -> None:
    """And is asked again at most half a minute after it answers."""
    waits = Waits()

    def call() -> str:
        if waits.now < 120:
            raise QueueUnavailable("q", "is down")
        return "served"

    assert waits.patiently()(call) == "served"
    assert waits.now <= 150
    assert len(caplog.messages) == len(waits.seconds)
    assert "'q': is down; it is tried again" in caplog.messages[0]


def test_time_that_the_calls_themselves_take_counts() -> None:
    waits = Waits()

    def call() -> str:
        waits.now += MINUTES / 2
        raise QueueUnavailable("q", "does not answer")

    with pytest.raises(QueueUnavailable):
        waits.patiently()(call)
    assert len(waits.seconds) == 1


def test_what_waiting_cannot_mend_and_a_stopped_query_are_not_waited_for() -> None:
    going, stopped = Waits(), Waits()
    stopped.set()
    with pytest.raises(QueueConfigurationError):
        going.patiently()(failing(1, QueueConfigurationError("q", "no such queue")))
    with pytest.raises(QueueUnavailable):
        stopped.patiently()(failing(1, QueueUnavailable("q", "is down")))
    assert going.seconds == stopped.seconds == []
