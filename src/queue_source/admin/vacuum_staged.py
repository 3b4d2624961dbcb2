"""Removes messages that tasks have staged for a SQL queue in the store's database, and that no batch will show.

A pipeline removes the staged messages of its own failed attempts after its next batch. Those of pipelines that never
publish to that queue again are left: they were given up, or write to another place now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from queue_source.queues.sql.database import messages
from queue_source.queues.sql.staging import hidden_queue, remove, staged
from shard_store.model import MICROSECOND
from shard_store.sql.schema import attempts, pipelines
from shard_store.sql.transaction import Transaction, chunks
from shard_store.store import ShardStore


@dataclass(frozen=True, slots=True)
class StagedResult:
    """How many messages wait to be shown, or for their removal, and how many of them were (would be) removed."""

    found: int = 0
    removed: int = 0


def vacuum_staged(store: ShardStore, *, older_than: timedelta, dry_run: bool = False) -> StagedResult:
    """Remove the messages that were staged longer than `older_than` ago and that no running batch may still show.

    Such a batch belongs to a pipeline with a heartbeat since then that has published nothing since they were staged.
    The batch of a driver that was paused for longer fails when it wakes up: `show` notices the missing messages.
    """
    database = store.database
    if not database.read(lambda transaction: sa.inspect(transaction.connection).has_table(staged.name)):
        return StagedResult()
    waiting = database.read(_count_all)
    names = database.read(lambda transaction: _dead(transaction, older_than))
    if dry_run:
        return StagedResult(waiting, database.read(lambda transaction: _count(transaction, names)))
    database.write(lambda transaction: _abandon(transaction, names))
    return StagedResult(waiting, remove(database, names))


def _dead(transaction: Transaction, older_than: timedelta) -> list[str]:
    limit = transaction.now() - older_than // MICROSECOND
    published = sa.exists().where(
        attempts.c.pipeline == staged.c.owner, attempts.c.published_at > staged.c.staged_at
    )  # its batches follow one another: entries older than the last one belong to no later one
    alive = sa.exists().where(pipelines.c.pipeline == staged.c.owner, pipelines.c.heartbeat_at >= limit)
    dead = sa.or_(staged.c.abandoned == 1, published, sa.not_(alive))
    return list(transaction.execute(sa.select(staged.c.name).where(staged.c.staged_at < limit, dead)).scalars())


def _abandon(transaction: Transaction, names: list[str]) -> None:
    """Mark the attempts as abandoned: nothing is added to them any more, and no batch shows them."""
    for chunk in chunks(names):
        transaction.execute(staged.update().where(staged.c.name.in_(chunk)).values(abandoned=1))


def _count(transaction: Transaction, names: list[str]) -> int:
    hidden = [messages.c.queue.in_([hidden_queue(name) for name in chunk]) for chunk in chunks(names)]
    return sum(transaction.execute(sa.select(sa.func.count()).where(some)).scalar_one() for some in hidden)


def _count_all(transaction: Transaction) -> int:
    every = sa.select(staged.c.name)
    return _count(transaction, list(transaction.execute(every).scalars()))
