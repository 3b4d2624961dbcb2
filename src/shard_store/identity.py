"""Which store this is: a random id, made once with the tables, by which a task recognises the store of its plan."""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from shard_store.errors import StoreConfigurationError
from shard_store.sql.schema import identity
from shard_store.sql.transaction import Transaction


def store_id(transaction: Transaction) -> str:
    """The same for every process that uses this store, and another for every other store but its copies."""
    found: str | None = transaction.execute(sa.select(identity.c.store_id)).scalar_one_or_none()
    if found is None:
        raise StoreConfigurationError(
            f"database {transaction.database!r}: its table {identity.name} is empty, so nobody can tell which store "
            "this is; restore the table from a backup, or name another database in 'storeUrl'"
        )
    return found


def create(transaction: Transaction) -> None:
    """Give the store its id, unless it has one. The caller holds the lock of the schema."""
    values = {"one": 1, "store_id": uuid.uuid4().hex, "created_at": transaction.now()}
    transaction.execute(transaction.dialect.insert_if_absent(identity).values(**values))
