"""Verdicts on whole objects that go with a batch's rows: what a target's mark says of those that are not among them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import sqlalchemy as sa

from shard_store.error_table.records import record
from shard_store.model import WHOLE, ErrorRecord, Move, PlanIdentity, ShardKey
from shard_store.sql.database import Transaction
from shard_store.sql.schema import errors, shards

logger = logging.getLogger("cuesqueue")

_IN_MARK = 1_000


def verdicts_of(transaction: Transaction, plans: Sequence[PlanIdentity]) -> str | None:
    """Return which objects of a batch are bad or left out, as text for a target's mark; None: they are too many."""
    c = errors.c
    query = sa.select(c.shard_key, c.scope, c.cause).where(
        c.delivery_hash.in_([plan.delivery_hash for plan in plans]), c.scope.in_(WHOLE)
    )
    bad = {_short(key): (scope, cause) for key, scope, cause in transaction.execute(query.limit(_IN_MARK + 1))}
    return None if len(bad) > _IN_MARK else json.dumps(bad, sort_keys=True)


def judge_as(transaction: Transaction, identity: PlanIdentity, moves: Sequence[Move], verdicts: str) -> None:
    """Let the verdicts of that attempt count whose rows the target has: no others are true of these rows.

    A later attempt may have found other bytes under a name, and a restored store may have lost the verdict.
    """
    marked: dict[str, tuple[str, str]] = json.loads(verdicts)
    own = errors.c.delivery_hash == identity.delivery_hash, errors.c.scope.in_(WHOLE)
    recorded = transaction.execute(sa.select(errors.c.error_key, errors.c.shard_key).where(*own)).all()
    untrue = [key for key, of_shard in recorded if _short(of_shard) not in marked]
    if untrue:
        transaction.change_among(errors.delete(), errors.c.error_key, untrue)
        logger.warning(
            "pipeline %s: %d object(s) that this attempt has found bad are published: the rows of an attempt before "
            "it are in the target",
            identity.token,
            len(untrue),
        )
    judged = {bytes(of_shard) for _, of_shard in recorded}
    lost = {move.key: move.start for move in moves if _short(move.key) in marked and bytes(move.key) not in judged}
    query = sa.select(shards.c.shard_key, shards.c.shard_id, shards.c.queue, shards.c.message_id)
    records = []
    for row in transaction.select_among(query, shards.c.shard_key, lost):
        scope, cause = marked[_short(row.shard_key)]
        records.append(
            ErrorRecord(
                scope=scope,
                cause=cause,
                detail="an attempt before has found it so: its rows are not in the target, which has the batch",
                subject=row.shard_id,
                plan_hash=identity.delivery_hash,
                position=lost[ShardKey(row.shard_key)],
                queue=row.queue,
                message_id=row.message_id,
            )
        )
    record(transaction, identity.source, identity.token.pipeline, records)


def _short(key: bytes) -> str:
    return bytes(key).hex()[:16]
