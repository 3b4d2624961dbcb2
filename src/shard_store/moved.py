"""Sources that were moved to another store (`moving.py`): here nobody begins anything with them any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from shard_store.errors import StoreConfigurationError
from shard_store.model import split_key
from shard_store.sql.schema import sources, splits
from shard_store.sql.transaction import Transaction


def moved_to(transaction: Transaction, source: str) -> str | None:
    """The store that the source is in by now, without secrets; None: it is here."""
    found: str | None = transaction.execute(
        sa.select(sources.c.moved_to).where(sources.c.source == source)
    ).scalar_one_or_none()
    return found


def refuse_moved(transaction: Transaction, source: str) -> None:
    """Make sure that the source is here, and stays so as long as the transaction: its row is locked, if it is there."""
    this = sa.select(sources.c.moved_to).where(sources.c.source == source).with_for_update()
    place = transaction.execute(this).scalar_one_or_none()
    if place is not None:
        raise StoreConfigurationError(
            f"source {source!r} was moved from {transaction.database} to the store {place} (cuesqueue export); name "
            "that one in 'storeUrl', and keep the checkpoint"
        )


def refuse_changes(transaction: Transaction, names: Collection[str]) -> None:
    """Make sure that what people change here is not in another store, where it would stay as it is."""
    query = sa.select(sources.c.source, sources.c.moved_to).where(sources.c.moved_to.is_not(None))
    for row in transaction.select_among(query, sources.c.source, names):
        raise StoreConfigurationError(
            f"source {row.source!r} was moved from {transaction.database} to the store {row.moved_to}: nothing that is "
            "changed here has an effect; name that store"
        )


def moved_sources(transaction: Transaction) -> dict[str, str]:
    """The sources that are in another store by now, and where."""
    query = sa.select(sources.c.source, sources.c.moved_to).where(sources.c.moved_to.is_not(None))
    return {row.source: row.moved_to for row in transaction.execute(query)}


def publisher_moved(transaction: Transaction, paths: Sequence[str]) -> str | None:
    """A source that has published one of these files, and is in another store by now: so later ones are known there."""
    query = sa.select(splits.c.source).join(sources, sources.c.source == splits.c.source)
    keys = [split_key(path) for path in paths]
    found = transaction.select_among(query.where(sources.c.moved_to.is_not(None)), splits.c.name_key, keys)
    return next((row.source for row in found), None)
