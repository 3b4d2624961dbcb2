"""What a micro-batch is made of: snapshot, plan, confirm (design.md sections 2, 3 and 5); `publishing.py` delivers it.

Every function runs inside one transaction, locks the pipeline's row first, and may be run again when nobody knows
whether the transaction committed: what is there already is found by seq or by delivery hash, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from shard_store import snapshots
from shard_store.error_records import found_bad
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError, StoreConfigurationError
from shard_store.model import (
    Move,
    Plan,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    ShardKey,
    Snapshot,
    delivery_hash,
)
from shard_store.positions import advance_shards, finished, open_positions, split_by_fit
from shard_store.publishing import Delivery, deliver, planned_moves
from shard_store.semantics import Semantics
from shard_store.shards import fence
from shard_store.sql.database import Database
from shard_store.sql.schema import attempts, pipelines, reads


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a confirm settled: of the keys asked for, those that are finished in the store now.

    `lost` are ranges of the plan that passed to another owner after the plan was made, while another sink took them.
    `written` are the ranges of the snapshot written with it.
    """

    finished: frozenset[ShardKey]
    lost: tuple[Move, ...] = ()
    written: tuple[Range, ...] = ()


def write_snapshot(
    database: Database, connection: Connection, token: PublishToken, seq: int, entries: Sequence[Range]
) -> tuple[Range, ...]:
    """Make offset `seq` durable before Spark sees it (invariant 3). `seq` is one more than the last.

    Returns the ranges written: with at-most-once their shards are final from now on, and those that passed to another
    owner are not among them.
    """
    row = fence(connection, token)
    falling = next((r for r in entries if not r.start < r.end), None)
    if falling is not None:
        raise ShardStoreError(
            f"pipeline {token.pipeline!r}: a range of shard {falling.content.shard_id[:200]!r} goes from "
            f"{falling.start!r} to {falling.end!r}; positions only rise (report this as a bug)"
        )
    semantics = Semantics(row.semantics)
    if row.last_seq == seq:
        # either an attempt of this very call, whose commit was not heard of, or a caller that counts wrongly
        there = snapshots.flatten(snapshots.read(connection, token.pipeline, seq - 1, seq))
        if there == list(entries) or (semantics.final_at_snapshot and set(there) <= set(entries)):
            return tuple(there)
        raise ShardStoreError(f"pipeline {token.pipeline!r}: snapshot {seq} is there already, with other ranges")
    if row.last_seq != seq - 1:
        raise ShardStoreError(f"pipeline {token.pipeline!r}: snapshot {seq} does not follow {row.last_seq}")
    if semantics.final_at_snapshot:
        entries, _ = split_by_fit(entries, open_positions(database, connection, token, {r.key for r in entries}))
    snapshots.write(connection, token, Snapshot(seq, tuple(entries)), database.now())
    if semantics.final_at_snapshot:
        identity = PlanIdentity(row.source, token, seq - 1, seq, "")
        advance_shards(database, connection, identity, [Move(r.key, r.start, r.end) for r in entries])
    connection.execute(pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(last_seq=seq))
    return tuple(entries)


