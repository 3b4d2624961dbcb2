"""Shards and who may publish them: opening, acquiring and releasing shards, and heartbeats.

Being alive belongs to the publish token: one heartbeat row for each running pipeline says until when its shards are not
stale, so a heartbeat is one row however many shards are held. A shard that its owner gives up is released explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.errors import PipelineTakenOver
from shard_store.model import (
    BEGINNING,
    WITHOUT_MESSAGE,
    Content,
    Pending,
    Position,
    PublishToken,
    Reference,
    Shard,
    ShardKey,
    ShardState,
)
from shard_store.shards.activity import Amounts, Report, count, counted, last_report, locked_now
from shard_store.shards.announcing import announced_anew, in_newest_version, newest_of, take_up
from shard_store.sql.database import Again, Transaction, chunks
from shard_store.sql.engines import went_back
from shard_store.sql.schema import of_pipeline, pipelines, shards


class _Stored(NamedTuple):
    """A row of `current`, whose columns have these names, and are in this order."""

    shard_key: bytes
    shard_id: str
    uri: str | None
    size: int | None
    etag: str | None
    queue: str
    message_id: str
    receive_count: int
    message_group: str | None
    sequence: str | None
    reference: Reference | None
    sent_at: int | None
    position: str
    state: str
    owner: str | None
    incarnation: int
    later: Content | None
    fresh: bool


ANNOUNCED = _Stored._fields[: _Stored._fields.index("position")]
"""The columns that a notification fills, in the order of `announced_row`."""


_FENCED = sa.select(pipelines).where(pipelines.c.pipeline == sa.bindparam("fenced")).with_for_update()
"""Made once: building it would cost each transaction more than running it."""


def fence(transaction: Transaction, token: PublishToken) -> Row[Any]:
    """Lock the pipeline's row and return it; raises PipelineTakenOver when another incarnation is current.

    And LostProgress when the store is older than what its reader knows.
    """
    row = transaction.execute(_FENCED, [{"fenced": token.pipeline}]).one_or_none()
    return _current(transaction, token, row)


def _current(transaction: Transaction, token: PublishToken, row: Row[Any] | None) -> Row[Any]:
    if row is None and transaction.memory.knows(token):
        raise went_back(transaction.database, token, "it does not know this pipeline")
    if row is not None:  # it is locked, and may be older than what this process has seen of it
        lacking = f"it knows incarnations only up to {row.incarnation}" if row.incarnation < token.incarnation else None
        if row.incarnation == token.incarnation:
            lacking = transaction.memory.lacks(row, token)
        if lacking is not None:
            raise went_back(transaction.database, token, lacking)
    if row is None or row.incarnation != token.incarnation:
        raise PipelineTakenOver(token.pipeline, token.incarnation, None if row is None else row.incarnation)
    return row


def count_change(transaction: Transaction, row: Row[Any], token: PublishToken) -> dict[str, object]:
    """Return the column with which a reader writes its pipeline's row; remember it on the commit."""
    changes = (row.changes or 0) + 1
    transaction.on_commit.append(lambda: transaction.memory.keep(token, changes))
    return {"changes": changes}


def heartbeat(transaction: Transaction, token: PublishToken, stale_after: float, report: Report | None = None) -> None:
    """Say that the token's owner lives; raises PipelineTakenOver when it is no longer the pipeline's.

    `report`: what it says of itself, for operators.
    """
    row = _current(transaction, token, locked_now(transaction, token.pipeline))
    if row.now >= row.stale_at:
        transaction.memory.lapse(token)
    until = row.now + int(stale_after * 1_000_000)
    said = _reported(transaction, row, report) | count_change(transaction, row, token)
    transaction.execute(_row_of(token).values(heartbeat_at=row.now, stale_at=until, **said))


def retire(transaction: Transaction, token: PublishToken, report: Report | None = None) -> None:
    """End this incarnation gracefully: it plans nothing more. Its shards stay its own until they are stale.

    They may be in a batch that another sink has already taken: a restart has to find them. `report` is its last one.
    Raises LostProgress as `heartbeat` does: a store that went back must not say that its last batch ended well.
    """
    row = locked_now(transaction, token.pipeline)
    if row is not None and row.incarnation > token.incarnation:
        return
    row = _current(transaction, token, row)
    if report is not None and transaction.memory.may_have_changed(token):
        report = replace(report, same_store=False)
    transaction.execute(_row_of(token).values(driver="", **_reported(transaction, row, report)))


