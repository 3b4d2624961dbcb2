"""What becomes of errors: they are sent to the error queue, or people repair what they stand for.

Handled means delivered. People have quarantined shards read again, and mark errors as requeued or drop them (decision
0064).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.error_table.records import FINAL, error_state
from shard_store.error_table.search import PAGE, StoredError, read, selected
from shard_store.model import BEGINNING, LISTING, STORE, Pending, Position, PublishToken, ShardKey, ShardState
from shard_store.shards.announcing import put_back
from shard_store.shards.changes import Audit, record_changes
from shard_store.shards.ownership import fence, owners
from shard_store.sql.database import Transaction
from shard_store.sql.schema import errors, of_pipeline, pipelines, shards, sources

MAX_INPUT = 65_536
"""Bytes of an input that are sent; the table keeps more."""

UNDELIVERED = sa.and_(errors.c.delivered_at.is_(None), errors.c.requeued_at.is_(None))


def awaits_delivery() -> sa.ColumnElement[bool]:
    """Return the condition that a final error is to be sent to its pipeline's queue: pruning leaves it."""
    has_queue = sa.exists().where(pipelines.c.pipeline == errors.c.pipeline, pipelines.c.error_queue.is_not(None))
    return sa.and_(UNDELIVERED, has_queue)


def name_queue(transaction: Transaction, token: PublishToken, queue: str | None) -> None:
    """Say where the pipeline's errors are sent; None: they stay in the table."""
    fence(transaction, token)
    transaction.execute(of_pipeline, [{"of": token.pipeline, "error_queue": queue}])


def undelivered(
    transaction: Transaction, token: PublishToken, source: str, *, others: bool = True
) -> list[StoredError]:
    """Return the next final errors to be sent, oldest first: our own; with `others` also those of pipelines that died.

    Others of the source: to look for those costs something for each pipeline that ever ran, so it is done now and then.
    """
    return read(transaction, _undelivered(transaction, token, source, others))


def claim(transaction: Transaction, token: PublishToken, source: str, *, others: bool = True) -> list[StoredError]:
    """Lock the same errors and return them: of two transactions that also mark them, only one gets each."""
    fence(transaction, token)
    return read(transaction, _undelivered(transaction, token, source, others).with_for_update(of=errors))


def _undelivered(transaction: Transaction, token: PublishToken, source: str, others: bool) -> sa.Select[Any]:
    """Return the query by the names of pipelines: what live ones without a queue leave undelivered is not read."""
    dead = sa.select(pipelines.c.pipeline).where(
        pipelines.c.source == source, pipelines.c.stale_at <= transaction.now(), pipelines.c.pipeline != token.pipeline
    )
    names = [token.pipeline, *(transaction.execute(dead).scalars() if others else ())]
    query = selected(MAX_INPUT).where(errors.c.pipeline.in_(names), errors.c.source == source, UNDELIVERED, FINAL)
    return query.order_by(errors.c.occurred_at, errors.c.error_key).limit(PAGE)


def mark_delivered(transaction: Transaction, token: PublishToken, keys: Sequence[bytes], queue: str) -> None:
    """Mark errors as sent; raises PipelineTakenOver in a driver that was replaced: the new one sends them."""
    fence(transaction, token)
    mark = errors.update().values(delivered_at=transaction.now(), delivered_to=queue)
    transaction.change_among(mark, errors.c.error_key, keys)


@dataclass(frozen=True, slots=True)
class Reopened:
    """A shard that is open again (or open still, or unknown), to be announced to `queue`.

    `version` is the part of its id that its URI has not: an ETag, version or generation (`allowOverwrites`). `size` and
    `etag`: what is known of that version, which it is for ever; None without one. `known`: the store has it, so that
    what came without a message comes so again.
    """

    key: ShardKey
    uri: str
    version: str
    queue: str
    group: str | None
    known: bool
    size: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Reopening:
    """What a reopening did: the shards to announce, and the errors (by key) for which nothing can be done, and why."""

    shards: dict[ShardKey, Reopened]
    refused: dict[bytes, str]


