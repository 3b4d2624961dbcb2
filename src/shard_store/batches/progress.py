"""What Spark's offsets stand for: a snapshot is durable before Spark sees its offset, and final once Spark is done.

The functions run inside one transaction with the pipeline's row locked, and may be run again when it is unknown whether
the transaction committed: an existing snapshot is recognised by its seq, never guessed.

What our own sinks deliver has an attempt before Spark calls it done. So a batch without one was either taken by another
sink, or the store has lost what was published: it was restored from a backup, or a replica took its place. Our sinks
make themselves known before they deliver anything, once for each incarnation, so that this is known in the first batch
as well.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches import readings, snapshots
from shard_store.batches.positions import (
    advance_shards,
    finished,
    mark_begun,
    mark_given_up,
    positions_of,
    refuse_missing,
    split_by_fit,
)
from shard_store.batches.publishing import Delivery, PlannedMoves, deliver, planned_moves
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.model import (
    DELIVERY,
    OTHER,
    SINK,
    Move,
    PlanIdentity,
    PublishToken,
    Range,
    Semantics,
    ShardKey,
    Snapshot,
)
from shard_store.shards.ownership import count_change, fence
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, of_pipeline, pipelines


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The shards among those asked for that are finished in the store now.

    `lost` are ranges of the plan that passed to another owner after the plan was made, while another sink took them.
    `written` are the ranges of the snapshot written with it. `with_errors`: the hashes of the plans that became final
    and have left errors; `changed`: how many of their shards were announced meanwhile in versions that are not read.
    """

    finished: frozenset[ShardKey]
    lost: tuple[Move, ...] = ()
    written: tuple[Range, ...] = ()
    with_errors: tuple[str, ...] = ()
    changed: int = 0


def advance(
    transaction: Transaction,
    token: PublishToken,
    *,
    confirm: int | None = None,
    keys: Collection[ShardKey] = (),
    snapshot: tuple[int, Sequence[Range]] | None = None,
    fail_on_data_loss: bool = True,
) -> Confirmed:
    """Confirm up to a seq and write the next snapshot; either may be left out.

    Where no shards are kept, all of `keys` are finished with their plan.
    `fail_on_data_loss`: raise LostProgress where the store lacks what our sink has published, instead of having it read
    again.
    """
    row = fence(transaction, token)
    changes: dict[str, object] = {}
    lost, ended, written = tuple[Move, ...](), frozenset[ShardKey](), tuple[Range, ...]()
    with_errors, changed = tuple[str, ...](), 0
    if confirm is not None:
        if confirm > row.last_seq:
            raise lost_progress(transaction.database, token.pipeline, confirm, row.last_seq)
        if confirm > row.confirmed_seq:
            taken, lost = _confirm(transaction, row, token, confirm, fail_on_data_loss)
            with_errors, changed = what_was_wrong(transaction, token.pipeline, row.confirmed_seq, confirm)
            changes["confirmed_seq"] = confirm
            if taken and row.plan_incarnation == token.incarnation != row.sink_incarnation:
                changes |= {"sink": OTHER, "sink_incarnation": token.incarnation}
        keys = frozenset(keys)
        ended = frozenset(finished(transaction, set(keys))) if Semantics(row.semantics).keeps_shards else keys
    if snapshot is not None:
        written = write_snapshot(transaction, row, token, *snapshot)
        changes["last_seq"] = snapshot[0]
    if changes:
        changes |= count_change(transaction, row, token)
        transaction.execute(of_pipeline, [{"of": token.pipeline, **changes}])
    return Confirmed(ended, lost, written, with_errors, changed)


_WRONG = sa.select(attempts.c.delivery_hash, attempts.c.errors, attempts.c.changed).where(
    attempts.c.pipeline == sa.bindparam("of"),
    attempts.c.end_seq > sa.bindparam("after"),
    attempts.c.end_seq <= sa.bindparam("until"),
    sa.or_(attempts.c.errors > 0, attempts.c.changed > 0),
)


