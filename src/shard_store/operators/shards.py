"""Shards as people ask for them: found by what is known of them, and each one's whole story.

A story is what the store remembers of a shard, for operators who follow an object.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.positions import MARKS
from shard_store.batches.publishing import planned_moves
from shard_store.error_table import search
from shard_store.error_table.search import StoredError, begins_with
from shard_store.model import (
    MICROSECOND,
    QUARANTINING,
    Pending,
    PlanIdentity,
    PublishToken,
    ShardKey,
    ShardState,
    shard_key,
)
from shard_store.notebooks import NotebookTable, fields_table
from shard_store.redaction import redact_text, visible
from shard_store.shards import changes
from shard_store.shards.changes import StoredChange
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction
from shard_store.sql.schema import attempts, errors, pipelines, shard_changes, shards, sources, splits

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
        """Return the criteria as SQL over the shard table; all but `matching`, which no two databases read alike."""
        conditions: list[sa.ColumnElement[bool]] = []
        now, changed = transaction.now(), sa.func.coalesce(shards.c.finished_at, shards.c.opened_at)
        if self.ids:
            named = begins_with(shards.c.shard_key, filter(_DIGITS.fullmatch, self.ids))
            conditions.append(sa.or_(shards.c.shard_key.in_(self.keys(transaction)), named))
        if self.states:
            conditions.append(shards.c.state.in_(self.states))
        if self.source is not None:
            conditions.append(shards.c.source == self.source)
        if self.pipeline is not None:
            conditions.append(shards.c.owner == self.pipeline)
        if self.older_than is not None:
            conditions.append(changed < now - self.older_than // MICROSECOND)
        if self.since is not None:
            conditions.append(changed >= now - self.since // MICROSECOND)
        return conditions

    def keys(self, transaction: Transaction) -> list[ShardKey]:
        """Return the keys that whole shard ids have, in every source that there is, also of forgotten shards."""
        # also those that no pipeline has: what was adopted, or recorded by a receiver, before their query starts
        both = sa.union(sa.select(pipelines.c.source), sa.select(sources.c.source))
        chosen = [name for name in transaction.execute(both).scalars() if self.source in (None, name)]
        return [shard_key(name, i) for i in self.ids if not _DIGITS.fullmatch(i) for name in chosen]

    def matches(self, shard_id: str) -> bool:
        return self.matching is None or self.matching.fullmatch(shard_id) is not None


@dataclass(frozen=True, slots=True)
class FoundShard(NotebookTable):
    """A shard as the store has it. Times are microseconds since 1970 UTC.

    `pending`: what an operator asks of it: `quarantine`, the next plan gives it up; `reopened`, its reader looks at it
    again. Of a shard that is done, why it is not published: `begun`, `skipped`, `given-up`, `left-out`.
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
    """Yield the shards, in the order of their keys, up to 1,000 at once."""
    remaining, last = limit, b""

    def next_page(transaction: Transaction) -> Sequence[Row[Any]]:
        query = sa.select(shards).where(*criteria.conditions(transaction), shards.c.shard_key > last)
        return transaction.execute(query.order_by(shards.c.shard_key).limit(ROWS_PER_STATEMENT)).all()

    while remaining is None or remaining > 0:
        rows = database.read(next_page)
        chosen = [_as_found(row) for row in rows if criteria.matches(row.shard_id)][:remaining]
        if chosen:
            yield chosen
        if len(rows) < ROWS_PER_STATEMENT:
            return
        remaining = None if remaining is None else remaining - len(chosen)
        last = rows[-1].shard_key


_AS_STORED = (
    *("source", "shard_id", "state", "position", "pending", "size", "etag", "queue", "message_id", "receive_count"),
    *("incarnation", "end_seq", "opened_at", "finished_at"),
)


def _as_found(row: Row[Any]) -> FoundShard:
    return FoundShard(
        key=ShardKey(row.shard_key),
        uri=row.shard_id if row.uri is None else row.uri,
        group=row.message_group,
        pipeline=row.owner,
        **{name: getattr(row, name) for name in _AS_STORED},
    )


