"""Who may publish a shard: starting a pipeline, opening and acquiring shards, heartbeats (design.md section 4).

Liveness belongs to the publish token: one heartbeat row for each running pipeline says until when its shards are not
stale, so a heartbeat is one row however many shards are held. A shard that its owner forgets is released explicitly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from shard_store import ranges
from shard_store.database import Database, chunks
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.model import Content, Position, PublishToken, Shard, ShardKey, ShardState, Snapshot, shard_key
from shard_store.schema import attempts, pipelines, shards


@dataclass(frozen=True, slots=True)
class Started:
    """What a pipeline finds when it starts: where it stood, and what the incarnation before left unfinished.

    `unfinished` are its own open shards, those inside `unconfirmed` snapshots included; `previous_alive` tells that
    the incarnation before still had a fresh heartbeat in the same driver.
    """

    token: PublishToken
    confirmed_seq: int
    last_seq: int
    unconfirmed: tuple[Snapshot, ...]
    unfinished: tuple[Shard, ...]
    previous_alive: bool


def fence(connection: Connection, token: PublishToken) -> Row[tuple[object, ...]]:
    """Lock the pipeline's row and return it; raises PipelineTakenOver when another incarnation is current."""
    row = connection.execute(
        sa.select(pipelines).where(pipelines.c.pipeline == token.pipeline).with_for_update()
    ).one_or_none()
    if row is None or row.incarnation != token.incarnation:
        raise PipelineTakenOver(token.pipeline, token.incarnation, None if row is None else row.incarnation)
    return row


def start(
    database: Database, connection: Connection, source: str, pipeline: str, driver: str, stale_after: float
) -> Started:
    """Raise the incarnation, take over what the one before had open, settle what is published already."""
    now = database.now()
    connection.execute(
        database.dialect.insert_if_absent(pipelines).values(
            pipeline=pipeline,
            source=source,
            incarnation=0,
            driver="",
            last_seq=0,
            confirmed_seq=0,
            heartbeat_at=0,
            stale_at=0,
            created_at=now,
        )
    )
    alive = (pipelines.c.stale_at > now).label("alive")
    row = connection.execute(
        sa.select(pipelines, alive).where(pipelines.c.pipeline == pipeline).with_for_update()
    ).one()
    if row.source != source:
        raise StoreConfigurationError(
            f"option 'pipeline': {pipeline!r} already reads source {row.source!r} in this store, not {source!r}; "
            "choose another 'pipeline', or name the same 'source'"
        )
    token = PublishToken(pipeline, row.incarnation + 1)
    published = connection.execute(
        sa.select(sa.func.max(attempts.c.end_seq)).where(
            attempts.c.pipeline == pipeline, attempts.c.end_seq > row.confirmed_seq
        )
    ).scalar()
    confirmed = row.confirmed_seq if published is None else published
    connection.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == pipeline)
        .values(
            incarnation=token.incarnation,
            driver=driver,
            confirmed_seq=confirmed,
            heartbeat_at=now,
            stale_at=now + int(stale_after * 1_000_000),
        )
    )
    connection.execute(
        shards.update()
        .where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
        .values(incarnation=token.incarnation)
    )
    unfinished = connection.execute(
        _query(now)
        .where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
        .order_by(shards.c.opened_at, shards.c.shard_key)
    )
    return Started(
        token=token,
        confirmed_seq=confirmed,
        last_seq=row.last_seq,
        unconfirmed=tuple(ranges.read(connection, source, pipeline, confirmed, row.last_seq)),
        unfinished=tuple(_shard(r) for r in unfinished),
        previous_alive=bool(row.alive) and driver != "" and row.driver == driver,
    )


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
    now = database.now()
    insert = database.dialect.insert_if_absent(shards).values(
        source=source,
        position="",
        state=ShardState.OPEN.value,
        owner=token.pipeline,
        incarnation=token.incarnation,
        opened_at=now,
    )
    # in the order of keys, so that two pipelines with the same announcements do not deadlock
    for chunk in chunks(sorted(wanted.items(), key=lambda item: item[0])):
        connection.execute(insert, [_row(key, content) for key, content in chunk])
    return look(database, connection, list(wanted))


def look(database: Database, connection: Connection, keys: Sequence[ShardKey]) -> dict[ShardKey, Shard]:
    """How the shards stand now; pruned ones are missing."""
    found: dict[ShardKey, Shard] = {}
    for chunk in chunks(keys):
        for row in connection.execute(_query(database.now()).where(shards.c.shard_key.in_(chunk))):
            shard = _shard(row)
            found[shard.key] = shard
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
                .where(shards.c.shard_key.in_(chunk), shards.c.finished_at.is_(None), condition)
                .values(owner=token.pipeline, incarnation=token.incarnation)
            )
    return {key for key, shard in look(database, connection, list(seen)).items() if shard.token == token}


def release(connection: Connection, token: PublishToken, keys: Sequence[ShardKey]) -> None:
    """Give up open shards that are in no snapshot, so that any pipeline may take them without waiting."""
    for chunk in chunks(sorted(keys)):
        connection.execute(
            shards.update()
            .where(
                shards.c.shard_key.in_(chunk),
                shards.c.owner == token.pipeline,
                shards.c.incarnation == token.incarnation,
                shards.c.finished_at.is_(None),
            )
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


def _query(now: sa.ColumnElement[int]) -> sa.Select[tuple[object, ...]]:
    """Shards, each with whether its owner is stale."""
    current = sa.and_(pipelines.c.pipeline == shards.c.owner, pipelines.c.incarnation == shards.c.incarnation)
    fresh = sa.func.coalesce(pipelines.c.stale_at, 0) > now
    return sa.select(shards, fresh.label("fresh")).select_from(shards.outerjoin(pipelines, current))


def _shard(row: Row[tuple[object, ...]]) -> Shard:
    uri = row.shard_id if row.uri is None else row.uri
    return Shard(
        key=ShardKey(bytes(row.shard_key)),
        content=Content(row.shard_id, uri, row.size, row.etag, row.queue, row.message_id, row.receive_count),
        position=Position(row.position),
        state=ShardState(row.state),
        token=None if row.owner is None else PublishToken(row.owner, row.incarnation),
        stale=not row.fresh,
    )


def _row(key: ShardKey, content: Content) -> dict[str, object]:
    return {
        "shard_key": key,
        "shard_id": content.shard_id,
        "uri": None if content.uri == content.shard_id else content.uri,
        "size": content.size,
        "etag": content.etag,
        "queue": content.queue,
        "message_id": content.message_id,
        "receive_count": content.receive_count,
    }
