"""Objects that are deleted or moved once they were read: planned from finished shards, done elsewhere, and written down
before and after. What is done with an object is decided by its store, which knows whether it is still the same one.

An object may be one of several sources, and a data file of a table: all of them are asked when it is due, and not
before, since another source may receive its announcement after it was planned.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.positions import PUBLISHED
from shard_store.batches.starting import half_reset
from shard_store.model import MICROSECOND, WHOLE, ShardKey, ShardState, shard_key, uri_key
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import CLEANED, cleanings, errors, registered, shards, sources
from shard_store.upkeep.timing import trusted_time

SETTLED = timedelta(minutes=10)
"""Nothing is planned that has been done for less: a publish that is under way has its time before it is committed,
and what is left out here is never planned."""
DONE = CLEANED
CHANGED = "changed"
"""Outcomes: it is gone from its place (by us, or before); or it stays, as another object, or with bad records."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
_RARELY = timedelta(days=1)
NEEDED = "needed-elsewhere"
"""The cause of one that waits, since another source or a table needs the object. It is no failure."""
_ASKED_AGAIN = timedelta(hours=1)


class Planned(NamedTuple):
    """What is to be done with the object of a shard. `target`: where it is moved to; None: it is deleted."""

    uri: str
    target: str | None
    version: str | None = None


class Cleaning(NamedTuple):
    """One that is due. `opened_at` (before it was read) and `read_at` (done) are microseconds by the database's clock.

    `again`: its shard is not done any more, or done once more: it was announced again after it was forgotten.
    `needed`: who needs the object, in words; None: this store knows of no other use. `has_bad_records`: some source has
    found some in it, so that it may be moved alone.
    """

    shard_key: ShardKey
    uri: str
    size: int | None
    etag: str | None
    version: str | None
    opened_at: int
    read_at: int
    target: str | None
    again: bool
    needed: str | None = None
    has_bad_records: bool = False


class Ended(NamedTuple):
    """What came of one: an outcome, or the cause of a failure; `hopeless`: only a person can change it."""

    key: ShardKey
    read_at: int
    outcome: str | None = None
    cause: str | None = None
    detail: str | None = None
    hopeless: bool = False


class DueCleanings(NamedTuple):
    """`now`: the database's clock, in microseconds."""

    cleanings: list[Cleaning]
    now: int


def plan(
    transaction: Transaction,
    source: str,
    retention: timedelta,
    choose: Callable[[str, str], Planned | None],
    limit: int,
) -> int:
    """Write down what is to be done with the next finished shards of the source, up to about `limit`; return how many.
    In the order in which they were done, and all that were done at one time together. `choose` says it for (shard id,
    URI); None: nothing is done. No object with bad records is deleted: nothing else has all of them.
    May be called again at any time, by several at once.
    """
    now = trusted_time(transaction).at
    this = sources.c.source == source
    if half_reset(transaction, source) is not None:  # of another pipeline: what is to be forgotten stays where it is
        return 0
    cleaned = sa.select(sa.func.coalesce(sources.c.cleaned_until, 0)).where(this)
    until = transaction.execute(cleaned).scalar_one_or_none() or 0
    end = now - max(retention, SETTLED) // MICROSECOND
    finished = transaction.execute(
        _finished(source, until, end).order_by(shards.c.finished_at, shards.c.shard_key).limit(limit)
    ).all()
    if len(finished) == limit:  # those of the last time that are behind the limit, as many as a micro-batch has
        end = finished[-1].finished_at
        same = _finished(source, end - 1, end).where(shards.c.shard_key > finished[-1].shard_key)
        finished = [*finished, *transaction.execute(same.order_by(shards.c.shard_key)).all()]
    unread = sa.select(errors.c.shard_key).where(errors.c.source == source, errors.c.scope == "record")
    keys = [bytes(row.shard_key) for row in finished]
    kept = {bytes(key) for (key,) in transaction.select_among(unread, errors.c.shard_key, keys)}
    rows = []
    for row in finished:
        chosen = choose(row.shard_id, row.uri if row.uri is not None else row.shard_id)
        if chosen is not None and not (chosen.target is None and bytes(row.shard_key) in kept):
            rows.append(
                {
                    "shard_key": bytes(row.shard_key),
                    "source": source,
                    "uri": chosen.uri,
                    "size": row.size,
                    "etag": row.etag,
                    "version": chosen.version,
                    "opened_at": row.opened_at,
                    "read_at": row.finished_at,
                    "action": "delete" if chosen.target is None else "move",
                    "target": chosen.target,
                    "planned_at": now,
                    "due_at": now,
                    "attempts": 0,
                }
            )
    # first: a prune locks this row before its shards
    later = sa.or_(sources.c.cleaned_until.is_(None), sources.c.cleaned_until < end)
    transaction.execute(sources.update().where(this, later).values(cleaned_until=end))
    # what was forgotten since is to be read again, and stays where it is
    done = {row["shard_key"]: row["read_at"] for row in rows}
    locked = sa.select(shards.c.shard_key, shards.c.finished_at).with_for_update()
    still = {bytes(key): at for key, at in transaction.select_among(locked, shards.c.shard_key, done)}
    rows = [row for row in rows if still.get(row["shard_key"]) == row["read_at"]]
    for chunk in chunks(rows):
        # of one that was cleaned before, forgotten, announced and read once more
        before = {row["shard_key"]: row["read_at"] for row in chunk}
        planned = transaction.select_among(
            sa.select(cleanings.c.shard_key, cleanings.c.read_at), cleanings.c.shard_key, before
        )
        stale = [bytes(key) for key, read_at in planned if read_at != before[bytes(key)]]
        transaction.change_among(cleanings.delete(), cleanings.c.shard_key, stale)
        transaction.execute(transaction.dialect.insert_if_absent(cleanings), chunk)
    return len(rows)


