"""What an operator does to shards: give one up, have it read again, forget it, take it over as read (decision 0064).

Each call is one transaction over up to 1,000 shards, and may be run again: what is as was asked for is left alone. What
changes a shard records who did it and why.

`reset` makes a source begin anew (decision 0047): all that it has read is to be read once more, for tables that were
emptied on purpose, as by a full refresh. One transaction, in which nothing is half forgotten: what is finished is
unknown afterwards, what was begun begins at its beginning, and what our sink with `path` has published leaves the view
`data` together with the memory of it. Offsets go on rising: so a delivery hash, by which tables and outputs know a
batch, never comes again (invariant 4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.starting import check_name, lock_source
from shard_store.errors import StoreConfigurationError
from shard_store.model import (
    BEGINNING,
    LISTING,
    WITHOUT_MESSAGE,
    Pending,
    ShardKey,
    ShardState,
    end_at,
    shard_key,
)
from shard_store.operators.status import RUNNING, state_of
from shard_store.shards.activity import Report, last_report, settings_of
from shard_store.shards.announcing import Ending, endings, mark_reopened, put_back
from shard_store.shards.changes import Audit, record_changes
from shard_store.shards.ownership import Owner, owners
from shard_store.sql.database import Transaction, chunks
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

ADOPTED = "adopted"
"""The queue of shards that another reader has read. They have no owner."""

_UNKNOWN: Mapping[str, None] = dict.fromkeys(("end_seq", "size", "etag", "reference", "later"))


@dataclass(slots=True)
class ShardsChanged:
    """How many shards were changed (with `dry_run`: would be), and how many were so already.

    `refused`: shard id -> why nothing was done to it.
    """

    changed: int = 0
    unchanged: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: ShardsChanged) -> ShardsChanged:
        return ShardsChanged(
            self.changed + other.changed, self.unchanged + other.unchanged, {**self.refused, **other.refused}
        )


def quarantine(
    transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False
) -> ShardsChanged:
    """Have open shards given up, unread, by the next plan that holds them: also one that has failed before.

    Not at once: an attempt that is under way may be publishing their rows.
    """
    done = ShardsChanged()
    unfinished: list[Row[Any]] = []
    for row in _rows(transaction, keys, dry_run):
        if row.state == ShardState.DONE.value:
            done.refused[row.shard_id] = _unpublished(row) or "it is published already"
        elif row.state == ShardState.QUARANTINED.value or row.pending == Pending.QUARANTINE.value:
            done.unchanged += 1
        else:
            unfinished.append(row)
    done.changed = len(unfinished)
    if not dry_run:
        flag = shards.update().where(shards.c.finished_at.is_(None)).values(pending=Pending.QUARANTINE.value)
        transaction.change_among(flag, shards.c.shard_key, [row.shard_key for row in unfinished])
        record_changes(
            transaction, "quarantine", audit, [(row, {"pending": Pending.QUARANTINE.value}) for row in unfinished]
        )
    return done


def reopen(
    transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, message_uri: str, dry_run: bool = False
) -> ShardsChanged:
    """Put quarantined shards back to where they were found bad, for their pipeline to read without a message.

    Nothing from there on was published, so that the rows come once. What was known of the object is forgotten: it may
    have been repaired. `message_uri` is the URI of a shard whose content is its message, which cannot be read again.

    An open shard that no pipeline works on, since its message is lost, is from now on like one that a listing has
    found: the next reader of its source that starts, or lists, takes it.
    """
    of_owners = owners(transaction, keys, lock=not dry_run)
    rows = _rows(transaction, keys, dry_run)
    ended = endings(transaction, [row for row in rows if row.state == ShardState.QUARANTINED.value])
    done, withdrawn, back, unheld = ShardsChanged(), list[Row[Any]](), list[Row[Any]](), list[Row[Any]]()
    for row in rows:
        problem = ""
        if row.state == ShardState.QUARANTINED.value:
            problem = _cannot_reopen(row, of_owners, ended, message_uri)
            if not problem:
                back.append(row)
        elif row.state == ShardState.DONE.value:
            published = "it is published: reading it again would double its rows"
            problem = f"{_unpublished(row) or published}; see `cuesqueue shards forget`"
        elif row.pending == Pending.QUARANTINE.value:
            withdrawn.append(row)
        elif _is_left(row, of_owners) and not _needs_message(row, message_uri):
            unheld.append(row)
        else:
            done.unchanged += 1
        if problem:
            done.refused[row.shard_id] = problem
    done.changed = len(back) + len(withdrawn) + len(unheld)
    if dry_run:
        return done
    pending = {"pending": Pending.REOPENED.value}
    starts = {ShardKey(row.shard_key): ended[row.shard_key].position for row in back}
    newest = sa.select(pipelines.c.incarnation).where(pipelines.c.pipeline == shards.c.owner).scalar_subquery()
    put_back(transaction, starts, incarnation=newest, **pending, reference=None, later=None)
    mark_reopened(transaction, [error for row in back for error in ended[row.shard_key].errors])
    transaction.change_among(shards.update().values(pending), shards.c.shard_key, [row.shard_key for row in withdrawn])
    as_listed = {"queue": LISTING}
    transaction.change_among(shards.update().values(as_listed), shards.c.shard_key, [row.shard_key for row in unheld])
    after: dict[str, Any] = {**pending, "state": ShardState.OPEN.value, **_UNKNOWN}
    changed: list[tuple[Row[Any], Mapping[str, Any]]] = [(row, pending) for row in withdrawn]
    changed += [(row, {**after, "position": ended[row.shard_key].position}) for row in back]
    changed += [(row, as_listed) for row in unheld]
    record_changes(transaction, "reopen", audit, changed)
    return done


def forget(transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False) -> ShardsChanged:
    """Delete finished shards: announced again, they are new, and all of their rows are published once more."""
    done = ShardsChanged()
    finished: list[Row[Any]] = []
    for row in _rows(transaction, keys, dry_run):
        if row.finished_at is None:
            done.refused[row.shard_id] = "it is not finished; give it up first with `cuesqueue shards quarantine`"
        else:
            finished.append(row)
    done.changed = len(finished)
    if not dry_run:
        gone = shards.delete().where(shards.c.finished_at.is_not(None))
        transaction.change_among(gone, shards.c.shard_key, [row.shard_key for row in finished])
        record_changes(transaction, "forget", audit, [(row, None) for row in finished])
    return done


def adopt(transaction: Transaction, source: str, uris: Sequence[str], origin: str) -> int:
    """Write objects that were read elsewhere down as finished shards of the source; returns how many were not known.

    What is known stays as it is, also what is not finished. `origin` is shown with each shard, in the place of its
    message.
    """
    check_name("source", source)
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    lock_source(transaction, source)
    by_key = {shard_key(source, uri): uri for uri in uris}
    known_keys = {row.shard_key for row in _rows(transaction, sorted(by_key), dry_run=True)}
    fixed = {
        "source": source,
        "position": end_at(0),
        "queue": ADOPTED,
        "message_id": origin,
        "receive_count": 0,
        "state": ShardState.DONE.value,
        "opened_at": transaction.now(),
        "finished_at": transaction.now(),
    }
    row_set = transaction.row_set(shard_key=shards.c.shard_key, shard_id=shards.c.shard_id)
    insert = row_set.insert(transaction.dialect.insert_if_absent(shards), fixed)
    new = sorted((key, uri) for key, uri in by_key.items() if key not in known_keys)
    for chunk in chunks(new):
        row_set.execute(transaction.connection, insert, chunk)
    return len(new)


def _rows(transaction: Transaction, keys: Sequence[ShardKey], dry_run: bool) -> list[Row[Any]]:
    query = sa.select(shards) if dry_run else sa.select(shards).with_for_update()
    return list(transaction.select_among(query, shards.c.shard_key, keys))


def _unpublished(row: Row[Any]) -> str:
    """Return what a shard that is done is instead of published, or ""."""
    words = {
        Pending.BEGUN.value: "its batch was begun, and at-most-once allows but one attempt",
        Pending.SKIPPED.value: "it was skipped, and parts of it may be published",
        Pending.LEFT_OUT.value: "its query has left it out (load), and parts of it may be published",
        Pending.GIVEN_UP.value: "its batch was given up (at-most-once), and may have been published",
    }
    return words.get(row.pending, "") if row.state == ShardState.DONE.value else ""


def _needs_message(row: Row[Any], message_uri: str) -> bool:
    return row.uri == message_uri or row.message_group is not None


def _is_left(row: Row[Any], of_owners: Mapping[str, Owner]) -> bool:
    """Return whether an open shard waits for a message, since no pipeline that lives has it."""
    is_held = (
        row.owner in of_owners and of_owners[row.owner].alive and of_owners[row.owner].incarnation == row.incarnation
    )
    return not is_held and row.queue not in WITHOUT_MESSAGE


def _cannot_reopen(
    row: Row[Any], of_owners: Mapping[str, Owner], ended: Mapping[ShardKey, Ending], message_uri: str
) -> str:
    """Return why the shard cannot be opened again, or ""."""
    if _needs_message(row, message_uri):
        return "it is read with its message only: send that again with `cuesqueue errors requeue`"
    if row.shard_key not in ended:
        return (
            "nobody knows which of its rows are published: it was read in parts, or more than once, or its error was "
            "deleted. Look for its rows where they went; if none are there, `cuesqueue shards forget` lets all of it "
            "be read again when it is announced, and any that are there would come twice"
        )
    if row.owner not in of_owners:
        return f"the store does not know its pipeline {row.owner!r} any more: `cuesqueue errors requeue` announces it"
    return ""


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
            there_are = sa.select(sources.c.source).order_by(sources.c.source).limit(10)
            existing = ", ".join(map(repr, transaction.execute(there_are).scalars())) or "none"
            raise StoreConfigurationError(f"there is no source {name!r} in {transaction.database}; there is {existing}")
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
        files=_count(transaction, splits, sa.and_(of_sink, splits.c.replaced_by.is_(None))),
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
