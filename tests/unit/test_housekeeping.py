"""The housekeeper's order of work: nothing that takes long may come between two heartbeats."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.housekeeping import Housekeeper
from queue_source.coordinator.metrics import Metrics
from queue_source.options import parse_reader_options
from shard_store.model import PublishToken
from shard_store.pruning import PruneResult

OPTIONS = {"queueUrl": "sim://files", "source": "files", "fileFormat": "json", "commitTimeout": "6s"}


class Store:
    """Prunes as long as it may, of a backlog that takes `backlog` calls; every call is written down with its time."""

    def __init__(self, backlog: int) -> None:
        self.now = 0.0
        self.backlog = backlog
        self.calls: list[tuple[str, float]] = []

    def win_interval(self, name: str, interval: float) -> bool:
        self.calls.append(("win", self.now))
        return True

    def prune(self, policy: object, *, time_out: float) -> PruneResult:
        self.calls.append(("prune", self.now))
        self.now += time_out
        self.backlog -= 1
        return PruneResult(shards=1, timed_out=self.backlog > 0)

    def heartbeat(self, token: PublishToken, stale_after: float) -> None:
        self.calls.append(("heartbeat", self.now))

    def times(self, call: str) -> list[float]:
        return [at for name, at in self.calls if name == call]


def run(store: Store, rounds: int) -> None:
    options = parse_reader_options(OPTIONS)
    left = iter(range(rounds))

    def wait(seconds: float) -> bool:
        store.now += seconds
        return next(left, None) is None

    pen = HoldingPen(options.queue.max_in_flight_messages)
    router: Any = SimpleNamespace(route=lambda s: None)
    releaser: Any = SimpleNamespace(replay=lambda b: None, make_room=lambda: None)
    keeper = Housekeeper(options, store, {}, pen, router, releaser, Metrics(), lambda: store.now)  # type: ignore[arg-type]
    keeper.run(SimpleNamespace(stopping=SimpleNamespace(wait=wait)), PublishToken("p", 1))  # type: ignore[arg-type]


def test_a_long_prune_goes_in_slices_with_heartbeats_between_them_and_is_won_once() -> None:
    store = Store(backlog=12)
    run(store, 40)
    heartbeat = parse_reader_options(OPTIONS).leases.heartbeat.total_seconds()
    beats = [0.0, *store.times("heartbeat")]
    assert max(later - earlier for earlier, later in pairwise(beats)) <= 2 * heartbeat
    assert len(store.times("prune")) == 12
    assert len(store.times("win")) == 1


def test_the_next_interval_is_won_anew() -> None:
    store = Store(backlog=1)
    run(store, 100)
    assert [round(at) // 60 for at in store.times("prune")] == list(range(len(store.times("win"))))
    assert len(store.times("win")) >= 2
