"""Marks on shards that are finished and were not published, as values of `pending`, which every reader knows (0069).

A state of its own would end older readers, and errors and attempts may be pruned before their shards are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from shard_store.model import BEGINNING, Move, Pending, Range, ShardKey, ShardState, is_end
from shard_store.sql.schema import shards
from shard_store.sql.transaction import Transaction

MARKS = (Pending.BEGUN.value, Pending.SKIPPED.value, Pending.GIVEN_UP.value)
"""With one of these a shard that is done was not published."""

_LASTING = (Pending.SKIPPED.value, Pending.GIVEN_UP.value)
_STATE = sa.func.coalesce(shards.c.pending, "")

PUBLISHED = sa.and_(shards.c.state == ShardState.DONE.value, _STATE.not_in(MARKS))


def mark_begun(transaction: Transaction, entries: Iterable[Range]) -> None:
    """With at-most-once these shards are done with their snapshot, before anything of it is published."""
    keys = [entry.key for entry in entries if is_end(entry.end)]
    begun = shards.update().where(_STATE.not_in((*_LASTING, Pending.QUARANTINE.value)))
    transaction.change_among(begun.values(pending=Pending.BEGUN.value), shards.c.shard_key, keys)


def mark_published(transaction: Transaction, moves: Sequence[Move]) -> None:
    """The batch of shards that were begun is delivered: that is when they were done."""
    keys = [move.key for move in moves if is_end(move.end)]
    delivered = shards.update().where(shards.c.pending == Pending.BEGUN.value)
    delivered = delivered.values(pending=None, finished_at=transaction.now())
    transaction.change_among(delivered, shards.c.shard_key, keys)


def mark_skipped(transaction: Transaction, keys: Iterable[ShardKey]) -> None:
    """A plan that is published has left these objects out, or a part of them: `onCorruptObject` = `skip`."""
    transaction.change_among(shards.update().values(pending=Pending.SKIPPED.value), shards.c.shard_key, keys)


def mark_given_up(
    transaction: Transaction, pipeline: str, seqs: tuple[int, int], keys: Iterable[ShardKey] | None = None
) -> None:
    """With at-most-once nobody will read again what the snapshots of `seqs` (after, until] have of these shards.

    Without `keys` all that was begun in them. A shard that was forgotten and announced again meanwhile is another one.
    """
    c = shards.c
    ended = sa.and_(c.state == ShardState.DONE.value, c.end_seq > seqs[0], c.end_seq <= seqs[1])
    ours = shards.update().where(c.owner == pipeline).values(pending=Pending.GIVEN_UP.value)
    if keys is None:
        transaction.execute(ours.where(ended, c.pending == Pending.BEGUN.value))
        return
    in_part = sa.and_(c.finished_at.is_(None), c.position != BEGINNING)
    transaction.change_among(ours.where(sa.or_(ended, in_part)), c.shard_key, keys)
