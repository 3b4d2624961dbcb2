"""Reports the state of a reader: to the store with each heartbeat, where operators see it, and to Spark's progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.intake.prefix_watch import PrefixWatch
from queue_source.coordinator.session import Session
from queue_source.coordinator.upkeep.maintenance import Maintenance
from shard_store.model import MICROSECOND
from shard_store.shards.activity import Report


@dataclass(frozen=True, slots=True)
class Reporting:
    """`before`: the counters that the incarnations before this one have reported; they go on from there.

    Errors by cause are not among them: the store counts those itself, when they are final.
    """

    _session: Session
    _in_flight: InFlight
    _maintenance: Maintenance
    _prefixes: PrefixWatch
    _before: Mapping[str, int] = field(default_factory=dict)

    def report(self, *, stopped: bool = False) -> Report:
        counts = self._in_flight.counts()
        now = {name: count for name, count in self._session.metrics.snapshot().items() if isinstance(count, int)}
        counters = {name: now.get(name, 0) + self._before.get(name, 0) for name in {**self._before, **now}}
        return Report(
            in_flight=counts.in_flight,
            ready=counts.ready,
            awaiting_commit=counts.planned,
            held=counts.held,
            depth=self._maintenance.depth,
            counters=counters,
            stopped=stopped,
            intake=self._prefixes.intake,
            window=self._session.options.deduplication.deduplication_window // MICROSECOND,
        )
