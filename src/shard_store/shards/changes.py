"""The record of what was done to shards outside of their normal way: by people, and by new announcements."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.model import ShardKey
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import shard_changes

State = Mapping[str, Any]
"""What is known of a shard before or after a change, by column."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Who asks for a change, as `user@host`, and why."""

    actor: str
    reason: str = ""

    @classmethod
    def of_user(cls, reason: str = "") -> Audit:
        """Name the user of this process and its host, as far as they have names."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have none
            user = "unknown"
        return cls(f"{user}@{socket.gethostname()}", reason)


class Change(NamedTuple):
    """Who did what to a shard, and why. `actor` is `user@host`, or the publish token of a pipeline."""

    key: ShardKey
    source: str
    shard_id: str
    action: str
    actor: str
    reason: str
    message_id: str | None = None


class StoredChange(NamedTuple):
    """A change as it was recorded, at a time in microseconds since 1970 UTC. `after` is None when it was forgotten."""

    change: Change
    before: State
    after: State | None
    changed_at: int


def record_changes(
    transaction: Transaction,
    action: str,
    audit: Audit,
    changed: Iterable[tuple[Row[Any], Mapping[str, Any] | None]],
    messages: Mapping[ShardKey, str] | None = None,
) -> None:
    """Record who did it and why, with each shard's row from before, and what differs after it (None: it is gone).

    In the transaction that makes the change: what is not recorded did not happen. `messages`: the cause of each.
    """
    insert = shard_changes.insert().values(changed_at=transaction.now(), action=action)
    for chunk in chunks(changed):
        records = []
        for row, after in chunk:
            before = {name: getattr(row, name) for name in ("state", "position", "size", "etag", "end_seq", "pending")}
            before["publish_token"] = None if row.owner is None else f"{row.owner}/{row.incarnation}"
            records.append(
                {
                    "shard_key": row.shard_key,
                    "source": row.source,
                    "shard_id": row.shard_id,
                    "actor": audit.actor,
                    "reason": audit.reason,
                    "message_id": (messages or {}).get(row.shard_key),
                    "before": json.dumps(before),
                    "after": None if after is None else json.dumps({**before, **after}),
                }
            )
        transaction.execute(insert, records)


def messages(transaction: Transaction, keys: Iterable[ShardKey], action: str) -> dict[ShardKey, set[str]]:
    """Return which messages have been the cause of such a change to each of the shards."""
    query = sa.select(shard_changes.c.shard_key, shard_changes.c.message_id).where(shard_changes.c.action == action)
    rows = transaction.select_among(query, shard_changes.c.shard_key, keys)
    by_shard: dict[ShardKey, set[str]] = {}
    for key, message in rows:
        by_shard.setdefault(ShardKey(key), set()).add(message)
    return by_shard


def of(transaction: Transaction, keys: Iterable[ShardKey]) -> list[StoredChange]:
    """Return all that was done to these shards, in its order."""
    query = sa.select(shard_changes).order_by(shard_changes.c.id)
    rows = list(transaction.select_among(query, shard_changes.c.shard_key, keys))
    return [
        StoredChange(
            Change(ShardKey(r.shard_key), r.source, r.shard_id, r.action, r.actor, r.reason, r.message_id),
            json.loads(r.before),
            None if r.after is None else json.loads(r.after),
            r.changed_at,
        )
        for r in sorted(rows, key=lambda row: row.id)
    ]
