"""Leases by name: in each interval of time, one of many processes does some work."""

from __future__ import annotations

import hashlib
import uuid

import sqlalchemy as sa

from shard_store.sql.database import Database
from shard_store.sql.schema import Name, leases
from shard_store.sql.transaction import Transaction

_LONGEST = 86_400.0
"""Seconds. No interval is longer, unless its winner says so: an end beyond that is of a clock that was wrong."""


def win_interval(database: Database, name: str, interval: float) -> bool:
    """True for one caller in each `interval` seconds, over all processes. `name` may have any length.

    A winner that dies costs one interval. For those who do not win it is one statement, which takes no lock.
    """
    this = leases.c.name == _bounded(name)
    holder = uuid.uuid4().hex

    def is_free(transaction: Transaction) -> bool:
        ended = _has_ended(transaction.now(), interval)
        found = transaction.execute(sa.select(ended).where(this)).scalar_one_or_none()
        return found is None or bool(found)

    def claim(transaction: Transaction) -> bool:
        now = transaction.now()
        absent = transaction.dialect.insert_if_absent(leases).values(name=_bounded(name), holder="", until=0)
        transaction.execute(absent)
        taken = {"holder": holder, "until": now + int(interval * 1_000_000)}
        transaction.execute(leases.update().where(this, _has_ended(now, interval)).values(**taken))
        return bool(transaction.execute(sa.select(leases.c.holder).where(this)).scalar_one() == holder)

    return database.read(is_free) and database.write(claim)


def was_won(transaction: Transaction, name: str, within: float) -> bool:
    """Whether somebody has won the interval of this name, and it did not end more than `within` seconds ago."""
    now = transaction.now()
    until = sa.select(leases.c.until).where(leases.c.name == _bounded(name), leases.c.until > 0)
    lately = leases.c.until > now - int(within * 1_000_000), leases.c.until <= now + int(_LONGEST * 1_000_000)
    return transaction.execute(until.where(*lately)).first() is not None


def _has_ended(now: sa.ColumnElement[int], interval: float) -> sa.ColumnElement[bool]:
    """Also one that was won while the clock was years ahead: nobody would have it for so long otherwise."""
    beyond = leases.c.until > now + int(max(interval, _LONGEST) * 1_000_000)
    return sa.or_(leases.c.until <= now, beyond)


def _bounded(name: str) -> str:
    """The name as its column takes it: of a long one the beginning, and a hash of all."""
    longest = Name.length or 0
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: longest - len(digest) - 1]} {digest}"
