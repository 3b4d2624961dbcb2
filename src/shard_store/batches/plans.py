"""The plan of a micro-batch: the snapshots between two offsets, as they can be read now; `publishing.py` delivers it.

Every function runs inside one transaction, locks the pipeline's row first, and may be run again when it is unknown
whether the transaction committed: an existing snapshot or plan is recognised by its seq or delivery hash, never
guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches import readings, snapshots
from shard_store.batches.positions import finished, mark_given_up, places_of, refuse_missing, split_by_fit
from shard_store.batches.progress import is_sink_known, lost_progress
from shard_store.error_table.records import found_bad, record
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError, StoreConfigurationError
from shard_store.model import (
    BEGINNING,
    OTHER,
    ErrorRecord,
    Noted,
    Pending,
    Plan,
    PlanIdentity,
    PublishToken,
    Range,
    Semantics,
    ShardKey,
    ShardState,
    Snapshot,
    delivery_hash,
)
from shard_store.shards import announcing, changes
from shard_store.shards.activity import Activity, settings_of
from shard_store.shards.announcing import Place
from shard_store.shards.ownership import count_change, fence
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, identity, of_pipeline, pipelines, shards
from shard_store.sql.schema import snapshots as snapshot_rows

_KEPT = 4 << 20
"""Bytes of a message that are kept with its error."""


def plan(transaction: Transaction, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
    """Make the plan of the micro-batch (start_seq, end_seq], and keep it as the current one for the sink to find.

    Shards that passed to another owner are left out (`lost`), at this attempt and at every later one of the same
    offsets, also when they come back to us: an earlier attempt may have reached a sink that ignores a second
    one. They are then offered anew. A plan that was published before says so, with what it held. With at-most-once
    everything that was in a plan before is left out, and lost: an attempt may have brought it anywhere.
    One reader that asks twice (its query reads the stream twice, as in a self-join) gets the same plan: a failure
    would have ended it, so this is no new attempt.
    """
    row = fence(transaction, token)
    if end_seq > row.last_seq:
        raise lost_progress(transaction.database, token.pipeline, end_seq, row.last_seq)
    made: Plan | None = None
    offsets = {"of": token.pipeline, "start": start_seq, "end": end_seq}
    if (delivered := transaction.execute(_DELIVERED, [offsets]).scalar()) is not None:
        made = Plan(PlanIdentity(row.source, token, start_seq, end_seq, delivered), (), published=True)
        if delivered == row.plan_hash and not Semantics(row.semantics).final_at_snapshot:
            return _on_record(transaction, row, made)
    if made is None and (row.plan_start, row.plan_end, row.plan_incarnation) == (start_seq, end_seq, token.incarnation):
        identity = PlanIdentity(row.source, token, start_seq, end_seq, row.plan_hash)
        if Semantics(row.semantics).keeps_shards:
            readings.read_twice(transaction, identity)
        return _suspected(transaction, _on_record(transaction, row, Plan(identity, (), attempt=row.plan_attempt)))
    after, marks = end_seq, list[str]()
    if made is None:
        if start_seq > row.confirmed_seq:
            raise ShardStoreError(
                f"pipeline {token.pipeline!r}: a plan from {start_seq} was requested, but only what is up to "
                f"{row.confirmed_seq} is confirmed (report this as a bug)"
            )
        # a new checkpoint begins at 0, however far the store is: what is final is not read
        after = max(start_seq, row.confirmed_seq)
        again = (row.plan_after, row.plan_end) == (after, end_seq) and after < end_seq  # from whatever offset of Spark
        before = set(json.loads(row.plan_left_out)) if again else None
        made, marks = _make(transaction, row, token, (start_seq, end_seq), after, before)
        made = replace(made, attempt=row.plan_attempt + 1 if again else 1)
        if before is None:
            readings.forget_marks(transaction, row.plan_hash, row.plan_attempt)
            last = Activity.parse(row.activity).last
            direct = last is not None and last.direct == token.incarnation
            made = replace(made, replaced=row.plan_hash, direct=direct)
        elif before == set(marks):
            made = _suspected(transaction, made)
        else:
            readings.forget_places(transaction, made.identity)
    current: dict[str, object] = {
        "plan_hash": made.identity.delivery_hash,
        "plan_incarnation": token.incarnation,
        "plan_start": start_seq,
        "plan_after": after,
        "plan_end": end_seq,
        "plan_left_out": json.dumps(marks),
        "plan_lost": len(made.lost),
        "plan_attempt": made.attempt,
        "begun_seq": max(row.begun_seq, end_seq),
        **count_change(transaction, row, token),
    }
    if row.sink == OTHER and row.sink_incarnation is None:  # taken to be so when it started: the batch is run again
        current["sink"] = None
    transaction.execute(of_pipeline, [{"of": token.pipeline, **current}])
    transaction.on_commit.append(lambda: transaction.memory.plan(token))
    return made


def current_plan(transaction: Transaction, pipeline: str, driver: str | None = None) -> PlanIdentity:
    """Return the plan that a sink built now belongs to. Called at planning, right after `plan` in the reader process.

    `driver` names the process group that asks: a paused driver that wakes up between its `plan` and its sink's
    planning would otherwise pick up the plan of the driver that replaced it. After a restart the plan of the
    incarnation before is given only when it is delivered: a batch without new input may follow it. Before the first
    plan it is an empty one: Spark runs the first batch of a checkpoint even when the queue is empty. Of a query with
    several sources one may be idle: its last plan is given, which is confirmed even if its attempt is pruned by now.
    """
    return plan_for(transaction, pipeline, driver, None, NOTHING_NOTED)[0]


NotedPlans = Callable[[str, str], Noted | None]
"""What the newest reader of this driver has noted, by store and pipeline. None: not known."""

NOTHING_NOTED: NotedPlans = lambda store_id, pipeline: None  # noqa: E731
"""Of drivers whose readers note nothing."""


def plan_for(
    transaction: Transaction,
    pipeline: str,
    driver: str | None,
    sink: str | None,
    noted_plans: NotedPlans,
) -> tuple[PlanIdentity, bool]:
    """Return the same as `current_plan`, and whether the sink that asks is known to the pipeline.

    Raises LostProgress where the current plan is not the one that the reader has made for this micro-batch.
    """
    delivered = attempts.c.delivery_hash.is_not(None).label("delivered")
    store_id = sa.select(identity.c.store_id).scalar_subquery().label("store_id")
    row = transaction.execute(
        sa.select(pipelines, delivered, store_id)
        .outerjoin(attempts, attempts.c.delivery_hash == pipelines.c.plan_hash)
        .where(pipelines.c.pipeline == pipeline)
    ).one_or_none()
    if row is None:
        raise StoreConfigurationError(
            f"option 'pipeline': no cuesqueue source named {pipeline!r} has started with this store; give the sink the "
            "'storeUrl' and 'pipeline' of the source that feeds it"
        )
    done = row.plan_hash is None or row.delivered or row.plan_end <= row.confirmed_seq
    unplanned = row.last_seq
    if (noted := noted_plans(row.store_id, pipeline)) is not None and noted.incarnation >= row.incarnation:
        _check_noted(transaction, row, noted, done)
        unplanned = noted.new_seq
    if (row.plan_incarnation != row.incarnation and not done) or (driver is not None and row.driver != driver):
        raise PipelineTakenOver(pipeline, row.plan_incarnation, row.incarnation)
    token = PublishToken(pipeline, row.incarnation)
    is_known = sink is None or is_sink_known(row, sink)
    if row.plan_hash is None:
        digest = delivery_hash(row.source, pipeline, (), (0, 0))
        return PlanIdentity(row.source, token, 0, 0, digest, unplanned), is_known
    return PlanIdentity(row.source, token, row.plan_start, row.plan_end, row.plan_hash, unplanned), is_known


def _check_noted(transaction: Transaction, row: Row[Any], noted: Noted, done: bool) -> None:
    """Raise LostProgress where the store has gone back behind what the reader has noted."""
    if noted.incarnation > row.incarnation:
        lost = "the start of this query"
    elif noted.delivery_hash:
        lost = "the plan of this micro-batch" if noted.delivery_hash != row.plan_hash else ""
    else:
        lost = "" if done else f"that the plan up to offset {row.plan_end} is published"
    if lost:
        raise LostProgress(
            f"pipeline {row.pipeline!r}: the store {transaction.database} has lost {lost}: a replica that lacks what "
            "came last took its place, or a backup was restored, while the query ran; restore the store, or start the "
            "query again, with a new checkpoint if this error comes back: what the store lacks is then read again"
        )


def planned_ranges(transaction: Transaction, identity: PlanIdentity) -> list[Range]:
    """Return what a plan moves, with its contents; nothing of one that is not the pipeline's current plan by now."""
    row = transaction.execute(sa.select(pipelines).where(pipelines.c.pipeline == identity.token.pipeline)).one()
    if row.plan_hash != identity.delivery_hash or row.plan_end <= max(row.confirmed_seq, row.plan_start):
        return []
    return _whole(transaction, row)


