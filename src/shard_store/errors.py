"""Errors of the shard store.

    ShardStoreError                base of all
    |-- StoreConfigurationError    the URL, driver, schema or permissions are wrong: change the option named
    |-- StoreUnavailable           the database did not answer, or a lock was not had in time: try again later
    |-- LostProgress               a checkpoint knows offsets that the store does not: another or an emptied store
    |-- PipelineTakenOver          a newer incarnation of the pipeline runs: stop, publish nothing
    `-- ShardsLost                 shards of the plan passed to another owner: plan again without them

A class exists only where a caller acts differently on it. The database's own exception is kept as `__cause__`;
no message holds a password.
"""

from __future__ import annotations

from collections.abc import Sequence


class ShardStoreError(Exception):
    """Base of the errors of the store."""


class StoreConfigurationError(ShardStoreError):
    """The store cannot be used as configured; the message names the option and the next step."""


class StoreUnavailable(ShardStoreError):
    """The database could not be reached, or stayed locked, for the whole time-out. Retrying later may help."""


class LostProgress(ShardStoreError):
    """The caller holds an offset that this store never gave: the store was lost, emptied or exchanged."""


class PipelineTakenOver(ShardStoreError):
    """A newer incarnation of the pipeline has started; this one must stop and publishes nothing more."""

    def __init__(self, pipeline: str, ours: int | None, current: int | None) -> None:
        self.pipeline, self.ours, self.current = pipeline, ours, current
        now = "no longer exists" if current is None else f"is now run by incarnation {current}"
        mine = "an older one" if ours is None else f"incarnation {ours}"
        super().__init__(
            f"pipeline {pipeline!r} {now}, this query is {mine}: it was taken over by a newer query and "
            "stops without publishing; give each running query its own 'pipeline' option, or stop the other query; "
            "if there is no other query, this one joins the stream with itself, which Spark reads as two: join each "
            "batch with itself in foreachBatch instead"
        )

    def __reduce__(self) -> tuple[type[PipelineTakenOver], tuple[str, int | None, int | None]]:
        return type(self), (self.pipeline, self.ours, self.current)


class ShardsLost(ShardStoreError):
    """Shards of a plan have another owner or position than the plan says; nothing of it was published."""

    def __init__(self, pipeline: str, shard_ids: Sequence[str]) -> None:
        self.pipeline, self.shard_ids = pipeline, tuple(shard_ids)
        first_ids = ", ".join(repr(i[:200]) for i in self.shard_ids[:5])
        more = f" and {len(self.shard_ids) - 5} more" if len(self.shard_ids) > 5 else ""
        super().__init__(
            f"pipeline {pipeline!r} lost {len(self.shard_ids)} shard(s) before publishing: {first_ids}{more}; nothing "
            "of this batch was published, and the next attempt leaves them to their new owner; if this recurs, raise "
            "'commitTimeout'"
        )

    def __reduce__(self) -> tuple[type[ShardsLost], tuple[str, tuple[str, ...]]]:
        return type(self), (self.pipeline, self.shard_ids)
