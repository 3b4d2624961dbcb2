"""What another announcement of a known shard changes (decision 0040).

Of an object that no plan holds, the newest version counts. One that was quarantined because it was not there, was
another one, or was refused, is opened again by a new announcement; by each message at most once, so that a queue which
delivers one again and again changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.model import (
    BEGINNING,
    Content,
    Pending,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    Shard,
    ShardKey,
    ShardState,
    is_end,
    shard_key,
)
from shard_store.shards import changes
from shard_store.shards.changes import Change, State, state_of
from shard_store.sql.schema import attempts, errors, shards
from shard_store.sql.transaction import Transaction, chunks

_CURABLE = frozenset(("missing-object", "object-changed", "forbidden-object"))
"""Causes that a new announcement may have ended: all others are about bytes that were read, or a person's decision."""

GIVEN_UP = "quarantined-by-hand"
"""The cause of the error of a shard that an operator gave up."""

_REOPENED = "announced again"
_OPEN = {"state": ShardState.OPEN.value, "position": BEGINNING, "finished_at": None, "end_seq": None, "pending": None}
_VERSION = ("size", "etag", "message_id", "sequence", "reference")


def newest_of(source: str, contents: Iterable[Content]) -> dict[ShardKey, Content]:
    """Return one content for each shard: of several announcements the newest, or the last where nothing orders them."""
    newest: dict[ShardKey, Content] = {}
    for content in contents:
        key = shard_key(source, content.shard_id)
        earlier = newest.get(key)
        if earlier is None or not _is_older(content, earlier):
            newest[key] = content
    return newest


def announced_anew(
    source: str, contents: Iterable[Content], stored: Mapping[ShardKey, Shard]
) -> dict[ShardKey, Content]:
    """Return the newest announcement of each shard beside the one that the store has, which may be delivered again."""
    fresh = []
    for content in contents:
        shard = stored.get(shard_key(source, content.shard_id))
        if shard is not None and not _is_redelivered(content, shard.content.message_id):
            fresh.append(content)
    return newest_of(source, fresh)


def take_up(
    transaction: Transaction, token: PublishToken | None, announced: Mapping[ShardKey, Content], stored: Iterable[Shard]
) -> dict[ShardKey, Shard]:
    """Change the stored shards to which a new announcement brings something, and return them as they are then.

    Those that it opens again are the token's; with None they have no owner, for any pipeline of their source.
    """
    seen = {s.key: s for s in stored if s.state is not ShardState.DONE and _may_be_new(announced[s.key], s.content)}
    if not seen:
        return {}
    locked = transaction.select_among(sa.select(shards).with_for_update(), shards.c.shard_key, seen)
    rows = [row for row in locked if _may_be_new(announced[ShardKey(row.shard_key)], row)]
    renewed = _renew(transaction, announced, [row for row in rows if row.finished_at is None])
    quarantined = [row for row in rows if row.state == ShardState.QUARANTINED.value]
    reopened = _reopen(transaction, token, announced, quarantined) if quarantined else []
    changed = {key: seen[key]._replace(content=_in_version(seen[key].content, announced[key])) for key in renewed}
    return changed | {
        key: Shard(key, announced[key], BEGINNING, ShardState.OPEN, token, stale=token is None, reopened=True)
        for key in reopened
    }


def reopen_listed(
    transaction: Transaction, token: PublishToken, listed: Mapping[ShardKey, Content], stored: Mapping[ShardKey, Shard]
) -> dict[ShardKey, Shard]:
    """Open again the quarantined shards of whose objects a listing has found a new version, and return them.

    A listing changes nothing of an open shard: it may be older than the last announcement.
    """
    seen = [key for key, content in listed.items() if _may_be_new(content, stored[key].content)]
    locked = transaction.select_among(sa.select(shards).with_for_update(), shards.c.shard_key, seen)
    quarantined = [row for row in locked if row.state == ShardState.QUARANTINED.value]
    reopened = _reopen(transaction, token, listed, quarantined) if quarantined else []
    return {
        key: Shard(key, listed[key], BEGINNING, ShardState.OPEN, token, stale=False, reopened=True) for key in reopened
    }


