"""Removing what is no longer needed: a pure function of the tables and a policy, in small transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.starting import first_since
from shard_store.error_table.handling import UNDELIVERED, awaits_delivery
from shard_store.error_table.records import FINAL
from shard_store.model import BEGINNING, MICROSECOND, WITHOUT_MESSAGE, Semantics, micros
from shard_store.shards.activity import last_report, locked_now
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction
from shard_store.sql.schema import (
    attempts,
    certificates,
    cleanings,
    errors,
    history,
    leases,
    of_pipeline,
    pipelines,
    read_marks,
    shard_changes,
    shards,
    snapshots,
    sources,
    splits,
)
from shard_store.upkeep import cleaning
from shard_store.upkeep.timing import note_time, trusted_time

_CLEANED_WITHIN = 3
"""Windows after which a source is taken for one that is not cleaned any more. While it is cleaned, the limit is younger
than one window: so a reader with `cleanSource` may be down for two."""

_CERTIFICATES = timedelta(days=365)
"""How long a certificate is kept that is not the newest of its prefix."""

_HISTORY = timedelta(days=90)
"""How long the hours of the history are kept, where the window is not longer: a quarter of a year, to compare with."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long finished things are kept. `window`: the deduplication window; `max_shards`: per source, None = any.

    A source remembers for longer if one of its pipelines has a longer window. `max_shards` removes the oldest finished
    shards beyond it, even those younger than the window. `source` limits it to one source. `pipelines`: how long a
    pipeline that has stopped with nothing unfinished is remembered, at least for the window. `data`: how long published
    data files are shown; None: for ever.
    """

    window: timedelta = timedelta(days=30)
    max_shards: int | None = None
    source: str | None = None
    pipelines: timedelta = timedelta(days=365)
    data: timedelta | None = None


@dataclass(frozen=True, slots=True)
class PruneResult:
    """How many rows were removed (with dry_run: would be). `timed_out`: more is left for the next run.

    `ahead`: by how much the database's clock is beyond the time of this run, since it has not lasted. `windows`: the
    sources that remember for longer than the policy says, and for how long.
    """

    shards: int = 0
    snapshots: int = 0
    attempts: int = 0
    errors: int = 0
    read_marks: int = 0
    leases: int = 0
    pipelines: int = 0
    shard_changes: int = 0
    splits: int = 0
    certificates: int = 0
    cleanings: int = 0
    history: int = 0
    timed_out: bool = False
    ahead: timedelta | None = None
    windows: Mapping[str, timedelta] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in TABLES)


TABLES = tuple(count.name for count in fields(PruneResult) if count.name not in ("timed_out", "ahead", "windows"))


@dataclass(frozen=True, slots=True)
class _Target:
    """Rows of `table` that may go: those for which `old` holds, found in the `order` of an index.

    `source`: of finished shards, whose source then remembers that it has forgotten some.
    """

    table: sa.Table
    old: sa.ColumnElement[bool]
    order: tuple[sa.ColumnElement[Any], ...]
    source: str | None = None

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
    """Remove what the policy allows, `limit` rows a transaction, for at most `time_out` seconds.

    Its transactions take `share` of that time, and pauses between them the rest: pipelines that publish meanwhile
    would otherwise share the disk with it, and on SQLite wait for its lock each time.
    Never removes what is open (invariant 6), or a snapshot that a plan may still need. `now` defaults to the database's
    clock, as far as it can be trusted. Any process may run it at any time; running twice at once is harmless.
    """
    if now is not None:
        at, ahead = micros(now), None
    else:
        at, beyond = database.read(trusted_time) if dry_run else database.write(note_time)
        ahead = beyond * MICROSECOND if beyond else None
    chosen = _of_source(pipelines, policy)
    rows = database.read(lambda t: t.execute(sa.select(pipelines).where(chosen)).all())
    windows = {row.source: policy.window for row in rows}
    for row in rows:  # a source remembers for the longest window of its pipelines
        own = last_report(row.report).window
        # one that was silent for longer than its own counts no more: all that it has read is older than that
        if own is not None and row.heartbeat_at >= at - own and Semantics(row.semantics).keeps_shards:
            windows[row.source] = max(windows[row.source], own * MICROSECOND)
    longer = {source: window for source, window in windows.items() if window > policy.window}
    deadline = clock() + time_out
    removed: dict[str, Any] = dict.fromkeys(TABLES, 0)
    targets = list(_targets(database, policy, at, rows, windows))
    if dry_run:
        for table in {target.table for target in targets}:  # two reasons for a shard to go overlap: counted as one
            old = sa.or_(*(target.old for target in targets if target.table is table))
            query = sa.select(sa.func.count()).select_from(table).where(old)
            name = table.name.removeprefix("cuesqueue_")
            removed[name] = database.read(lambda t, q=query: int(t.execute(q).scalar_one()))  # type: ignore[misc]
        return PruneResult(ahead=ahead, windows=longer, **removed)
    timed_out = False
    for target in targets:
        while (began := clock()) < deadline:
            count, gone = database.write(lambda t, g=target: _remove(t, g, limit))  # type: ignore[misc]
            removed[target.name] += gone
            if count < limit:
                break
            sleep((clock() - began) * (1 / share - 1))
        else:
            timed_out = True
    if policy.data is not None:
        for row in rows:
            database.write(lambda t, p=row.pipeline: _count_files(t, p))  # type: ignore[misc]
    return PruneResult(timed_out=timed_out, ahead=ahead, windows=longer, **removed)


def _targets(
    database: Database, policy: RetentionPolicy, at: int, rows: Sequence[Row[Any]], windows: Mapping[str, timedelta]
) -> Iterator[_Target]:
    """Yield what to remove, source by source and pipeline by pipeline: so that each query reads a range of an index.

    Shards go by the window of their source, and what was recorded of them by the longest of all windows.
    """
    for source, window in sorted(windows.items()):
        since = at - _CLEANED_WITHIN * (window // MICROSECOND)
        planned = database.read(lambda t, s=source, c=since: cleaning.planned_until(t, s, c))  # type: ignore[misc]
        yield from _finished_shards(database, source, policy.max_shards, at - window // MICROSECOND, planned)
    cutoff = at - max([policy.window, *windows.values()]) // MICROSECOND
    yield _released_shards(policy, cutoff)
    names = sa.select(snapshots.c.pipeline).distinct()
    with_snapshots = set(database.read(lambda t: t.execute(names).scalars().all()))
    for row in rows:
        if row.pipeline in with_snapshots:
            yield _confirmed_snapshots(row, at, cutoff)
    # an error of the plan on record decides whether its shard is quarantined, and what Spark may read once more
    on_record = sa.exists().where(
        pipelines.c.pipeline == errors.c.pipeline, pipelines.c.plan_hash == errors.c.delivery_hash
    )
    # and later, whether it may be opened again: an attempt may be published long after it was made first
    c = attempts.c
    recent = sa.select(c.end_seq).where(c.delivery_hash == errors.c.delivery_hash, c.published_at >= cutoff).limit(1)
    # and a bad record, as long as the shard is known, or the object is yet to be cleaned, whether it may be deleted
    has_shard = sa.or_(
        sa.exists().where(shards.c.shard_key == errors.c.shard_key),
        sa.exists().where(cleanings.c.shard_key == errors.c.shard_key, cleanings.c.ended_at.is_(None)),
    )
    cleanable = sa.and_(errors.c.scope == "record", has_shard)
    kept = sa.or_(on_record, recent.scalar_subquery().is_not(None), sa.and_(FINAL, awaits_delivery()), cleanable)
    old_error = sa.and_(errors.c.occurred_at < cutoff, sa.not_(kept), _of_source(errors, policy))
    yield _Target(errors, old_error, (errors.c.occurred_at,))
    for name in database.read(
        lambda t: t.execute(sa.select(pipelines.c.pipeline).where(_idle(policy, at))).scalars().all()
    ):
        yield _dead_pipeline(name, policy, at)
    yield _old_attempts(policy, cutoff)
    # written too late, by a task of a plan that was published or replaced meanwhile: those of a plan go with it
    running = sa.exists().where(pipelines.c.plan_hash == read_marks.c.delivery_hash)
    orphaned = sa.and_(read_marks.c.began_at < cutoff, sa.not_(running))
    yield _Target(read_marks, orphaned, (read_marks.c.began_at,))
    old_change = sa.and_(shard_changes.c.changed_at < cutoff, _of_source(shard_changes, policy))
    yield _Target(shard_changes, old_change, (shard_changes.c.changed_at,))
    ended = sa.and_(cleanings.c.ended_at < cutoff, _of_source(cleanings, policy))
    yield _Target(cleanings, ended, (cleanings.c.ended_at,))
    yield _Target(leases, leases.c.until < cutoff, (leases.c.until,))
    yield _old_certificates(policy, at)
    old_hour = history.c.hour < at - max(_HISTORY, policy.window) // MICROSECOND
    yield _Target(history, sa.and_(old_hour, _of_source(history, policy)), (history.c.hour,))
    if policy.data is not None:
        old_file = splits.c.published_at < at - policy.data // MICROSECOND
        # what was joined goes after the files that were joined to it
        order = splits.c.published_at, splits.c.id
        yield _Target(splits, sa.and_(old_file, _of_source(splits, policy)), order)


def _count_files(transaction: Transaction, pipeline: str) -> None:
    """Count the data files of the pipeline anew, under its lock: a publish adds to these counts."""
    row = locked_now(transaction, pipeline)
    if row is not None and row.data_files is not None:
        current = splits.c.pipeline == pipeline, splits.c.replaced_by.is_(None)
        counts = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(splits.c.bytes), 0)).where(*current)
        files, size = transaction.execute(counts).one()
        transaction.execute(of_pipeline, [{"of": pipeline, "data_files": files, "data_bytes": int(size)}])


def _of_source(table: sa.Table, policy: RetentionPolicy) -> sa.ColumnElement[bool]:
    return sa.true() if policy.source is None else table.c.source == policy.source


def _finished_shards(
    database: Database, source: str, most: int | None, cutoff: int, planned: int | None
) -> Iterator[_Target]:
    """Yield the source's shards that ended before the cutoff, and of the others the oldest that are too many.

    Where objects are cleaned, only as far as it was written down what is to be done with them (`planned`).
    """
    finished = sa.and_(shards.c.source == source, shards.c.finished_at.is_not(None))
    order = shards.c.finished_at, shards.c.shard_key
    if planned is not None:
        cutoff = min(cutoff, planned + 1)
    yield _Target(shards, sa.and_(finished, shards.c.finished_at < cutoff), order[:1], source)
    if most is None:
        return
    newest_first = sa.select(*order).where(finished).order_by(*(column.desc() for column in order))
    newest_to_go = database.read(lambda t: t.execute(newest_first.offset(most).limit(1)).one_or_none())
    if newest_to_go is not None:
        at, key = newest_to_go
        tie = sa.and_(shards.c.finished_at == at, shards.c.shard_key <= key)
        too_many = sa.and_(finished, sa.or_(shards.c.finished_at < at, tie))
        if planned is not None:
            too_many = sa.and_(too_many, shards.c.finished_at <= planned)
        yield _Target(shards, too_many, order, source)


def _released_shards(policy: RetentionPolicy, cutoff: int) -> _Target:
    """Return shards that no pipeline took since they were given up: their message has expired, or was deleted.

    Nothing of it was read (invariant 6 is about what was): announced once more, it is opened as if for the first time.
    Objects found by listings, or recorded by a receiver, stay: no message will announce them.
    """
    unowned = sa.and_(shards.c.owner.is_(None), shards.c.finished_at.is_(None), shards.c.position == BEGINNING)
    unowned = sa.and_(unowned, shards.c.queue.not_in(WITHOUT_MESSAGE))
    old = sa.and_(unowned, shards.c.opened_at < cutoff, _of_source(shards, policy))
    return _Target(shards, old, (shards.c.opened_at,))


def _idle(policy: RetentionPolicy, at: int) -> sa.ColumnElement[bool]:
    """Return the condition of pipelines without a heartbeat for so long, all of whose batches are confirmed."""
    since = at - max(policy.pipelines, policy.window) // MICROSECOND
    c = pipelines.c
    return sa.and_(c.heartbeat_at < since, c.confirmed_seq >= c.last_seq, _of_source(pipelines, policy))


def _dead_pipeline(name: str, policy: RetentionPolicy, at: int) -> _Target:
    """Return an idle pipeline without any remains; by its name, for which planners have statistics.

    The view `data` has its columns from the pipeline that wrote it, so pipelines with data files are remembered.
    """
    remnants = (
        sa.exists().where(shards.c.owner == name, shards.c.finished_at.is_(None)),
        sa.exists().where(snapshots.c.pipeline == name),
        sa.exists().where(errors.c.pipeline == name, UNDELIVERED),
        sa.exists().where(splits.c.pipeline == name),
    )
    this = sa.and_(pipelines.c.pipeline == name, _idle(policy, at))
    return _Target(pipelines, sa.and_(this, sa.not_(sa.or_(*remnants))), (pipelines.c.pipeline,))


def _old_attempts(policy: RetentionPolicy, cutoff: int) -> _Target:
    """Return the attempts that Spark cannot ask for once more, however long a pipeline was down.

    That is what is not confirmed, the plan on record (a start confirms it, and Spark may still repeat it), and the
    newest: a batch without input is published under a hash of its own. And what makes an error final that is not sent.
    """
    c = attempts.c
    last = c.published_at >= sa.func.coalesce(pipelines.c.published_at, 0)
    repeated = sa.or_(pipelines.c.confirmed_seq < c.end_seq, pipelines.c.plan_hash == c.delivery_hash, last)
    awaited = sa.exists().where(pipelines.c.pipeline == c.pipeline, repeated)
    # not by NOT EXISTS, of which PostgreSQL makes a join that reads the whole table
    unsent = sa.select(errors.c.error_key).where(errors.c.delivery_hash == c.delivery_hash, awaits_delivery()).limit(1)
    kept = sa.or_(awaited, unsent.scalar_subquery().is_not(None))
    old = sa.and_(c.published_at < cutoff, sa.not_(kept), _of_source(attempts, policy))
    return _Target(attempts, old, (c.published_at,))


def _old_certificates(policy: RetentionPolicy, at: int) -> _Target:
    """Return certificates of more than a year ago, but for the newest of each prefix."""
    c, newer = certificates.c, certificates.alias("newer")
    same = sa.and_(newer.c.source == c.source, newer.c.prefix == c.prefix)
    # not by EXISTS, of which PostgreSQL makes a join that reads the whole table
    superseded = sa.select(newer.c.id).where(same, newer.c.written_at > c.written_at).limit(1).scalar_subquery()
    old = sa.and_(c.written_at < at - _CERTIFICATES // MICROSECOND, superseded.is_not(None))
    return _Target(certificates, sa.and_(old, _of_source(certificates, policy)), (c.written_at,))


def _confirmed_snapshots(row: Row[Any], at: int, cutoff: int) -> _Target:
    """Return what a confirm has left of the pipeline's snapshots: no plan made from now on reads it (decision 0032).

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
    columns = key if target.source is None else [*key, shards.c.finished_at]
    rows = transaction.execute(sa.select(*columns).where(old).order_by(*target.order).limit(limit)).all()
    if not rows:
        return 0, 0
    if target.source is not None:  # first: a listing that does not find them must see that none may open their objects
        until, before = max(row.finished_at for row in rows), sources.c.forgotten_before
        raised = sources.update().where(sources.c.source == target.source, before < until)
        transaction.execute(raised.values(forgotten_before=until))
    if len(key) == 1:
        chosen: sa.ColumnElement[bool] = transaction.among(key[0], [row[0] for row in rows])
    else:
        chosen = sa.tuple_(*key).in_([tuple(row) for row in rows])
    gone = transaction.execute(table.delete().where(chosen, old))
    return len(rows), gone.rowcount if transaction.trusts_rowcount else len(rows)
