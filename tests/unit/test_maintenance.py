"""Work by the clock: nothing of it ends a query, and nothing that takes long keeps the rest waiting."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

from queue_source.coordinator.errors import ErrorLog
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.maintenance import Maintenance
from queue_source.coordinator.ready import Limits
from queue_source.coordinator.session import Session
from queue_source.errors import QueueUnavailable
from queue_source.queues import Depth
from queue_source.queues.base import Capabilities
from shard_store.errors import PipelineTakenOver, StoreUnavailable
from shard_store.upkeep.pruning import PruneResult, RetentionPolicy
from support.sessions import make_session


class Rounds(threading.Event):
    """A clock that goes on with each wait, until so many waits are over."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.now = 0.0
        self._left = rounds

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        self._left -= 1
        return self._left < 0


class Fakes:
    """Store, ownership and acknowledger in one; every call is written down with its time.

    Prunes as long as it may, of a backlog that takes `backlog` calls. `failing` calls fail. `counting`: the seconds
    that the depth takes.
    """

    counting = 0.0
    ahead: timedelta | None = None

    def __init__(self, rounds: int, backlog: int = 1, failing: dict[str, list[Exception]] | None = None) -> None:
        self.rounds = Rounds(rounds)
        self.backlog = backlog
        self.failing = failing or {}
        self.calls: list[tuple[str, float]] = []
        self.policies: list[RetentionPolicy] = []

    def win_interval(self, name: str, interval: float) -> bool:
        self._called(name)
        return True

    def prune(self, policy: RetentionPolicy, *, time_out: float) -> PruneResult:
        self._called("prune")
        self.policies.append(policy)
        self.rounds.now += time_out
        self.backlog -= 1
        return PruneResult(shards=1, timed_out=self.backlog > 0, ahead=self.ahead)

    def get_again(self, keys: object) -> None:
        self._called("others")

    def get_renewed(self) -> None:
        self._called("renewed")

    def take_abandoned(self) -> None:
        self._called("abandoned")

    def depth(self) -> Depth:
        self._called("depth")
        self.rounds.now += self.counting
        return Depth(7, 0)

    capabilities = Capabilities(max_batch_size=10)

    def _called(self, name: str) -> None:
        self.calls.append((name, self.rounds.now))
        if self.failing.get(name):
            raise self.failing[name].pop()

    def times(self, call: str) -> list[float]:
        return [at for name, at in self.calls if name == call]


def run(fakes: Fakes, **options: str) -> tuple[Maintenance, Session]:
    given: dict[str, Any] = {"commitTimeout": "6s", "pruneInterval": "60s", **options}
    session = make_session(fakes, {"q": fakes}, stopping=fakes.rounds, clock=lambda: fakes.rounds.now, **given)
    other: Any = fakes
    maintenance = Maintenance(session, InFlight(["q"], Limits(10, 10)), other, other, ErrorLog(session), other)
    maintenance.run()
    return maintenance, session


def test_a_long_prune_goes_in_slices_with_other_work_between_them_and_is_won_once() -> None:
    fakes = Fakes(rounds=40, backlog=12)
    run(fakes)
    prunes = [at for at, _ in zip(fakes.times("prune"), range(12), strict=False)]
    assert len(prunes) == 12
    between = [at for at in fakes.times("others") if prunes[0] < at < prunes[-1]]
    assert len(between) > 3
    assert len(fakes.times("prune files")) == 1


def test_the_next_interval_is_won_anew() -> None:
    fakes = Fakes(rounds=200)
    run(fakes)
    assert [int(at) // 60 for at in fakes.times("prune")] == list(range(len(fakes.times("prune files"))))
    assert len(fakes.times("prune files")) >= 2


def test_pruning_gets_the_window_the_limit_and_the_source_of_the_options() -> None:
    fakes = Fakes(rounds=2)
    run(fakes, deduplicationWindow="8 days", deduplicationMaxShards="77")
    assert fakes.policies == [RetentionPolicy(timedelta(days=8), 77, "files")]


def test_a_clock_that_is_ahead_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fakes(rounds=400)
    fakes.ahead = timedelta(days=3650)
    run(fakes)
    assert len(fakes.times("prune")) > 2
    [line] = [record.getMessage() for record in caplog.records]
    assert "the store's clock is 3650 days, 0:00:00 ahead of the last pruning" in line


@pytest.mark.parametrize("call", ["others", "renewed", "abandoned", "prune files", "prune", "depth"])
def test_what_fails_is_counted_and_tried_again_and_keeps_nothing_else_from_being_done(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [QueueUnavailable("q", "is down"), StoreUnavailable("locked")]
    fakes = Fakes(rounds=200, failing={call: failures})
    maintenance, session = run(fakes)
    assert session.metrics.snapshot()["maintenanceFailures"] == 2
    assert len(caplog.records) == 2
    for name in ("others", "renewed", "abandoned", "prune files", "prune", "depth"):
        assert len(fakes.times(name)) >= 1
    assert len(fakes.times(call)) >= 3
    assert fakes.times(call)[2] <= 61, "not a whole interval later"
    assert maintenance.depth == 7


def test_a_prune_that_failed_goes_on_though_its_interval_is_won_already() -> None:
    fakes = Fakes(rounds=200, failing={"prune": [StoreUnavailable("locked")]})
    run(fakes, pruneInterval="1h")
    assert len(fakes.times("prune files")) == 1
    assert len(fakes.times("prune")) == 2


def test_only_a_newer_incarnation_ends_the_query() -> None:
    fakes = Fakes(rounds=200, failing={"others": [PipelineTakenOver("p", 1, 2)]})
    with pytest.raises(PipelineTakenOver):
        run(fakes)


def test_a_count_that_takes_long_is_made_seldom() -> None:
    fakes = Fakes(rounds=400)
    fakes.counting = 6.0
    run(fakes)
    times = fakes.times("depth")
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 20 * 6
    assert len(fakes.times("others")) > 10 * len(times)


def test_the_depth_is_unknown_while_a_queue_does_not_answer() -> None:
    fakes = Fakes(rounds=1, failing={"depth": [QueueUnavailable("q", "is down")]})
    maintenance, _ = run(fakes)
    assert maintenance.depth is None