def _finished(source: str, after: int, until: int) -> sa.Select[Any]:
    c = shards.c
    return sa.select(c.shard_key, c.shard_id, c.uri, c.size, c.etag, c.opened_at, c.finished_at).where(
        c.source == source, c.finished_at > after, c.finished_at <= until, PUBLISHED
    )


def due(transaction: Transaction, source: str, limit: int) -> DueCleanings:
    """Return the next cleanings that are due, those first that have waited for longest."""
    now = int(transaction.execute(sa.select(transaction.now())).scalar_one())
    if half_reset(transaction, source) is not None:
        return DueCleanings([], now)
    c = cleanings.c
    again = sa.or_(shards.c.state != ShardState.DONE.value, shards.c.finished_at != c.read_at)
    query = (
        sa.select(c.shard_key, c.uri, c.size, c.etag, c.version, c.opened_at, c.read_at, c.target, again.label("again"))
        .select_from(cleanings.outerjoin(shards, shards.c.shard_key == c.shard_key))
        .where(c.source == source, c.ended_at.is_(None), c.due_at <= now)
        .order_by(c.due_at)
        .limit(limit)
    )
    rows = transaction.execute(query).all()
    needed, bad = _needed(transaction, source, rows)
    columns = [row._asdict() | {"shard_key": ShardKey(bytes(row.shard_key)), "again": bool(row.again)} for row in rows]
    cleaned = [Cleaning(**row, needed=needed.get(row["uri"]), has_bad_records=row["uri"] in bad) for row in columns]
    return DueCleanings(cleaned, now)


def _needed(transaction: Transaction, source: str, rows: Sequence[Row[Any]]) -> tuple[dict[str, str], set[str]]:
    """Return who needs the objects of a page of cleanings, by URI: sources that know them and have not published them.

    And tables of which they are data files: asked last, since a batch that registers says so before it is published.
    Also return those in which any source has found bad records.
    """
    naming = {row.source: json.loads(row.naming or "{}") for row in transaction.execute(_NAMING)}
    uris: dict[ShardKey, str] = {}
    for name, kept in naming.items():
        for row in rows:
            ids = [row.uri]
            if kept.get("versions"):
                versions = {row.etag, row.version} - {None}
                ids += [f"{row.uri}#{version}" for version in versions]
            uris |= {shard_key(name, shard_id): row.uri for shard_id in ids}
    open_or_bad = sa.select(shards.c.shard_key, shards.c.source).where(sa.not_(PUBLISHED))
    own = {bytes(row.shard_key) for row in rows}
    theirs = transaction.select_among(open_or_bad, shards.c.shard_key, uris.keys() - own)
    needed = {uris[ShardKey(bytes(key))]: source for key, source in theirs}
    unread = sa.select(errors.c.shard_key).where(errors.c.scope == "record")
    every = uris | {ShardKey(bytes(row.shard_key)): row.uri for row in rows}
    bad = {every[ShardKey(bytes(key))] for (key,) in transaction.select_among(unread, errors.c.shard_key, every)}
    if names := [name for name, kept in naming.items() if kept.get("versions")]:
        of_others, bad_there = _needed_in_versions(transaction, source, rows, names)
        needed, bad = of_others | needed, bad | bad_there
    needed = {uri: f"source {name!r} has not published it" for uri, name in needed.items()}
    by_key = {uri_key(row.uri): row.uri for row in rows}
    files = transaction.select_among(sa.select(registered.c.uri_key), registered.c.uri_key, by_key)
    registered_ones = {by_key[bytes(key)]: "it is a data file of a table, where it is (register)" for (key,) in files}
    return needed | registered_ones, bad


