"""Where shards stand, and how they move on: only upwards, and only by their owner (invariant 2).

Shards that are finished and were not published have a mark, as a value of `pending` (decision 0047): errors and
attempts may be pruned before their shards are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from shard_store.batches import snapshots
from shard_store.errors import ShardsLost
from shard_store.model import (
    BEGINNING,
    Move,
    Pending,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    ShardKey,
    ShardState,
    is_end,
)
from shard_store.shards.announcing import Place
from shard_store.shards.ownership import owned_by
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.engines import went_back
from shard_store.sql.schema import pipelines, shards

Entry = TypeVar("Entry", Range, Move)
_TAKEN_OVER = (
    "another pipeline has taken over and ended what this one had, whose heartbeats had stopped for a while, and it is "
    "pruned by now: then nothing is missing"
)
_PLACE = sa.select(shards.c.shard_key, shards.c.position)
_IS_NOTED = sa.or_(shards.c.later.is_not(None), shards.c.pending.is_not(None))
_NOTED = _PLACE.add_columns(sa.case((_IS_NOTED, 1), else_=0), shards.c.size, shards.c.etag)


def positions_of(transaction: Transaction, token: PublishToken, keys: Iterable[ShardKey]) -> dict[ShardKey, Position]:
    """Return where our open shards among `keys` stand."""
    rows = transaction.select_among(_PLACE.where(owned_by(token)), shards.c.shard_key, keys)
    return {key: position for key, position in rows}  # noqa: C416 - `dict(rows)` takes twice as long


def places_of(
    transaction: Transaction, token: PublishToken | None, entries: Iterable[Range]
) -> tuple[dict[ShardKey, Position], dict[ShardKey, Place]]:
    """Return where our open shards among `entries` stand; and what plans have to know of those that are unusual.

    A usual shard has its row in the version of its entry, and nothing is announced or asked of it. `token` None: all
    shards, ended ones too.
    """
    contents = {entry.key: entry.content for entry in entries}
    ours = sa.true() if token is None else owned_by(token)
    positions: dict[ShardKey, Position] = {}
    unusual: list[ShardKey] = []
    for key, position, noted, size, etag in transaction.select_among(_NOTED.where(ours), shards.c.shard_key, contents):
        positions[key] = position
        content = contents[key]
        if noted or content.size != size or content.etag != etag:
            unusual.append(key)
    query = sa.select(shards.c.shard_key, *(shards.c[name] for name in Place._fields)).where(ours)
    return positions, {row[0]: Place(*row[1:]) for row in transaction.select_among(query, shards.c.shard_key, unusual)}


def finished(transaction: Transaction, keys: set[ShardKey]) -> set[ShardKey]:
    """Return which shards are at the end: finished, or finished so long ago that they are pruned.

    Found by their keys alone: `IS NULL` would let a planner read the index of all unfinished shards as well.
    """
    unfinished = sa.select(shards.c.shard_key).where(sa.func.coalesce(shards.c.finished_at, -1) == -1)
    open_rows = transaction.select_among(unfinished, shards.c.shard_key, keys)
    return keys - {ShardKey(row.shard_key) for row in open_rows}


def refuse_missing(transaction: Transaction, token: PublishToken, opened: Mapping[ShardKey, str]) -> None:
    """Raise LostProgress where one of these shards, which this incarnation has opened and not finished, is missing.

    Only what is finished is pruned (invariant 6): the store has lost that it was opened, and no task has read it. Or,
    if our heartbeats had stopped for a while, another pipeline has taken it over and finished it, and it is pruned by
    now. Nothing in the store tells which of the two it is, so the error says both.
    """
    rows = transaction.select_among(sa.select(shards.c.shard_key), shards.c.shard_key, opened)
    present = {ShardKey(row.shard_key) for row in rows}
    if missing := [name for key, name in opened.items() if key not in present]:
        lacking = f"it lacks {len(missing)} shard(s) that this reader has opened, such as {min(missing)[:200]!r}"
        stale = sa.select(pipelines.c.pipeline).where(
            pipelines.c.pipeline == token.pipeline, pipelines.c.stale_at <= transaction.now()
        )
        lapsed = transaction.memory.has_lapsed(token) or transaction.execute(stale).first() is not None
        raise went_back(transaction.database, token, lacking, _TAKEN_OVER if lapsed else "")


def split_by_fit(entries: Iterable[Entry], positions: Mapping[ShardKey, Position]) -> tuple[list[Entry], list[Entry]]:
    """Return the ranges that begin at their shard's position, one after another, and the others."""
    fitting: list[Entry] = []
    others: list[Entry] = []
    reached = dict(positions)
    for entry in entries:
        key = entry.key
        if reached.get(key) == entry.start:
            fitting.append(entry)
            reached[key] = entry.end
        else:
            others.append(entry)
    return fitting, others


def advance_shards(transaction: Transaction, identity: PlanIdentity, planned: Sequence[Move]) -> set[ShardKey]:
    """Move each shard from where the plan found it to where it ends, if it is still ours and there (invariant 2).

    One statement for 1,000 shards, wherever each of them ends; and one for those that end and were announced since,
    which are returned. Raises ShardsLost; then nothing may be committed.
    """
    moves, ours, announced = _joined(planned), owned_by(identity.token), set[ShardKey]()
    for ending in (True, False):
        for chunk in chunks(m for m in moves if is_end(m.end) is ending):
            lost = _move(transaction, identity, chunk, sa.and_(ours, shards.c.later.is_(None)) if ending else ours)
            if lost and ending:
                announced |= lost
                lost = _move(transaction, identity, [move for move in chunk if move.key in lost], ours)
            if lost:
                raise ShardsLost(identity.token.pipeline, _names(transaction, identity, lost))
    return announced


