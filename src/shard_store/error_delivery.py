"""Sending errors to the error queue: handled means delivered (decision 0022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from shard_store.error_records import FINAL
from shard_store.error_search import PAGE, StoredError, read, selected
from shard_store.model import PublishToken
from shard_store.shards.ownership import fence
from shard_store.sql.schema import errors, of_pipeline, pipelines
from shard_store.sql.transaction import Transaction

MAX_INPUT = 65_536
"""Bytes of an input that are sent; the table keeps more."""

UNDELIVERED = sa.and_(errors.c.delivered_at.is_(None), errors.c.requeued_at.is_(None))


def awaits_delivery() -> sa.ColumnElement[bool]:
    """If it is final, the error is to be sent to its pipeline's error queue, and was not yet: pruning leaves it."""
    has_queue = sa.exists().where(pipelines.c.pipeline == errors.c.pipeline, pipelines.c.error_queue.is_not(None))
    return sa.and_(UNDELIVERED, has_queue)


def name_queue(transaction: Transaction, token: PublishToken, queue: str | None) -> None:
    """Say where the pipeline's errors are sent; None: they stay in the table."""
    fence(transaction, token)
    transaction.execute(of_pipeline, [{"of": token.pipeline, "error_queue": queue}])


def undelivered(
    transaction: Transaction, token: PublishToken, source: str, *, others: bool = True
) -> list[StoredError]:
    """The next final errors to be sent, oldest first: our own; with `others` also those of pipelines that died.

    Others of the source: to look for those costs something for each pipeline that ever ran, so it is done now and then.
    """
    return read(transaction, _undelivered(transaction, token, source, others))


def claim(transaction: Transaction, token: PublishToken, source: str, *, others: bool = True) -> list[StoredError]:
    """The same, locked: of two transactions that also mark them, only one gets each."""
    fence(transaction, token)
    return read(transaction, _undelivered(transaction, token, source, others).with_for_update(of=errors))


def _undelivered(transaction: Transaction, token: PublishToken, source: str, others: bool) -> sa.Select[Any]:
    """By the names of pipelines: what live ones leave undelivered, having no queue, is not looked at."""
    dead = sa.select(pipelines.c.pipeline).where(
        pipelines.c.source == source, pipelines.c.stale_at <= transaction.now(), pipelines.c.pipeline != token.pipeline
    )
    names = [token.pipeline, *(transaction.execute(dead).scalars() if others else ())]
    query = selected(MAX_INPUT).where(errors.c.pipeline.in_(names), errors.c.source == source, UNDELIVERED, FINAL)
    return query.order_by(errors.c.occurred_at, errors.c.error_key).limit(PAGE)


def mark_delivered(transaction: Transaction, token: PublishToken, keys: Sequence[bytes], queue: str) -> None:
    """They are in the error queue; raises PipelineTakenOver in a driver that was replaced: the new one sends them."""
    fence(transaction, token)
    mark = errors.update().values(delivered_at=transaction.now(), delivered_to=queue)
    transaction.change_among(mark, errors.c.error_key, keys)
