"""The error table: what could not be processed, with its cause; written where it happens, final with its plan."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection

from shard_store.database import Database, chunks
from shard_store.model import ErrorRecord, shard_key
from shard_store.schema import errors


def record(
    database: Database, connection: Connection, source: str, pipeline: str, records: Sequence[ErrorRecord]
) -> None:
    """Insert the records that are not there yet."""
    fixed = {"source": source, "pipeline": pipeline, "occurred_at": database.now()}
    rows = {r["error_key"]: r for r in (_row(source, record) for record in records)}
    for chunk in chunks(sorted(rows.items())):  # in the order of keys: two executors do not deadlock
        connection.execute(database.dialect.insert_if_absent(errors).values(**fixed), [row for _, row in chunk])


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