def _needed_in_versions(
    transaction: Transaction, source: str, rows: Sequence[Row[Any]], names: Sequence[str]
) -> tuple[dict[str, str], set[str]]:
    """Return the same of sources with versions in their ids, also of those versions that our source has no word for.

    An announcement has a generation or a version and another one an ETag, or none. What is open is needed, whichever
    version it is; of what has ended, that which may be the same. Those that have ended without being published, or
    with bad records, are found by their errors: nothing leads from the URI of a finished shard to it.
    """
    c = shards.c
    by_uri: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        by_uri[row.uri].append(row)
    own = {bytes(row.shard_key) for row in rows}
    of_others = sa.select(c.shard_key, c.shard_id, c.uri, c.source, c.etag).where(c.source.in_(names))
    unfinished = of_others.where(c.finished_at.is_(None), c.source != source)
    needed = {their.uri: their.source for their in transaction.select_among(unfinished, c.uri, by_uri)}
    ended = of_others.add_columns(PUBLISHED.label("is_published"), errors.c.scope).join_from(
        errors, shards, c.shard_key == errors.c.shard_key
    )
    ended = ended.where(errors.c.scope.in_(("record", *WHOLE)), errors.c.reopened_at.is_(None))
    bad = set[str]()
    for their in transaction.select_among(ended, c.uri, by_uri):
        if bytes(their.shard_key) in own or not any(_may_be_same(row, their) for row in by_uri[their.uri]):
            continue
        if their.scope == "record":
            bad.add(their.uri)
        elif not their.is_published:
            needed[their.uri] = their.source
    return needed, bad


def _may_be_same(row: Row[Any], their: Row[Any]) -> bool:
    """Return whether the shard may be of the version that is to be cleaned: nothing that both know tells them apart."""
    version = their.shard_id[len(their.uri) + 1 :]
    if version in (row.version, row.etag) or row.etag is None or their.etag is None:
        return True
    return bool(row.etag == their.etag)


_NAMING = sa.select(sources.c.source, sources.c.naming)


def note_registered(transaction: Transaction, uris: Collection[str]) -> None:
    """Write down that objects are about to be data files of a table where they are: from now on no source cleans them.

    For good: the store does not learn when a table lets go of a file.
    """
    now = int(transaction.execute(sa.select(transaction.now())).scalar_one())
    insert = transaction.dialect.insert_if_absent(registered)
    for chunk in chunks(sorted(set(map(uri_key, uris)))):
        transaction.execute(insert, [{"uri_key": key, "registered_at": now} for key in chunk])


def redirect(transaction: Transaction, targets: Mapping[ShardKey, str | None]) -> None:
    """Write down other targets than those that were planned."""
    for key in sorted(targets):
        action = "delete" if targets[key] is None else "move"
        this = cleanings.c.shard_key == key, cleanings.c.ended_at.is_(None)
        transaction.execute(cleanings.update().where(*this).values(target=targets[key], action=action))


def end(transaction: Transaction, ended: Sequence[Ended]) -> None:
    """Write down what came of them. Those that failed are due again later: soon at first, then once an hour, and once a
    day where only a person can change it. Of what is needed elsewhere others are asked again after an hour. What comes
    late says nothing of an object that was read anew, and planned anew, since."""
    now = int(transaction.execute(sa.select(transaction.now())).scalar_one())
    locked = sa.select(cleanings.c.shard_key, cleanings.c.read_at).with_for_update()
    rows = transaction.select_among(locked, cleanings.c.shard_key, {cleaning.key for cleaning in ended})
    current = {(bytes(key), read_at) for key, read_at in rows}
    ended = [cleaning for cleaning in ended if (cleaning.key, cleaning.read_at) in current]
    done = [cleaning.key for cleaning in ended if cleaning.outcome == DONE]
    finished = cleanings.update().where(cleanings.c.ended_at.is_(None))
    transaction.change_among(finished.values(ended_at=now, outcome=DONE), cleanings.c.shard_key, done)
    needed: defaultdict[str | None, list[ShardKey]] = defaultdict(list)
    for cleaning in ended:
        if cleaning.cause == NEEDED:
            needed[cleaning.detail].append(cleaning.key)
    for detail, keys in sorted(needed.items(), key=str):
        later = finished.values(cause=NEEDED, detail=detail, due_at=now + _ASKED_AGAIN // MICROSECOND)
        transaction.change_among(later, cleanings.c.shard_key, keys)
    for cleaning in sorted(cleaning for cleaning in ended if cleaning.outcome != DONE and cleaning.cause != NEEDED):
        this = finished.where(cleanings.c.shard_key == cleaning.key)
        said = {"cause": cleaning.cause, "detail": cleaning.detail}
        if cleaning.outcome is not None:
            transaction.execute(this.values(ended_at=now, outcome=cleaning.outcome, **said))
            continue
        attempts = transaction.execute(
            sa.select(cleanings.c.attempts).where(cleanings.c.shard_key == cleaning.key)
        ).scalar_one_or_none()
        pause = _RARELY if cleaning.hopeless else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempts or 0, 10))
        due_at = now + pause // MICROSECOND
        transaction.execute(this.values(attempts=cleanings.c.attempts + 1, due_at=due_at, **said))


def planned_until(transaction: Transaction, source: str, oldest: int) -> int | None:
    """Return up to when finished shards of the source are planned: what was done later must not be forgotten yet.

    None where the source is not cleaned, or was not for so long that cleaning had not come to `oldest`.
    """
    kept = sources.c.source == source, sources.c.cleaned_until >= oldest
    return transaction.execute(sa.select(sources.c.cleaned_until).where(*kept)).scalar_one_or_none()