def what_was_wrong(transaction: Transaction, pipeline: str, after: int, until: int) -> tuple[tuple[str, ...], int]:
    """Return which of the delivered plans with after < end <= until have left errors, and how many shards changed."""
    rows = transaction.execute(_WRONG, [{"of": pipeline, "after": after, "until": until}]).all()
    return tuple(row.delivery_hash for row in rows if row.errors), sum(row.changed or 0 for row in rows)


def write_snapshot(
    transaction: Transaction, row: Row[Any], token: PublishToken, seq: int, entries: Sequence[Range]
) -> tuple[Range, ...]:
    """Make offset `seq`, which is one more than the last, durable before Spark sees it (invariant 3).

    Returns the ranges written: with at-most-once their shards are final from now on, and those that passed to another
    owner are not among them.
    """
    if falling := next((r for r in entries if not r.start < r.end), None):
        raise ShardStoreError(
            f"pipeline {token.pipeline!r}: a range of shard {falling.content.shard_id[:200]!r} goes from "
            f"{falling.start!r} to {falling.end!r}; positions only rise (report this as a bug)"
        )
    semantics = Semantics(row.semantics)
    if row.last_seq == seq:
        # either an attempt of this very call, whose commit was not reported, or a caller that counts wrongly
        written = snapshots.flatten(snapshots.read(transaction, token.pipeline, seq - 1, seq))
        intended = [snapshots.as_kept(entry) for entry in entries]
        if written == intended or (semantics.final_at_snapshot and set(written) <= set(intended)):
            return tuple(written)
        raise ShardStoreError(f"pipeline {token.pipeline!r}: snapshot {seq} is there already, with other ranges")
    if row.last_seq != seq - 1:
        raise ShardStoreError(f"pipeline {token.pipeline!r}: snapshot {seq} does not follow {row.last_seq}")
    if semantics.final_at_snapshot:
        entries, others = split_by_fit(entries, positions_of(transaction, token, {r.key for r in entries}))
        refuse_missing(transaction, token, {r.key: r.content.shard_id for r in others})
    snapshots.write(transaction, token, Snapshot(seq, tuple(entries)))
    if semantics.final_at_snapshot:
        identity = PlanIdentity(row.source, token, seq - 1, seq, "")
        advance_shards(transaction, identity, [Move(r.key, r.start, r.end) for r in entries])
        mark_begun(transaction, entries)
    return tuple(entries)


def adopt_offset(transaction: Transaction, token: PublishToken, seq: int, store_id: str | None = None) -> None:
    """Continue after an offset that this store never gave (`failOnDataLoss=false`): what it stood for is given up.

    `store_id`: the store that gave it. Its offsets up to this one are read here from now on.
    """
    row = fence(transaction, token)
    if seq > row.last_seq:
        if Semantics(row.semantics).final_at_snapshot:
            mark_given_up(transaction, token.pipeline, (row.confirmed_seq, row.last_seq))
        changes: dict[str, object] = {"last_seq": seq, "confirmed_seq": seq}
        if store_id is not None:
            changes["stores"] = json.dumps({**other_stores(row.stores), store_id: seq})
        transaction.execute(of_pipeline, [{"of": token.pipeline, **changes}])


def other_stores(text: str | None) -> Mapping[str, int]:
    """Return the ids of other stores whose offsets a pipeline reads, and up to which seq: of those that were lost.

    `text`: as it is in the pipeline's row. Version 0.3 also had those from which the source was moved.
    """
    return {} if text is None else dict(json.loads(text))


def lost_progress(store: str, pipeline: str, seq: int, last_seq: int) -> LostProgress:
    """Return the error of a checkpoint that is ahead of the store. `store` is its URL without secrets."""
    return LostProgress(
        f"pipeline {pipeline!r}: the checkpoint is at offset {seq}, but the store {store} knows offsets only up to "
        f"{last_seq}: the store was lost or exchanged under a live checkpoint (or has forgotten a pipeline that was "
        "stopped for a year: see 'cuesqueue prune'); restore the store, or name the right one in 'storeUrl', or "
        "set 'failOnDataLoss' to false to go on without what is missing"
    )