def _reported(transaction: Transaction, row: Row[Any], report: Report | None) -> dict[str, Any]:
    """Return what the report changes in the pipeline's row: itself, and the messages received since the one before."""
    if report is None:
        return {}
    received = report.counters.get("received", 0) - last_report(row.report).counters.get("received", 0)
    values: dict[str, Any] = {"report": report.dump(row.incarnation)}
    return values | counted(transaction, row, row.now, Amounts(messages=received)) if received > 0 else values


def open_shards(
    transaction: Transaction, token: PublishToken, source: str, contents: Sequence[Content]
) -> dict[ShardKey, Shard]:
    """Open new shards as ours, and return all of them as they are now. May be called again for the same contents.

    Of those that are known already, some are changed by a new announcement: see `announcing`.
    """
    row = fence(transaction, token)
    announced = newest_of(source, contents)
    # nearly all are new: where the database counts inserted rows, the insert alone proves it. Of an object that
    # the call announces twice the store has to say whether it is new, also where other objects of the call are not
    repeats = len(announced) < len(contents)
    stored = {} if counts_inserts(transaction) and not repeats else read_shards(transaction, announced)
    before = set(stored)
    # a shard of another pipeline may be finished and pruned between our insert and our query: then it is new again
    while absent := [(key, announced[key]) for key in sorted(announced.keys() - stored.keys())]:
        stored |= insert_absent(transaction, token, source, absent)
    existing = [shard for key, shard in stored.items() if shard.content is not announced[key]]
    if existing and repeats:  # what is delivered again may hide what is new
        older = {shard.key: shard for shard in existing if shard.key in before}
        announced |= announced_anew(source, contents, older)
    stored |= (taken_up := take_up(transaction, token, announced, existing))
    keep_released(transaction, (stored[shard.key] for shard in existing))
    if taken_up or any(shard.state is ShardState.OPEN and shard.token != token for shard in stored.values()):
        # those of others are waited for: one that is missing later was pruned, and not lost, if this change is there.
        # And a store without that change has these shards as they were, such as quarantined
        transaction.execute(of_pipeline, [{"of": token.pipeline, **count_change(transaction, row, token)}])
    if changed := sum(shard.changed for shard in taken_up.values()):
        count(transaction, token.pipeline, Amounts(changed=changed))
    return {key: stored[key] for key in announced}


def keep_released(transaction: Transaction, announced: Iterable[Shard]) -> None:
    """Have those that were given up, and are announced again, count as opened now.

    So pruning leaves them to their reader, which takes them in another transaction. Raises Again where one was pruned
    after it was read: then it is new.
    """
    keys = {
        shard.key
        for shard in announced
        if shard.token is None and shard.state is ShardState.OPEN and shard.content.queue not in WITHOUT_MESSAGE
    }
    if not keys:
        return
    locked = transaction.select_among(sa.select(shards.c.shard_key).with_for_update(), shards.c.shard_key, keys)
    if len(list(locked)) < len(keys):
        raise Again(f"database {transaction.database!r}: objects were pruned, again and again, as they were announced")
    free = shards.update().where(shards.c.owner.is_(None), shards.c.finished_at.is_(None))
    transaction.change_among(free.values(opened_at=transaction.now()), shards.c.shard_key, keys)


def insert_absent(
    transaction: Transaction, token: PublishToken, source: str, absent: Sequence[tuple[ShardKey, Content]]
) -> dict[ShardKey, Shard]:
    """Open the shards that no pipeline has opened, and return all as they are now; in the order of keys: no two
    deadlock.
    """
    opened: dict[ShardKey, Shard] = {}
    fixed = {
        "source": source,
        "position": BEGINNING,
        "state": ShardState.OPEN.value,
        "owner": token.pipeline,
        "incarnation": token.incarnation,
        "opened_at": transaction.now(),
    }
    rows = transaction.row_set(**{name: shards.c[name] for name in ANNOUNCED})
    insert = rows.insert(transaction.dialect.insert_if_absent(shards), fixed)
    for chunk in chunks(absent):
        result = rows.execute(transaction.connection, insert, [announced_row(key, content) for key, content in chunk])
        if counts_inserts(transaction) and result.rowcount == len(chunk):
            for key, content in chunk:
                opened[key] = Shard(key, content, BEGINNING, ShardState.OPEN, token, stale=False)
        else:  # some are there already
            opened |= read_shards(transaction, [key for key, _ in chunk])
    return opened


def counts_inserts(transaction: Transaction) -> bool:
    """Return whether the row count of an insert of what is absent says how much was."""
    return transaction.trusts_rowcount and transaction.dialect.counts_inserts