def plan(database: Database, connection: Connection, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
    """The plan of the micro-batch (start_seq, end_seq], kept as the pipeline's current one for the sink to find.

    Shards that passed to another owner are left out (`lost`), at this attempt and at every later one of the same
    offsets, also when they come back to us: an earlier attempt may have reached a sink that will not look at a second
    one. They are then offered anew. A plan that was published before is told as such, with what it held. With
    at-most-once everything that was in a plan before is left out, and lost: an attempt may have brought it anywhere.
    """
    row = fence(connection, token)
    if end_seq > row.last_seq:
        raise lost_progress(database.name, token.pipeline, end_seq, row.last_seq)
    made = _published(connection, row, token, start_seq, end_seq)
    on_record = made is not None and made.identity.delivery_hash == row.plan_hash
    if made is not None and on_record and not Semantics(row.semantics).final_at_snapshot:
        return _repeated(connection, row, made)
    after, marks = end_seq, list[str]()
    if made is None:
        if start_seq > row.confirmed_seq:
            raise ShardStoreError(
                f"pipeline {token.pipeline!r}: a plan from {start_seq} was asked for, but only what is up to "
                f"{row.confirmed_seq} is confirmed (report this as a bug)"
            )
        # a new checkpoint begins at 0, wherever the store stands: what is final needs no look
        after = max(start_seq, row.confirmed_seq)
        again = (row.plan_start, row.plan_end) == (start_seq, end_seq)
        before = set(json.loads(row.plan_left_out)) if again else set()
        made, marks = _make(database, connection, row, token, (start_seq, end_seq), after, before)
        made = replace(made, attempt=row.plan_attempt + 1 if again else 1)
        if not again and (row.plan_attempt or 1) > 1:  # that one is done with: so are the marks of its reads
            connection.execute(reads.delete().where(reads.c.delivery_hash == row.plan_hash))
    connection.execute(
        pipelines.update()
        .where(pipelines.c.pipeline == token.pipeline)
        .values(
            plan_hash=made.identity.delivery_hash,
            plan_incarnation=token.incarnation,
            plan_start=start_seq,
            plan_after=after,
            plan_end=end_seq,
            plan_left_out=json.dumps(marks),
            plan_lost=len(made.lost),
            plan_attempt=made.attempt,
            begun_seq=max(row.begun_seq, end_seq),
        )
    )
    return made


def current_plan(connection: Connection, pipeline: str, driver: str | None) -> PlanIdentity:
    """The plan that a sink built now belongs to. Called at planning, right after `plan` in the reader process.

    `driver` names the process group that asks: a paused driver that wakes up between its `plan` and its sink's
    planning would otherwise pick up the plan of the driver that replaced it. After a restart the plan of the
    incarnation before is given only when it is delivered: a batch without new input may follow it. Before the first
    plan it is an empty one: Spark runs the first batch of a checkpoint even when the queue is empty. Of a query with
    several sources one may be idle: its last plan is given, which is confirmed even if its attempt is pruned by now.
    """
    delivered = attempts.c.delivery_hash.is_not(None).label("delivered")
    row = connection.execute(
        sa.select(pipelines, delivered)
        .outerjoin(attempts, attempts.c.delivery_hash == pipelines.c.plan_hash)
        .where(pipelines.c.pipeline == pipeline)
    ).one_or_none()
    if row is None:
        raise StoreConfigurationError(
            f"option 'pipeline': no cuesqueue source named {pipeline!r} has started with this store; give the sink the "
            "'store' and 'pipeline' of the source that feeds it"
        )
    done = row.plan_hash is None or row.delivered or row.plan_end <= row.confirmed_seq
    if (row.plan_incarnation != row.incarnation and not done) or (driver is not None and row.driver != driver):
        raise PipelineTakenOver(pipeline, row.plan_incarnation, row.incarnation)
    token = PublishToken(pipeline, row.incarnation)
    if row.plan_hash is None:
        return PlanIdentity(row.source, token, 0, 0, delivery_hash(row.source, pipeline, (), (0, 0)))
    return PlanIdentity(row.source, token, row.plan_start, row.plan_end, row.plan_hash)


def confirm(
    database: Database, connection: Connection, token: PublishToken, end_seq: int, keys: Iterable[ShardKey]
) -> Confirmed:
    """Spark is done with everything up to `end_seq`: make it final, and tell which of `keys` are finished.

    What the cuesqueue sink published stays as it is; with any other sink the shards of the plan advance now. Those
    that passed to another owner meanwhile cannot be advanced: they are told as `lost` and left to their owner. Where no
    shards are kept, all of `keys` are finished with their plan.
    """
    row = fence(connection, token)
    if end_seq > row.last_seq:
        raise lost_progress(database.name, token.pipeline, end_seq, row.last_seq)
    lost: tuple[Move, ...] = ()
    if end_seq > row.confirmed_seq:
        known = sa.select(sa.func.count()).where(attempts.c.pipeline == token.pipeline, attempts.c.end_seq == end_seq)
        if not connection.execute(known).scalar_one():
            lost = _deliver_planned(database, connection, row, token, end_seq)
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(confirmed_seq=end_seq)
        )
    if not Semantics(row.semantics).keeps_shards:
        return Confirmed(frozenset(keys), lost)
    return Confirmed(frozenset(finished(database, connection, set(keys))), lost)


def adopt_offset(connection: Connection, token: PublishToken, seq: int) -> None:
    """Continue after an offset that this store never gave (`failOnDataLoss=false`): what it stood for is given up."""
    row = fence(connection, token)
    if seq > row.last_seq:
        connection.execute(
            pipelines.update().where(pipelines.c.pipeline == token.pipeline).values(last_seq=seq, confirmed_seq=seq)
        )


def lost_progress(store: str, pipeline: str, seq: int, last_seq: int) -> LostProgress:
    """`store` is its URL without secrets."""
    return LostProgress(
        f"pipeline {pipeline!r}: the checkpoint is at offset {seq}, but the store {store} knows offsets only up to "
        f"{last_seq}: the store was lost or exchanged under a live checkpoint; restore the store, or name the right "
        "one in option 'store', or set 'failOnDataLoss' to false to go on without what is missing"
    )