def announced_since(transaction: Transaction, identity: PlanIdentity, bad: Collection[ShardKey]) -> set[ShardKey]:
    """Open again those of a plan's bad, finished shards that were announced anew while it ran; return their keys.

    That announcement came too early to open what was not quarantined yet, and will not come again. So did an operator's
    word that takes back a quarantine which an attempt had seen: its shard is opened where it was given up.
    """
    query = sa.select(shards).where(shards.c.pending == Pending.RENEWED.value)
    rows = {ShardKey(row.shard_key): row for row in transaction.select_among(query, shards.c.shard_key, bad)}
    of_plan = sa.and_(errors.c.delivery_hash == identity.delivery_hash, errors.c.scope == "object")
    query = sa.select(errors.c.shard_key, errors.c.error_key, errors.c.cause, errors.c.position).where(of_plan)
    starts: dict[ShardKey, Position] = {}
    ended: list[bytes] = []
    announced: set[ShardKey] = set()
    for error in transaction.select_among(query, errors.c.shard_key, rows):
        key, curable = ShardKey(error.shard_key), error.cause in _CURABLE and error.position == BEGINNING
        if curable or error.cause == GIVEN_UP:
            starts[key] = min(starts.get(key, error.position), error.position)
            ended.append(error.error_key)
        if curable:
            announced.add(key)
    row_set = transaction.row_set(key=shards.c.shard_key, start=shards.c.position)
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(**{**_OPEN, "position": row_set.c["start"]})
    for chunk in chunks(sorted(starts.items())):
        row_set.execute(transaction.connection, update, chunk)
    mark_reopened(transaction, ended)
    _record(transaction, identity.token, [(rows[key], rows[key].message_id, {}) for key in sorted(announced)])
    return set(starts)


def pending_of(transaction: Transaction, keys: Iterable[ShardKey]) -> dict[ShardKey, str]:
    """Return the pending marks of the shards that have one, of any owner."""
    query = sa.select(shards.c.shard_key, shards.c.pending).where(shards.c.pending.is_not(None))
    return {ShardKey(key): mark for key, mark in transaction.select_among(query, shards.c.shard_key, keys)}


def as_announced(transaction: Transaction, ranges: Sequence[Range], pending: Collection[ShardKey]) -> list[Range]:
    """Return the ranges with the newest size and ETag, where a whole object is read, and nothing of it was.

    A snapshot has what its reader knew. `pending` are the shards of which more may be known by now. Objects by
    reference stay as they are in the snapshot: their rows are made of it, and are the same at every attempt.
    """
    if not pending:
        return list(ranges)
    query = sa.select(shards.c.shard_key, shards.c.size, shards.c.etag).where(shards.c.size.is_not(None))
    versions = {
        ShardKey(key): (size, etag) for key, size, etag in transaction.select_among(query, shards.c.shard_key, pending)
    }
    return [
        r._replace(content=r.content._replace(size=versions[r.key][0], etag=versions[r.key][1]))
        if r.key in versions and takes_newest(r)
        else r
        for r in ranges
    ]


def takes_newest(entry: Range) -> bool:
    """Return whether a plan reads the newest version of the object: a whole one, whose row is not made of its snapshot.

    Of an object by reference the mark stays: found changed by who reads it, it is opened again in its new version.
    """
    return entry.start == BEGINNING and is_end(entry.end) and entry.content.reference is None


def mark_seen(transaction: Transaction, keys: Iterable[ShardKey]) -> None:
    """Mark shards of whose pending changes a plan has taken note."""
    transaction.change_among(shards.update().values(pending=Pending.SEEN.value), shards.c.shard_key, keys)


def mark_reopened(transaction: Transaction, keys: Iterable[bytes]) -> None:
    """Mark errors whose shards are read again; they stay as a record of what was."""
    mark = errors.update().values(reopened_at=transaction.now())
    transaction.change_among(mark, errors.c.error_key, keys)


def _may_be_new(content: Content, stored: Content | Row[Any]) -> bool:
    return (
        content.payload is None and not _is_redelivered(content, stored.message_id) and not _is_older(content, stored)
    )


def _is_older(content: Content, stored: Content | Row[Any]) -> bool:
    mine, other = content.sequence, stored.sequence
    return mine is not None and other is not None and mine[0] == other[0] and mine < other


def _is_redelivered(content: Content, message_id: str) -> bool:
    """Return whether the message is delivered again; of equal ones without an id, each first delivery is another."""
    return content.message_id == message_id and (content.named or content.receive_count > 1)


def _in_version(content: Content, newer: Content) -> Content:
    return content._replace(**{name: getattr(newer, name) for name in _VERSION})


