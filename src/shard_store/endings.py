"""By which errors a quarantined shard ended: the beginning of everything that opens it again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.model import Position, ShardKey
from shard_store.sql.schema import attempts, errors
from shard_store.sql.transaction import Transaction


class Ending(NamedTuple):
    """Where the plan that ended a shard found it bad first, for which causes, and the keys of its errors."""

    position: Position
    causes: frozenset[str]
    errors: tuple[bytes, ...]


def endings(transaction: Transaction, rows: Iterable[Row[Any]]) -> dict[ShardKey, Ending]:
    """Of quarantined shards; those are missing of which nobody knows what is published.

    Their errors were deleted, or they were read in parts by several tasks.
    """
    ended_by = {ShardKey(row.shard_key): (row.owner, row.end_seq) for row in rows}
    query = (
        sa.select(errors.c.shard_key, errors.c.error_key, errors.c.cause, errors.c.position, attempts.c.end_seq)
        .add_columns(errors.c.pipeline)
        .join_from(errors, attempts, attempts.c.delivery_hash == errors.c.delivery_hash)
        .where(errors.c.scope == "object")
    )
    found: dict[ShardKey, Ending] = {}
    for error in transaction.select_among(query, errors.c.shard_key, ended_by):
        key = ShardKey(error.shard_key)
        if ended_by[key] == (error.pipeline, error.end_seq):
            position, causes, keys = found.get(key, Ending(error.position, frozenset(), ()))
            found[key] = Ending(min(position, error.position), causes | {error.cause}, (*keys, error.error_key))
    return found
