"""What a micro-batch is made of: snapshot, plan, confirm (design.md sections 2, 3 and 5); `publishing.py` delivers it.

Every function runs inside one transaction, locks the pipeline's row first, and may be run again when nobody knows
whether the transaction committed: what is there already is found by seq or by delivery hash, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from shard_store import ranges
from shard_store.database import Database, chunks
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError, StoreConfigurationError
from shard_store.model import (
    Plan,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    ShardKey,
    Snapshot,
    delivery_hash,
)
from shard_store.ownership import fence
from shard_store.publishing import deliver
from shard_store.schema import attempts, pipelines, shards


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a confirm settled: of the keys asked for, those that are finished in the store now."""

    finished: frozenset[ShardKey]
    lost: tuple[Range, ...] = ()


def write_snapshot(
    database: Database, connection: Connection, token: PublishToken, seq: int, entries: Sequence[Range]
) -> None:
    """Make offset `seq` durable before Spark sees it (invariant 3). `seq` is one more than the last."""
    row = fence(connection, token)
    if row.last_seq == seq:
        return  # an attempt of this very call, whose commit was not heard of
    if row.last_seq != seq - 1:
        raise ShardStoreError(f"pipeline {token.pipeline!r}: snapshot {seq} does not follow {row.last_seq}")
    ranges.write(connection, token, Snapshot(seq, tuple(entries)), database.now())
    connection.execute(pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(last_seq=seq))


def plan(connection: Connection, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
    """The plan of the micro-batch (start_seq, end_seq], kept as the pipeline's current one for the sink to find.

    Shards that passed to another owner are left out (`lost`); a plan that was published before is told as such.
    """
    row = fence(connection, token)
    made, left_out = _make_plan(connection, row, token, start_seq, end_seq)
    connection.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == token.pipeline)
        .values(
            plan_hash=made.identity.delivery_hash,
            plan_incarnation=token.incarnation,
            plan_start=start_seq,
            plan_end=end_seq,
            plan_left_out=json.dumps(left_out),
            plan_lost=len(made.lost),
        )
    )
    return made


def current_plan(connection: Connection, pipeline: str, driver: str | None) -> PlanIdentity:
    """The plan that a sink built now belongs to. Called at planning, right after `plan` in the reader process.

    `driver` names the process group that asks: a paused driver that wakes up between its `plan` and its sink's
    planning would otherwise pick up the plan of the driver that replaced it.
    """
    row = connection.execute(sa.select(pipelines).where(pipelines.c.pipeline == pipeline)).one_or_none()
    if row is None or row.plan_hash is None:
        raise StoreConfigurationError(
            f"option 'pipeline': no cuesqueue source named {pipeline!r} has planned a batch in this store; give the "
            "sink the 'store' and 'pipeline' of the source that feeds it"
        )
    if row.plan_incarnation != row.incarnation or (driver is not None and row.driver != driver):
        raise PipelineTakenOver(pipeline, row.plan_incarnation, row.incarnation)
    token = PublishToken(pipeline, row.incarnation)
    return PlanIdentity(row.source, token, row.plan_start, row.plan_end, row.plan_hash)


def confirm(
    database: Database, connection: Connection, token: PublishToken, end_seq: int, keys: Iterable[ShardKey]
) -> Confirmed:
    """Spark is done with everything up to `end_seq`: make it final, and tell which of `keys` are finished.

    What the cuesqueue sink published stays as it is; with any other sink the shards advance now. Shards that passed
    to another owner meanwhile cannot be advanced: they are told as `lost` and left to their owner.
    """
    row = fence(connection, token)
    if end_seq > row.last_seq:
        raise lost_progress(token.pipeline, end_seq, row.last_seq)
    lost: tuple[Range, ...] = ()
    if end_seq > row.confirmed_seq:
        published = connection.execute(
            sa.select(sa.func.count()).where(attempts.c.pipeline == token.pipeline, attempts.c.end_seq == end_seq)
        ).scalar_one()
        if not published:
            made, _ = _make_plan(connection, row, token, row.confirmed_seq, end_seq)
            lost = made.lost
            if made.ranges:
                deliver(database, connection, made.identity, made.ranges, len(lost), None, None, None)
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(confirmed_seq=end_seq)
        )
    finished: set[ShardKey] = set()
    for chunk in chunks(keys):
        found = connection.execute(
            sa.select(shards.c.shard_key).where(shards.c.shard_key.in_(chunk), shards.c.finished_at.is_not(None))
        )
        finished.update(ShardKey(bytes(key)) for key in found.scalars())
    return Confirmed(frozenset(finished), lost)


