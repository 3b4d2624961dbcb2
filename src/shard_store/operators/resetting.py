"""A stopped source begins anew (decision 0047): all that it has read is to be read once more.

For tables that were emptied on purpose, as by a full refresh. What is finished is unknown afterwards, what was begun
begins at its beginning, and what our sink with `path` has published leaves the view `data` together with the memory of
it. Offsets go on rising: so a delivery hash, by which tables and outputs know a batch, never comes again (invariant 4).

It goes in pieces, so that others need not wait for it. The first transaction takes the files out of the view, fences
the pipelines, and marks the source: until the last one takes that mark away, none of them starts and no certificate is
written. Who is interrupted runs it again, and it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.starting import half_reset, lock_source, mark_reset
from shard_store.errors import StoreConfigurationError
from shard_store.failpoints import reach
from shard_store.model import BEGINNING
from shard_store.operators.repair import ADOPTED
from shard_store.operators.status import RUNNING, state_of
from shard_store.shards.activity import Report, last_report, settings_of
from shard_store.shards.changes import Audit
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction
from shard_store.sql.schema import (
    CLEANED,
    attempts,
    cleanings,
    listings,
    pipelines,
    read_marks,
    shard_changes,
    shards,
    snapshots,
    sources,
    splits,
)

_PLAN = ("plan_hash", "plan_incarnation", "plan_start", "plan_after", "plan_end", "plan_left_out", "plan_lost")


_Marks = Mapping[str, Mapping[str, Any] | None]
"""What says of each source that this reset of it is half done."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What sources have forgotten; with `dry_run`, what it would forget.

    Attributes:
        pipelines: Those that begin anew, by name.
        objects: Finished objects that are unknown now.
        messages: Finished messages that were content themselves: they are unknown too, but their queue has deleted
            them, so that nothing announces them again.
        begun: Unfinished ones of which a part was read: they are read from their beginning.
        adopted: Objects that another reader had read, and that stay known.
        cleaned: Of the finished objects those that `cleanSource` has deleted or moved: they cannot be read again there.
        files: Data files that have left the view `data`.
        beyond_memory: Whether other pipelines keep what they have read, and a source has forgotten older objects:
            listings leave these alone.
    """

    pipelines: tuple[str, ...]
    objects: int
    messages: int
    begun: int
    adopted: int
    cleaned: int
    files: int
    beyond_memory: bool


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is forgotten: of these sources all, or what the pipelines `only` of them have read; see `reset`."""

    names: Sequence[str]
    only: Sequence[str] = ()
    adopted: bool = False

    @property
    def mark(self) -> dict[str, Any]:
        return {"only": list(self.only), "adopted": self.adopted}

    @property
    def _of_sources(self) -> sa.ColumnElement[bool]:
        # of one source an index has the order of `_pages`
        return shards.c.source == self.names[0] if len(self.names) == 1 else shards.c.source.in_(self.names)

    @property
    def ours(self) -> sa.ColumnElement[bool]:
        ours = self._of_sources
        return sa.and_(ours, shards.c.owner.in_(self.only)) if self.only else ours

    @property
    def read_elsewhere(self) -> sa.ColumnElement[bool]:
        adopted = shards.c.owner.is_(None), shards.c.queue == ADOPTED
        return sa.and_(self._of_sources, *adopted)

    @property
    def finished(self) -> sa.ColumnElement[bool]:
        read_elsewhere = self.read_elsewhere
        theirs = sa.or_(self.ours, read_elsewhere) if self.adopted else sa.and_(self.ours, sa.not_(read_elsewhere))
        return sa.and_(theirs, shards.c.finished_at.is_not(None))

    @property
    def begun(self) -> sa.ColumnElement[bool]:
        return sa.and_(self.ours, shards.c.finished_at.is_(None), shards.c.position != BEGINNING)

    @property
    def published(self) -> sa.ColumnElement[bool]:
        return splits.c.pipeline.in_(self.only) if self.only else splits.c.source.in_(self.names)


