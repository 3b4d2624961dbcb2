"""Reading the tables as people and batch queries see them: columns by name, times as microseconds since 1970 UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shard_store.database import Database
from shard_store.error_table import error_state
from shard_store.schema import AsHex, attempts, errors, pipelines, shards, splits

PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view. `kind`: text, integer, time (microseconds UTC), boolean, binary."""

    name: str
    kind: str
    expression: sa.ColumnElement[Any]


def _columns(table: sa.Table, spec: str) -> tuple[Column, ...]:
    """`spec` names columns as `name:kind`, kind text when left out."""
    parts = (part.partition(":") for part in spec.split())
    return tuple(Column(name, kind or "text", table.c[name]) for name, _, kind in parts)


_TOKEN = shards.c.owner + "/" + sa.cast(shards.c.incarnation, sa.String(20))
_FINAL = sa.or_(errors.c.delivery_hash == "", attempts.c.delivery_hash.is_not(None))

VIEWS: dict[str, tuple[Column, ...]] = {
    "splits": _columns(splits, "path rows:integer bytes:integer source pipeline delivery_hash published_at:time"),
    "shards": (
        *_columns(shards, "source shard_id state position size:integer etag queue message_id receive_count:integer"),
        Column("pipeline", "text", shards.c.owner),
        Column("publish_token", "text", _TOKEN),
        *_columns(shards, "end_seq:integer opened_at:time finished_at:time"),
        Column("last_heartbeat", "time", pipelines.c.heartbeat_at),
    ),
    "attempts": _columns(
        attempts,
        "delivery_hash lead_hash source pipeline incarnation:integer start_seq:integer end_seq:integer "
        "batch_id:integer kind shards:integer lost:integer errors:integer splits:integer rows:integer bytes:integer "
        "published_at:time",
    ),
    "errors": (
        *_columns(errors, "source pipeline scope cause detail subject position queue message_id input:binary"),
        Column("delivery_hash", "text", errors.c.delivery_hash),
        Column("final", "boolean", _FINAL),
        *_columns(errors, "occurred_at:time"),
        Column("error_id", "text", sa.type_coerce(errors.c.error_key, AsHex)),
        Column("state", "text", error_state(_FINAL)),
        *_columns(errors, "input_size:integer delivered_at:time delivered_to requeued_at:time"),
    ),
}
"""The views' columns. An error is `final` once its plan was published; before, the attempt may still be repeated.

Its `state`: `pending` (not final), `recorded`, `delivered` (to the error queue), `requeued` (`cuesqueue errors`).
"""

_FROM = {
    "splits": splits,
    "shards": shards.outerjoin(
        pipelines,
        sa.and_(pipelines.c.pipeline == shards.c.owner, pipelines.c.incarnation == shards.c.incarnation),
    ),
    "attempts": attempts,
    "errors": errors.outerjoin(attempts, attempts.c.delivery_hash == errors.c.delivery_hash),
}
_MAIN = {"splits": splits, "shards": shards, "attempts": attempts, "errors": errors}


def pages(
    database: Database, view: str, *, source: str | None = None, pipeline: str | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a view in pages of up to 10,000, ordered by the table's key; memory holds one page."""
    table = _MAIN[view]
    key = next(iter(table.primary_key.columns))
    query = sa.select(*(c.expression.label(c.name) for c in VIEWS[view]), key.label("_key")).select_from(_FROM[view])
    if source is not None:
        query = query.where(table.c.source == source)
    if pipeline is not None:
        query = query.where((table.c.owner if view == "shards" else table.c.pipeline) == pipeline)
    query = query.order_by(key).limit(PAGE)
    last: Any = None
    while True:
        page_query = query if last is None else query.where(key > last)
        page = database.read(lambda c, q=page_query: c.execute(q).all())  # type: ignore[misc]
        if not page:
            return
        yield [tuple(row[:-1]) for row in page]
        last = page[-1][-1]
        if len(page) < PAGE:
            return
