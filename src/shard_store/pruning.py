"""Removing what is no longer needed (Quickwit's garbage collection): a pure function in batches, and its debouncing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.error_delivery import awaits_delivery
from shard_store.error_records import FINAL
from shard_store.sql.database import ROWS_PER_STATEMENT, Database
from shard_store.sql.schema import attempts, errors, leases, micros, pipelines, shards, snapshots


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


@dataclass(frozen=True, slots=True)
class _Target:
    """Rows of `table` that may go: those for which `old` holds, found in the `order` of an index."""

    name: str
    table: sa.Table
    old: sa.ColumnElement[bool]
    order: tuple[sa.ColumnElement[Any], ...]


def prune(
    database: Database,
    policy: RetentionPolicy,
    now: datetime | None = None,
    *,
    dry_run: bool = False,
    limit: int = ROWS_PER_STATEMENT,
    time_out: float = 60.0,
    share: float = 0.03,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> PruneResult:
    """Remove what the policy lets go, `limit` rows a transaction, for at most `time_out` seconds.

    Its transactions take `share` of that time, and pauses between them the rest: pipelines that publish meanwhile
    would otherwise share the disk with it, and on SQLite wait for its lock each time.
    Never removes what is open (invariant 6) or an unconfirmed snapshot. `now` defaults to the database's clock.
    Any process may run it at any time; running twice at once is harmless.
    """
    if now is None:
        at = int(database.read(lambda connection: connection.execute(sa.select(database.now())).scalar_one()))
    else:
        at = micros(now)
    cutoff = at - policy.window // timedelta(microseconds=1)
    deadline = clock() + time_out
    removed: dict[str, Any] = dict.fromkeys(("shards", "snapshots", "attempts", "errors"), 0)
    if dry_run:
        # the two reasons for a shard to go overlap: counted as one
        for name, table, olds in _by_table(_targets(database, policy, cutoff)):
            removed[name] += database.read(lambda c, t=table, o=olds: _count(c, t, o))  # type: ignore[misc]
        return PruneResult(**removed)
    timed_out = False
    for target in _targets(database, policy, cutoff):
        while (began := clock()) < deadline:
            found, gone = database.write(lambda c, t=target: _remove(database, c, t, limit))  # type: ignore[misc]
            removed[target.name] += gone
            if found < limit:
                break
            sleep((clock() - began) * (1 / share - 1))
        else:
            timed_out = True
    return PruneResult(timed_out=timed_out, **removed)


def win_interval(database: Database, name: str, holder: str, interval: float) -> bool:
    """True for one caller in each `interval` seconds: the lease row `name` debounces work over all pipelines.

    `holder` is new at each call. A winner that dies costs one interval. Losers learn it from one statement, which
    takes no lock.
    """
    free = leases.c.until <= database.now()
    look = sa.select(free).where(leases.c.name == name)
    if database.read(lambda connection: connection.execute(look).scalar_one_or_none()) in (False, 0):
        return False

    def claim(connection: Connection) -> bool:
        absent = database.dialect.insert_if_absent(leases).values(name=name, holder="", until=0)
        connection.execute(absent)
        until = database.now() + int(interval * 1_000_000)
        connection.execute(leases.update().where(leases.c.name == name, free).values(holder=holder, until=until))
        won = sa.select(leases.c.holder).where(leases.c.name == name)
        return bool(connection.execute(won).scalar_one() == holder)

    return database.write(claim)


def _targets(database: Database, policy: RetentionPolicy, cutoff: int) -> Iterator[_Target]:
    """What to remove, source by source and pipeline by pipeline: so that each look is a range of an index."""
    known = database.read(lambda c: c.execute(sa.select(pipelines.c.source, pipelines.c.pipeline)).all())
    sources = sorted({row.source for row in known if policy.source in (None, row.source)})
    for source in sources:
        finished = sa.and_(shards.c.source == source, shards.c.finished_at.is_not(None))
        in_order = (shards.c.finished_at, shards.c.shard_key)
        yield _Target("shards", shards, sa.and_(finished, shards.c.finished_at < cutoff), in_order[:1])
        if policy.max_shards is not None:
            newest_to_go = database.read(lambda c, o=in_order, f=finished: _beyond(c, policy, o, f))  # type: ignore[misc]
            if newest_to_go is not None:
                at, key = newest_to_go
                tie = sa.and_(shards.c.finished_at == at, shards.c.shard_key <= key)
                yield _Target("shards", shards, sa.and_(finished, sa.or_(shards.c.finished_at < at, tie)), in_order)
    for row in known:
        if row.source in sources:
            confirmed = sa.select(pipelines.c.confirmed_seq).where(pipelines.c.pipeline == row.pipeline)
            mine = sa.and_(snapshots.c.pipeline == row.pipeline, snapshots.c.seq <= confirmed.scalar_subquery())
            yield _Target("snapshots", snapshots, sa.and_(mine, snapshots.c.created_at < cutoff), (snapshots.c.seq,))
    # an error of a plan that may still be published decides whether its shard is quarantined
    planned = sa.and_(
        sa.exists().where(pipelines.c.plan_hash == errors.c.delivery_hash),
        sa.not_(sa.exists().where(attempts.c.delivery_hash == errors.c.delivery_hash)),
    )
    kept = sa.or_(planned, sa.and_(FINAL, awaits_delivery()))
    old_error = sa.and_(errors.c.occurred_at < cutoff, sa.not_(kept), *_of_source(errors, policy))
    yield _Target("errors", errors, old_error, (errors.c.occurred_at,))
    # an attempt that Spark may ask for once more: its plan is published, and not yet confirmed
    awaited = sa.exists().where(
        pipelines.c.pipeline == attempts.c.pipeline, pipelines.c.confirmed_seq < attempts.c.end_seq
    )
    # and one that makes an error final which is not delivered
    unsent = sa.exists().where(errors.c.delivery_hash == attempts.c.delivery_hash, awaits_delivery())
    old_attempt = sa.and_(attempts.c.published_at < cutoff, sa.not_(awaited), sa.not_(unsent))
    old_attempt = sa.and_(old_attempt, *_of_source(attempts, policy))
    yield _Target("attempts", attempts, old_attempt, (attempts.c.published_at,))


def _of_source(table: sa.Table, policy: RetentionPolicy) -> list[sa.ColumnElement[bool]]:
    return [] if policy.source is None else [table.c.source == policy.source]


def _beyond(
    connection: Connection,
    policy: RetentionPolicy,
    in_order: tuple[sa.ColumnElement[Any], ...],
    finished: sa.ColumnElement[bool],
) -> tuple[int, bytes] | None:
    """Finish time and key of the newest finished shard that is too many."""
    newest_first = [column.desc() for column in in_order]
    query = sa.select(*in_order).where(finished).order_by(*newest_first).offset(policy.max_shards).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row[0], bytes(row[1]))


def _by_table(
    targets: Iterator[_Target],
) -> Iterator[tuple[str, sa.Table, list[sa.ColumnElement[bool]]]]:
    found: dict[str, tuple[sa.Table, list[sa.ColumnElement[bool]]]] = {}
    for target in targets:
        found.setdefault(target.name, (target.table, []))[1].append(target.old)
    for name, (table, olds) in found.items():
        yield name, table, olds


def _count(connection: Connection, table: sa.Table, olds: list[sa.ColumnElement[bool]]) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table).where(sa.or_(*olds))).scalar_one())


def _remove(database: Database, connection: Connection, target: _Target, limit: int) -> tuple[int, int]:
    """Delete up to `limit` rows by their keys: the select takes no locks that a publish would wait for.

    Returns how many were found, and how many of them are gone by us (another prune may have been faster).
    """
    table, old = target.table, target.old
    key = list(table.primary_key.columns)
    found = connection.execute(sa.select(*key).where(old).order_by(*target.order).limit(limit)).all()
    if not found:
        return 0, 0
    if len(key) == 1:
        chosen: sa.ColumnElement[bool] = database.dialect.among(key[0], [row[0] for row in found])
    else:
        chosen = sa.tuple_(*key).in_([tuple(row) for row in found])
    gone = connection.execute(table.delete().where(chosen, old))
    return len(found), gone.rowcount if database.trusts_rowcount else len(found)
