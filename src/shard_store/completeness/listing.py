"""Comparing a source with listings of its objects: whose turn it is, and what is unknown (decision 0047).

One pipeline of a source lists a prefix at a time, page by page. Each page is one transaction: the shards of what is
unknown, how far the listing is, and its numbers. So a pipeline that dies between two pages, or in the middle of one,
leaves nothing that the next one, which goes on from there, would open twice or miss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.model import Content, PublishToken, Shard, ShardKey, ShardState, shard_key
from shard_store.shards.announcing import take_up
from shard_store.shards.ownership import fence, insert_absent, read_shards
from shard_store.sql.database import Again, Database, Transaction
from shard_store.sql.schema import listings, pipelines, shards, sources

SURE = 3_600_000_000
"""Microseconds by which an object has to be younger than what was forgotten last, or it may have been forgotten too.

Three clocks take part: the object store's (`modified`), the database's (when shards ended) and, between the answer of
the first and the question to the second, the reader's. The difference between the first two is measured for each page;
this hour is for what cannot be: an answer that was long on its way, machines of one store that differ, and objects
whose time is that of the beginning of their upload.
"""
_SLEPT = 600_000_000
"""Microseconds between a page and its comparison that are no longer usual: the process has slept."""

_SECOND = 1_000_000
_PATIENCE = 2  # failures of one page after which its listing begins anew
_STUCK = 120 * _SECOND  # after which a listing without progress may be taken from an owner that lives


class Claim(NamedTuple):
    """A listing of `prefix` that is ours to go on with after `cursor` (None: from its beginning), and its numbers."""

    source: str
    prefix: str
    began_at: int
    cursor: str | None = None
    objects: int = 0
    opened: int = 0
    beyond_memory: int = 0
    existing: int = 0


class Found(NamedTuple):
    """An object as the listing has it. Times are microseconds since 1970 UTC, by the object store's clock.

    `modified` may be whatever a writer says, as for local files; then `appeared` is when it got its name or its
    content at the latest, by the store's own word. None: `modified` is the store's own word.

    `chosen`: False where its time is against it; then it is read only if it was begun.
    """

    content: Content
    modified: int
    appeared: int | None = None
    chosen: bool = True


class Compared(NamedTuple):
    """What came of a page: the listing as it is after it, and `shards` that are open and ours, or may be taken.

    `opened` of them were unknown, `reopened` had been found bad in another version. `beyond_memory` and `existing` of
    the page were unknown too, and are left alone.
    """

    claim: Claim
    shards: list[Shard]
    opened: int
    reopened: int
    beyond_memory: int
    existing: int


def claim(
    database: Database, token: PublishToken, source: str, prefix: str, interval: float, *, at_once: bool = False
) -> Claim | None:
    """Claim the listing of a prefix, if it is due and ours; None if it is not. Raises PipelineTakenOver.

    It is due when it never was made, or began `interval` seconds ago and has ended. One that is under way is continued
    by the pipeline that has it, or by another one when its heartbeats have stopped, or when it made no progress for an
    interval. But it begins anew when its page has failed twice: what is new before that page would wait for as long as
    it fails. `at_once`: it is due however short a while ago the last one was. For those whose turn it is not, it is one
    statement, which takes no lock.
    """
    key = _listing_key(source, prefix)
    micros = int(interval * _SECOND)

    def is_due(transaction: Transaction) -> bool:
        row = transaction.execute(_row(transaction, key)).one_or_none()
        return row is None or _is_due(row, token, micros, at_once)

    def take(transaction: Transaction) -> Claim | None:
        fence(transaction, token)
        # if it is absent, as one that ended before time began
        new: dict[str, Any] = dict.fromkeys((c.name for c in listings.c if isinstance(c.type, sa.BigInteger)), 0)
        new |= {"listing_key": key, "source": source, "prefix": prefix, "owner": ""}
        transaction.execute(transaction.dialect.insert_if_absent(listings).values(new))
        transaction.execute(sa.select(listings.c.listing_key).where(listings.c.listing_key == key).with_for_update())
        row = transaction.execute(_row(transaction, key)).one_or_none()
        # it may have been there, and be forgotten by now, as by `cuesqueue reset`: then the next look makes it anew
        if row is None or not _is_due(row, token, micros, at_once):
            return None
        goes_on = row.ended_at is None and row.failures < _PATIENCE
        claimed = Claim(source, prefix, row.now)
        if goes_on:
            claimed = Claim(*(getattr(row, name) for name in Claim._fields))
        _write(transaction, key, token, claimed, ended=False, failures=row.failures if goes_on else 0)
        return claimed

    return database.write(take) if database.read(is_due) else None


def compare(
    transaction: Transaction,
    token: PublishToken,
    claim: Claim,
    page: Sequence[Found],
    *,
    objects: int,
    cursor: str | None,
    grace: float,
    clock: Callable[[], int],
    at_most: int | None = None,
) -> Compared | None:
    """Open what is unknown of a page, and go on after it; None when the listing has passed to another pipeline.

    Args:
        found: At most 1,000 objects that are wanted, of the `objects` of the page.
        cursor: What the listing goes on after; None ends it.
        grace: Seconds: what is younger is left to its message, or to the next listing.
        clock: Microseconds since 1970 UTC by the clock of the object store.
        at_most: Microseconds by which that may be ahead of the database's, by what this said before the page was asked
            for: it counts if the process has slept since.

    Raises:
        PipelineTakenOver: A newer incarnation runs.
    """
    fence(transaction, token)
    key = _listing_key(claim.source, claim.prefix)
    row = transaction.execute(sa.select(listings).where(listings.c.listing_key == key).with_for_update()).one_or_none()
    mine = (token.pipeline, token.incarnation, claim.began_at)  # ended or not: the commit before may have been ours
    if row is None or (row.owner, row.incarnation, row.began_at) != mine:
        return None
    by_key = {shard_key(claim.source, entry.content.shard_id): entry for entry in page}
    query = sa.select(shards.c.shard_key, shards.c.state, shards.c.size)
    known_rows = {row[0]: row for row in map(tuple, transaction.select_among(query, shards.c.shard_key, by_key))}
    unknown = {key: entry for key, entry in by_key.items() if key not in known_rows and entry.chosen}
    new, beyond, existing = dict[ShardKey, Shard](), 0, 0
    if unknown:
        new, beyond, existing = _open(transaction, token, claim.source, unknown, int(grace * _SECOND), clock, at_most)
    # not done, or read as zero bytes, and some by now
    unfinished = [
        ShardKey(key)
        for key, state, size in known_rows.values()
        if state != ShardState.DONE.value or (size == 0 and by_key[key].content.size)
    ]
    takeable, reopened = _read_unfinished(transaction, token, unfinished, by_key) if unfinished else ([], 0)
    opened = sum(shard.token == token for shard in new.values())
    after = claim._replace(
        cursor=cursor,
        objects=claim.objects + objects,
        opened=claim.opened + opened + reopened,
        beyond_memory=claim.beyond_memory + beyond,
        existing=claim.existing + existing,
    )
    _write(transaction, key, token, after, ended=cursor is None)
    return Compared(after, [*new.values(), *takeable], opened, reopened, beyond, existing)


def fail(transaction: Transaction, token: PublishToken, source: str, prefix: str) -> bool:
    """Record that our listing's next page cannot be read; returns whether the listing begins anew at its next turn."""
    fence(transaction, token)
    this = sa.and_(listings.c.listing_key == _listing_key(source, prefix), *_ours(token))
    transaction.execute(listings.update().where(this).values(failures=listings.c.failures + 1))
    failures = transaction.execute(sa.select(listings.c.failures).where(this)).scalar()
    return failures is not None and failures >= _PATIENCE