def read_shards(transaction: Transaction, keys: Iterable[ShardKey]) -> dict[ShardKey, Shard]:
    """Read the shards as they are now; pruned ones are missing."""
    rows = transaction.select_among(current(transaction), shards.c.shard_key, keys)
    return {shard.key: shard for shard in map(as_shard, rows)}


def renewed(transaction: Transaction, token: PublishToken) -> dict[ShardKey, Shard]:
    """Return our open shards that were announced anew, unless they are read already, or that an operator has opened
    again.
    """
    announced = sa.and_(shards.c.later.is_not(None), shards.c.position == BEGINNING)
    anew = sa.or_(announced, shards.c.pending == Pending.REOPENED.value)
    rows = transaction.execute(current(transaction).where(owned_by(token), anew))
    return {shard.key: shard for shard in map(as_shard, rows)}


def acquire(
    transaction: Transaction, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]
) -> set[ShardKey]:
    """Take stale shards by compare-and-set on the token seen (None: released); returns those that are ours now.

    A shard is taken only while its owner is still stale by the database's clock (invariant 5), and has no target: if it
    has, it may have woken since that was settled (`takeover`), and have brought the shard there.
    """
    fence(transaction, token)
    by_token: dict[PublishToken | None, list[ShardKey]] = {}
    for key, owner in seen.items():
        by_token.setdefault(owner, []).append(key)
    take = shards.update().values(owner=token.pipeline, incarnation=token.incarnation)
    for owner, keys in by_token.items():
        # not `IS NULL`: SQLite would then look through all that is released, instead of for these keys
        free = sa.func.coalesce(shards.c.owner, "") == ""
        if owner is not None:  # its heartbeats have stopped, or it was replaced
            c = pipelines.c
            alive = sa.and_(c.incarnation == owner.incarnation, c.stale_at > transaction.now())
            kept = sa.exists().where(c.pipeline == owner.pipeline, sa.or_(alive, c.target.is_not(None)))
            its = shards.c.owner == owner.pipeline, shards.c.incarnation == owner.incarnation
            free = sa.and_(*its, sa.not_(kept))
        transaction.change_among(take.where(shards.c.finished_at.is_(None), free), shards.c.shard_key, keys)
    ours = sa.select(shards.c.shard_key).where(owned_by(token))
    return {ShardKey(key) for (key,) in transaction.select_among(ours, shards.c.shard_key, seen)}


def without_message(
    transaction: Transaction, source: str, queue: str, limit: int, until: int | None = None
) -> list[Shard]:
    """Return what came by LISTING or STORE and has no owner, or a stopped one, the oldest first: it has no message.

    `until`: only what was opened up to then, in microseconds since 1970 UTC.
    """
    stopped = sa.select(pipelines.c.pipeline).where(
        pipelines.c.source == source, pipelines.c.stale_at <= transaction.now()
    )
    names = transaction.execute(stopped).scalars().all()  # by name: else planners read all that is open of everybody
    ours = sa.and_(shards.c.finished_at.is_(None), shards.c.queue == queue, shards.c.source == source)
    if until is not None:
        ours = sa.and_(ours, shards.c.opened_at <= until)
    query = current(transaction).where(ours).order_by(shards.c.opened_at).limit(limit)
    unowned = transaction.execute(query.where(shards.c.owner.is_(None))).all()
    return [as_shard(row) for row in (*unowned, *transaction.select_among(query, shards.c.owner, names))][:limit]


def release(transaction: Transaction, token: PublishToken, keys: Sequence[ShardKey]) -> None:
    """Give up open shards that are in no snapshot, so that any pipeline may take them without waiting.

    They count as opened now: pruning, which removes shards that no pipeline takes, leaves them to those that wait for
    them.
    """
    free = shards.update().where(owned_by(token)).values(owner=None, incarnation=None, opened_at=transaction.now())
    transaction.change_among(free, shards.c.shard_key, keys)


def owned_by(token: PublishToken) -> sa.ColumnElement[bool]:
    """Return the condition of open shards of the token."""
    return sa.and_(
        shards.c.owner == token.pipeline, shards.c.incarnation == token.incarnation, shards.c.finished_at.is_(None)
    )


class Owner(NamedTuple):
    """The pipeline that a shard names as its owner: its newest incarnation, and whether that sends heartbeats."""

    incarnation: int
    alive: bool