def reset(
    database: Database,
    names: Sequence[str],
    audit: Audit,
    *,
    message_uri: str,
    only: Collection[str] = (),
    adopted: bool = False,
    lose_rows: bool = False,
    dry_run: bool = False,
    most: int = ROWS_PER_STATEMENT,
    pause: Callable[[], None] = lambda: time.sleep(0.01),
) -> Reset:
    """Forget what the sources have read, or what the pipelines `only` of them have; refused while one of them runs.

    `adopted`: forget also what another reader had read (`cuesqueue adopt`). `message_uri` is the URI of a shard whose
    content is its message. `lose_rows`: also where the view `data` loses rows for good, as what they are from is gone.
    A transaction forgets up to `most` shards; `pause` is between two. One that is half done
    continues, and returns what was left. Raises StoreConfigurationError, and changes nothing then.
    """
    scope = _Scope(sorted(names), sorted(only), adopted)
    result, lost = database.read(lambda t: _look(t, scope, message_uri))
    if dry_run:
        return result
    if result.files and lost and not lose_rows:
        raise StoreConfigurationError(
            f"of {_quoted(names)} {lost}: nothing reads them again, and the {result.files} data files that have their "
            "rows would leave the view 'data' for good; copy what you need first, then say --lose-rows"
        )
    marks = database.write(lambda t: _begin(t, scope))
    reach("reset-begun")
    for name in scope.names:
        this = replace(scope, names=[name])
        for which, after in ((this.finished, None), (this.begun, '{"state": "open", "position": ""}')):
            for keys in _pages(database, which, most):
                database.write(lambda t, s=this, k=keys, w=which, a=after: _forget(t, s, marks, k, w, a, audit))  # type: ignore[misc]
                reach("objects-forgotten")
                pause()
    database.write(lambda t: _end(t, scope, marks))
    return result


def _look(transaction: Transaction, scope: _Scope, message_uri: str) -> tuple[Reset, str]:
    """Return what is to be forgotten, and what of it cannot be read again, as words."""
    names = scope.names
    goes_on = None not in _lock(transaction, scope).values()
    rows = _stopped_pipelines(transaction, names, scope.only)
    if not goes_on:
        _refuse_joined(transaction, names, scope.only or None)
    finished = scope.finished
    messages = _count(transaction, shards, sa.and_(finished, shards.c.uri == message_uri))
    away = sa.select(cleanings.c.shard_key).where(cleanings.c.source.in_(names), cleanings.c.outcome == CLEANED)
    result = Reset(
        pipelines=tuple(row.pipeline for row in rows),
        objects=_count(transaction, shards, finished) - messages,
        messages=messages,
        begun=_count(transaction, shards, scope.begun),
        adopted=0 if scope.adopted else _count(transaction, shards, scope.read_elsewhere),
        cleaned=_count(transaction, shards, sa.and_(finished, shards.c.shard_key.in_(away))),
        files=_count(transaction, splits, sa.and_(scope.published, splits.c.replaced_by.is_(None))),
        beyond_memory=bool(scope.only) and _have_forgotten(transaction, names),
    )
    return result, _lost_for_good(transaction, names, rows, result)


def _lock(transaction: Transaction, scope: _Scope) -> _Marks:
    """Lock the sources; return the mark of each of which this very reset is half done. Raises where another one is."""
    marks = dict[str, Mapping[str, Any] | None]()
    for name in scope.names:
        if not transaction.execute(sa.select(sources.c.source).where(sources.c.source == name)).first():
            there_are = sa.select(sources.c.source).order_by(sources.c.source).limit(10)
            existing = ", ".join(map(repr, transaction.execute(there_are).scalars())) or "none"
            raise StoreConfigurationError(f"there is no source {name!r} in {transaction.database}; there is {existing}")
        lock_source(transaction, name)
        marks[name] = mark = half_reset(transaction, name)
        if mark is not None and {**mark, **scope.mark} != mark:
            how = "".join(f" --pipeline {pipeline}" for pipeline in mark["only"]) + " --adopted" * mark["adopted"]
            raise StoreConfigurationError(
                f"a reset of source {name!r} was interrupted: end that first, by `cuesqueue reset {name}{how}`"
            )
    return marks


def _begin(transaction: Transaction, scope: _Scope) -> _Marks:
    """Take the files out of the view, have the pipelines begin anew, and mark the sources, all at once.

    Returns the marks, which tell this reset from one that begins after its end.
    """
    if None not in (marks := _lock(transaction, scope)).values():
        return marks
    rows = _stopped_pipelines(transaction, scope.names, scope.only)
    _refuse_joined(transaction, scope.names, scope.only or None)
    transaction.execute(splits.delete().where(scope.published))
    for row in rows:
        _begin_anew(transaction, row)
    mark = scope.mark | {"began": uuid4().hex}
    for name in scope.names:
        mark_reset(transaction, name, mark)
    return dict.fromkeys(scope.names, mark)