def _whole(transaction: Transaction, row: Row[Any]) -> list[Range]:
    left_out = set(json.loads(row.plan_left_out))
    ranges = snapshots.flatten(snapshots.read(transaction, row.pipeline, row.plan_after, row.plan_end))
    return [entry for entry in ranges if snapshots.mark(entry) not in left_out]


def plan_to_load(transaction: Transaction, identity: PlanIdentity) -> tuple[Plan, Mapping[str, str]]:
    """Return the plan that a sink has taken, with what is to be read of it, and the options of its reader.

    For a sink that reads the objects itself. Of a plan that is published, or no longer the current one, nothing is to
    be read: it is `published` then, and publishing it tells what is wrong. What it held is in `whole`, as long as its
    reader may bring it again.
    """
    row = transaction.execute(sa.select(pipelines).where(pipelines.c.pipeline == identity.token.pipeline)).one()
    settings = settings_of(row)
    is_current = row.plan_hash == identity.delivery_hash and row.plan_end > max(row.confirmed_seq, row.plan_start)
    delivered = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash == identity.delivery_hash)
    if not is_current or transaction.execute(delivered).first() is not None:
        whole = tuple(_whole(transaction, row)) if row.plan_hash == identity.delivery_hash else ()
        return Plan(identity, (), published=True, whole=whole), settings
    return _suspected(transaction, _on_record(transaction, row, Plan(identity, (), attempt=row.plan_attempt))), settings


