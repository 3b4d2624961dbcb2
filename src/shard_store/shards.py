"""Who may publish a shard: opening and acquiring shards, heartbeats (design.md section 4).

Liveness belongs to the publish token: one heartbeat row for each running pipeline says until when its shards are not
stale, so a heartbeat is one row however many shards are held. A shard that its owner forgets is released explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from shard_store.errors import PipelineTakenOver
from shard_store.model import BEGINNING, Content, Position, PublishToken, Shard, ShardKey, ShardState, shard_key
from shard_store.sql.database import Database, chunks
from shard_store.sql.schema import pipelines, shards

_GIVEN = ("shard_key", "shard_id", "uri", "size", "etag", "queue", "message_id", "receive_count", "message_group")
"""The columns that a notification fills, in the order of `_row`."""


def fence(connection: Connection, token: PublishToken) -> Row[Any]:
    """Lock the pipeline's row and return it; raises PipelineTakenOver when another incarnation is current."""
    row = connection.execute(
        sa.select(pipelines).where(pipelines.c.pipeline == token.pipeline).with_for_update()
    ).one_or_none()
    if row is None or row.incarnation != token.incarnation:
        raise PipelineTakenOver(token.pipeline, token.incarnation, None if row is None else row.incarnation)
    return row


def heartbeat(database: Database, connection: Connection, token: PublishToken, stale_after: float) -> None:
    """Say that the token's owner lives; raises PipelineTakenOver when it is no longer the pipeline's."""
    now = database.now()
    connection.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == token.pipeline, pipelines.c.incarnation == token.incarnation)
        .values(heartbeat_at=now, stale_at=now + int(stale_after * 1_000_000))
    )
    fence(connection, token)


def open_shards(
    database: Database, connection: Connection, token: PublishToken, source: str, contents: Sequence[Content]
) -> dict[ShardKey, Shard]:
    """Open what is new as ours, and tell how each shard stands; idempotent (Quickwit's OpenShards)."""
    fence(connection, token)
    wanted: dict[ShardKey, Content] = {}
    for content in contents:
        wanted.setdefault(shard_key(source, content.shard_id), content)
    # nearly all are new: where the insert counts them, it alone says so
    found = {} if _counts_inserts(database) else look(database, connection, wanted)
    # a shard of another pipeline may be finished and pruned between our insert and our look: then it is new again
    while absent := [(key, wanted[key]) for key in sorted(wanted.keys() - found.keys())]:
        found |= _insert(database, connection, token, source, absent)
    return {key: _as_told(found[key], content) for key, content in wanted.items()}


def _as_told(shard: Shard, content: Content) -> Shard:
    """A shard that was put back has forgotten its size and ETag, as its object may have been repaired."""
    if shard.content.size is not None or content.size is None:
        return shard
    return shard._replace(content=shard.content._replace(size=content.size, etag=content.etag))


def _insert(
    database: Database,
    connection: Connection,
    token: PublishToken,
    source: str,
    absent: Sequence[tuple[ShardKey, Content]],
) -> dict[ShardKey, Shard]:
    """Open what nobody else has opened, and tell how all stand; in the order of keys: then two do not deadlock."""
    found: dict[ShardKey, Shard] = {}
    for chunk in chunks(absent):
        rows = database.dialect.row_set({name: shards.c[name].type for name in _GIVEN})
        fixed = {
            "source": source,
            "position": BEGINNING,
            "state": ShardState.OPEN.value,
            "owner": token.pipeline,
            "incarnation": token.incarnation,
            "opened_at": database.now(),
        }
        insert = rows.insert(database.dialect.insert_if_absent(shards), fixed)
        result = rows.execute(connection, insert, [_row(key, content) for key, content in chunk])
        if _counts_inserts(database) and result.rowcount == len(chunk):
            for key, content in chunk:
                found[key] = Shard(key, content, BEGINNING, ShardState.OPEN, token, stale=False)
        else:  # some are there already
            found |= look(database, connection, [key for key, _ in chunk])
    return found


def _counts_inserts(database: Database) -> bool:
    return database.trusts_rowcount and database.dialect.counts_inserts


