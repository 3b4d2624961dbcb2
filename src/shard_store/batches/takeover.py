"""What a stopped pipeline has left in a target, before another takes its shards (decision 0098).

It may have died between the commits of a target and of the store: then its last batch is in the target, and the
store has published nothing of it. Who wants its shards looks there, and publishes the batch in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.positions import positions_of, split_by_fit
from shard_store.batches.publishing import Looked, find_delivery, planned_moves, publish
from shard_store.model import PlanIdentity, PublishToken, delivery_hash
from shard_store.shards.ownership import fence
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, of_pipeline, pipelines


@dataclass(frozen=True, slots=True)
class Left:
    """The last plan of a stopped pipeline, and the target that it may be in.

    `published`: up to which seq the store has published the pipeline's batches.
    """

    transaction: Transaction
    plan: PlanIdentity
    published: int
    target: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch as a target has it: by its mark."""

    delivery_hash: str
    pipelines: Sequence[str]
    batch_id: int
    looked: Looked


Look = Callable[[Left], Committed | str | None]
"""Looks into a target. A text: why nothing tells whether the batch is there; None: it is not."""


def note_target(transaction: Transaction, tokens: Sequence[PublishToken], target: str) -> None:
    """Write down where the pipelines' next batches are committed, before the first of them is.

    Raises PipelineTakenOver in a driver that was replaced: the newer one may have committed elsewhere by now.
    """
    for token in sorted(tokens, key=str):
        fence(transaction, token)
        transaction.execute(of_pipeline, [{"of": token.pipeline, "target": target}])


def targets_of(transaction: Transaction, names: Sequence[str]) -> set[str | None]:
    """Return the targets that are noted for these pipelines."""
    query = sa.select(pipelines.c.target).where(pipelines.c.pipeline.in_(names))
    return set(transaction.execute(query).scalars())


def may_have_left(transaction: Transaction, names: Sequence[str]) -> list[str]:
    """Return those of the pipelines that have a target, in which there may be more than the store knows of."""
    c = pipelines.c
    query = sa.select(c.pipeline).where(c.pipeline.in_(names), c.target.is_not(None))
    return list(transaction.execute(query.order_by(c.pipeline)).scalars())


def settle(transaction: Transaction, pipeline: str, look: Look, *, repeats: bool) -> str | None:
    """Publish the last batch of a stopped pipeline if its target has it; else see to it that it never will.

    Returns why nothing tells whether it has: then nothing is changed, unless `repeats`: then it counts as absent.
    """
    this = sa.select(pipelines).where(pipelines.c.pipeline == pipeline).with_for_update()
    row = transaction.execute(this).one_or_none()
    if row is None or row.target is None:
        return None
    if row.stale_at > transaction.execute(sa.select(transaction.now())).scalar_one():
        return None  # it is alive: its shards stay its own
    plan = _plan_of(row)
    newest = sa.select(sa.func.max(attempts.c.end_seq)).where(attempts.c.pipeline == pipeline)
    published = max(row.confirmed_seq, transaction.execute(newest).scalar() or 0)
    said = look(Left(transaction, plan, published, json.loads(row.target)))
    if isinstance(said, Committed):
        said = _publish(transaction, said)
        published = plan.end_seq if said is None else published
    if said is not None and not repeats:
        return said
    changes: dict[str, Any] = {"target": None}
    if plan.end_seq > published:  # its driver may only be slow: it is fenced before its shards are taken
        changes["incarnation"] = row.incarnation + 1
    transaction.execute(pipelines.update().where(pipelines.c.pipeline == pipeline).values(**changes))
    return None


def _plan_of(row: Row[Any]) -> PlanIdentity:
    """Return the plan on record as the pipeline's next start would have it, or an empty one."""
    token = PublishToken(row.pipeline, row.incarnation)
    if row.plan_hash is None:
        return PlanIdentity(row.source, token, 0, 0, delivery_hash(row.source, row.pipeline, (), (0, 0)))
    return PlanIdentity(row.source, token, row.plan_start, row.plan_end, row.plan_hash)


def _publish(transaction: Transaction, batch: Committed) -> str | None:
    """Publish it as the next attempt of its query would; returns why that cannot be."""
    query = sa.select(pipelines).where(pipelines.c.pipeline.in_(batch.pipelines)).order_by(pipelines.c.pipeline)
    rows = {row.pipeline: row for row in transaction.execute(query.with_for_update())}
    now = transaction.execute(sa.select(transaction.now())).scalar_one()
    if missing := [name for name in batch.pipelines if name not in rows or rows[name].stale_at > now]:
        return f"its batch is also one of pipeline {missing[0]!r}, which goes on without it"
    identities = [_plan_of(rows[name]) for name in batch.pipelines]
    delivery = find_delivery(transaction, identities, batch.batch_id)
    if delivery.already:
        return None
    if delivery.delivery_hash != batch.delivery_hash:
        return "its batch there is not the one that it has planned last"
    for identity in identities:
        row = rows[identity.token.pipeline]
        if row.plan_hash is None or row.plan_end <= row.confirmed_seq:
            continue
        moves = planned_moves(transaction, row).moves
        if split_by_fit(moves, positions_of(transaction, identity.token, {move.key for move in moves}))[1]:
            return "shards of its batch have passed to other pipelines"
    its = pipelines.c.pipeline.in_(batch.pipelines), pipelines.c.plan_hash.is_not(None)
    transaction.execute(pipelines.update().where(*its).values(plan_incarnation=pipelines.c.incarnation))
    publish(transaction, identities, (), batch_id=batch.batch_id, look=lambda _: batch.looked)
    return None
