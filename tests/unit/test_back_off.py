"""Back-off: a queue that is away for a moment is waited for, longer and longer; then its error ends the query."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queue_source.coordinator.session import with_back_off
from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable


class Waits(threading.Event):
    """Says for how long it was waited, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return self.is_set()


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
        assert with_back_off(event)(failing(5, QueueUnavailable("q", "is down"))) == "served"
    for number, longest in enumerate((1, 2, 4, 8, 16)):
        waited = [event.seconds[number] for event in waits]
        assert all(0 <= seconds <= longest for seconds in waited)
        assert max(waited) > longest / 2
    assert {len(event.seconds) for event in waits} == {5}


def test_a_queue_that_stays_away_fails_with_its_name() -> None:
    with pytest.raises(QueueUnavailable, match=r"q.*is down"):
        with_back_off(Waits())(failing(6, QueueUnavailable("q", "is down")))


def test_what_waiting_cannot_mend_and_a_stopped_query_are_not_waited_for() -> None:
    going, stopped = Waits(), Waits()
    stopped.set()
    with pytest.raises(QueueConfigurationError):
        with_back_off(going)(failing(1, QueueConfigurationError("q", "no such queue")))
    with pytest.raises(QueueUnavailable):
        with_back_off(stopped)(failing(1, QueueUnavailable("q", "is down")))
    assert going.seconds == stopped.seconds == []
