"""How much a pipeline has announced and not finished, by one short read of an index."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from shard_store.sql.schema import shards
from shard_store.sql.transaction import Transaction


class Backlog(NamedTuple):
    """Shards that the pipeline owns and has not finished; `bytes` as far as their sizes are known."""

    shards: int
    bytes: int


def backlog(transaction: Transaction, pipeline: str) -> Backlog:
    """What is outstanding of a pipeline. A reader opens no more than it may have in flight, so there are not many."""
    outstanding = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(shards.c.size), 0)).where(
        shards.c.owner == pipeline, shards.c.finished_at.is_(None)
    )
    number, size = transaction.execute(outstanding).one()
    return Backlog(int(number), int(size))