def adopt_offset(connection: Connection, token: PublishToken, seq: int) -> None:
    """Continue after an offset that this store never gave (`failOnDataLoss=false`): what it stood for is given up."""
    row = fence(connection, token)
    if seq > row.last_seq:
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(last_seq=seq, confirmed_seq=seq)
        )


def lost_progress(pipeline: str, seq: int, last_seq: int) -> LostProgress:
    return LostProgress(
        f"pipeline {pipeline!r}: the checkpoint is at offset {seq}, but the store knows offsets only up to {last_seq}: "
        "the store was lost or exchanged under a live checkpoint; restore the store, or name the right one in option "
        "'store', or set 'failOnDataLoss' to false to go on without what is missing"
    )


def _make_plan(
    connection: Connection, row: Row[tuple[object, ...]], token: PublishToken, start_seq: int, end_seq: int
) -> tuple[Plan, list[str]]:
    """The plan of (start_seq, end_seq] as the store stands now, and the marks of what it leaves out."""
    if end_seq > row.last_seq:
        raise lost_progress(token.pipeline, end_seq, row.last_seq)
    if start_seq == end_seq:
        empty = delivery_hash(row.source, token.pipeline, (), (start_seq, end_seq))
        return Plan(PlanIdentity(row.source, token, start_seq, end_seq, empty), ()), []
    delivered = connection.execute(
        sa.select(attempts.c.delivery_hash).where(
            attempts.c.pipeline == token.pipeline, attempts.c.start_seq == start_seq, attempts.c.end_seq == end_seq
        )
    ).scalar_one_or_none()
    if delivered is not None:
        return Plan(PlanIdentity(row.source, token, start_seq, end_seq, delivered), (), published=True), []
    # a new checkpoint begins at 0, wherever the store stands: what is final needs no look
    after = max(start_seq, row.confirmed_seq)
    planned = ranges.flatten(ranges.read(connection, row.source, token.pipeline, after, end_seq))
    ours = _open_positions(connection, token, {r.key for r in planned})
    finished = _finished(connection, {r.key for r in planned} - ours.keys())
    included: list[Range] = []
    lost: list[Range] = []
    left_out: list[str] = []
    for entry in planned:
        if ours.get(entry.key) == entry.start:
            included.append(entry)
            ours[entry.key] = entry.end
            continue
        left_out.append(ranges.mark(entry))
        reached = entry.key in finished or (entry.key in ours and ours[entry.key] >= entry.end)
        if not reached:
            lost.append(entry)
    digest = delivery_hash(row.source, token.pipeline, included, (start_seq, end_seq))
    identity = PlanIdentity(row.source, token, start_seq, end_seq, digest)
    return Plan(identity, tuple(included), tuple(lost)), left_out


def _open_positions(connection: Connection, token: PublishToken, keys: set[ShardKey]) -> dict[ShardKey, Position]:
    found: dict[ShardKey, Position] = {}
    for chunk in chunks(sorted(keys)):
        rows = connection.execute(
            sa.select(shards.c.shard_key, shards.c.position).where(
                shards.c.shard_key.in_(chunk),
                shards.c.owner == token.pipeline,
                shards.c.incarnation == token.incarnation,
                shards.c.finished_at.is_(None),
            )
        )
        found.update((ShardKey(bytes(key)), Position(position)) for key, position in rows)
    return found


def _finished(connection: Connection, keys: set[ShardKey]) -> set[ShardKey]:
    """Which are at the end: finished, or finished so long ago that they are pruned."""
    still_open: set[ShardKey] = set()
    for chunk in chunks(sorted(keys)):
        rows = connection.execute(
            sa.select(shards.c.shard_key).where(shards.c.shard_key.in_(chunk), shards.c.finished_at.is_(None))
        )
        still_open.update(ShardKey(bytes(key)) for key in rows.scalars())
    return keys - still_open
