"""The operators' view of the pipelines that share a store, running or dead. The command `status` uses it."""

from __future__ import annotations

from datetime import datetime

from queue_source.admin.wording import number, since, time_text
from shard_store.notebooks import rows_table
from shard_store.operators import status as operations
from shard_store.operators.status import Hour, PipelineStatus, StatusLimits
from shard_store.store import ShardStore


def status(store: ShardStore, *, source: str | None = None, pipeline: str | None = None) -> tuple[PipelineStatus, ...]:
    """Each pipeline that has started with the store: whether it is alive, how far it is, how far behind, how fast.

    What its reader holds (`in_flight` and the like) is as old as its last heartbeat; what is published is exact, also
    after a process was killed.

    Args:
        store: The store, as `open_store` returns it.
        source: Only the pipelines of this source.
        pipeline: Only this pipeline.

    Returns:
        One status for each pipeline, by their names.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any. It reads some rows of each pipeline, and the index of what is not published.
    """
    return _Statuses(store.status(source=source, pipeline=pipeline))


class _Statuses(tuple[PipelineStatus, ...]):
    """The pipelines of a store, which notebooks show as a table with a line for each."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = ("pipeline", "state", "last batch", "waiting", "oldest", "lag p99", "rows/s", "errors/h")
        rows = [
            (
                status.pipeline,
                status.state,
                "" if status.last_batch is None else f"{since(status, status.last_batch.published_at)} ago",
                number(status.files_outstanding),
                "" if status.oldest_age is None else time_text(status.oldest_age),
                "" if status.last_hour.lag_p99 is None else time_text(status.last_hour.lag_p99),
                number(status.rows_per_second),
                number(sum(status.last_hour.errors.values())),
            )
            for status in self
        ]
        return rows_table(columns, rows)


def history(
    store: ShardStore, *, since: datetime, source: str | None = None, pipeline: str | None = None
) -> tuple[Hour, ...]:
    """Return what each pipeline has published in each hour: rows, bytes, objects, errors, percentiles of the lag.

    Args:
        store: The store, as `open_store` returns it.
        since: The first hour, as a time in it, with a zone. Hours are kept for 90 days.
        source: Only the pipelines of this source.
        pipeline: Only this pipeline.

    Returns:
        The hours in which anything happened, the oldest first; the current one as far as it is.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any.
    """
    return store.hours(since=since, source=source, pipeline=pipeline)


def complaints(status: PipelineStatus, limits: StatusLimits) -> tuple[str, ...]:
    """What is wrong with a pipeline, as a probe sees it.

    Args:
        status: One pipeline, of `status`.
        limits: What it may do. Whatever they say, it is wrong when its heartbeats have ended and it was not stopped.

    Returns:
        A sentence for each thing that is wrong; none if the pipeline is healthy.

    Raises:
        Nothing.

    Process:
        Any.
    """
    return operations.complaints(status, limits)
