"""Searching the shard table: shards as values, selected by what people know of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.error_table.search import begins_with
from shard_store.model import ShardKey, shard_key
from shard_store.sql.database import Database
from shard_store.sql.schema import pipelines, shards
from shard_store.sql.transaction import ROWS_PER_STATEMENT, Transaction

_DIGITS = re.compile("[0-9a-f]{4,64}")


@dataclass(frozen=True, slots=True)
class ShardCriteria:
    """Which shards to find: every criterion that is given has to hold. Without any, all shards are found.

    Args:
        ids: Whole shard ids (URIs, in any source), or at least four of the first hexadecimal digits of shard keys.
        matching: Must match the whole id of the shard.
        states: `open`, `done`, `quarantined`.
        source: The source.
        pipeline: The pipeline that owns the shard, or has finished it.
        older_than: Finished, or opened if it is not finished, longer ago than this, by the database's clock.
        since: Finished, or opened if it is not finished, at most so long ago.
    """

    ids: Sequence[str] = ()
    matching: re.Pattern[str] | None = None
    states: Sequence[str] = ()
    source: str | None = None
    pipeline: str | None = None
    older_than: timedelta | None = None
    since: timedelta | None = None

    def conditions(self, transaction: Transaction) -> list[sa.ColumnElement[bool]]:
        """As SQL over the shard table; all but `matching`, which no two databases read alike."""
        found: list[sa.ColumnElement[bool]] = []
        now, changed = transaction.now(), sa.func.coalesce(shards.c.finished_at, shards.c.opened_at)
        if self.ids:
            found.append(sa.or_(*self._named(transaction)))
        if self.states:
            found.append(shards.c.state.in_(self.states))
        if self.source is not None:
            found.append(shards.c.source == self.source)
        if self.pipeline is not None:
            found.append(shards.c.owner == self.pipeline)
        if self.older_than is not None:
            found.append(changed < now - self.older_than // timedelta(microseconds=1))
        if self.since is not None:
            found.append(changed >= now - self.since // timedelta(microseconds=1))
        return found

    def keys(self, transaction: Transaction) -> list[ShardKey]:
        """The keys that whole shard ids have, in every source that there is: also of shards that are forgotten."""
        sources = list(transaction.execute(sa.select(pipelines.c.source).distinct()).scalars())
        wanted = [name for name in sources if self.source in (None, name)]
        return [shard_key(name, i) for i in self.ids if not _DIGITS.fullmatch(i) for name in wanted]

    def matches(self, shard_id: str) -> bool:
        return self.matching is None or self.matching.fullmatch(shard_id) is not None

    def _named(self, transaction: Transaction) -> Iterator[sa.ColumnElement[bool]]:
        yield shards.c.shard_key.in_(self.keys(transaction))
        yield from (begins_with(shards.c.shard_key, digits) for digits in self.ids if _DIGITS.fullmatch(digits))


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A shard as the store has it. Times are microseconds since 1970 UTC.

    `pending`: what the next plan with it will do: `renewed` reads its newest version, `quarantine` gives it up; `seen`:
    a plan has done so. Of a shard that is done, why it is not published: `begun`, `skipped`, `given-up`.
    """

    key: ShardKey
    source: str
    shard_id: str
    uri: str
    state: str
    position: str
    pending: str | None
    size: int | None
    etag: str | None
    queue: str
    message_id: str
    receive_count: int
    group: str | None
    pipeline: str | None
    incarnation: int | None
    end_seq: int | None
    opened_at: int
    finished_at: int | None


def pages(database: Database, criteria: ShardCriteria, *, limit: int | None = None) -> Iterator[list[FoundShard]]:
    """The shards, in the order of their keys, up to 1,000 at once."""
    left, last = limit, b""
    while left is None or left > 0:
        found = database.read(lambda t, after=last: _page(t, criteria, after))  # type: ignore[misc]
        chosen = [as_found(row) for row in found if criteria.matches(row.shard_id)][:left]
        if chosen:
            yield chosen
        if len(found) < ROWS_PER_STATEMENT:
            return
        left = None if left is None else left - len(chosen)
        last = found[-1].shard_key


def as_found(row: Row[Any]) -> FoundShard:
    return FoundShard(
        ShardKey(row.shard_key),
        row.source,
        row.shard_id,
        row.shard_id if row.uri is None else row.uri,
        row.state,
        row.position,
        row.pending,
        row.size,
        row.etag,
        row.queue,
        row.message_id,
        row.receive_count,
        row.message_group,
        row.owner,
        row.incarnation,
        row.end_seq,
        row.opened_at,
        row.finished_at,
    )


def _page(transaction: Transaction, criteria: ShardCriteria, after: bytes) -> Sequence[Row[Any]]:
    query = sa.select(shards).where(*criteria.conditions(transaction), shards.c.shard_key > after)
    return transaction.execute(query.order_by(shards.c.shard_key).limit(ROWS_PER_STATEMENT)).all()