def look(database: Database, connection: Connection, keys: Iterable[ShardKey]) -> dict[ShardKey, Shard]:
    """How the shards stand now; pruned ones are missing."""
    found: dict[ShardKey, Shard] = {}
    for chunk in chunks(keys):
        query = standing(database).where(database.dialect.among(shards.c.shard_key, chunk))
        found.update((shard.key, shard) for shard in map(as_shard, connection.execute(query).all()))
    return found


def acquire(
    database: Database, connection: Connection, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]
) -> set[ShardKey]:
    """Take stale shards by compare-and-set on the token seen (None: released); returns those that are ours now.

    A shard is taken only while its owner is still stale by the database's clock (invariant 5).
    """
    fence(connection, token)
    now = database.now()
    by_token: dict[PublishToken | None, list[ShardKey]] = {}
    for key, owner in seen.items():
        by_token.setdefault(owner, []).append(key)
    for owner, keys in by_token.items():
        condition: sa.ColumnElement[bool] = shards.c.owner.is_(None)
        if owner is not None:
            alive = sa.exists().where(
                pipelines.c.pipeline == owner.pipeline,
                pipelines.c.incarnation == owner.incarnation,
                pipelines.c.stale_at > now,
            )
            condition = sa.and_(
                shards.c.owner == owner.pipeline, shards.c.incarnation == owner.incarnation, sa.not_(alive)
            )
        for chunk in chunks(sorted(keys)):
            connection.execute(
                shards.update()
                .where(database.dialect.among(shards.c.shard_key, chunk), shards.c.finished_at.is_(None), condition)
                .values(owner=token.pipeline, incarnation=token.incarnation)
            )
    ours: set[ShardKey] = set()
    for chunk in chunks(seen):
        query = sa.select(shards.c.shard_key).where(database.dialect.among(shards.c.shard_key, chunk), owned_by(token))
        ours.update(ShardKey(key) for key in connection.execute(query).scalars().all())
    return ours


def release(database: Database, connection: Connection, token: PublishToken, keys: Sequence[ShardKey]) -> None:
    """Give up open shards that are in no snapshot, so that any pipeline may take them without waiting."""
    for chunk in chunks(sorted(keys)):
        connection.execute(
            shards.update()
            .where(database.dialect.among(shards.c.shard_key, chunk), owned_by(token))
            .values(owner=None, incarnation=None)
        )


def retire(connection: Connection, token: PublishToken) -> None:
    """A graceful end: nothing of this incarnation still plans. Its shards stay its own until they are stale.

    They may be in a batch that another sink has already taken: a restart has to find them.
    """
    connection.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == token.pipeline, pipelines.c.incarnation == token.incarnation)
        .values(driver="")
    )


def owned_by(token: PublishToken) -> sa.ColumnElement[bool]:
    """The open shards of the token."""
    return sa.and_(
        shards.c.owner == token.pipeline,
        shards.c.incarnation == token.incarnation,
        shards.c.finished_at.is_(None),
    )


def standing(database: Database) -> sa.Select[Any]:
    """Shards as `as_shard` reads them, each with whether its owner's heartbeats have not stopped."""
    current = sa.and_(pipelines.c.pipeline == shards.c.owner, pipelines.c.incarnation == shards.c.incarnation)
    fresh = sa.func.coalesce(pipelines.c.stale_at, 0) > database.now()
    columns = [shards.c[name] for name in (*_GIVEN, "position", "state", "owner", "incarnation")]
    return sa.select(*columns, fresh).select_from(shards.outerjoin(pipelines, current))


def as_shard(row: Sequence[Any]) -> Shard:
    key, shard_id, uri, size, etag, queue, message_id, count, group, position, state, owner, incarnation, fresh = row
    return Shard(
        key=ShardKey(key),
        content=Content(shard_id, shard_id if uri is None else uri, size, etag, queue, message_id, count, group),
        position=Position(position),
        state=ShardState(state),
        token=None if owner is None else PublishToken(owner, incarnation),
        stale=not fresh,
    )


def _row(key: ShardKey, content: Content) -> tuple[object, ...]:
    c = content
    uri = None if c.uri == c.shard_id else c.uri
    return (key, c.shard_id, uri, c.size, c.etag, c.queue, c.message_id, c.receive_count, c.group)