def leave_existing(transaction: Transaction, token: PublishToken, source: str) -> None:
    """Have listings leave alone the objects that exist now, if this source was never listed before.

    It holds for the whole source: so also where other prefixes were listed, of which something may be missing still.
    """
    fence(transaction, token)
    if transaction.execute(sa.select(listings.c.listing_key).where(listings.c.source == source).limit(1)).first():
        return
    this = sources.update().where(sources.c.source == source, sources.c.existing_before.is_(None))
    transaction.execute(this.values(existing_before=transaction.now()))


def let_go(transaction: Transaction, token: PublishToken, source: str, prefixes: Iterable[str]) -> None:
    """Release our listings at a graceful end: others may go on with them without waiting."""
    ours = listings.update().where(*_ours(token))
    keys = [_listing_key(source, prefix) for prefix in prefixes]
    transaction.change_among(ours.values(owner="", incarnation=0), listings.c.listing_key, keys)


def _listing_key(source: str, prefix: str) -> bytes:
    """Return the key of the listing of a prefix; sources do not share listings."""
    return hashlib.sha256(f"{source}\0{prefix}".encode("utf-8", "surrogatepass")).digest()


def _ours(token: PublishToken) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of listings under way that are the token's."""
    c = listings.c
    return c.owner == token.pipeline, c.incarnation == token.incarnation, c.ended_at.is_(None)


def _row(transaction: Transaction, key: bytes) -> sa.Select[Any]:
    """Return the query of a listing, with the database's time and whether its owner sends heartbeats."""
    now = transaction.now()
    owner = sa.and_(pipelines.c.pipeline == listings.c.owner, pipelines.c.incarnation == listings.c.incarnation)
    alive = (sa.func.coalesce(pipelines.c.stale_at, 0) > now).label("alive")
    joined = listings.outerjoin(pipelines, owner)
    return sa.select(listings, now.label("now"), alive).select_from(joined).where(listings.c.listing_key == key)


def _is_due(row: Row[Any], token: PublishToken, interval: int, at_once: bool) -> bool:
    if row.ended_at is not None:
        return at_once or row.began_at + interval <= row.now
    return row.owner == token.pipeline or not row.alive or row.touched_at + max(interval, _STUCK) <= row.now


