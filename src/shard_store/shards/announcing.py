"""What another announcement of a known shard changes (decision 0093). Only this module reads or writes `later`.

A shard's row is in the version that is read: its snapshot's, from the plan on (`settle`). The column `later` has what
was announced of it last, after its opening. Of an object that no plan holds, that is the version to be
read; of one that is in a plan, it waits until the plan has ended the shard (`end`). Of one that has ended, nothing is
published where it was read as zero bytes, or was quarantined and is proven to be unread: then it is opened again. What
is published is not read again, and counts as `changed`. Each message opens a shard at most once, so that a queue which
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
    shard_key,
)
from shard_store.shards import changes
from shard_store.shards.changes import Audit, record_changes
from shard_store.sql.database import Again, Transaction, chunks
from shard_store.sql.schema import attempts, errors, shards

_CURABLE = frozenset(("missing-object", "object-changed", "forbidden-object"))
"""Causes that a new announcement of the same version may have ended: all others are about bytes that were read."""

GIVEN_UP = "quarantined-by-hand"
"""The cause of the error of a shard that an operator gave up. No announcement takes back what a person has decided."""

_REOPENED = "announced again"
_BEHIND = "!"
"""Less than what any sequence goes on with: the end of that of a URI alone, received behind an event."""
_OPEN = {"state": ShardState.OPEN.value, "position": BEGINNING, "finished_at": None, "end_seq": None, "pending": None}
_VERSION = ("size", "etag", "message_id", "sequence", "reference")


class Place(NamedTuple):
    """What plans have to know of a shard about which anything is unusual. `places_of` reads it."""

    pending: str | None
    size: int | None
    etag: str | None
    later: Content | None
    message_id: str
    opened_at: int
    sequence: str | None


def newest_of(source: str, contents: Iterable[Content]) -> dict[ShardKey, Content]:
    """Return one content for each shard: of several announcements the newest, or the last where nothing orders them.

    A URI alone stands for the object as it is when it is read. So does a URI that is received with an event, before or
    behind the event: that may be late, and its version gone. The result has the event's message, since the URI may have
    been delivered before.
    """
    newest: dict[ShardKey, Content] = {}
    for content in contents:
        key = shard_key(source, content.shard_id)
        earlier = newest.get(key)
        if earlier is None:
            newest[key] = content
        elif not _is_older(content, earlier):
            event, uri = (earlier, content) if content.sequence is None else (content, earlier)
            are_both = event.sequence is not None and _is_of_uri(uri) and _is_of_any_version(uri)
            newest[key] = _joined(event, uri) if are_both else _after(content, earlier)
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


def is_other_version(content: Content, stored: Content | Row[Any] | Place) -> bool:
    """Return whether an object was announced in another version than is stored, as far as both are known.

    By their ETags; where one has none, by their sizes, versions, and the order of their events.
    """
    if content.etag is not None and stored.etag is not None:
        return content.etag != stored.etag
    if content.size is not None and stored.size is not None and content.size != stored.size:
        return True
    if isinstance(stored, Place):
        return False
    mine, other = ((v.reference.version if v.reference else None) for v in (content, stored))
    if mine is not None and other is not None:
        return bool(mine != other)
    mine, other = ((v.sequence or "").rstrip(_BEHIND) for v in (content, stored))
    return mine[:1] == other[:1] and mine != other


def in_newest_version(content: Content, later: Content | None) -> Content:
    """Return a shard's content as it was announced last, for one of which nothing is read.

    Without what a look-up has found: another pipeline may have looked before the object was whole, and come later.
    Where nothing says which of the two is newer, such as of a URI alone and an event, any version may be read.
    """
    if later is None:
        return content
    later = as_announced(later)
    return _any_version_if_unordered(content._replace(**{name: getattr(later, name) for name in _VERSION}), content)


def _any_version_if_unordered(later: Content, before: Content | Row[Any] | Place) -> Content:
    """Return a later announcement; without its version where the version may be older, as an event's and a URI's."""
    is_unordered = _is_of_uri(before) and later.sequence is not None and later.shard_id == later.uri
    return _behind(later, later._replace(size=None, etag=None)) if is_unordered else later


def as_announced(content: Content) -> Content:
    """Return the content without the facts that a look-up has found."""
    if content.announced is None:
        return content
    size, etag = content.announced
    return content._replace(size=size, etag=etag, announced=None)


def _of_its_version(content: Content, before: Content) -> Content:
    """Return an announcement of a known object. An id that holds a version is of that one for ever.

    Who announces it may know the id and the URI alone, and a look-up may have found the next version there, which is
    read under an id of its own.
    """
    if content.shard_id == content.uri or before.etag is None:
        return content
    said = as_announced(content)
    return content if said.etag is not None else said._replace(size=before.size, etag=before.etag)


def take_up(
    transaction: Transaction, token: PublishToken | None, announced: Mapping[ShardKey, Content], stored: Iterable[Shard]
) -> dict[ShardKey, Shard]:
    """Change the stored shards to which a new announcement brings something, and return them as they are then.

    Those that it opens again are the token's; with None they have no owner, for any pipeline of their source.
    Raises Again where one was pruned after it was read: then it is new.
    """
    seen: dict[ShardKey, Shard] = {}
    announced = dict(announced)
    for shard in stored:
        before = shard.content
        content = announced[shard.key] = _of_its_version(announced[shard.key], before)
        # of one that is done, the same version brings nothing
        may_differ = shard.state is not ShardState.DONE or before.size == 0 or is_other_version(content, before)
        if may_differ and _may_be_new(content, before):
            seen[shard.key] = shard
    if not seen:
        return {}
    locked = transaction.select_among(sa.select(shards).with_for_update(), shards.c.shard_key, seen)
    rows = {ShardKey(row.shard_key): row for row in locked}
    if seen.keys() != rows.keys():
        raise Again(f"database {transaction.database!r}: objects were pruned, again and again, as they were announced")
    moved = {key: shard for key, row in rows.items() if (shard := _as_locked(seen[key], row)) is not seen[key]}
    seen |= moved  # by an operator, or its owner, before it was locked: who waits for it must not take it for ended
    news = {
        key: row
        for key, row in rows.items()
        if (_may_be_new(announced[key], row) or _is_of_now(announced[key], row.later))
        and (row.later is None or _may_be_new(announced[key], row.later))
    }
    ended = [row for row in news.values() if row.finished_at is not None]
    reopened = _reopen(transaction, token, announced, ended) if ended else {}
    noted = {key: row for key, row in news.items() if key not in reopened and _is_noted(announced[key], row)}
    announced = {key: _after(announced[key], *filter(None, (row.later, row))) for key, row in news.items()}
    row_set = transaction.row_set(key=shards.c.shard_key, later=shards.c.later)
    update = shards.update().where(shards.c.shard_key == row_set.c["key"]).values(later=row_set.c["later"])
    for chunk in chunks(sorted(noted)):
        row_set.execute(transaction.connection, update, [(key, announced[key]) for key in chunk])
    taken_up = {
        key: Shard(key, content, BEGINNING, ShardState.OPEN, token, stale=token is None, reopened=True)
        for key, content in reopened.items()
    }
    for key, row in noted.items():
        if row.finished_at is not None:
            taken_up[key] = seen[key]._replace(changed=True)
        elif row.position == BEGINNING:
            # what we have looked up ourselves is of this moment
            newest = announced[key]._replace(announced=None) if seen[key].token == token else announced[key]
            taken_up[key] = seen[key]._replace(content=in_newest_version(seen[key].content, newest))
    return moved | taken_up


def _as_locked(shard: Shard, row: Row[Any]) -> Shard:
    """Return the shard as its row is, where its place, state or owner have changed since it was read."""
    token = None if row.owner is None else PublishToken(row.owner, row.incarnation)
    locked = shard._replace(position=Position(row.position), state=ShardState(row.state), token=token)
    if locked == shard:
        return shard
    names = (*_VERSION, "queue")
    content = shard.content._replace(group=row.message_group, **{name: getattr(row, name) for name in names})
    return locked._replace(content=content, stale=shard.stale if token == shard.token else token is None)


def settle(
    transaction: Transaction, ranges: Iterable[Range], places: Mapping[ShardKey, Place], *, repeated: bool
) -> None:
    """Have the rows of shards that are to be read be in the version of their snapshot (decision 0093).

    A snapshot has what its reader knew: facts that were looked up, or what was announced last. What was announced after
    it stays `later`. Where a snapshot knows no size, a `repeated` attempt leaves what the attempts before have met
    (`readings.meet`). `places` has the shards about which anything is unusual.
    """
    if not places:
        return
    taken: list[tuple[object, ...]] = []
    stated: list[tuple[object, ...]] = []
    reopened = Pending.REOPENED.value
    for entry in ranges:
        if (place := places.get(entry.key)) is None:
            continue
        content = entry.content
        later = place.later if entry.start == BEGINNING else None
        is_later = later is not None and later.message_id == content.message_id
        # an event beside a URI alone is read as it is there, which may be another version than the event's
        read = later and _any_version_if_unordered(as_announced(later), place)
        if later is not None and read is not None and is_later and not is_other_version(read, content):
            before = content._replace(sequence=place.sequence)  # a snapshot has none
            newest = in_newest_version(before, later)._replace(size=content.size, etag=content.etag)
            taken.append((entry.key, *(getattr(newest, name) for name in _VERSION)))
            continue
        version = place if repeated and content.size is None else content
        if (place.size, place.etag) != (version.size, version.etag) or place.pending == reopened:
            stated.append((entry.key, version.size, version.etag))
    pending = sa.case((shards.c.pending == Pending.REOPENED.value, None), else_=shards.c.pending)
    for names, rows, values in ((_VERSION, taken, {"later": None}), (_VERSION[:2], stated, {})):
        row_set = transaction.row_set(key=shards.c.shard_key, **{name: shards.c[name] for name in names})
        update = shards.update().where(shards.c.shard_key == row_set.c["key"])
        update = update.values(**{name: row_set.c[name] for name in names}, **values, pending=pending)
        for chunk in chunks(rows):
            row_set.execute(transaction.connection, update, chunk)


def end(
    transaction: Transaction, identity: PlanIdentity, bad: Collection[ShardKey], announced: Collection[ShardKey]
) -> tuple[set[ShardKey], int]:
    """Decide on shards that a plan has ended and that were announced, or put back, while it ran.

    `bad` are to be quarantined, the others that were `announced` are done. Returns what is open again, since nothing of
    it is published, and how many of the others are changed. Their announcements came too early to open what had not
    ended yet, and will not come again. So did an operator's word that takes back a quarantine which an attempt had
    seen: its shard is opened where it was given up.
    """
    since = sa.or_(shards.c.later.is_not(None), shards.c.pending == Pending.REOPENED.value)
    keys = {*bad, *announced}
    rows = {
        ShardKey(row.shard_key): row
        for row in transaction.select_among(sa.select(shards).where(since), shards.c.shard_key, keys)
    }
    starts = {key: BEGINNING for key, row in rows.items() if key not in bad and _is_empty(row, row.later)}
    of_plan = sa.and_(errors.c.delivery_hash == identity.delivery_hash, errors.c.scope == "object")
    query = sa.select(errors.c.shard_key, errors.c.error_key, errors.c.cause, errors.c.position).where(of_plan)
    reopened: list[bytes] = []
    anew = dict.fromkeys(starts, "")
    for error in transaction.select_among(query, errors.c.shard_key, rows.keys() & set(bad)):
        key, row = ShardKey(error.shard_key), rows[ShardKey(error.shard_key)]
        if error.cause == GIVEN_UP:
            is_open = row.pending == Pending.REOPENED.value
        else:
            is_open = error.position == BEGINNING and _is_cured({error.cause}, row.later, row)
            anew |= dict.fromkeys([key] if is_open else (), "")
        if is_open:
            starts[key] = min(starts.get(key, error.position), error.position)
            reopened.append(error.error_key)
    row_set = transaction.row_set(key=shards.c.shard_key, start=shards.c.position)
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(**{**_OPEN, "position": row_set.c["start"]}, opened_at=transaction.now())
    for chunk in chunks(sorted(starts.items())):
        row_set.execute(transaction.connection, update, chunk)
    mark_reopened(transaction, reopened)
    _record(transaction, identity.token, [(rows[key], rows[key].later.message_id, {}) for key in sorted(anew)])
    unread = {key: row for key, row in rows.items() if key not in starts and row.later is not None}
    # what was read has the place of the newest event of its version: an older one that comes late is no news
    same = [
        (key, row.later.sequence or row.sequence) for key, row in unread.items() if not is_other_version(row.later, row)
    ]
    row_set = transaction.row_set(key=shards.c.shard_key, sequence=shards.c.sequence)
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(later=None, sequence=row_set.c["sequence"])
    for chunk in chunks(sorted(same)):
        row_set.execute(transaction.connection, update, chunk)
    return set(starts), len(unread) - len(same)


def mark_reopened(transaction: Transaction, keys: Iterable[bytes]) -> None:
    """Mark errors whose shards are read again; they stay as a record of what was."""
    mark = errors.update().values(reopened_at=transaction.now())
    transaction.change_among(mark, errors.c.error_key, keys)


def put_back(transaction: Transaction, starts: Mapping[ShardKey, Position], **values: Any) -> None:
    """Open quarantined shards where each was found bad, with these values. Their objects may have been repaired: what
    was known of them is forgotten, unless their ids hold a version, of which they are for ever. What a person has
    opened waits for no message.
    """
    forgotten: dict[str, Any] = dict.fromkeys(("end_seq", "finished_at", "sent_at"))
    has_version = shards.c.uri.is_not(None)
    forgotten |= {name: sa.case((has_version, shards.c[name])) for name in ("size", "etag")}
    row_set = transaction.row_set(key=shards.c.shard_key, start=shards.c.position)
    is_bad = shards.c.shard_key == row_set.c["key"], shards.c.state == ShardState.QUARANTINED.value
    update = shards.update().where(*is_bad)
    update = update.values(position=row_set.c["start"], state=ShardState.OPEN.value, **forgotten, **values)
    for chunk in chunks(sorted(starts.items())):
        row_set.execute(transaction.connection, update, chunk)


def _may_be_new(content: Content, stored: Content | Row[Any]) -> bool:
    return (
        content.payload is None and not _is_redelivered(content, stored.message_id) and not _is_older(content, stored)
    )


def _is_of_now(content: Content, later: Content | None) -> bool:
    """Return whether a URI alone says more than its message did when it opened the shard: a look-up has found more.

    It takes the place of a newer event that was received with it (`newest_of`), which must not be lost.
    """
    return later is not None and content.announced is not None and is_other_version(content, later)


def _is_of_uri(content: Content | Row[Any] | Place) -> bool:
    """Return whether a URI alone may have announced it: no event of it has an order, or it came behind one."""
    return content.sequence is None or content.sequence.endswith(_BEHIND)


def _is_of_any_version(content: Content) -> bool:
    """Return whether the message names no version: neither size, ETag nor the bucket's version."""
    said = as_announced(content)
    version = said.reference.version if said.reference else None
    return said.size is None and said.etag is None and version is None and said.payload is None


