"""The numbers of the charts: throughput and lag on an even grid of times, of one pipeline or of all together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from shard_store.operators.status import SLOT_SECONDS, Hour, PipelineStatus, Published, Slot
from shard_store.store import ShardStore

DAYS = 7
TOGETHER = 50
"""Pipelines that are shown in one chart; of more, the chart would read their whole history at each look."""
_HOUR = 3600


def series(store: ShardStore, status: Sequence[PipelineStatus], pipeline: str | None) -> dict[str, Any]:
    """Return the last hour in steps of five minutes, and a week in hours. `status`: of the pipelines shown."""
    if not status:
        return {"recent": _grid((), SLOT_SECONDS, 0, 0), "hours": _grid((), _HOUR, 0, 0)}
    now = max(
        status_of_pipeline.heartbeat_at.timestamp() + status_of_pipeline.silence for status_of_pipeline in status
    )  # the database's clock
    since = datetime.fromtimestamp(now - DAYS * 24 * _HOUR, timezone.utc)
    hours = store.hours(since=since, pipeline=pipeline)
    first = min((hour.start.timestamp() for hour in hours), default=now)
    return {
        "recent": _grid(store.recent(pipeline=pipeline), SLOT_SECONDS, now - _HOUR, now),
        "hours": _grid(hours, _HOUR, min(first, now - 24 * _HOUR), now),
    }


def _grid(periods: Iterable[Hour | Slot], step: int, first: float, now: float) -> dict[str, list[float | None]]:
    """Return rates a second, and lags of the slowest pipeline. A period without work has rate 0, and no lag."""
    times = list(range(int(first // step) * step, int(now) + 1, step)) if now else []
    by_time: dict[int, list[Published]] = {time: [] for time in times}
    for period in periods:
        by_time.get(round(period.start.timestamp()), []).append(period.published)
    lasted = [max(1.0, min(float(step), now - time)) for time in times]
    parts = list(by_time.values())
    has_rows = any(published.rows is not None for part in parts for published in part)
    return {
        "times": list(times),
        "objects": [sum(p.objects for p in part) / s for part, s in zip(parts, lasted, strict=True)],
        "rows": [
            sum(p.rows or 0 for p in part) / s if has_rows else None for part, s in zip(parts, lasted, strict=True)
        ],
        "errors": [sum(sum(p.errors.values()) for p in part) for part in parts],
        "lag_p50": [max((p.lag_p50 for p in part if p.lag_p50 is not None), default=None) for part in parts],
        "lag_p99": [max((p.lag_p99 for p in part if p.lag_p99 is not None), default=None) for part in parts],
    }