_DELIVERED = sa.select(attempts.c.delivery_hash).where(
    attempts.c.pipeline == sa.bindparam("of"), attempts.c.end_seq == sa.bindparam("end")
)


def _confirm(
    transaction: Transaction, row: Row[Any], token: PublishToken, end_seq: int, fail_on_data_loss: bool
) -> tuple[bool, tuple[Move, ...]]:
    """Make final everything up to `end_seq`, with which Spark is done, and forget the snapshots that it stood for.

    What the cuesqueue sink published stays as it is; with any other sink the shards of the plan advance now. Returns
    whether another one has taken it, and the ranges that passed to another owner meanwhile: they cannot be advanced,
    and are left to their owner.
    """
    taken, lost, semantics = False, tuple[Move, ...](), Semantics(row.semantics)
    if transaction.execute(_DELIVERED, [{"of": token.pipeline, "end": end_seq}]).first() is None:
        forgotten = _lost_attempt(transaction, row, token, end_seq)
        if forgotten is not None and fail_on_data_loss:
            raise forgotten
        # a backup may be older than the plan, too; with at-least-once nothing else remembers what was in the batch
        unplanned = not _is_planned(row, end_seq) and semantics.keeps_shards and not fail_on_data_loss
        # its shards stay open, and are offered again
        if not unplanned and not (forgotten is not None and semantics.final_at_delivery):
            taken = forgotten is None and _is_anothers(transaction, row, token)
            lost = _deliver_planned(transaction, row, token, end_seq, is_sure=taken)
            if lost and not (taken or forgotten) and fail_on_data_loss:
                raise _passed(transaction, token, end_seq, len(lost))
        elif unplanned and semantics.final_at_snapshot:
            mark_given_up(transaction, token.pipeline, (row.confirmed_seq, end_seq))
    # from the plan's own first snapshot, which a restart may have confirmed already; older ones are left to pruning:
    # the cost of a confirm is that of its own batch
    after = row.confirmed_seq if row.plan_after is None else min(row.plan_after, row.confirmed_seq)
    snapshots.forget(transaction, token.pipeline, after, end_seq, keep_moves=not semantics.keeps_shards)
    return taken, lost


def _is_planned(row: Row[Any], end_seq: int) -> bool:
    return row.plan_hash is not None and row.plan_end == end_seq and row.plan_start <= row.confirmed_seq


def _is_anothers(transaction: Transaction, row: Row[Any], token: PublishToken) -> bool:
    """Return whether it is sure that another sink has taken the plan on record, of which there is no attempt.

    Else one of ours may have, for the first time, and the store has lost that it made itself known.
    """
    if row.plan_incarnation == token.incarnation:
        return is_sink_known(row, OTHER) or not transaction.memory.may_have_changed(token)
    return row.sink is not None


def _deliver_planned(
    transaction: Transaction, row: Row[Any], token: PublishToken, end_seq: int, *, is_sure: bool
) -> tuple[Move, ...]:
    """Record what another sink took: exactly the ranges that were planned, never what has become ours since.

    Returns those of them that are no longer ours. What is not `is_sure` to be anywhere is marked as given up.
    """
    if not _is_planned(row, end_seq):
        raise ShardStoreError(
            f"pipeline {token.pipeline!r}: Spark reports offset {end_seq} as done, but no plan from "
            f"{row.confirmed_seq} to it was made: nobody can have read it. Spark's file sinks skip the first batches "
            "of a new checkpoint in a folder that an earlier one has written to: start with a new checkpoint and a new "
            "folder. Spark reads nothing for a query from which no row can come, as with limit(0) or a filter that is "
            "never true: set 'failOnDataLoss' to false once to have the objects offered again to a query that reads "
            "them. With another sink the store was restored from a backup that is older than the batch: set "
            "'failOnDataLoss' to false to have it read again (with at-least-once start with a new checkpoint)"
        )
    identity = PlanIdentity(row.source, token, row.plan_start, end_seq, row.plan_hash)
    moves, left_out, sent, lost = planned_moves(transaction, row)
    semantics, others = Semantics(row.semantics), list[Move]()
    if semantics.final_at_delivery:
        moves, others = split_by_fit(moves, positions_of(transaction, token, {m.key for m in moves}))
    planned = PlannedMoves(moves, [*left_out, *others], sent, lost + len(others))
    deliver(transaction, Delivery(identity, row, planned))
    if not is_sure and semantics.keeps_shards:
        mark_given_up(transaction, token.pipeline, (row.confirmed_seq, end_seq), {move.key for move in moves})
    readings.forget_marks(transaction, row.plan_hash, row.plan_attempt)
    return tuple(others)


