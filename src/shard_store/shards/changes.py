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


def write(transaction: Transaction, changes: Iterable[tuple[Change, State, State | None]]) -> None:
    """Write changes, in the transaction that makes them: what is not recorded did not happen."""
    insert = shard_changes.insert().values(changed_at=transaction.now())
    for chunk in chunks(changes):
        transaction.execute(
            insert,
            [
                {
                    "shard_key": change.key,
                    "source": change.source,
                    "shard_id": change.shard_id,
                    "action": change.action,
                    "actor": change.actor,
                    "reason": change.reason,
                    "message_id": change.message_id,
                    "before": json.dumps(before),
                    "after": None if after is None else json.dumps(after),
                }
                for change, before, after in chunk
            ],
        )


def record_changes(
    transaction: Transaction, action: str, audit: Audit, changed: Iterable[tuple[Row[Any], Mapping[str, Any] | None]]
) -> None:
    """Record who did it and why, with each shard's row from before, and what differs after it (None: it is gone)."""
    write(
        transaction,
        [
            (
                Change(row.shard_key, row.source, row.shard_id, action, audit.actor, audit.reason),
                (before := state_of(row)),
                None if after is None else {**before, **after},
            )
            for row, after in changed
        ],
    )


def state_of(row: Row[Any]) -> dict[str, Any]:
    """Return what a change records of a shard's row."""
    state = {name: getattr(row, name) for name in ("state", "position", "size", "etag", "end_seq", "pending")}
    return {**state, "publish_token": None if row.owner is None else f"{row.owner}/{row.incarnation}"}


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
