"""Making a plan's results visible: splits, positions and attempt in one transaction, once (invariants 2 and 4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from shard_store import ranges
from shard_store.database import Database, chunks
from shard_store.errors import ShardsLost, ShardStoreError
from shard_store.model import (
    AttemptKind,
    Move,
    PlanIdentity,
    PublishToken,
    ShardKey,
    ShardState,
    Split,
    is_end,
)
from shard_store.ownership import fence, owned_by
from shard_store.schema import attempts, errors, pipelines, shards, splits
from shard_store.semantics import Semantics


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did. `already` is true when an earlier attempt had delivered the plan and nothing was written."""

    delivery_hash: str
    already: bool
    kind: AttemptKind | None = None
    shards: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A plan that was carried out: its moves, what was left out of it as lost, and what the sink made of it.

    `files` is None where another sink took the rows, or where they are recorded with another pipeline's attempt: then
    `lead` is its hash. `digest` is the attempt's hash where it is not the plan's own.
    `elsewhere`: rows and bytes that become visible with the transaction, in another place than splits.
    """

    identity: PlanIdentity
    semantics: Semantics
    moves: Sequence[Move]
    lost: int = 0
    files: Sequence[Split] | None = None
    row_schema: str | None = None
    batch_id: int | None = None
    digest: str = ""
    lead: str = ""
    elsewhere: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int | None:
        return None if self.files is None else self.elsewhere[0] + sum(file.rows for file in self.files)

    @property
    def size(self) -> int | None:
        return None if self.files is None else self.elsewhere[1] + sum(file.size for file in self.files)


def publish(
    database: Database,
    connection: Connection,
    identities: Sequence[PlanIdentity],
    files: Sequence[Split],
    *,
    row_schema: str | None = None,
    batch_id: int | None = None,
    elsewhere: tuple[int, int] = (0, 0),
) -> Published:
    """Splits, positions and attempts in the caller's transaction; once for each plan (invariants 2 and 4).

    `identities` are the plans of one micro-batch, one for each pipeline of its query. The splits belong to an attempt
    of the first pipeline, also when it is idle in this batch; each other one has an attempt when it brought input.
    Raises PipelineTakenOver when a newer incarnation runs, ShardsLost (nothing written) when shards passed to others.
    """
    # first of all: a zombie is told so even when there is nothing to do; and in one order, so that no two wait for
    # each other
    in_order = sorted(identities, key=lambda identity: identity.token.pipeline)
    rows = {identity: fence(connection, identity.token) for identity in in_order}
    known = _batch_ids(connection, identities)
    fresh = [i for i in identities if i not in known and i.end_seq > max(i.start_seq, rows[i].confirmed_seq)]
    first = identities[0]
    if not fresh and any(batch_id in (None, before) for before in known.values()):
        return Published(first.delivery_hash, already=True)
    deliveries = {i: _delivery(connection, i, rows[i], batch_id) for i in fresh}
    idle = Delivery(first, Semantics(rows[first].semantics), (), batch_id=batch_id)
    lead = replace(deliveries.get(first, idle), files=files, row_schema=row_schema, elsewhere=elsewhere)
    if first in deliveries:
        made = [deliver(database, connection, lead)]
    else:
        made = [_publish_without_shards(database, connection, lead, fresh)]
    for identity in fresh:
        if identity != first:
            other = replace(deliveries[identity], lead=made[0].delivery_hash)
            made.append(deliver(database, connection, other))
    return replace(made[0], shards=sum(m.shards for m in made), quarantined=sum(m.quarantined for m in made))


def _batch_ids(connection: Connection, identities: Sequence[PlanIdentity]) -> dict[PlanIdentity, int | None]:
    """Of the plans that are delivered: the micro-batch that each was delivered in."""
    found = connection.execute(
        sa.select(attempts.c.delivery_hash, attempts.c.batch_id).where(
            attempts.c.delivery_hash.in_([identity.delivery_hash for identity in identities])
        )
    )
    by_hash: dict[str, int | None] = {row.delivery_hash: row.batch_id for row in found}
    return {i: by_hash[i.delivery_hash] for i in identities if i.delivery_hash in by_hash}


def _delivery(connection: Connection, identity: PlanIdentity, row: Row[Any], batch_id: int | None) -> Delivery:
    """What is to be delivered of a plan that is not; it must be the one on record."""
    if (row.plan_hash, row.plan_incarnation) != (identity.delivery_hash, identity.token.incarnation):
        raise ShardStoreError(
            f"pipeline {identity.token.pipeline!r}: the batch to publish is not the one that was planned last; "
            "use one 'pipeline' name for one query only"
        )
    after = max(identity.start_seq, row.confirmed_seq)  # as the plan was made
    moves = planned_moves(connection, row, after, identity.end_seq)
    return Delivery(identity, Semantics(row.semantics), moves, row.plan_lost or 0, batch_id=batch_id)


def planned_moves(connection: Connection, row: Row[Any], after: int, end_seq: int) -> list[Move]:
    """What the plan on record in the pipeline's row moves: its snapshots without what it left out."""
    moves = ranges.read_moves(connection, row.pipeline, after, end_seq)
    left_out = set(json.loads(row.plan_left_out))
    return [m for m in moves if ranges.mark(m) not in left_out] if left_out else moves


