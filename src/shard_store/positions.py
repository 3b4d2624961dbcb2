"""Where shards stand, and how they move on: only upwards, and only by their owner (invariant 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store import snapshots
from shard_store.errors import ShardsLost
from shard_store.model import Move, PlanIdentity, Position, PublishToken, Range, ShardKey, ShardState, is_end
from shard_store.shards import owned_by
from shard_store.sql.database import Database, chunks
from shard_store.sql.schema import shards

Entry = TypeVar("Entry", Range, Move)


def open_positions(
    database: Database, connection: Connection, token: PublishToken, keys: set[ShardKey]
) -> dict[ShardKey, Position]:
    """Where our open shards among `keys` stand."""
    found: dict[ShardKey, Position] = {}
    for chunk in chunks(sorted(keys)):
        rows = connection.execute(
            sa.select(shards.c.shard_key, shards.c.position).where(
                database.dialect.among(shards.c.shard_key, chunk), owned_by(token)
            )
        )
        found.update((ShardKey(key), Position(position)) for key, position in rows.all())
    return found


def finished(database: Database, connection: Connection, keys: set[ShardKey]) -> set[ShardKey]:
    """Which are at the end: finished, or finished so long ago that they are pruned."""
    still_open: set[ShardKey] = set()
    for chunk in chunks(sorted(keys)):
        rows = connection.execute(
            sa.select(shards.c.shard_key).where(
                database.dialect.among(shards.c.shard_key, chunk), shards.c.finished_at.is_(None)
            )
        )
        still_open.update(ShardKey(key) for key in rows.scalars().all())
    return keys - still_open


def split_by_fit(entries: Iterable[Entry], positions: dict[ShardKey, Position]) -> tuple[list[Entry], list[Entry]]:
    """The ranges that begin where their shard stands, one after another, and the others."""
    fitting: list[Entry] = []
    others: list[Entry] = []
    reached = dict(positions)
    for entry in entries:
        if reached.get(entry.key) == entry.start:
            fitting.append(entry)
            reached[entry.key] = entry.end
        else:
            others.append(entry)
    return fitting, others


def advance_shards(database: Database, connection: Connection, identity: PlanIdentity, planned: Sequence[Move]) -> None:
    """Move each shard from where the plan found it to where it ends, if it is still ours and there (invariant 2).

    One statement for 1,000 shards, wherever each of them ends.
    """
    moves = _joined(planned)
    for ending in (True, False):
        for chunk in chunks(m for m in moves if is_end(m.end) is ending):
            lost = _move(database, connection, identity, chunk, ending)
            if lost:
                raise ShardsLost(identity.token.pipeline, _names(connection, identity, lost))


def lock_shards(database: Database, connection: Connection, identity: PlanIdentity, planned: Sequence[Move]) -> None:
    """Make sure that the shards can be advanced, and stay so as long as the transaction. Raises ShardsLost."""
    for chunk in chunks(_joined(planned)):
        if lost := _not_there(database, connection, identity.token, chunk):
            raise ShardsLost(identity.token.pipeline, _names(connection, identity, lost))


def _joined(planned: Sequence[Move]) -> list[Move]:
    """One move a shard, in the order of keys: several ranges of one shard follow each other."""
    moves: dict[ShardKey, Move] = {}
    for move in planned:
        before = moves.get(move.key)
        moves[move.key] = move if before is None else before._replace(end=move.end)
    return sorted(moves.values())


def _names(connection: Connection, identity: PlanIdentity, keys: set[ShardKey]) -> list[str]:
    parts = snapshots.read(connection, identity.token.pipeline, identity.start_seq, identity.end_seq)
    return sorted({r.content.shard_id for r in snapshots.flatten(parts) if r.key in keys})


def _move(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    rows: Sequence[Move],
    ending: bool,
) -> set[ShardKey]:
    """Move the shards (key, from, to); returns those that could not be, and then the transaction must not commit."""
    if not database.trusts_rowcount:
        lost = _not_there(database, connection, identity.token, rows)
        if lost:
            return lost
    values: dict[str, object] = {}
    if ending:
        values = {"state": ShardState.DONE.value, "finished_at": database.now(), "end_seq": identity.end_seq}
    given = database.dialect.row_set(
        {"key": shards.c.shard_key.type, "start": shards.c.position.type, "end": shards.c.position.type}
    )
    update = (
        shards.update()
        .where(shards.c.shard_key == given.c["key"], shards.c.position == given.c["start"], owned_by(identity.token))
        .values(position=given.c["end"], **values)
    )
    moved = given.execute(connection, update, rows).rowcount
    if database.trusts_rowcount and moved != len(rows):
        return _not_moved(database, connection, identity, rows, ending) or {key for key, _, _ in rows}
    return set()


def _not_moved(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    rows: Sequence[Move],
    ending: bool,
) -> set[ShardKey]:
    """Which of the rows did not come to their end by this transaction's own update."""
    token = identity.token
    query = sa.select(shards.c.shard_key, shards.c.position).where(
        database.dialect.among(shards.c.shard_key, [key for key, _, _ in rows]),
        shards.c.owner == token.pipeline,
        shards.c.incarnation == token.incarnation,
        shards.c.end_seq == identity.end_seq if ending else shards.c.finished_at.is_(None),
    )
    there = {(key, position) for key, position in connection.execute(query)}
    return {key for key, _, end in rows if (key, end) not in there}


def _not_there(database: Database, connection: Connection, token: PublishToken, rows: Sequence[Move]) -> set[ShardKey]:
    """Look instead of counting, with the rows locked so that what was seen stays true."""
    query = sa.select(shards.c.shard_key, shards.c.position).where(
        database.dialect.among(shards.c.shard_key, [key for key, _, _ in rows]), owned_by(token)
    )
    there = {(key, position) for key, position in connection.execute(query.with_for_update())}
    return {key for key, start, _ in rows if (key, start) not in there}
