"""Errors on their way to the error queue: handled means delivered (docs/decisions/0022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.error_records import FINAL
from shard_store.error_search import PAGE, StoredError, read, selected
from shard_store.model import PublishToken
from shard_store.shards import fence
from shard_store.sql.database import Database, chunks
from shard_store.sql.schema import errors, pipelines

MOST_INPUT = 65_536
"""Bytes of an input that are sent; the table keeps more."""

UNDELIVERED = sa.and_(errors.c.delivered_at.is_(None), errors.c.requeued_at.is_(None))


def awaits_delivery() -> sa.ColumnElement[bool]:
    """If it is final, the error is to be sent to its pipeline's error queue, and was not yet: pruning leaves it."""
    has_queue = sa.exists().where(pipelines.c.pipeline == errors.c.pipeline, pipelines.c.error_queue.is_not(None))
    return sa.and_(UNDELIVERED, has_queue)


def name_queue(connection: Connection, token: PublishToken, queue: str | None) -> None:
    """Say where the pipeline's errors are sent; None: they stay in the table."""
    fence(connection, token)
    connection.execute(pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(error_queue=queue))


def undelivered(database: Database, connection: Connection, token: PublishToken, source: str) -> list[StoredError]:
    """The next final errors to be sent, oldest first: our own, and those of pipelines of the source that died."""
    return read(connection, _undelivered(database, token, source))


def claim(database: Database, connection: Connection, token: PublishToken, source: str) -> list[StoredError]:
    """The same, locked: of two transactions that also mark them, only one gets each."""
    fence(connection, token)
    return read(connection, _undelivered(database, token, source).with_for_update(of=errors))


def _undelivered(database: Database, token: PublishToken, source: str) -> sa.Select[Any]:
    alive = sa.exists().where(pipelines.c.pipeline == errors.c.pipeline, pipelines.c.stale_at > database.now())
    ours = sa.or_(errors.c.pipeline == token.pipeline, sa.not_(alive))
    query = selected(MOST_INPUT).where(errors.c.source == source, UNDELIVERED, FINAL, ours)
    return query.order_by(errors.c.occurred_at, errors.c.error_key).limit(PAGE)


def mark_delivered(
    database: Database, connection: Connection, token: PublishToken, keys: Sequence[bytes], queue: str
) -> None:
    """They are in the error queue; raises PipelineTakenOver for a zombie, whose successor sends them (again)."""
    fence(connection, token)
    for chunk in chunks(sorted(keys)):
        connection.execute(
            errors.update()
            .where(database.dialect.among(errors.c.error_key, chunk))
            .values(delivered_at=database.now(), delivered_to=queue)
        )
