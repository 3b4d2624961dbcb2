"""SQL-backed shard table: progress, ownership, publishing. Knows nothing of Spark, queues or object storage."""

from __future__ import annotations

from datetime import datetime

from shard_store.prune import PruneResult, RetentionPolicy
from shard_store.store import ShardStore, open_store

__all__ = ["PruneResult", "RetentionPolicy", "ShardStore", "open_store", "prune"]


def prune(
    store: ShardStore, policy: RetentionPolicy, now: datetime | None = None, *, dry_run: bool = False
) -> PruneResult:
    """Remove finished shards, confirmed snapshots, attempts and errors that the policy lets go (the scheduled job).

    Never removes a shard in progress (invariant 6). `now` defaults to the database's clock; with `dry_run` nothing
    is removed and the result counts what would be.
    """
    return store.prune(policy, now, dry_run=dry_run)