def _is_older(content: Content, stored: Content | Row[Any]) -> bool:
    mine, other = content.sequence, stored.sequence
    return mine is not None and other is not None and mine[0] == other[0] and mine < other


def _after(content: Content, *earlier: Content | Row[Any]) -> Content:
    """Return an announcement that takes the place of earlier ones, the newest of them first.

    One without an order, such as a URI alone, is of what is there now: it has the place of the newest event that was
    known by then, so that an older one, which is delivered late, does not bring back its version.
    """
    if content.sequence is not None:
        return content
    event = next((event for event in earlier if event.sequence is not None), None)
    return content if event is None else _behind(event, content)


def _joined(event: Content, uri: Content) -> Content:
    """Return the content of a URI alone as that event's message announces it."""
    message = {name: getattr(event, name) for name in ("message_id", "receive_count", "named", "queue", "group")}
    return _behind(event, uri._replace(**message))


def _behind(event: Content | Row[Any], content: Content) -> Content:
    """Return the content with the place right behind an event: that is older, and what comes later is newer."""
    return content._replace(sequence=(event.sequence or "").rstrip(_BEHIND) + _BEHIND)


def _is_redelivered(content: Content, message_id: str) -> bool:
    """Return whether the message is delivered again; of equal ones without an id, each first delivery is another."""
    return content.message_id == message_id and (content.named or content.receive_count > 1)