def lock_shards(transaction: Transaction, identity: PlanIdentity, planned: Sequence[Move]) -> None:
    """Make sure that the shards can be advanced, and stay so as long as the transaction. Raises ShardsLost."""
    if lost := _not_ours(transaction, _joined(planned), owned_by(identity.token)):
        raise ShardsLost(identity.token.pipeline, _names(transaction, identity, lost))


def _joined(planned: Sequence[Move]) -> list[Move]:
    """Join the ranges of each shard, which follow each other, to one move; in the order of keys."""
    moves: dict[ShardKey, Move] = {}
    for move in planned:
        before = moves.get(move.key)
        moves[move.key] = move if before is None else before._replace(end=move.end)
    return sorted(moves.values())


def _names(transaction: Transaction, identity: PlanIdentity, keys: set[ShardKey]) -> list[str]:
    parts = snapshots.read(transaction, identity.token.pipeline, identity.start_seq, identity.end_seq)
    return sorted({r.content.shard_id for r in snapshots.flatten(parts) if r.key in keys})


def _move(
    transaction: Transaction, identity: PlanIdentity, moves: Sequence[Move], ours: sa.ColumnElement[bool]
) -> set[ShardKey]:
    """Move up to 1,000 shards, all to their ends or none; returns those that could not be moved."""
    ending = is_end(moves[0].end)
    lost = set[ShardKey]() if transaction.trusts_rowcount else _not_ours(transaction, moves, ours)
    if lost and not (moves := [move for move in moves if move.key not in lost]):
        return lost
    done = {"state": ShardState.DONE.value, "finished_at": transaction.now(), "end_seq": identity.end_seq}
    row_set = transaction.row_set(key=shards.c.shard_key, start=shards.c.position, end=shards.c.position)
    update = (
        shards.update()
        .where(shards.c.shard_key == row_set.c["key"], shards.c.position == row_set.c["start"], ours)
        .values(position=row_set.c["end"], **(done if ending else {}))
    )
    moved = row_set.execute(transaction.connection, update, moves).rowcount
    if not transaction.trusts_rowcount or moved == len(moves):
        return lost
    # which did not come to their end by this transaction's own update
    by_us = _PLACE.where(
        shards.c.owner == identity.token.pipeline,
        shards.c.incarnation == identity.token.incarnation,
        shards.c.end_seq == identity.end_seq if ending else shards.c.finished_at.is_(None),
    )
    return _elsewhere(transaction, by_us, {(m.key, m.end) for m in moves}) or {m.key for m in moves}


def _not_ours(transaction: Transaction, moves: Sequence[Move], ours: sa.ColumnElement[bool]) -> set[ShardKey]:
    """Return which shards cannot be moved; the others are locked, so that they still can when they are."""
    query = _PLACE.where(ours).with_for_update()
    return _elsewhere(transaction, query, {(move.key, move.start) for move in moves})


def _elsewhere(
    transaction: Transaction, query: sa.Select[Any], places: set[tuple[ShardKey, Position]]
) -> set[ShardKey]:
    """Return the shards that `query` does not find at their place."""
    keys = [key for key, _ in places]
    at_place = {(key, position) for key, position in transaction.select_among(query, shards.c.shard_key, keys)}
    return {key for key, _ in places - at_place}


_LASTING = (Pending.SKIPPED.value, Pending.GIVEN_UP.value, Pending.LEFT_OUT.value)
MARKS = (Pending.BEGUN.value, *_LASTING)
"""With one of these a shard that is done was not published."""

_STATE = sa.func.coalesce(shards.c.pending, "")

PUBLISHED = sa.and_(shards.c.state == ShardState.DONE.value, _STATE.not_in(MARKS))


def mark_begun(transaction: Transaction, entries: Iterable[Range]) -> None:
    """Mark shards as begun: with at-most-once they are done with their snapshot, before anything of it is published."""
    keys = [entry.key for entry in entries if is_end(entry.end)]
    begun = shards.update().where(_STATE.not_in((*_LASTING, Pending.QUARANTINE.value)))
    transaction.change_among(begun.values(pending=Pending.BEGUN.value), shards.c.shard_key, keys)


def mark_published(transaction: Transaction, moves: Sequence[Move]) -> None:
    """Remove the mark of shards that were begun: their batch is delivered, and that is when they were done."""
    keys = [move.key for move in moves if is_end(move.end)]
    delivered = shards.update().where(shards.c.pending == Pending.BEGUN.value)
    delivered = delivered.values(pending=None, finished_at=transaction.now())
    transaction.change_among(delivered, shards.c.shard_key, keys)


def mark_unread(transaction: Transaction, why: Pending, keys: Iterable[ShardKey]) -> None:
    """Mark objects that a published plan has not brought, as a whole or in part: skipped, or left out by the query."""
    transaction.change_among(shards.update().values(pending=why.value), shards.c.shard_key, keys)


def mark_given_up(
    transaction: Transaction, pipeline: str, seqs: tuple[int, int], keys: Iterable[ShardKey] | None = None
) -> None:
    """Mark shards of the snapshots of `seqs` (after, until], which with at-most-once will not be read again.

    Without `keys` all that was begun in them. A shard that was forgotten and announced again meanwhile is another one.
    """
    c = shards.c
    ended = sa.and_(c.state == ShardState.DONE.value, c.end_seq > seqs[0], c.end_seq <= seqs[1])
    ours = shards.update().where(c.owner == pipeline).values(pending=Pending.GIVEN_UP.value)
    if keys is None:
        transaction.execute(ours.where(ended, c.pending == Pending.BEGUN.value))
        return
    in_part = sa.and_(c.finished_at.is_(None), c.position != BEGINNING)
    transaction.change_among(ours.where(sa.or_(ended, in_part)), c.shard_key, keys)