_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Attempted:
    """A plan with the shard that was delivered: what became visible with it. Times are microseconds since 1970 UTC.

    `files` are those of the whole micro-batch, up to 1,000; empty where another sink took the rows, and without files
    that were joined with those of other attempts.
    """

    delivery_hash: str
    kind: str
    pipeline: str
    incarnation: int
    seqs: tuple[int, int]
    batch_id: int | None
    planned_at: int | None
    published_at: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a micro-batch with the shard that is not delivered yet. `attempt`: how often it was made."""

    identity: PlanIdentity
    attempt: int


@dataclass(frozen=True, slots=True)
class ShardStory(NotebookTable):
    """All that the store knows of one shard.

    `shard` is None when it was forgotten or pruned. `planned` is the plan that holds it now, `attempts` those of
    which anything is known, the one that finished it last. `changes` were made by people and by new announcements.
    """

    key: ShardKey
    shard: FoundShard | None
    planned: Planned | None
    attempts: tuple[Attempted, ...]
    errors: tuple[StoredError, ...]
    changes: tuple[StoredChange, ...]

    @property
    def outcome(self) -> str:
        """Return where the shard is, or why it is not published, in one sentence."""
        if self.shard is None:
            return "the store does not know it" + (": it was forgotten" if self.changes else "")
        if self.shard.state == ShardState.DONE.value and self.shard.pending in MARKS:
            return self._unpublished(Pending(self.shard.pending))
        if self.shard.state == ShardState.DONE.value:
            how = f" by attempt {self.attempts[-1].delivery_hash}" if self.attempts else ", its attempt is pruned"
            return "published" + how
        if self.shard.state == ShardState.QUARANTINED.value:
            ended = [error for error in self.errors if error.scope in QUARANTINING]
            why = f"{ended[-1].cause}: {ended[-1].detail}" if ended else "its error was deleted"
            if ended and ended[-1].scope == "part":
                return f"quarantined, and what other tasks or another reading have read of it may be published: {why}"
            bad_at = min((error.position for error in self.errors if error.scope == "object"), default="")
            return f"quarantined, nothing of it was published from position {bad_at!r} on: {why}"
        request = "; an operator wants it given up" if self.shard.pending == "quarantine" else ""
        if self.planned is not None:
            seqs = f"({self.planned.identity.start_seq}, {self.planned.identity.end_seq}]"
            return f"in the plan of {seqs}, which was made {self.planned.attempt} time(s) and is not published{request}"
        whose = "by any pipeline" if self.shard.pipeline is None else f"by pipeline {self.shard.pipeline!r}"
        return f"open: it waits to be planned {whose}{request}"

    def _unpublished(self, mark: Pending) -> str:
        if mark is Pending.BEGUN:
            return "in a batch that was begun (at-most-once) and is not published"
        if mark is Pending.LEFT_OUT:
            return "left out: its query has filtered its row, at least that of a part, before the sink with load"
        if mark is Pending.GIVEN_UP:
            return "given up: its batch was begun, nothing tells whether it was published, and it is not read again"
        errors = [error for error in self.errors if error.scope == "skipped"]
        why = f"{errors[-1].cause}: {errors[-1].detail}" if errors else "its error was deleted"
        return f"skipped, and not published: {why}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(visible(redact_text(self.outcome)))}</p>{fields_table(self)}"


def story(transaction: Transaction, key: ShardKey) -> ShardStory:
    """Read what the tables hold of the shard: few rows by index, but for the contents of a running plan."""
    row = transaction.execute(sa.select(shards).where(shards.c.shard_key == key)).one_or_none()
    of_shard = search.selected(max_input=0).where(errors.c.shard_key == key)
    of_shard = of_shard.order_by(errors.c.occurred_at, errors.c.error_key).limit(_LISTED)
    shard_errors = search.read(transaction, of_shard)
    return ShardStory(
        key=key,
        shard=None if row is None else _as_found(row),
        planned=None if row is None else _planned(transaction, row),
        attempts=_attempts(transaction, row, [error.delivery_hash for error in shard_errors]),
        errors=tuple(shard_errors),
        changes=tuple(changes.of(transaction, [key])),
    )


def remembered(transaction: Transaction, keys: Collection[ShardKey]) -> list[ShardKey]:
    """Return the keys of which there is a change or an error, in few statements: each source has a key for any id."""
    remembered_keys = set[ShardKey]()
    for column in (shard_changes.c.shard_key, errors.c.shard_key):
        rows = transaction.select_among(sa.select(column).distinct(), column, keys)
        remembered_keys.update(ShardKey(row.shard_key) for row in rows)
    return sorted(remembered_keys)


def _planned(transaction: Transaction, row: Row[Any]) -> Planned | None:
    """Return the plan on record of its owner, if it is not delivered and holds the shard."""
    if row.owner is None or row.finished_at is not None:
        return None
    delivered = sa.exists().where(attempts.c.delivery_hash == pipelines.c.plan_hash)
    owner = transaction.execute(
        sa.select(pipelines).where(pipelines.c.pipeline == row.owner, pipelines.c.plan_hash.is_not(None), ~delivered)
    ).one_or_none()
    if owner is None or all(move.key != row.shard_key for move in planned_moves(transaction, owner).moves):
        return None
    token = PublishToken(owner.pipeline, owner.plan_incarnation)
    identity = PlanIdentity(owner.source, token, owner.plan_start, owner.plan_end, owner.plan_hash)
    return Planned(identity, owner.plan_attempt)


def _attempts(transaction: Transaction, row: Row[Any] | None, hashes: Sequence[str]) -> tuple[Attempted, ...]:
    """Return the attempts that errors of the shard belong to, and the one that finished it."""
    related: sa.ColumnElement[bool] = attempts.c.delivery_hash.in_(sorted(set(hashes)))
    if row is not None and row.end_seq is not None:
        ended = attempts.c.pipeline == row.owner, attempts.c.end_seq == row.end_seq
        related = sa.or_(related, sa.and_(*ended, attempts.c.start_seq < attempts.c.end_seq))
    related_attempts = []
    query = sa.select(attempts).where(related).order_by(attempts.c.published_at, attempts.c.end_seq)
    for attempt in transaction.execute(query).all():
        files = sa.select(splits.c.path).where(
            splits.c.delivery_hash == attempt.lead_hash, splits.c.replaced_by.is_(None)
        )
        related_attempts.append(
            Attempted(
                delivery_hash=attempt.delivery_hash,
                kind=attempt.kind,
                pipeline=attempt.pipeline,
                incarnation=attempt.incarnation,
                seqs=(attempt.start_seq, attempt.end_seq),
                batch_id=attempt.batch_id,
                planned_at=attempt.snapshot_at,
                published_at=attempt.published_at,
                files=tuple(transaction.execute(files.order_by(splits.c.id).limit(_LISTED)).scalars()),
            )
        )
    return tuple(related_attempts)
