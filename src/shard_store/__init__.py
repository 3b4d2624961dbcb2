"""SQL-backed shard table: progress, ownership, publishing. Independent of Spark, queues and object storage.

The database library is loaded by the first use of a name of this module: `shard_store.model`, which executors unpickle,
and `shard_store.redaction` do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from shard_store.store import ShardStore, open_store
    from shard_store.upkeep.pruning import PruneResult, RetentionPolicy

__all__ = ["PruneResult", "RetentionPolicy", "ShardStore", "open_store", "prune"]


def prune(
    store: ShardStore, policy: RetentionPolicy, now: datetime | None = None, *, dry_run: bool = False
) -> PruneResult:
    """Remove finished shards, confirmed snapshots, attempts and errors that are older than the policy keeps.

    Never removes a shard in progress (invariant 6).

    Args:
        store: The store, as `open_store` returns it.
        policy: What is kept.
        now: The time that ages are counted from, with a zone; None for the database's clock.
        dry_run: Remove nothing, and count what would be removed.

    Returns:
        The number of rows of each kind.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any, such as a scheduled job; running queries go on meanwhile.
    """
    return store.prune(policy, now, dry_run=dry_run)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shard_store import store
    from shard_store.upkeep import pruning

    return getattr(pruning if hasattr(pruning, name) else store, name)
