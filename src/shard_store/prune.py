"""Removing what is no longer needed (Quickwit's garbage collection): a pure function in batches, and its debouncing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.database import ROWS_PER_STATEMENT, Database
from shard_store.schema import attempts, errors, leases, pipelines, shards, snapshots

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long finished things are kept. `window`: the deduplication window; `max_shards`: per source, None = any.

    With `max_shards` the oldest finished shards beyond it go even when they are younger than the window: it is the
    user's word that the table may not grow further. `source` limits it to one source.
    """

    window: timedelta = timedelta(days=30)
    max_shards: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PruneResult:
    """How many rows were removed (with dry_run: would be). `timed_out`: more is left for the next run."""

    shards: int = 0
    snapshots: int = 0
    attempts: int = 0
    errors: int = 0
    timed_out: bool = False

    @property
    def total(self) -> int:
        return self.shards + self.snapshots + self.attempts + self.errors


def prune(
    database: Database,
    policy: RetentionPolicy,
    now: datetime | None = None,
    *,
    dry_run: bool = False,
    limit: int = ROWS_PER_STATEMENT,
    time_out: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> PruneResult:
    """Remove what the policy lets go, `limit` rows a transaction, for at most `time_out` seconds.

    Never removes what is open (invariant 6) or an unconfirmed snapshot. `now` defaults to the database's clock.
    Any process may run it at any time; running twice at once is harmless.
    """
    if now is None:
        micros = int(database.read(lambda connection: connection.execute(sa.select(database.now())).scalar_one()))
    else:
        micros = (now - _EPOCH) // timedelta(microseconds=1)
    cutoff = micros - policy.window // timedelta(microseconds=1)
    deadline = clock() + time_out
    removed: dict[str, int] = {}
    timed_out = False
    for name, table, old in _targets(database, policy, cutoff):
        if dry_run:
            counting = sa.select(sa.func.count()).select_from(table).where(old)
            removed[name] = removed.get(name, 0) + database.read(lambda c, q=counting: c.execute(q).scalar_one())  # type: ignore[misc]
            continue
        while clock() < deadline:
            gone = database.write(lambda c, t=table, o=old: _remove(c, t, o, limit))  # type: ignore[misc]
            removed[name] = removed.get(name, 0) + gone
            if gone < limit:
                break
        else:
            timed_out = True
    return PruneResult(timed_out=timed_out, **removed)


def win_interval(database: Database, connection: Connection, name: str, holder: str, interval: float) -> bool:
    """True for one caller in each `interval` seconds: the lease row `name` debounces work over all pipelines.

    A winner that dies costs one interval. Losers learn it from one statement.
    """
    now = database.now()
    claim = (
        leases.update()
        .where(leases.c.name == name, leases.c.until <= now)
        .values(holder=holder, until=now + int(interval * 1_000_000))
    )
    connection.execute(database.dialect.insert_if_absent(leases).values(name=name, holder="", until=0))
    before = connection.execute(sa.select(leases.c.until).where(leases.c.name == name).with_for_update()).scalar_one()
    if not connection.execute(sa.select(sa.literal(before) <= now)).scalar_one():
        return False
    connection.execute(claim)
    return True


def _targets(database: Database, policy: RetentionPolicy, cutoff: int) -> list[tuple[str, sa.Table, Any]]:
    def of_source(table: sa.Table) -> list[Any]:
        return [] if policy.source is None else [table.c.source == policy.source]

    targets: list[tuple[str, sa.Table, Any]] = [
        ("shards", shards, sa.and_(shards.c.finished_at < cutoff, *of_source(shards)))
    ]
    if policy.max_shards is not None:
        for source, last in database.read(lambda c: _beyond(c, policy)):
            targets.append(("shards", shards, sa.and_(shards.c.source == source, shards.c.finished_at < last)))
    confirmed = sa.exists().where(
        pipelines.c.pipeline == snapshots.c.pipeline,
        pipelines.c.confirmed_seq >= snapshots.c.seq,
        *([] if policy.source is None else [pipelines.c.source == policy.source]),
    )
    targets += [
        ("snapshots", snapshots, sa.and_(snapshots.c.created_at < cutoff, confirmed)),
        ("attempts", attempts, sa.and_(attempts.c.published_at < cutoff, *of_source(attempts))),
        ("errors", errors, sa.and_(errors.c.occurred_at < cutoff, *of_source(errors))),
    ]
    return targets


def _beyond(connection: Connection, policy: RetentionPolicy) -> list[tuple[str, int]]:
    """For each source with too many finished shards, the finish time before which they go (ties stay)."""
    sources = (
        [policy.source]
        if policy.source is not None
        else list(connection.execute(sa.select(pipelines.c.source).distinct()).scalars())
    )
    beyond = []
    for source in sources:
        last = connection.execute(
            sa.select(shards.c.finished_at)
            .where(shards.c.source == source, shards.c.finished_at.is_not(None))
            .order_by(shards.c.finished_at.desc())
            .offset(policy.max_shards)
            .limit(1)
        ).scalar_one_or_none()
        if last is not None:
            beyond.append((source, last))
    return beyond


def _remove(connection: Connection, table: sa.Table, old: Any, limit: int) -> int:
    """Delete up to `limit` rows by their keys: the select takes no locks that a publish would wait for."""
    key = list(table.primary_key.columns)
    found = connection.execute(sa.select(*key).where(old).limit(limit)).all()
    if not found:
        return 0
    if len(key) == 1:
        chosen: Any = key[0].in_([row[0] for row in found])
    else:
        chosen = sa.tuple_(*key).in_([tuple(row) for row in found])
    connection.execute(table.delete().where(chosen, old))
    return len(found)