def deliver(database: Database, connection: Connection, delivery: Delivery) -> Published:
    """Advance the shards, quarantine those with an object error, record splits and attempt."""
    identity, semantics = delivery.identity, delivery.semantics
    advanced = {move.key for move in delivery.moves}
    if semantics.final_at_delivery:
        advance_shards(database, connection, identity, delivery.moves)
    count, bad = _errors_of(connection, identity.delivery_hash)
    quarantined = sorted(advanced & bad)
    for chunk in chunks(quarantined if semantics.keeps_shards else ()):
        connection.execute(
            shards.update()
            .where(database.dialect.among(shards.c.shard_key, chunk))
            .values(state=ShardState.QUARANTINED.value, finished_at=database.now(), end_seq=identity.end_seq)
        )
    kind = AttemptKind.OUTPUT
    rows = delivery.rows
    if rows == 0 or (rows is None and len(quarantined) == len(advanced)):
        kind = AttemptKind.ERROR if count else AttemptKind.NIL
    _record(database, connection, delivery, kind, len(advanced), count)
    return Published(identity.delivery_hash, False, kind, len(advanced), len(quarantined))


def _publish_without_shards(
    database: Database, connection: Connection, delivery: Delivery, fresh: Sequence[PlanIdentity]
) -> Published:
    """A batch of Spark's that has no new input (a stateful query flushing its state) may still bring rows.

    Its plan is the one before, already delivered under another batch id, or after a restart the empty one with which
    a pipeline starts: so its own hash is made of what both have in common, the offset at which it ran, and its id.
    Where `fresh` plans of other pipelines bring input, it is made of theirs too.
    """
    identity = delivery.identity
    beside = "".join(f" {plan.delivery_hash}" for plan in fresh)
    key = f"{identity.source}\0{identity.token.pipeline}\0state {identity.end_seq} {delivery.batch_id}{beside}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    known = connection.execute(sa.select(sa.func.count()).where(attempts.c.delivery_hash == digest)).scalar_one()
    if known:
        return Published(digest, already=True)
    kind = AttemptKind.OUTPUT if delivery.rows else AttemptKind.NIL
    own = replace(delivery, identity=replace(identity, start_seq=identity.end_seq), digest=digest)
    _record(database, connection, own, kind, 0, 0)
    return Published(digest, False, kind)


def advance_shards(database: Database, connection: Connection, identity: PlanIdentity, planned: Sequence[Move]) -> None:
    """Move each shard from where the plan found it to where it ends, if it is still ours and there (invariant 2).

    One statement for 1,000 shards, wherever each of them ends.
    """
    moves: dict[ShardKey, Move] = {}
    for move in planned:  # several ranges of one shard follow each other, and are one move
        before = moves.get(move.key)
        moves[move.key] = move if before is None else before._replace(end=move.end)
    for ending in (True, False):
        for chunk in chunks(sorted(m for m in moves.values() if is_end(m.end) is ending)):
            lost = _move(database, connection, identity, chunk, ending)
            if lost:
                raise ShardsLost(identity.token.pipeline, _names(connection, identity, lost))


def _names(connection: Connection, identity: PlanIdentity, keys: set[ShardKey]) -> list[str]:
    parts = ranges.read(connection, identity.token.pipeline, identity.start_seq, identity.end_seq)
    return sorted({r.content.shard_id for r in ranges.flatten(parts) if r.key in keys})


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


def _errors_of(connection: Connection, digest: str) -> tuple[int, set[bytes]]:
    """How many errors the plan left, and the keys of the objects that are bad as a whole."""
    counted = connection.execute(
        sa.select(errors.c.scope, sa.func.count()).where(errors.c.delivery_hash == digest).group_by(errors.c.scope)
    )
    by_scope: dict[str, int] = {row[0]: row[1] for row in counted}
    if "object" not in by_scope:
        return sum(by_scope.values()), set()
    bad = connection.execute(
        sa.select(errors.c.shard_key).where(errors.c.delivery_hash == digest, errors.c.scope == "object")
    )
    return sum(by_scope.values()), set(bad.scalars())


def _record(
    database: Database, connection: Connection, delivery: Delivery, kind: AttemptKind, shard_count: int, errors: int
) -> None:
    now = database.now()
    identity, files = delivery.identity, delivery.files
    pipeline = identity.token.pipeline
    common = {
        "delivery_hash": delivery.digest or identity.delivery_hash,
        "source": identity.source,
        "pipeline": pipeline,
        "published_at": now,
    }
    for chunk in chunks(files or ()):
        given = database.dialect.row_set({name: splits.c[name].type for name in ("path", "rows", "bytes")})
        given.execute(connection, given.insert(splits.insert(), common), [(f.path, f.rows, f.size) for f in chunk])
    connection.execute(
        attempts.insert().values(
            **common,
            lead_hash=delivery.lead or common["delivery_hash"],
            incarnation=identity.token.incarnation,
            start_seq=identity.start_seq,
            end_seq=identity.end_seq,
            batch_id=delivery.batch_id,
            kind=kind.value,
            shards=shard_count,
            lost=delivery.lost,
            errors=errors,
            splits=len(files or ()),
            rows=delivery.rows,
            bytes=delivery.size,
        )
    )
    if delivery.row_schema is not None:
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == pipeline).values(row_schema=delivery.row_schema)
        )
