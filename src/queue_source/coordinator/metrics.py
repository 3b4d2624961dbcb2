"""Counters of one reader, shown in the query's progress (`sources[0].latestOffset`) as numbers since its start."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class _Counts:
    received: int = 0  # messages delivered to us, redeliveries included
    ignored: int = 0  # records that announce nothing to read: test events, delete events
    duplicates: int = 0  # announcements of shards that were known already
    quarantined: int = 0  # messages that were not understood
    acknowledged: int = 0
    acquired: int = 0  # stale shards taken from other pipelines
    acknowledgeFailures: int = 0
    givenBack: int = 0
    lostLeases: int = 0
    lostShards: int = 0
    pruned: int = 0
    errorsDelivered: int = 0  # to the error queue
    maintenanceFailures: int = 0  # of work by the clock that is tried again; the log has their causes


@dataclass(slots=True)
class Metrics:
    """Counters that any thread may raise."""

    _counts: _Counts = field(default_factory=_Counts)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._counts)