def _pages(database: Database, which: sa.ColumnElement[bool], most: int) -> Iterator[list[bytes]]:
    """Yield the keys of these shards of one source, in the order of an index, whatever becomes of those before."""
    c = shards.c
    ended = sa.func.coalesce(c.finished_at, 0)
    at, last = -1, b""
    while True:
        behind = sa.or_(ended > at, sa.and_(ended == at, c.shard_key > last))
        from_there = sa.and_(which, behind) if at <= 0 else sa.and_(which, behind, c.finished_at >= at)
        query = sa.select(c.shard_key, ended).where(from_there).order_by(c.finished_at, c.shard_key).limit(most)
        rows = database.read(lambda t, q=query: t.execute(q).all())  # type: ignore[misc]
        if rows:
            yield [bytes(row[0]) for row in rows]
        if len(rows) < most:
            return
        last, at = bytes(rows[-1][0]), rows[-1][1]


def _forget(
    transaction: Transaction,
    scope: _Scope,
    marks: _Marks,
    keys: Sequence[bytes],
    which: sa.ColumnElement[bool],
    after: str | None,
    audit: Audit,
) -> None:
    """Forget finished shards, or (with `after`) put begun ones back to their beginning.

    Not once another run has ended this reset: what is finished then was read since.
    """
    if not _lock(transaction, scope).items() <= marks.items():
        raise StoreConfigurationError(
            f"another run of this reset of {_quoted(scope.names)} has ended it; nothing is left to be done"
        )
    these = sa.and_(which, transaction.among(shards.c.shard_key, sorted(keys)))
    _record(transaction, these, audit, after)
    if after is not None:
        transaction.execute(shards.update().where(these).values(position=BEGINNING))
        return
    # what is forgotten is to be read: it must not be deleted or moved now
    planned = cleanings.delete().where(cleanings.c.ended_at.is_(None))
    transaction.change_among(planned, cleanings.c.shard_key, keys)
    transaction.execute(shards.delete().where(these))


def _end(transaction: Transaction, scope: _Scope, marks: _Marks) -> None:
    if _lock(transaction, scope) != marks:
        return
    transaction.execute(listings.delete().where(listings.c.source.in_(scope.names)))  # so that they are due at once
    if not scope.only:
        transaction.execute(sources.update().where(sources.c.source.in_(scope.names)).values(forgotten_before=0))
    for name in scope.names:
        mark_reset(transaction, name, None)


def _stopped_pipelines(transaction: Transaction, names: Sequence[str], only: Collection[str]) -> list[Row[Any]]:
    """Lock the pipelines and return them; refuse those that are unknown, and those whose reader lives."""
    query = sa.select(pipelines, transaction.now().label("now")).where(pipelines.c.source.in_(names))
    if only:
        query = query.where(pipelines.c.pipeline.in_(sorted(only)))
    rows = list(transaction.execute(query.order_by(pipelines.c.pipeline).with_for_update()))
    if unknown := sorted(set(only) - {row.pipeline for row in rows}):
        raise StoreConfigurationError(
            f"there is no pipeline {unknown[0]!r} of {_quoted(names)} in {transaction.database}; `cuesqueue status` "
            "names them"
        )
    for row in rows:
        if state_of(row) == RUNNING:
            seconds = max(0, row.now - row.heartbeat_at) // 1_000_000
            raise StoreConfigurationError(
                f"pipeline {row.pipeline!r} runs (its last heartbeat was {seconds} s ago, on {row.host or 'a host'}): "
                "stop its query first; where that was killed, wait until `cuesqueue status` calls it dead"
            )
    return rows


