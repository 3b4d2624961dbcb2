"""The error table: what could not be processed, with its cause; written where it happens, final with its plan.

A range that one attempt at a plan found bad is bad for that plan: no later attempt reads it (docs/decisions/0010). Else
a sink that takes only the first attempt would miss rows of a shard that counts as published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.database import Database, chunks
from shard_store.model import ErrorRecord, Position, ShardKey, shard_key
from shard_store.schema import attempts, errors


def record(
    database: Database, connection: Connection, source: str, pipeline: str, records: Sequence[ErrorRecord]
) -> None:
    """Insert the records that are not there yet; of a plan that is published, what a late attempt says is nothing."""
    hashes = {r.plan_hash for r in records if r.plan_hash}
    if hashes:
        final = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash.in_(hashes))
        published = set(connection.execute(final).scalars())
        records = [r for r in records if r.plan_hash not in published]
    fixed = {"source": source, "pipeline": pipeline, "occurred_at": database.now()}
    rows = {r["error_key"]: r for r in (_row(source, record) for record in records)}
    for chunk in chunks(sorted(rows.items())):  # in the order of keys: two executors do not deadlock
        connection.execute(database.dialect.insert_if_absent(errors).values(**fixed), [row for _, row in chunk])


def found_bad(connection: Connection, plan_hash: str) -> set[tuple[ShardKey, Position]]:
    """The ranges of the plan, by key and start, that an attempt found bad as a whole."""
    whole = errors.c.delivery_hash == plan_hash, errors.c.scope.in_(("object", "skipped"))
    found = connection.execute(sa.select(errors.c.shard_key, errors.c.position).where(*whole))
    return {(ShardKey(key), Position(start)) for key, start in found}


def _row(source: str, r: ErrorRecord) -> dict[str, Any]:
    identity = "\0".join((source, r.scope, r.plan_hash, r.queue if r.scope == "message" else "", r.subject, r.position))
    return {
        "error_key": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest(),
        "scope": r.scope,
        "cause": r.cause,
        "detail": r.detail,
        "subject": r.subject,
        "shard_key": None if r.scope == "message" else shard_key(source, r.subject),
        "delivery_hash": r.plan_hash,
        "position": r.position,
        "queue": r.queue,
        "message_id": r.message_id,
        "input": r.input,
    }
