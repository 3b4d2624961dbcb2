"""Taking over the memory of another reader: what it has read counts as finished here (`cuesqueue adopt`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shard_store.batches.starting import check_name
from shard_store.model import ShardState, end_at, shard_key
from shard_store.shards.sources import refuse_moved
from shard_store.sql.schema import shards, sources
from shard_store.sql.transaction import Transaction, chunks


class Adopted(NamedTuple):
    """An object that was read elsewhere; `size` in bytes and `etag` as far as they are known."""

    uri: str
    size: int | None = None
    etag: str | None = None


def adopt(transaction: Transaction, source: str, objects: Sequence[Adopted], origin: str) -> int:
    """Write these objects down as finished shards of the source, now; returns how many were not known.

    What is known stays as it is, also what is not finished: so it may be run again. `origin` is shown with each shard,
    in the place of its message.
    """
    check_name("source", source)
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    refuse_moved(transaction, source)
    by_key = {shard_key(source, one.uri): one for one in objects}
    keys = sorted(by_key)
    known = {row.shard_key for row in transaction.select_among(shards.select(), shards.c.shard_key, keys)}
    names = ("shard_key", "shard_id", "size", "etag", "position")
    fixed = {
        "source": source,
        "queue": "adopted",
        "message_id": origin,
        "receive_count": 0,
        "state": ShardState.DONE.value,
        "opened_at": transaction.now(),
        "finished_at": transaction.now(),
    }
    given = transaction.row_set(**{name: shards.c[name] for name in names})
    insert = given.insert(transaction.dialect.insert_if_absent(shards), fixed)
    new = [key for key in keys if key not in known]
    for chunk in chunks(new):
        values = [(key, (one := by_key[key]).uri, one.size, one.etag, end_at(one.size or 0)) for key in chunk]
        given.execute(transaction.connection, insert, values)
    return len(new)
