"""Removing what is no longer needed: a pure function of the tables and a policy, in small transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.error_delivery import awaits_delivery
from shard_store.error_records import FINAL
from shard_store.semantics import Semantics
from shard_store.sql.database import Database
from shard_store.sql.schema import attempts, errors, micros, pipelines, read_marks, shard_changes, shards, snapshots
from shard_store.sql.transaction import ROWS_PER_STATEMENT, Transaction
from shard_store.starting import first_since


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
    read_marks: int = 0
    shard_changes: int = 0
    timed_out: bool = False

    @property
    def total(self) -> int:
        return self.shards + self.snapshots + self.attempts + self.errors + self.read_marks + self.shard_changes


@dataclass(frozen=True, slots=True)
class _Target:
    """Rows of `table` that may go: those for which `old` holds, found in the `order` of an index."""

    table: sa.Table
    old: sa.ColumnElement[bool]
    order: tuple[sa.ColumnElement[Any], ...]

    @property
    def name(self) -> str:
        return self.table.name.removeprefix("cuesqueue_")


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
    Never removes what is open (invariant 6), or a snapshot that a plan may still need. `now` defaults to the database's
    clock. Any process may run it at any time; running twice at once is harmless.
    """
    at = database.read(lambda t: int(t.execute(sa.select(t.now())).scalar_one())) if now is None else micros(now)
    deadline = clock() + time_out
    kinds = ("shards", "snapshots", "attempts", "errors", "read_marks", "shard_changes")
    removed: dict[str, Any] = dict.fromkeys(kinds, 0)
    targets = list(_targets(database, policy, at))
    if dry_run:
        for table in {target.table for target in targets}:  # two reasons for a shard to go overlap: counted as one
            old = sa.or_(*(target.old for target in targets if target.table is table))
            query = sa.select(sa.func.count()).select_from(table).where(old)
            name = table.name.removeprefix("cuesqueue_")
            removed[name] = database.read(lambda t, q=query: int(t.execute(q).scalar_one()))  # type: ignore[misc]
        return PruneResult(**removed)
    timed_out = False
    for target in targets:
        while (began := clock()) < deadline:
            found, gone = database.write(lambda t, g=target: _remove(t, g, limit))  # type: ignore[misc]
            removed[target.name] += gone
            if found < limit:
                break
            sleep((clock() - began) * (1 / share - 1))
        else:
            timed_out = True
    return PruneResult(timed_out=timed_out, **removed)


def _targets(database: Database, policy: RetentionPolicy, at: int) -> Iterator[_Target]:
    """What to remove, source by source and pipeline by pipeline: so that each query reads a range of an index."""
    wanted = sa.true() if policy.source is None else pipelines.c.source == policy.source
    known = database.read(lambda t: t.execute(sa.select(pipelines).where(wanted)).all())
    cutoff = at - policy.window // timedelta(microseconds=1)
    for source in sorted({row.source for row in known}):
        yield from _finished_shards(database, source, policy.max_shards, cutoff)
    for row in known:
        yield _confirmed_snapshots(row, at, cutoff)
    # an error of a plan that may still be published decides whether its shard is quarantined
    planned = sa.and_(
        sa.exists().where(pipelines.c.plan_hash == errors.c.delivery_hash),
        sa.not_(sa.exists().where(attempts.c.delivery_hash == errors.c.delivery_hash)),
    )
    kept = sa.or_(planned, sa.and_(FINAL, awaits_delivery()))
    old_error = sa.and_(errors.c.occurred_at < cutoff, sa.not_(kept), _of_source(errors, policy))
    yield _Target(errors, old_error, (errors.c.occurred_at,))
    # an attempt that Spark may ask for once more: its plan is published, and not yet confirmed
    awaited = sa.exists().where(
        pipelines.c.pipeline == attempts.c.pipeline, pipelines.c.confirmed_seq < attempts.c.end_seq
    )
    # and one that makes an error final which is not delivered
    unsent = sa.exists().where(errors.c.delivery_hash == attempts.c.delivery_hash, awaits_delivery())
    old_attempt = sa.and_(attempts.c.published_at < cutoff, sa.not_(awaited), sa.not_(unsent))
    yield _Target(attempts, sa.and_(old_attempt, _of_source(attempts, policy)), (attempts.c.published_at,))
    # written too late, by a task of a plan that was published or replaced meanwhile: those of a plan go with it
    running = sa.exists().where(pipelines.c.plan_hash == read_marks.c.delivery_hash)
    orphaned = sa.and_(read_marks.c.began_at < cutoff, sa.not_(running))
    yield _Target(read_marks, orphaned, (read_marks.c.began_at,))
    old_change = sa.and_(shard_changes.c.changed_at < cutoff, _of_source(shard_changes, policy))
    yield _Target(shard_changes, old_change, (shard_changes.c.changed_at,))


def _of_source(table: sa.Table, policy: RetentionPolicy) -> sa.ColumnElement[bool]:
    return sa.true() if policy.source is None else table.c.source == policy.source


def _finished_shards(database: Database, source: str, most: int | None, cutoff: int) -> Iterator[_Target]:
    """The source's shards that ended before the cutoff, and of the others the oldest that are too many."""
    finished = sa.and_(shards.c.source == source, shards.c.finished_at.is_not(None))
    order = shards.c.finished_at, shards.c.shard_key
    yield _Target(shards, sa.and_(finished, shards.c.finished_at < cutoff), order[:1])
    if most is None:
        return
    newest_first = sa.select(*order).where(finished).order_by(*(column.desc() for column in order))
    newest_to_go = database.read(lambda t: t.execute(newest_first.offset(most).limit(1)).one_or_none())
    if newest_to_go is not None:
        at, key = newest_to_go
        tie = sa.and_(shards.c.finished_at == at, shards.c.shard_key <= key)
        yield _Target(shards, sa.and_(finished, sa.or_(shards.c.finished_at < at, tie)), order)


def _confirmed_snapshots(row: Row[Any], at: int, cutoff: int) -> _Target:
    """What a confirm has left of the pipeline's snapshots: no plan made from now on reads it (decision 0032).

    A restart confirms a plan that was published, though Spark may not know and plan it again: so the snapshots of the
    plan on record stay. Where no shards are kept, what the last plans moved stays as long as a restart asks for it.
    """
    done = row.confirmed_seq if row.plan_after is None else min(row.plan_after, row.confirmed_seq)
    old = sa.and_(snapshots.c.pipeline == row.pipeline, snapshots.c.seq <= done)
    if not Semantics(row.semantics).keeps_shards:
        since = cutoff if row.remembered is None else at - row.remembered
        first = first_since(row.pipeline, since).scalar_subquery()
        old = sa.and_(old, snapshots.c.seq <= sa.func.coalesce(first, done))
    return _Target(snapshots, old, (snapshots.c.seq,))


def _remove(transaction: Transaction, target: _Target, limit: int) -> tuple[int, int]:
    """Delete up to `limit` rows by their keys: the select takes no locks that a publish would wait for.

    Returns how many were found, and how many of them are gone by us (another prune may have been faster).
    """
    table, old = target.table, target.old
    key = list(table.primary_key.columns)
    found = transaction.execute(sa.select(*key).where(old).order_by(*target.order).limit(limit)).all()
    if not found:
        return 0, 0
    if len(key) == 1:
        chosen: sa.ColumnElement[bool] = transaction.among(key[0], [row[0] for row in found])
    else:
        chosen = sa.tuple_(*key).in_([tuple(row) for row in found])
    gone = transaction.execute(table.delete().where(chosen, old))
    return len(found), gone.rowcount if transaction.trusts_rowcount else len(found)
