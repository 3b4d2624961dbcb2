"""Rows that a user's function rejects: errors of the plan that runs, final when it is published."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store import error_table
from shard_store.database import Database, chunks
from shard_store.errors import ShardStoreError
from shard_store.model import ErrorRecord, PlanIdentity
from shard_store.ownership import fence
from shard_store.schema import attempts, errors


def reject(database: Database, connection: Connection, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
    """Write the records once; raises when the plan is published without them, since they would be lost in silence."""
    fence(connection, identity.token)
    final = sa.select(sa.func.count()).where(attempts.c.delivery_hash == identity.delivery_hash)
    if not connection.execute(final).scalar_one():
        error_table.record(database, connection, identity.source, identity.token.pipeline, records)
        return
    keys = {error_table.error_key(identity.source, record) for record in records}
    there = 0
    for chunk in chunks(sorted(keys)):
        query = sa.select(sa.func.count()).where(database.dialect.among(errors.c.error_key, chunk))
        there += connection.execute(query).scalar_one()
    if there < len(keys):
        raise ShardStoreError(
            f"pipeline {identity.token.pipeline!r}: {len(keys) - there} row(s) were rejected after their batch was "
            "published; reject rows before the batch is delivered, or in the same transaction"
        )
