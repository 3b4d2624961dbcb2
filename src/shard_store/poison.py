"""Which shards kill their readers: a mark before a read, taken away after it.

Only reads in isolation are marked: those of a plan that has failed before. A mark that is left over when the same range
is read again tells of a reader that died over it; receive counts would blame healthy messages too.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shard_store.model import PlanIdentity, Range
from shard_store.sql.schema import reads
from shard_store.sql.transaction import Transaction


def begin(transaction: Transaction, identity: PlanIdentity, entry: Range) -> int:
    """Mark the range as being read; returns how many earlier reads of it for this plan have never ended."""
    this = {"delivery_hash": identity.delivery_hash, "shard_key": entry.key, "position": entry.start}
    absent = transaction.dialect.insert_if_absent(reads).values(**this, unended=0, began_at=transaction.now())
    transaction.execute(absent)
    before = transaction.execute(sa.select(reads.c.unended).where(*_is(this)).with_for_update()).scalar_one()
    transaction.execute(reads.update().where(*_is(this)).values(unended=before + 1, began_at=transaction.now()))
    return int(before)


def end(transaction: Transaction, identity: PlanIdentity, entry: Range) -> None:
    """The read has ended, well or with an error of its own: its reader is alive."""
    this = {"delivery_hash": identity.delivery_hash, "shard_key": entry.key, "position": entry.start}
    transaction.execute(reads.delete().where(*_is(this)))


def _is(this: dict[str, Any]) -> list[sa.ColumnElement[bool]]:
    return [reads.c[name] == value for name, value in this.items()]
