"""Which objects of a source the store knows: for whoever has to tell one that is refused from a bucket that is."""

from __future__ import annotations

import sqlalchemy as sa

from shard_store import snapshots
from shard_store.model import PlanIdentity, ShardState
from shard_store.sql.schema import pipelines, shards
from shard_store.sql.transaction import Transaction

LIMIT = 200
"""Of what was published last, and of what is open; an index finds each."""


def known_objects(transaction: Transaction, identity: PlanIdentity) -> tuple[list[str], list[str]]:
    """URIs of objects: what the source published last, newest first; and what is in the plan, or waits for the next."""
    pipeline, source = identity.token.pipeline, identity.source
    bounds = sa.select(pipelines.c.plan_after, pipelines.c.plan_end).where(
        pipelines.c.pipeline == pipeline, pipelines.c.plan_hash == identity.delivery_hash
    )
    planned = [
        entry.content.uri
        for row in transaction.execute(bounds)
        for entry in snapshots.flatten(snapshots.read(transaction, pipeline, row.plan_after, row.plan_end))
    ]
    columns = sa.select(shards.c.shard_id, shards.c.uri, shards.c.state)
    finished = columns.where(shards.c.source == source, shards.c.finished_at.is_not(None))
    newest = transaction.execute(finished.order_by(shards.c.finished_at.desc()).limit(LIMIT))
    published = [row.uri or row.shard_id for row in newest if row.state == ShardState.DONE.value]
    ours = columns.where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
    waiting = [row.uri or row.shard_id for row in transaction.execute(ours.limit(LIMIT))]
    return published, [*planned, *waiting]