def _renew(transaction: Transaction, announced: Mapping[ShardKey, Content], rows: Iterable[Row[Any]]) -> list[ShardKey]:
    """Open shards without published rows take the version announced. What a plan reads by now stays as it is.

    Of one that is published in part, the rest of another version would be no object at all. Two events of equal
    sequence are one, which was sent twice.
    """
    keys = [
        ShardKey(row.shard_key)
        for row in rows
        if row.position == BEGINNING
        and (row.sequence is None or announced[ShardKey(row.shard_key)].sequence != row.sequence)
    ]
    row_set = transaction.row_set(key=shards.c.shard_key, **{name: shards.c[name] for name in _VERSION})
    given_up = shards.c.pending == Pending.QUARANTINE.value
    pending = sa.case((given_up, Pending.QUARANTINE.value), else_=Pending.RENEWED.value)
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(**{name: row_set.c[name] for name in _VERSION}, pending=pending)
    for chunk in chunks(sorted(keys)):
        versions = [(key, *(getattr(announced[key], name) for name in _VERSION)) for key in chunk]
        row_set.execute(transaction.connection, update, versions)
    return keys


def _reopen(
    transaction: Transaction,
    token: PublishToken | None,
    announced: Mapping[ShardKey, Content],
    rows: Sequence[Row[Any]],
) -> list[ShardKey]:
    """Open again, as the token's, what ended for curable causes before anything of it was published."""
    ended = endings(transaction, rows)
    messages = changes.messages(transaction, [ShardKey(row.shard_key) for row in rows], _REOPENED)

    def is_wanted(key: ShardKey) -> bool:
        ending, content = ended.get(key), announced[key]
        if ending is None or not ending.causes <= _CURABLE or ending.position != BEGINNING:
            return False
        return not any(_is_redelivered(content, message_id) for message_id in messages.get(key, ()))

    chosen = {key: row for row in rows if is_wanted(key := ShardKey(row.shard_key))}
    names = (*_VERSION, "queue", "receive_count", "sent_at")
    columns = {"key": shards.c.shard_key, "message_group": shards.c.message_group}
    row_set = transaction.row_set(**columns, **{name: shards.c[name] for name in names})
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(
        **{name: row_set.c[name] for name in (*names, "message_group")},
        **_OPEN,
        owner=None if token is None else token.pipeline,
        incarnation=None if token is None else token.incarnation,
    )
    for chunk in chunks(sorted(chosen)):
        values = [(key, (c := announced[key]).group, *(getattr(c, name) for name in names)) for key in chunk]
        row_set.execute(transaction.connection, update, values)
    mark_reopened(transaction, [error for key in chosen for error in ended[key].errors])
    owner = {"publish_token": None if token is None else str(token)}
    _record(transaction, token, [(row, announced[key].message_id, owner) for key, row in chosen.items()])
    return list(chosen)


def _record(
    transaction: Transaction, token: PublishToken | None, opened: Iterable[tuple[Row[Any], str, State]]
) -> None:
    """Record which message has opened which shard: it does not open that once more."""
    reason = "a new announcement of an object that was missing, changed or forbidden"
    actor = "a receiver" if token is None else str(token)
    after = {name: _OPEN[name] for name in ("state", "position", "end_seq", "pending")}
    changes.write(
        transaction,
        [
            (
                Change(ShardKey(row.shard_key), row.source, row.shard_id, _REOPENED, actor, reason, message_id),
                (before := state_of(row)),
                {**before, **after, **owner},
            )
            for row, message_id, owner in opened
        ],
    )


class Ending(NamedTuple):
    """Where the plan that ended a shard found it bad first, for which causes, and the keys of its errors."""

    position: Position
    causes: frozenset[str]
    errors: tuple[bytes, ...]


def endings(transaction: Transaction, rows: Iterable[Row[Any]]) -> dict[ShardKey, Ending]:
    """Return how quarantined shards ended; those of which it is not known what is published are missing.

    Their errors were deleted, or they were read in parts by several tasks.
    """
    ended_by = {ShardKey(row.shard_key): (row.owner, row.end_seq) for row in rows}
    query = (
        sa.select(errors.c.shard_key, errors.c.error_key, errors.c.cause, errors.c.position, attempts.c.end_seq)
        .add_columns(errors.c.pipeline)
        .join_from(errors, attempts, attempts.c.delivery_hash == errors.c.delivery_hash)
        .where(errors.c.scope == "object")
    )
    by_shard: dict[ShardKey, Ending] = {}
    for error in transaction.select_among(query, errors.c.shard_key, ended_by):
        key = ShardKey(error.shard_key)
        if ended_by[key] == (error.pipeline, error.end_seq):
            position, causes, keys = by_shard.get(key, Ending(error.position, frozenset(), ()))
            by_shard[key] = Ending(min(position, error.position), causes | {error.cause}, (*keys, error.error_key))
    return by_shard