_DELIVERED = sa.select(attempts.c.delivery_hash).where(
    attempts.c.pipeline == sa.bindparam("of"),
    attempts.c.start_seq == sa.bindparam("start"),
    attempts.c.end_seq == sa.bindparam("end"),
)


def _on_record(transaction: Transaction, row: Row[Any], made: Plan) -> Plan:
    """Return the plan on record, again, with what it held when it was made, or what its delivery brought.

    A query with state has to read a delivered one once more, when Spark was killed before it knew of the delivery.
    """
    whole, bad = _whole(transaction, row), found_bad(transaction, made.identity)
    return replace(made, ranges=tuple(r for r in whole if (r.key, r.start) not in bad), whole=tuple(whole))


def _suspected(transaction: Transaction, made: Plan) -> Plan:
    """Return the plan with whether an earlier attempt has left marks of its reads; the first one makes none."""
    if made.attempt == 1:
        return made
    return replace(made, suspected=bool(readings.marks_of_plan(transaction, made.identity)))


def _make(
    transaction: Transaction,
    row: Row[Any],
    token: PublishToken,
    seqs: tuple[int, int],
    after: int,
    left_out_before: set[str] | None,
) -> tuple[Plan, list[str]]:
    """Make the plan of (start, end] as the store is now; also returns the marks of what it leaves out.

    `after` is the seq after which there is anything to do. `left_out_before`: what the attempt on record has left out,
    None where there is no attempt at these snapshots.
    The hash is that of the snapshots as they were written, whatever is left out of them.
    """
    parts = snapshots.read(transaction, token.pipeline, after, seqs[1])
    planned = snapshots.flatten(parts)
    again = [r for r in planned if snapshots.mark(r) not in left_out_before] if left_out_before else planned
    repeated = left_out_before is not None
    semantics = Semantics(row.semantics)
    owner = token if semantics.final_at_delivery else None
    positions, places = places_of(transaction, owner, planned if semantics.keeps_shards else ())
    included, others = again, list[Range]()
    anew = set[ShardKey]()
    if semantics.final_at_delivery:
        anew = _opened_anew(transaction, token, parts, places)
        included, others = split_by_fit([r for r in again if r.key not in anew], positions)
    elif semantics.final_at_snapshot:
        included = snapshots.flatten([part for part in parts if part.seq > row.begun_seq])
    left_out: list[Range] = []
    if len(included) < len(planned):
        taken = {(r.key, r.start) for r in included}
        left_out = [r for r in planned if (r.key, r.start) not in taken]
    lost = left_out
    if semantics.final_at_snapshot and left_out:
        mark_given_up(transaction, token.pipeline, (after, seqs[1]), {r.key for r in left_out})
    if semantics.final_at_delivery:
        if ended := finished(transaction, {r.key for r in others} - positions.keys()):
            c = snapshot_rows.c
            by_others = sa.select(c.seq).where(c.pipeline == token.pipeline, c.incarnation != token.incarnation)
            if transaction.execute(by_others.where(c.seq > after, c.seq <= seqs[1]).limit(1)).first() is None:
                refuse_missing(transaction, token, {r.key: r.content.shard_id for r in others if r.key in ended})
        kept = ended | anew
        lost = [r for r in left_out if r.key not in kept and not positions.get(r.key, r.start) >= r.end]
    digest = row.plan_hash if repeated else delivery_hash(row.source, token.pipeline, planned, (after, seqs[1]))
    identity = PlanIdentity(row.source, token, *seqs, digest)
    whole = tuple(included)
    if repeated:
        readings.settle(transaction, identity, row.plan_attempt, row.plan_incarnation)
    bad = found_bad(transaction, identity) if repeated else set()
    included = [r for r in included if (r.key, r.start) not in bad]
    quarantine = Pending.QUARANTINE.value
    asked = {key for key, place in places.items() if place.pending == quarantine}
    if unwanted := [r for r in included if r.key in asked]:
        _give_up(transaction, identity, unwanted)
        included = [r for r in included if r.key not in asked]
    announcing.settle(transaction, included, places, repeated=repeated)
    return Plan(identity, tuple(included), tuple(lost), whole=whole), [snapshots.mark(r) for r in left_out]


