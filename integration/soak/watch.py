"""What could grow in a soak, sample by sample, and whether it did."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow.parquet as pq
import sqlalchemy as sa

from shard_store.sql.schema import metadata, splits
from support.engine.harness import Driver

ROLES = ("jvm", "reader", "worker")
_MEGABYTE = 1 << 20
_KEPT = {splits.name}
"""Tables that hold what was published: they grow with it."""


@dataclass(frozen=True)
class Limit:
    """By how much a series may grow while it is judged: absolutely, or as a part of its level."""

    absolute: float
    part: float = 0.0


_LIMITS = {
    "MB": Limit(40, 0.10),
    "files": Limit(8),
    "threads": Limit(8),
    "connections": Limit(6),
    "rows": Limit(200, 0.20),
    "latency": Limit(1.0),
}
"""By the first word of a series' name."""


@dataclass(frozen=True)
class Verdict:
    """`slope` is per minute, `growth` over the judged time; `limit` is None where growing is right."""

    name: str
    level: float
    slope: float
    growth: float
    limit: float | None

    @property
    def flat(self) -> bool:
        return self.limit is None or self.growth <= self.limit


@dataclass
class Watch:
    """Samples of one driver, of the store, and of the rows that were published meanwhile."""

    driver: Driver
    store: str
    ids: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._engine = sa.create_engine(self.store)
        self._began = time.monotonic()

    def close(self) -> None:
        self._engine.dispose()

    def sample(self) -> dict[str, float]:
        """One of each series, by its name."""
        found = {**self._processes(), **self._tables(), **self._published()}
        at = time.monotonic() - self._began
        for name, value in found.items():
            self.series.setdefault(name, []).append((at, value))
        return found

    def _processes(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        roles = {pid: role for role in ROLES for pid in self.driver.pids(role)}
        for pid, role in roles.items():
            with suppress(psutil.Error):  # a worker that has just ended
                process = psutil.Process(pid)
                found[f"MB {role}"] += process.memory_info().rss // _MEGABYTE
                found[f"files {role}"] += process.num_fds()
                found[f"threads {role}"] += process.num_threads()
        return dict(found)

    def _tables(self) -> dict[str, float]:
        with self._engine.connect() as connection:
            counts: dict[str, float] = {
                f"rows {table.name}": connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }
            backends = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            return {**counts, "connections": connection.execute(sa.text(backends)).scalar_one()}

    def _published(self) -> dict[str, float]:
        """The median of how long it took from sending to publishing, of the rows that are new."""
        with self._engine.connect() as connection:
            files = connection.execute(sa.select(splits.c.path, splits.c.published_at)).all()
        fresh: list[float] = []
        for path, published_at in files:
            if path not in self._seen:
                self._seen.add(path)
                rows = pq.read_table(unquote(urlsplit(path).path), columns=["id", "sent"])
                self.ids.update(rows.column("id").to_pylist())
                fresh += [published_at / 1e6 - sent for sent in rows.column("sent").to_pylist()]
        self.latencies += fresh
        return {"latency p50": statistics.median(fresh)} if fresh else {}

    def verdicts(self, since: float) -> list[Verdict]:
        """Of what was sampled from so many seconds after the start on."""
        found = []
        for name, series in sorted(self.series.items()):
            judged = [(at, value) for at, value in series if at >= since]
            if len(judged) < 3:
                continue
            slope = _slope(judged)
            level = statistics.median(value for _, value in judged)
            limit = _LIMITS[name.split()[0]]
            allowed = None if name.removeprefix("rows ") in _KEPT else max(limit.absolute, limit.part * level)
            growth = slope * (judged[-1][0] - judged[0][0])
            found.append(Verdict(name, level, slope * 60, growth, allowed))
        return found


def _slope(series: list[tuple[float, float]]) -> float:
    """The median of the slopes between any two samples: single peaks, as after a kill, do not count (Theil, Sen)."""
    return statistics.median((b - a) / (t - s) for (s, a), (t, b) in combinations(series, 2) if t > s)
