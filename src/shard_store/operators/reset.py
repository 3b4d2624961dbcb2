"""Making a source begin anew (`cuesqueue reset`): all that it has read is to be read once more (decision 0089).

For tables that were emptied on purpose, as by a full refresh. One transaction, in which nothing is half forgotten:
what is finished is unknown afterwards, what was begun begins at its beginning, and what our sink with `path` has
published leaves the view `data` together with the memory of it. Offsets go on rising: so a delivery hash, by which
tables and outputs know a batch, never comes again (invariant 4).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.errors import StoreConfigurationError
from shard_store.model import BEGINNING
from shard_store.operators.repair import ADOPTED
from shard_store.operators.status import RUNNING, state_of
from shard_store.shards.activity import Report, counters_of, intake_of, settings_of, window_of
from shard_store.shards.changes import Audit
from shard_store.shards.sources import lock_source
from shard_store.sql.database import Transaction
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


def reset(
    transaction: Transaction,
    names: Sequence[str],
    audit: Audit,
    *,
    message_uri: str,
    only: Collection[str] = (),
    adopted: bool = False,
    lose_rows: bool = False,
    dry_run: bool = False,
) -> Reset:
    """Forget what the sources have read, or what the pipelines `only` of them have; refused while one of them runs.

    `adopted`: forget also what another reader had read (`cuesqueue adopt`). `message_uri` is the URI of a shard whose
    content is its message. `lose_rows`: also where the view `data` loses rows for good, as what they are from is gone.
    Raises StoreConfigurationError, and changes nothing then.
    """
    for name in sorted(names):
        if not transaction.execute(sa.select(sources.c.source).where(sources.c.source == name)).first():
            raise _no_such_source(transaction, name)
        lock_source(transaction, name)
    rows = _stopped_pipelines(transaction, names, only)
    chosen = sorted(row.pipeline for row in rows)
    _refuse_joined(transaction, names, chosen if only else None)
    ours: sa.ColumnElement[bool] = shards.c.source.in_(names)
    of_sink: sa.ColumnElement[bool] = splits.c.source.in_(names)
    read_elsewhere = sa.and_(ours, shards.c.owner.is_(None), shards.c.queue == ADOPTED)
    if only:
        ours, of_sink = sa.and_(ours, shards.c.owner.in_(chosen)), splits.c.pipeline.in_(chosen)
    theirs = sa.or_(ours, read_elsewhere) if adopted else sa.and_(ours, sa.not_(read_elsewhere))
    finished = sa.and_(theirs, shards.c.finished_at.is_not(None))
    begun = sa.and_(ours, shards.c.finished_at.is_(None), shards.c.position != BEGINNING)
    messages = _count(transaction, shards, sa.and_(finished, shards.c.uri == message_uri))
    away = sa.select(cleanings.c.shard_key).where(cleanings.c.source.in_(names), cleanings.c.outcome == CLEANED)
    result = Reset(
        pipelines=tuple(chosen),
        objects=_count(transaction, shards, finished) - messages,
        messages=messages,
        begun=_count(transaction, shards, begun),
        adopted=0 if adopted else _count(transaction, shards, read_elsewhere),
        cleaned=_count(transaction, shards, sa.and_(finished, shards.c.shard_key.in_(away))),
        files=_count(transaction, splits, of_sink),
        beyond_memory=bool(only) and _have_forgotten(transaction, names),
    )
    if dry_run:
        return result
    if result.files and (lost := _lost_for_good(transaction, names, rows, result)) and not lose_rows:
        raise StoreConfigurationError(
            f"of {_quoted(names)} {lost}: nothing reads them again, and the {result.files} data files that have their "
            "rows would leave the view 'data' for good; copy what you need first, then say --lose-rows"
        )
    _record(transaction, finished, audit, after=None)
    _record(transaction, begun, audit, after='{"state": "open", "position": ""}')
    # what is forgotten is to be read: it must not be deleted or moved now
    gone = sa.select(shards.c.shard_key).where(finished)
    transaction.execute(cleanings.delete().where(cleanings.c.ended_at.is_(None), cleanings.c.shard_key.in_(gone)))
    transaction.execute(shards.delete().where(finished))
    transaction.execute(shards.update().where(begun).values(position=BEGINNING))
    transaction.execute(splits.delete().where(of_sink))
    transaction.execute(listings.delete().where(listings.c.source.in_(names)))  # so that they are due at once
    if not only:
        transaction.execute(sources.update().where(sources.c.source.in_(names)).values(forgotten_before=0))
    for row in rows:
        _begin_anew(transaction, row)
    return result


def _no_such_source(transaction: Transaction, source: str) -> StoreConfigurationError:
    """Return the error that names the sources that there are."""
    existing = transaction.execute(sa.select(sources.c.source).order_by(sources.c.source).limit(10)).scalars()
    names = ", ".join(map(repr, existing)) or "none"
    return StoreConfigurationError(f"there is no source {source!r} in {transaction.database}; there is {names}")


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
    last = Report.parse(row.report, row.incarnation) or Report(
        counters=counters_of(row.report), intake=intake_of(row.report), window=window_of(row.report)
    )
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
            **dict.fromkeys(_PLAN),
        )
    )