def _is_noted(content: Content, row: Row[Any]) -> bool:
    """Return whether an announcement is kept beside its shard's row: it may be another version, or a cure.

    Of a shard that has ended, or is published in part, only another version. Two events of equal sequence are one,
    which was sent twice, unless their ETags or sizes differ.
    """
    if row.finished_at is None and row.position == BEGINNING:
        newest = row if row.later is None else row.later
        is_sent_twice = newest.sequence is not None and newest.sequence == content.sequence
        return not is_sent_twice or is_other_version(content, newest)
    return is_other_version(content, row) and (row.later is None or is_other_version(content, row.later))


def _is_empty(row: Row[Any], later: Content) -> bool:
    """Return whether a shard that is done had zero bytes, of which nothing can be published, and `later` may have some.

    That it is unknown who took it, or that it was left out, says no more.
    """
    had_none = row.size == 0 and row.pending != Pending.BEGUN.value
    return bool(row.state == ShardState.DONE.value and had_none) and later.size != 0


def _is_cured(causes: Collection[str], later: Content | None, row: Row[Any]) -> bool:
    """Return whether a shard that was bad for these causes may be another one, as it was announced later."""
    if later is None or GIVEN_UP in causes:
        return False
    return _CURABLE.issuperset(causes) or is_other_version(later, row)