def _deliver_planned(
    database: Database, connection: Connection, row: Row[Any], token: PublishToken, end_seq: int
) -> tuple[Move, ...]:
    """Record what another sink took: exactly the ranges that were planned, never what has become ours since.

    Returns those of them that are no longer ours.
    """
    if row.plan_hash is None or row.plan_end != end_seq or row.plan_start > row.confirmed_seq:
        raise ShardStoreError(
            f"pipeline {token.pipeline!r}: offset {end_seq} is said to be done, but no plan from "
            f"{row.confirmed_seq} to it was made: nobody can have read it. Spark's file sinks skip the first batches "
            "of a new checkpoint in a folder that an earlier one has written to: start with a new checkpoint and a new "
            "folder (with another sink, report this as a bug)"
        )
    identity = PlanIdentity(row.source, token, row.plan_start, end_seq, row.plan_hash)
    moves = planned_moves(connection, row)
    semantics, others = Semantics(row.semantics), list[Move]()
    if semantics.final_at_delivery:
        moves, others = split_by_fit(moves, open_positions(database, connection, token, {m.key for m in moves}))
    deliver(database, connection, Delivery(identity, semantics, moves, lost=row.plan_lost + len(others)))
    return tuple(others)


def _published(connection: Connection, row: Row[Any], token: PublishToken, start_seq: int, end_seq: int) -> Plan | None:
    """The plan of these offsets, if an earlier attempt has delivered it."""
    delivered = connection.execute(
        sa.select(attempts.c.delivery_hash).where(
            attempts.c.pipeline == token.pipeline, attempts.c.start_seq == start_seq, attempts.c.end_seq == end_seq
        )
    ).first()
    if delivered is None:
        return None
    return Plan(PlanIdentity(row.source, token, start_seq, end_seq, delivered[0]), (), published=True)


def _repeated(connection: Connection, row: Row[Any], made: Plan) -> Plan:
    """The delivered plan on record, again: what its delivery brought.

    A query with state has to read it once more, when Spark was killed before it knew of the delivery.
    """
    left_out = set(json.loads(row.plan_left_out))
    planned = snapshots.flatten(snapshots.read(connection, row.pipeline, row.plan_after, row.plan_end))
    bad = found_bad(connection, row.plan_hash)
    return replace(
        made, ranges=tuple(r for r in planned if (r.key, r.start) not in bad and snapshots.mark(r) not in left_out)
    )


def _make(
    database: Database,
    connection: Connection,
    row: Row[Any],
    token: PublishToken,
    seqs: tuple[int, int],
    after: int,
    left_out_before: set[str],
) -> tuple[Plan, list[str]]:
    """The plan of (start, end] as the store stands now, and the marks of what it leaves out.

    `after` is the seq after which there is anything to do.
    """
    parts = snapshots.read(connection, token.pipeline, after, seqs[1])
    planned = snapshots.flatten(parts)
    again = [r for r in planned if snapshots.mark(r) not in left_out_before] if left_out_before else planned
    semantics = Semantics(row.semantics)
    positions: dict[ShardKey, Position] = {}
    included, others = again, list[Range]()
    if semantics.final_at_delivery:
        positions = open_positions(database, connection, token, {r.key for r in planned})
        included, others = split_by_fit(again, positions)
    elif semantics.final_at_snapshot and not _same_attempt(row, token, seqs):
        included = snapshots.flatten([part for part in parts if part.seq > row.begun_seq])
    left_out: list[Range] = []
    if len(included) < len(planned):
        taken = {(r.key, r.start) for r in included}
        left_out = [r for r in planned if (r.key, r.start) not in taken]
    lost = left_out
    if semantics.final_at_delivery:
        ended = finished(database, connection, {r.key for r in others} - positions.keys())
        lost = [r for r in left_out if r.key not in ended and not positions.get(r.key, r.start) >= r.end]
    digest = delivery_hash(row.source, token.pipeline, included, seqs)
    identity = PlanIdentity(row.source, token, *seqs, digest)
    if row.plan_hash == digest:  # an attempt at it was made before
        bad = found_bad(connection, digest)
        included = [r for r in included if (r.key, r.start) not in bad]
    return Plan(identity, tuple(included), tuple(lost)), [snapshots.mark(r) for r in left_out]


def _same_attempt(row: Row[Any], token: PublishToken, seqs: tuple[int, int]) -> bool:
    """Whether these offsets are planned once more without a failure between: Spark repeats a batch in a new process."""
    return (row.plan_start, row.plan_end, row.plan_incarnation) == (*seqs, token.incarnation)