def _write(
    transaction: Transaction, key: bytes, token: PublishToken, claim: Claim, *, ended: bool, failures: int = 0
) -> None:
    now = transaction.now()
    transaction.execute(
        listings.update()
        .where(listings.c.listing_key == key)
        .values(
            owner=token.pipeline,
            incarnation=token.incarnation,
            touched_at=now,
            ended_at=now if ended else None,
            failures=failures,
            **claim._asdict(),
        )
    )


def _open(
    transaction: Transaction,
    token: PublishToken,
    source: str,
    unknown: Mapping[ShardKey, Found],
    grace: int,
    clock: Callable[[], int],
    at_most: int | None,
) -> tuple[dict[ShardKey, Shard], int, int]:
    """Open what is surely new; also return how many of the others may have been forgotten, or are older than what is
    listed at all.

    Pruning locks this row first: so a missing object is either new, or was forgotten before this reads.
    """
    query = sa.select(sources.c.forgotten_before, sources.c.existing_before, transaction.now().label("now"))
    memory = transaction.execute(query.where(sources.c.source == source).with_for_update()).one()
    store_time = clock()
    ahead = store_time - memory.now  # the clock of the object store, beside the database's
    # else what was forgotten would seem to be newer than that, by as long as we have slept
    sure = ahead if at_most is None or at_most < ahead + _SLEPT else at_most
    new: dict[ShardKey, Found] = {}
    beyond = existing = 0
    for key, entry in unknown.items():
        if abs(store_time - entry.modified) < grace:  # what is further in the future will hardly be younger next time
            continue
        came = latest(entry.modified, entry.appeared) - ahead
        if memory.existing_before is not None and came < memory.existing_before:
            existing += 1
        elif memory.forgotten_before and not _is_after(entry, memory.forgotten_before + SURE, memory.now, sure):
            beyond += 1
        else:
            new[key] = entry
    surely = _without_plain(transaction, source, new, memory.now, sure)
    absent = [(key, surely[key].content) for key in sorted(surely)]
    return insert_absent(transaction, token, source, absent), beyond, existing


def _is_after(entry: Found, moment: int, now: int, ahead: int) -> bool:
    """Return whether the object was surely modified after the moment.

    A time in the future, or later than the moment at which a file got it, was set by a program: it proves nothing.
    """
    changed_at = earliest(entry.modified, entry.appeared)
    return moment < changed_at - ahead <= now + SURE and changed_at + SURE >= entry.modified


def earliest(modified: int, appeared: int | None) -> int:
    """Return the first moment at which the object may have been there: a writer may have set any later time."""
    return modified if appeared is None else min(modified, appeared)


def latest(modified: int, appeared: int | None = None) -> int:
    """Return the last moment at which the object may have come.

    Most object stores tell whole seconds, and what is moved into a folder of local files keeps the time at which it was
    written.
    """
    came = modified if appeared is None else max(modified, appeared)
    return came if came % _SECOND else came + _SECOND - 1


def _without_plain(
    transaction: Transaction, source: str, new: Mapping[ShardKey, Found], now: int, ahead: int
) -> dict[ShardKey, Found]:
    """Return the new objects without those that were read before `allowOverwrites` was set, by their URI alone."""
    uris = {key: entry.content.uri for key, entry in new.items() if entry.content.shard_id != entry.content.uri}
    plain = {shard_key(source, uri): key for key, uri in uris.items()}
    unread = dict(new)
    columns = sa.select(shards.c.shard_key, shards.c.etag, shards.c.finished_at).where(
        shards.c.state == ShardState.DONE.value
    )
    for row in transaction.select_among(columns, shards.c.shard_key, plain):
        key = plain[ShardKey(row.shard_key)]
        etag, entry = row.etag, new[key]
        if etag is not None and entry.content.etag is not None:
            is_read = etag == entry.content.etag
        else:
            is_read = not _is_after(entry, row.finished_at, now, ahead)
        if is_read:
            del unread[key]
    return unread


def _read_unfinished(
    transaction: Transaction, token: PublishToken, keys: Sequence[ShardKey], page: Mapping[ShardKey, Found]
) -> tuple[list[Shard], int]:
    """Return, of shards that are not done, those that are ours or free, and those that a new version opens again.

    What is in an ordered group needs its message, in whose hands only the queue decides. A listing changes nothing of
    an open shard: it may be older than the last announcement. Raises Again where one was pruned since the page was
    compared, which is new then, or opened.
    """
    stored = read_shards(transaction, keys)
    if len(stored) < len(keys):
        raise Again(f"database {transaction.database!r}: objects were pruned, again and again, as they were listed")
    ended = [shard for key, shard in stored.items() if shard.state is not ShardState.OPEN and page[key].chosen]
    taken_up = take_up(transaction, token, {shard.key: page[shard.key].content for shard in ended}, ended)
    if any(shard.state is ShardState.OPEN and not shard.reopened for shard in taken_up.values()):
        raise Again(f"database {transaction.database!r}: objects were announced, again and again, as they were listed")
    reopened = {key: shard for key, shard in taken_up.items() if shard.reopened}
    open_ones = [
        shard
        for shard in stored.values()
        if shard.state is ShardState.OPEN and shard.content.group is None and (shard.stale or shard.token == token)
    ]
    return [*open_ones, *reopened.values()], len(reopened)