def _opened_anew(
    transaction: Transaction, token: PublishToken, parts: Sequence[Snapshot], places: Mapping[ShardKey, Place]
) -> set[ShardKey]:
    """Return the shards that an announcement has opened again since their snapshot was written.

    Another pipeline had them in between, and has ended them with nothing published. The snapshot has the version of
    before, which is gone; a later one has, or will have, the shard as it was announced last.
    """
    passed: dict[ShardKey, tuple[int, int]] = {}
    for part in parts if places else ():
        for entry in part.ranges:
            place = places.get(entry.key)
            if place is None or place.later is not None or entry.start != BEGINNING:
                continue
            passed.pop(entry.key, None)
            if place.message_id != entry.content.message_id:
                passed[entry.key] = (part.seq, place.opened_at)
    if not passed:
        return set()
    created_at = snapshots.created_at(transaction, token.pipeline, parts[0].seq - 1, parts[-1].seq)
    return {key for key, (seq, opened_at) in passed.items() if opened_at >= created_at[seq]}


_KNOWN_OBJECTS = 200
"""Of what was published last, and of what is open; an index finds each."""


def known_objects(transaction: Transaction, identity: PlanIdentity) -> tuple[list[str], list[str]]:
    """Return URIs: what the source published last, newest first; and what is in the plan, or waits for the next."""
    pipeline, source = identity.token.pipeline, identity.source
    bounds = sa.select(pipelines.c.plan_after, pipelines.c.plan_end).where(
        pipelines.c.pipeline == pipeline, pipelines.c.plan_hash == identity.delivery_hash
    )
    planned = [
        entry.content.uri
        for row in transaction.execute(bounds)
        for entry in snapshots.flatten(snapshots.read(transaction, pipeline, row.plan_after, row.plan_end))
    ]
    columns = sa.select(shards.c.shard_id, shards.c.uri, shards.c.state)
    finished = columns.where(shards.c.source == source, shards.c.finished_at.is_not(None))
    newest = transaction.execute(finished.order_by(shards.c.finished_at.desc()).limit(_KNOWN_OBJECTS))
    published = [row.uri or row.shard_id for row in newest if row.state == ShardState.DONE.value]
    ours = columns.where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
    waiting = [row.uri or row.shard_id for row in transaction.execute(ours.limit(_KNOWN_OBJECTS))]
    return published, [*planned, *waiting]


def _give_up(transaction: Transaction, identity: PlanIdentity, ranges: Sequence[Range]) -> None:
    """Record these ranges of a plan as bad before an attempt reads them: an operator wants them given up.

    So the plan stays what it was, and its publication quarantines their shards. Until then they stay marked: a shard
    that passes to another pipeline is in another plan, without the errors of this one.
    """
    asked = {c.change.key: c.change for c in changes.of(transaction, {r.key for r in ranges})}
    records = []
    for entry in ranges:
        content, payload, change = entry.content, entry.content.payload, asked.get(entry.key)
        message: dict[str, Any] = {}
        if payload is not None:
            message = {"input": payload.value[:_KEPT], "input_size": len(payload.value), "group": content.group}
            message |= {"tag": payload.tag, "headers": payload.headers}
        records.append(
            ErrorRecord(
                scope="object",
                cause=announcing.GIVEN_UP,
                detail="an operator gave it up" if change is None else f"{change.actor} gave it up: {change.reason}",
                subject=content.shard_id,
                plan_hash=identity.delivery_hash,
                position=entry.start,
                queue=content.queue,
                message_id=content.message_id,
                **message,
            )
        )
    record(transaction, identity.source, identity.token.pipeline, records)