def _reopen(
    transaction: Transaction,
    token: PublishToken | None,
    announced: Mapping[ShardKey, Content],
    rows: Sequence[Row[Any]],
) -> dict[ShardKey, Content]:
    """Open again, as the token's, what has ended before anything of it was published; return what is to be read."""
    quarantined = [row for row in rows if row.state == ShardState.QUARANTINED.value]
    ended = endings(transaction, quarantined) if quarantined else {}

    def is_unread(row: Row[Any]) -> bool:
        content, ending = announced[ShardKey(row.shard_key)], ended.get(ShardKey(row.shard_key))
        if ending is None:
            return _is_empty(row, content)
        return ending.position == BEGINNING and _is_cured(ending.causes, content, row)

    chosen = {ShardKey(row.shard_key): row for row in rows if is_unread(row)}
    for key, messages in changes.messages(transaction, chosen, _REOPENED).items():
        if any(_is_redelivered(announced[key], message_id) for message_id in messages):
            del chosen[key]
    names = (*_VERSION, "queue", "receive_count", "sent_at")
    columns = {"key": shards.c.shard_key, "message_group": shards.c.message_group}
    row_set = transaction.row_set(**columns, **{name: shards.c[name] for name in names})
    update = shards.update().where(shards.c.shard_key == row_set.c["key"])
    update = update.values(
        **{name: row_set.c[name] for name in (*names, "message_group")},
        **_OPEN,
        opened_at=transaction.now(),
        later=None,
        owner=None if token is None else token.pipeline,
        incarnation=None if token is None else token.incarnation,
    )
    contents = {}
    for key, row in chosen.items():
        contents[key] = _any_version_if_unordered(_after(announced[key], *filter(None, (row.later, row))), row)
    for chunk in chunks(sorted(contents.items())):
        row_set.execute(
            transaction.connection, update, [(key, c.group, *(getattr(c, name) for name in names)) for key, c in chunk]
        )
    mark_reopened(transaction, [error for key in chosen.keys() & ended.keys() for error in ended[key].errors])
    owner = {"publish_token": None if token is None else str(token)}
    _record(transaction, token, [(row, announced[key].message_id, owner) for key, row in chosen.items()])
    return contents


def _record(
    transaction: Transaction, token: PublishToken | None, opened: Iterable[tuple[Row[Any], str, Mapping[str, Any]]]
) -> None:
    """Record which message has opened which shard: it does not open that once more."""
    opened = list(opened)
    reason = "a new announcement of an object of which nothing is published"
    audit = Audit("a receiver" if token is None else str(token), reason)
    after = {name: _OPEN[name] for name in ("state", "position", "end_seq", "pending")}
    changed = [(row, {**after, **owner}) for row, _, owner in opened]
    record_changes(transaction, _REOPENED, audit, changed, {row.shard_key: message for row, message, _ in opened})


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