def owners(transaction: Transaction, keys: Sequence[ShardKey], *, lock: bool) -> dict[str, Owner]:
    """Return the owners of these shards that the store knows, by name.

    `lock`: they stay as they are. A pipeline that starts meanwhile takes over what is its own then.
    """
    theirs = sa.select(shards.c.owner).where(shards.c.owner.is_not(None)).distinct()
    names = {name for (name,) in transaction.select_among(theirs, shards.c.shard_key, keys)}
    c = pipelines.c
    query = sa.select(c.pipeline, c.incarnation, (c.stale_at > transaction.now()).label("alive"))
    query = query.order_by(c.pipeline)
    rows = transaction.select_among(query.with_for_update() if lock else query, c.pipeline, names)
    return {row.pipeline: Owner(row.incarnation, bool(row.alive)) for row in rows}


def current(transaction: Transaction) -> sa.Select[Any]:
    """Return the query of shards as `as_shard` reads them, each with whether its owner still sends heartbeats."""
    owner = sa.and_(pipelines.c.pipeline == shards.c.owner, pipelines.c.incarnation == shards.c.incarnation)
    fresh = sa.func.coalesce(pipelines.c.stale_at, 0) > transaction.now()
    columns = [shards.c[name] for name in _Stored._fields if name != "fresh"]
    return sa.select(*columns, fresh).select_from(shards.outerjoin(pipelines, owner))


def as_shard(values: Iterable[Any]) -> Shard:
    """Return the shard of a row of `current`."""
    row = _Stored._make(values)  # an attribute of SQLAlchemy's row takes ten times as long
    content = Content(
        shard_id=row.shard_id,
        uri=row.shard_id if row.uri is None else row.uri,
        size=row.size,
        etag=row.etag,
        queue=row.queue,
        message_id=row.message_id,
        receive_count=row.receive_count,
        group=row.message_group,
        sequence=row.sequence,
        reference=row.reference,
        sent_at=row.sent_at,
    )
    if row.later is not None and row.position == BEGINNING and row.state == ShardState.OPEN.value:
        content = in_newest_version(content, row.later)
    return Shard(
        key=ShardKey(row.shard_key),
        content=content,
        position=Position(row.position),
        state=ShardState(row.state),
        token=None if row.owner is None else PublishToken(row.owner, row.incarnation),
        stale=not row.fresh,
    )


def _row_of(token: PublishToken) -> sa.Update:
    """Return an update of the pipeline's row, as long as the token is current."""
    return pipelines.update().where(
        pipelines.c.pipeline == token.pipeline, pipelines.c.incarnation == token.incarnation
    )


def announced_row(key: ShardKey, content: Content) -> tuple[object, ...]:
    """Return the values of the columns `ANNOUNCED`."""
    c = content
    uri = None if c.uri == c.shard_id else c.uri
    columns = (c.size, c.etag, c.queue, c.message_id, c.receive_count, c.group, c.sequence, c.reference, c.sent_at)
    return (key, c.shard_id, uri, *columns)


class Backlog(NamedTuple):
    """Shards that the pipeline owns and has not finished; `bytes` as far as their sizes are known."""

    shards: int
    bytes: int


def backlog(transaction: Transaction, pipeline: str) -> Backlog:
    """Count what is outstanding of a pipeline: not much, since a reader opens no more than it may have in flight."""
    outstanding = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(shards.c.size), 0)).where(
        shards.c.owner == pipeline, shards.c.finished_at.is_(None)
    )
    number, size = transaction.execute(outstanding).one()
    return Backlog(int(number), int(size))


_RECENT = 1000


def usual_size(transaction: Transaction, source: str, pipeline: str) -> tuple[int | None, str | None]:
    """Return the average size of the objects that the source has finished last, and what takes the pipeline's batches.

    None where nothing is known.
    """
    sink = transaction.execute(sa.select(pipelines.c.sink).where(pipelines.c.pipeline == pipeline)).scalar()
    finished = shards.c.source == source, shards.c.finished_at.is_not(None)
    recent = sa.select(shards.c.size).where(*finished).order_by(shards.c.finished_at.desc()).limit(_RECENT).subquery()
    average = transaction.execute(sa.select(sa.func.avg(recent.c.size))).scalar_one()
    return None if average is None else int(average), sink


def has_finished(transaction: Transaction, source: str, pipeline: str) -> bool:
    """Tell whether the source remembers anything that the pipeline has finished."""
    theirs = sa.select(shards.c.shard_key).where(
        shards.c.source == source, shards.c.finished_at.is_not(None), shards.c.owner == pipeline
    )
    return transaction.execute(theirs.limit(1)).first() is not None
