"""Making a plan's results visible: splits, positions and attempt in one transaction, once (invariants 2 and 4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store import ranges
from shard_store.database import Database, chunks, matched
from shard_store.errors import PipelineTakenOver, ShardsLost, ShardStoreError
from shard_store.model import AttemptKind, PlanIdentity, Position, Range, ShardState, Split, is_end
from shard_store.schema import attempts, errors, pipelines, shards, splits


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did. `already` is true when an earlier attempt had delivered the plan and nothing was written."""

    delivery_hash: str
    already: bool
    kind: AttemptKind | None = None
    shards: int = 0
    quarantined: int = 0


def publish(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    files: Sequence[Split],
    *,
    row_schema: str | None = None,
    batch_id: int | None = None,
) -> Published:
    """Splits, positions and attempt in the caller's transaction; once for each plan (invariants 2 and 4).

    Raises PipelineTakenOver when a newer incarnation runs, ShardsLost (nothing written) when shards passed to others.
    """
    row = connection.execute(
        sa.select(pipelines).where(pipelines.c.pipeline == identity.token.pipeline).with_for_update()
    ).one_or_none()
    known = connection.execute(
        sa.select(attempts.c.batch_id).where(attempts.c.delivery_hash == identity.delivery_hash)
    ).one_or_none()
    if known is not None and known.batch_id == batch_id:
        return Published(identity.delivery_hash, already=True)
    if row is None or row.incarnation != identity.token.incarnation:
        current = None if row is None else row.incarnation
        raise PipelineTakenOver(identity.token.pipeline, identity.token.incarnation, current)
    if known is not None or identity.start_seq == identity.end_seq:
        return _publish_without_shards(database, connection, identity, files, row_schema, batch_id)
    if (row.plan_hash, row.plan_incarnation) != (identity.delivery_hash, identity.token.incarnation):
        raise ShardStoreError(
            f"pipeline {identity.token.pipeline!r}: the batch to publish is not the one that was planned last; "
            "use one 'pipeline' name for one query only"
        )
    left_out = set(json.loads(row.plan_left_out))
    after = max(identity.start_seq, row.confirmed_seq)  # as the plan was made
    planned = ranges.flatten(ranges.read(connection, identity.source, identity.token.pipeline, after, identity.end_seq))
    entries = [r for r in planned if ranges.mark(r) not in left_out]
    return deliver(database, connection, identity, entries, row.plan_lost, files, row_schema, batch_id)


def deliver(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    entries: Sequence[Range],
    lost: int,
    files: Sequence[Split] | None,
    row_schema: str | None,
    batch_id: int | None,
) -> Published:
    """Advance the shards, quarantine those with an object error, record splits and attempt."""
    _advance(database, connection, identity, entries)
    count, bad = _errors_of(connection, identity.delivery_hash)
    quarantined = [key for key in {r.key for r in entries} if key in bad]
    for chunk in chunks(sorted(quarantined)):
        connection.execute(
            shards.update()
            .where(shards.c.shard_key.in_(chunk))
            .values(state=ShardState.QUARANTINED.value, finished_at=database.now(), end_seq=identity.end_seq)
        )
    rows = None if files is None else sum(f.rows for f in files)
    kind = AttemptKind.OUTPUT
    if rows == 0 or (rows is None and len(quarantined) == len(entries)):
        kind = AttemptKind.ERROR if count else AttemptKind.NIL
    _record(
        database,
        connection,
        identity,
        identity.delivery_hash,
        files,
        row_schema,
        batch_id,
        kind,
        len(entries),
        lost,
        count,
    )
    return Published(identity.delivery_hash, False, kind, len(entries), len(quarantined))


def _publish_without_shards(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    files: Sequence[Split],
    row_schema: str | None,
    batch_id: int | None,
) -> Published:
    """A batch of Spark's that has no new input (a stateful query flushing its state) may still bring rows.

    Its plan is the one before, already delivered under another batch id, or after a restart the empty one with which
    a pipeline starts: so its own hash is made of what both have in common, the offset at which it ran, and its id.
    """
    key = f"{identity.source}\0{identity.token.pipeline}\0state {identity.end_seq} {batch_id}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    known = connection.execute(sa.select(sa.func.count()).where(attempts.c.delivery_hash == digest)).scalar_one()
    if known:
        return Published(digest, already=True)
    own = replace(identity, start_seq=identity.end_seq)
    kind = AttemptKind.OUTPUT if any(f.rows for f in files) else AttemptKind.NIL
    _record(database, connection, own, digest, files, row_schema, batch_id, kind, 0, 0, 0)
    return Published(digest, False, kind)


def _advance(database: Database, connection: Connection, identity: PlanIdentity, entries: Sequence[Range]) -> None:
    """Move each shard from its range's start to its end, where it is still ours and still there (invariant 2)."""
    groups: dict[tuple[Position, Position], list[Range]] = {}
    for entry in entries:
        groups.setdefault((entry.start, entry.end), []).append(entry)
    for (start, end), members in sorted(groups.items()):  # the ranges of one shard in their order
        values: dict[str, object] = {"position": end}
        if is_end(end):
            values |= {"state": ShardState.DONE.value, "finished_at": database.now(), "end_seq": identity.end_seq}
        for chunk in chunks(sorted(members, key=lambda r: r.key)):
            keys = [r.key for r in chunk]
            ours = sa.and_(
                shards.c.shard_key.in_(keys),
                shards.c.owner == identity.token.pipeline,
                shards.c.incarnation == identity.token.incarnation,
            )
            update = shards.update().where(ours, shards.c.position == start, shards.c.finished_at.is_(None))
            moved = sa.select(shards.c.shard_key).where(ours, shards.c.position == end)
            if matched(database, connection, update.values(**values), moved) != len(keys):
                there = {bytes(key) for key in connection.execute(moved).scalars()}
                raise ShardsLost(identity.token.pipeline, [r.content.shard_id for r in chunk if r.key not in there])


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
    return sum(by_scope.values()), {bytes(key) for key in bad.scalars()}


def _record(
    database: Database,
    connection: Connection,
    identity: PlanIdentity,
    digest: str,
    files: Sequence[Split] | None,
    row_schema: str | None,
    batch_id: int | None,
    kind: AttemptKind,
    shard_count: int,
    lost: int,
    error_count: int,
) -> None:
    now = database.now()
    common = {"delivery_hash": digest, "source": identity.source, "pipeline": identity.token.pipeline}
    if files:
        rows = [{"path": f.path, "rows": f.rows, "bytes": f.size} for f in files]
        for chunk in chunks(rows):
            connection.execute(splits.insert().values(published_at=now, **common), chunk)
    connection.execute(
        attempts.insert().values(
            **common,
            incarnation=identity.token.incarnation,
            start_seq=identity.start_seq,
            end_seq=identity.end_seq,
            batch_id=batch_id,
            kind=kind.value,
            shards=shard_count,
            lost=lost,
            errors=error_count,
            splits=len(files or ()),
            rows=None if files is None else sum(f.rows for f in files),
            bytes=None if files is None else sum(f.size for f in files),
            published_at=now,
        )
    )
    if row_schema is not None:
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == identity.token.pipeline).values(row_schema=row_schema)
        )