def _refuse_joined(transaction: Transaction, names: Sequence[str], only: Collection[str] | None) -> None:
    """Refuse pipelines whose rows are in one batch, and one data file, with those of another that stays as it is."""
    lead = attempts.alias("lead")

    def begins_anew(table: Any) -> sa.ColumnElement[bool]:
        chosen: sa.ColumnElement[bool] = table.c.source.in_(names)
        return chosen if only is None else sa.and_(chosen, table.c.pipeline.in_(only))

    one_alone = sa.or_(
        sa.and_(begins_anew(attempts), sa.not_(begins_anew(lead))),
        sa.and_(begins_anew(lead), sa.not_(begins_anew(attempts))),
    )
    query = (
        sa.select(attempts.c.pipeline, attempts.c.source, lead.c.pipeline.label("leader"), lead.c.source.label("other"))
        .select_from(attempts.join(lead, lead.c.delivery_hash == attempts.c.lead_hash))
        .where(one_alone)
    )
    if (row := transaction.execute(query.limit(1)).first()) is not None:
        raise StoreConfigurationError(
            f"pipelines {row.pipeline!r} (source {row.source!r}) and {row.leader!r} (source {row.other!r}) are inputs "
            "of one query, whose rows are in the same files: name both, so that they begin anew together"
        )


def _lost_for_good(transaction: Transaction, names: Sequence[str], rows: Sequence[Row[Any]], result: Reset) -> str:
    """Return what cannot be read again, as words; empty where all of it can, as far as the store knows."""
    texts = [f"{result.messages} messages were data themselves"] if result.messages else []
    texts += [f"{result.cleaned} objects are deleted or moved by cleanSource"] if result.cleaned else []
    if not texts and _have_forgotten(transaction, names):
        cleaning = sa.and_(sources.c.source.in_(names), sources.c.cleaned_until.is_not(None))
        if any(settings_of(row).get("content") == "message" for row in rows):
            texts.append("older messages, which the store has pruned, were data themselves")
        elif _count(transaction, sources, cleaning):
            texts.append("older objects, which the store has pruned, may be deleted or moved by cleanSource")
    return " and ".join(texts)


def _have_forgotten(transaction: Transaction, names: Sequence[str]) -> bool:
    query = sa.select(sources.c.source).where(sources.c.source.in_(names), sources.c.forgotten_before > 0)
    return transaction.execute(query).first() is not None


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _count(transaction: Transaction, table: sa.Table, which: sa.ColumnElement[bool]) -> int:
    return int(transaction.execute(sa.select(sa.func.count()).select_from(table).where(which)).scalar_one())


def _record(transaction: Transaction, which: sa.ColumnElement[bool], audit: Audit, after: str | None) -> None:
    """Record who did it and why for each of the shards: by the database alone, however many they are."""
    text = sa.Text()

    def written(value: str | None) -> sa.ColumnElement[Any]:
        return sa.literal(value, shard_changes.c.after.type)

    before = sa.literal('{"state": "', text).concat(shards.c.state)
    before = before.concat(sa.literal('", "position": "', text)).concat(shards.c.position)
    columns = {
        "shard_key": shards.c.shard_key,
        "source": shards.c.source,
        "shard_id": shards.c.shard_id,
        "action": sa.literal("reset", text),
        "actor": written(audit.actor),
        "reason": written(audit.reason),
        "before": before.concat(sa.literal('"}', text)),
        "after": sa.null() if after is None else written(after),
        "changed_at": transaction.now(),
    }
    chosen = sa.select(*(column.label(f"new_{name}") for name, column in columns.items())).where(which)
    transaction.execute(shard_changes.insert().from_select(list(columns), chosen))


def _begin_anew(transaction: Transaction, row: Row[Any]) -> None:
    """Have the pipeline be as one that has delivered all of its snapshots, and fence who may still run.

    One seq is left out: that nothing was published up to there says to tables that what was before counts no more.
    """
    name, incarnation = row.pipeline, row.incarnation + 1
    last = Report.parse(row.report, row.incarnation) or last_report(row.report)
    transaction.execute(snapshots.delete().where(snapshots.c.pipeline == name))
    if row.plan_hash is not None:
        transaction.execute(read_marks.delete().where(read_marks.c.delivery_hash == row.plan_hash))
    transaction.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == name)
        .values(
            incarnation=incarnation,
            report=replace(last, stopped=True).dump(incarnation),
            driver="",
            last_seq=row.last_seq + 1,
            confirmed_seq=row.last_seq + 1,
            plan_attempt=None,
            data_files=None,
            data_bytes=None,
            **dict.fromkeys(_PLAN),
        )
    )