def _passed(transaction: Transaction, token: PublishToken, end_seq: int, lost: int) -> LostProgress:
    """Return the error of a first batch that a table of its own may have, and of which others read a part again."""
    return LostProgress(
        f"pipeline {token.pipeline!r}: the checkpoint says that offset {end_seq} is done, the store "
        f"{transaction.database} does not say which sink has taken that batch, and {lost} shard(s) of it have passed "
        "to another pipeline (the store was restored from a backup of the middle of the first batch; or another sink "
        "took it so slowly that its heartbeats had stopped): their rows come twice if that sink is a table of its own "
        "or not cuesqueue's; delete them in one of both places, and set 'failOnDataLoss' to false to go on"
    )


def is_sink_known(row: Row[Any], sink: str) -> bool:
    """Return whether the pipeline's row says already that this sink delivers its current incarnation's plans."""
    return bool(row.sink == sink and row.sink_incarnation == row.incarnation)


def make_sink_known(transaction: Transaction, identity: PlanIdentity, sink: str) -> None:
    """Write down which sink delivers the plans of the incarnation, if it is current."""
    token = identity.token
    ours = sa.and_(pipelines.c.pipeline == token.pipeline, pipelines.c.incarnation == token.incarnation)
    transaction.execute(pipelines.update().where(ours).values(sink=sink, sink_incarnation=token.incarnation))


def _lost_attempt(transaction: Transaction, row: Row[Any], token: PublishToken, end_seq: int) -> LostProgress | None:
    """Return why it cannot be right that the store has no attempt of a plan up to `end_seq` with which Spark is done.

    None: it can, since another sink has taken it.
    """
    is_ours = row.sink not in (None, OTHER)  # None: in the first batch, of which nothing tells who took it
    if row.plan_incarnation == token.incarnation:
        # a function of foreachBatch may go on without `delivery`, say where there are no rows; and a sink that makes
        # itself known later may be a new one: only where the database may be another one by now, it is a loss
        may_be_ours = row.sink in (SINK, DELIVERY) and transaction.memory.may_have_changed(token)
        is_ours = row.plan_end == end_seq and (is_sink_known(row, SINK) or may_be_ours)
    if not is_ours:
        return None
    sink = "'delivery'" if row.sink == DELIVERY else "the cuesqueue sink"
    causes = "the store was restored from a backup that is older, or a replica that lacks it took its place"
    if row.sink == DELIVERY:
        causes += "; or the function of foreachBatch went on without 'delivery', or after it had failed"
    elif row.sink_incarnation != row.plan_incarnation:
        causes += "; or the query has another sink now, and was killed in its first batch"
    further = "go on without that batch"
    if Semantics(row.semantics).final_at_delivery:
        further = (
            "have that batch read again: its rows come twice where they are in a table of their own or in another "
            "database, if that is not put back, too"
        )
    return LostProgress(
        f"pipeline {token.pipeline!r}: the checkpoint says that offset {end_seq} is done, but the store "
        f"{transaction.database} has nothing that {sink} published for it ({causes}); set 'failOnDataLoss' to false to "
        f"{further}"
    )
