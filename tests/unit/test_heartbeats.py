"""Heartbeats are patient as long as nobody else may take over, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queue_source.coordinator.maintenance import send_heartbeats
from shard_store.errors import PipelineTakenOver, StoreUnavailable
from shard_store.model import PublishToken
from shard_store.shards.activity import Report
from support.sessions import make_session

COMMIT_TIMEOUT = 60.0
STALE_AFTER = 2 * COMMIT_TIMEOUT


class Time(threading.Event):
    """Goes on with each wait, up to `end`."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.now, self.end = 0.0, end

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.now > self.end


class Store:
    """Every call takes `takes` seconds, and fails while `fails` says so."""

    def __init__(self, time: Time, fails: Callable[[float], Exception | None], takes: float = 0.0) -> None:
        self.time, self.fails, self.takes = time, fails, takes
        self.beats: list[float] = []

    def heartbeat(self, token: PublishToken, stale_after: float, report: Report | None = None) -> None:
        assert stale_after == STALE_AFTER
        failure = self.fails(self.time.now)
        self.time.now += self.takes
        if failure is not None:
            raise failure
        self.beats.append(self.time.now)


def run(end: float, fails: Callable[[float], Exception | None], takes: float = 0.0) -> list[float]:
    time = Time(end)
    store = Store(time, fails, takes)
    session = make_session(store, stopping=time, clock=lambda: time.now, commitTimeout="60s")
    send_heartbeats(session, time.now)
    return store.beats


def test_there_is_one_each_quarter_of_the_commit_timeout() -> None:
    assert run(61, lambda _: None) == [15, 30, 45, 60]


def test_a_store_that_is_away_is_tried_again_soon_until_others_may_take_over() -> None:
    def away(now: float) -> Exception | None:
        return StoreUnavailable("locked") if 20 < now < 130 else None

    assert run(160, away) == [15, 130, 145, 160]


def test_a_store_that_stays_away_ends_the_query_at_the_moment_at_which_others_may_take_over() -> None:
    seen = []

    def away(now: float) -> Exception | None:
        seen.append(now)
        return StoreUnavailable("locked") if now > 20 else None

    with pytest.raises(StoreUnavailable):
        run(1000, away)
    assert seen[-1] == 15 + STALE_AFTER


def test_time_counts_from_the_start_of_the_last_call_that_succeeded() -> None:
    """The store may have written its time before it was slow to answer."""

    def away(now: float) -> Exception | None:
        return StoreUnavailable("locked") if now > 20 else None

    with pytest.raises(StoreUnavailable):
        run(15 + STALE_AFTER, away, takes=10)


def test_a_newer_incarnation_ends_the_query_at_once() -> None:
    with pytest.raises(PipelineTakenOver):
        run(1000, lambda _: PipelineTakenOver("p", 1, 2))