def reopen(
    transaction: Transaction, stored_errors: Sequence[StoredError], *, dry_run: bool = False, audit: Audit | None = None
) -> Reopening:
    """Put the quarantined shards of these object errors back to where each was found bad: one transaction.

    Nothing of a quarantined range was published, so that its rows come once. Size and ETag are forgotten, since the
    object may have been repaired: the next announcement has them. Safe to call again, also for what is open by now.

    They are released, for the reader that gets their announcement. What a listing has found gets none: its pipeline
    sees that it is open again.
    """
    keys = {error.shard_key for error in stored_errors if error.shard_key is not None}
    of_owners = owners(transaction, sorted(keys), lock=not dry_run)
    locked = transaction.select_among(sa.select(shards).with_for_update(), shards.c.shard_key, keys)
    rows = {ShardKey(bytes(row.shard_key)): row for row in locked}
    naming = transaction.execute(sa.select(sources.c.source, sources.c.naming))
    versioned = {row.source for row in naming if json.loads(row.naming or "{}").get("versions")}
    refused: dict[bytes, str] = {}
    starts: dict[ShardKey, Position] = {}
    announced: dict[ShardKey, Reopened] = {}
    for error in stored_errors:
        key = error.shard_key
        row = None if key is None else rows.get(key)
        problem = _problem(error, row)
        if row is None and error.source in versioned and "#" in error.subject:
            problem = problem or (
                "the store has forgotten its object, and what of its id is its name: announce it with `cuesqueue send`"
            )
        if problem or key is None:
            refused[error.key] = problem or "names no object"
            continue
        if row is not None and row.state == ShardState.QUARANTINED.value:
            starts[key] = min(starts.get(key, error.position), error.position)
        if row is None:
            announced[key] = Reopened(key, error.subject, "", error.queue, None, known=False)
        else:
            uri = row.shard_id if row.uri is None else row.uri
            version = row.shard_id[len(uri) + 1 :]
            facts = (row.size, row.etag) if version else (None, None)
            announced[key] = Reopened(key, uri, version, row.queue, row.message_group, True, *facts)
    if not dry_run:
        listed = {key for key in starts if rows[key].queue == LISTING and rows[key].owner in of_owners}
        put_back(transaction, {key: starts[key] for key in starts.keys() - listed}, owner=None, incarnation=None)
        newest = sa.select(pipelines.c.incarnation).where(pipelines.c.pipeline == shards.c.owner).scalar_subquery()
        pending = Pending.REOPENED.value
        put_back(transaction, {key: starts[key] for key in listed}, incarnation=newest, pending=pending)
        after = {"state": ShardState.OPEN.value, "publish_token": None}
        changed = [(rows[key], {**after, "position": start}) for key, start in starts.items()]
        for row, then in changed:
            if row.shard_key in listed:
                then |= {"publish_token": f"{row.owner}/{of_owners[row.owner].incarnation}", "pending": pending}
        record_changes(transaction, "requeue", audit or Audit(""), changed)
    return Reopening(announced, refused)


def mark_requeued(transaction: Transaction, keys: Collection[bytes]) -> None:
    """Mark errors whose contents are on their way again."""
    transaction.change_among(errors.update().values(requeued_at=transaction.now()), errors.c.error_key, keys)


def drop(transaction: Transaction, keys: Collection[bytes]) -> int:
    """Delete errors for good; returns how many. Pending ones stay: they decide what becomes of their shards."""
    final = error_state() != "pending"
    query = sa.select(errors.c.error_key).where(final)
    chosen = [key for (key,) in transaction.select_among(query, errors.c.error_key, keys)]
    transaction.change_among(errors.delete().where(final), errors.c.error_key, chosen)
    return len(chosen)


def _problem(error: StoredError, row: Row[Any] | None) -> str:
    """Return why reading the object again would lose or double rows, or "" when it would not."""
    if error.state == "pending":
        return "its batch is not published yet: it may still be repeated"
    if row is None and error.queue == STORE:
        return "the store has forgotten its object, and it came by a receiver: announce it there, with `cuesqueue send`"
    if row is None and error.position != BEGINNING:
        return "the store has forgotten its object, of which a part was published before: a new reading would double it"
    if row is not None and row.state == ShardState.DONE.value:
        return "its object is done by now: a new reading would double its rows"
    if row is not None and row.state == ShardState.QUARANTINED.value:
        ended_by = row.owner, row.end_seq
        if error.seqs is None or ended_by != (error.pipeline, error.seqs[1]):
            return "its object was found bad once more since; take that error instead"
    return ""
