"""Which sink a pipeline's batches go to: what our own sinks deliver has an attempt before Spark calls it done.

So a batch without one was either taken by another sink, or the store has lost what was published: it was restored from
a backup, or a replica took its place. Our sinks make themselves known before they deliver anything, once for each
incarnation, so that this is known in the first batch as well.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.errors import LostProgress
from shard_store.model import DELIVERY, OTHER, SINK, PlanIdentity, PublishToken, Semantics
from shard_store.sql.schema import attempts, pipelines
from shard_store.sql.transaction import Transaction


def is_known(row: Row[Any], sink: str) -> bool:
    """Whether the pipeline's row says already that this sink delivers its current incarnation's plans."""
    return bool(row.sink == sink and row.sink_incarnation == row.incarnation)


def make_known(transaction: Transaction, identity: PlanIdentity, sink: str) -> None:
    """Write down which sink delivers the plans of the incarnation, if it is current."""
    token = identity.token
    ours = sa.and_(pipelines.c.pipeline == token.pipeline, pipelines.c.incarnation == token.incarnation)
    transaction.execute(pipelines.update().where(ours).values(sink=sink, sink_incarnation=token.incarnation))


def of_taken(row: Row[Any], token: PublishToken) -> dict[str, object]:
    """The columns that change when another sink has taken a plan, and this incarnation knows none of ours."""
    if row.plan_incarnation != token.incarnation or row.sink_incarnation == token.incarnation:
        return {}
    return {"sink": OTHER, "sink_incarnation": token.incarnation}


def lost_attempt(transaction: Transaction, row: Row[Any], token: PublishToken, end_seq: int) -> LostProgress | None:
    """Why it cannot be right that the store has no attempt of a plan up to `end_seq` with which Spark is done.

    None: it can, since another sink has taken it.
    """
    if not _is_published_by_us(transaction, row, token, end_seq):
        return None
    sink = "'delivery'" if row.sink == DELIVERY else "the cuesqueue sink"
    causes = "the store was restored from a backup that is older, or a replica that lacks it took its place"
    if row.sink == DELIVERY:
        causes += "; or the function of foreachBatch went on without 'delivery', or after it had failed"
    elif row.sink_incarnation != row.plan_incarnation:
        causes += "; or the query has another sink now, and was killed in its first batch"
    further = "have that batch read again" if Semantics(row.semantics).final_at_delivery else "go on without that batch"
    return LostProgress(
        f"pipeline {token.pipeline!r}: the checkpoint says that offset {end_seq} is done, but the store "
        f"{transaction.database} has nothing that {sink} published for it ({causes}); set 'failOnDataLoss' to false to "
        f"{further}"
    )


def _is_published_by_us(transaction: Transaction, row: Row[Any], token: PublishToken, end_seq: int) -> bool:
    replaced = row.plan_incarnation != token.incarnation
    if row.sink is None:
        return replaced and _is_lead_counted(transaction, token)
    if replaced:
        return bool(row.sink != OTHER)
    if row.plan_end != end_seq:
        return False
    if is_known(row, SINK):
        return True
    # a function of foreachBatch may go on without `delivery`, say where there are no rows; and a sink that makes itself
    # known later may be a new one: only where the database may be another one by now, it is a loss
    ours = row.sink in (SINK, DELIVERY)
    return ours and transaction.memory.may_have_changed(token)


def _is_lead_counted(transaction: Transaction, token: PublishToken) -> bool:
    """Whether the attempt before was our sink's: so it was told up to 0.2.0, whose sinks did not make themselves known.

    Of several pipelines one attempt has the rows; it may be pruned earlier.
    """
    lead = attempts.alias("lead")
    newest = sa.select(lead.c.delivery_hash, lead.c.rows.label("rows_of_all"))
    newest = newest.outerjoin(lead, lead.c.delivery_hash == attempts.c.lead_hash)
    newest = newest.where(attempts.c.pipeline == token.pipeline).order_by(attempts.c.end_seq.desc())
    before = transaction.execute(newest.limit(1)).one_or_none()
    return before is not None and (before.delivery_hash is None or before.rows_of_all is not None)
