"""The simulator's tables beside the messages: filters of its pools, and faults that were ordered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import (
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from queue_source.queues.sql.database import LONGEST_NAME
from queue_source.tags import EVERYTHING
from shard_store.sql.transaction import Transaction

metadata = MetaData()

bindings = Table(
    "sim_bindings",
    metadata,
    Column("pool", String(LONGEST_NAME), primary_key=True),
    Column("filter", String(LONGEST_NAME), primary_key=True),
)
faults = Table(
    "sim_faults",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", String(LONGEST_NAME), nullable=False),
    Column("fault", Text, nullable=False),
    Column("verb", Text),  # None: any
    Column("times", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
)


def bind(transaction: Transaction, pool: str, filters: Sequence[str] | None) -> None:
    """Add filters to those that the pool has; without any, a new pool takes everything."""
    if filters is None:
        bound_pool = transaction.execute(select(bindings.c.pool).where(bindings.c.pool == pool).limit(1)).first()
        filters = () if bound_pool else (EVERYTHING,)
    for tag_filter in filters:
        transaction.execute(insert(bindings).values(pool=pool, filter=tag_filter).on_conflict_do_nothing())


def is_bound(transaction: Transaction, pool: str, filters: Sequence[str] | None) -> bool:
    bound_filters = set(transaction.execute(select(bindings.c.filter).where(bindings.c.pool == pool)).scalars())
    return bool(bound_filters) if filters is None else bound_filters.issuperset(filters)


def exists(transaction: Transaction, pool: str) -> bool:
    return inspect(transaction.connection).has_table(bindings.name) and is_bound(transaction, pool, None)


def forget(transaction: Transaction, pool: str) -> None:
    """Remove the pool's filters, and the faults that were ordered for it."""
    for table in (bindings, faults):
        transaction.execute(delete(table).where(table.c.pool == pool))


def pools(transaction: Transaction) -> Mapping[str, Sequence[str]]:
    """Return every pool of the source with its filters."""
    filters_by_pool: dict[str, list[str]] = defaultdict(list)
    for row in transaction.execute(select(bindings.c.pool, bindings.c.filter).order_by(bindings.c.pool)):
        filters_by_pool[row.pool].append(row.filter)
    return filters_by_pool


def order(transaction: Transaction, pool: str, fault: str, verb: str | None, times: int, seconds: float) -> None:
    transaction.execute(faults.insert().values(pool=pool, fault=fault, verb=verb, times=times, seconds=seconds))


def ordered(transaction: Transaction, pool: str) -> dict[str, int]:
    """Return how often each fault is still to come."""
    counts: dict[str, int] = defaultdict(int)
    for row in transaction.execute(select(faults.c.fault, faults.c.times).where(faults.c.pool == pool)):
        counts[row.fault] += row.times
    return dict(counts)


def take(transaction: Transaction, pool: str, fault: str, verb: str, max_messages: int) -> list[float]:
    """Use up to `max_messages` of an ordered fault, the oldest order first; returns the seconds of each."""
    conditions = (faults.c.pool == pool, faults.c.fault == fault, or_(faults.c.verb.is_(None), faults.c.verb == verb))
    taken: list[float] = []
    for row in transaction.execute(select(faults).where(*conditions).order_by(faults.c.id)).all():
        used = min(row.times, max_messages - len(taken))
        taken += [row.seconds] * used
        if used == row.times:
            transaction.execute(delete(faults).where(faults.c.id == row.id))
        elif used:
            transaction.execute(update(faults).where(faults.c.id == row.id).values(times=row.times - used))
    return taken
