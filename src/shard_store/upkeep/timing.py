"""When upkeep is done, and by which time: leases by name, and the trusted time, in one table.

With a lease one of many processes does some work in each interval of time.

The trusted time is that by which pruning forgets and cleaning deletes: a clock that is ahead for a moment moves neither
(decision 0047). Heartbeats, leases and publications go on by the database's clock as it is: what they do wrong ends
with the error. What is forgotten or deleted does not come back. So a jump forward counts only when it has lasted.
Nothing but the store's own rows is needed to see one: the host's clock may be the same as the database's (SQLite), or
wrong itself.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa

from shard_store.model import MICROSECOND
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import Name, leases

_LONGEST = 86_400.0
"""Seconds. No interval is longer, unless its winner says so: an end beyond that is of a clock that was wrong."""


def win_interval(database: Database, name: str, interval: float) -> bool:
    """Return True for one caller in each `interval` seconds, over all processes. `name` may have any length.

    A winner that dies costs one interval. For those who do not win it is one statement, which takes no lock.
    """
    this = leases.c.name == _bounded(name)
    holder = uuid.uuid4().hex

    def is_free(transaction: Transaction) -> bool:
        ended = _has_ended(transaction.now(), interval)
        is_over = transaction.execute(sa.select(ended).where(this)).scalar_one_or_none()
        return is_over is None or bool(is_over)

    def claim(transaction: Transaction) -> bool:
        now = transaction.now()
        absent = transaction.dialect.insert_if_absent(leases).values(name=_bounded(name), holder="", until=0)
        transaction.execute(absent)
        taken = {"holder": holder, "until": now + int(interval * 1_000_000)}
        transaction.execute(leases.update().where(this, _has_ended(now, interval)).values(**taken))
        # none, if it was there, won long ago, and is pruned by now
        return bool(transaction.execute(sa.select(leases.c.holder).where(this)).scalar_one_or_none() == holder)

    return database.read(is_free) and database.write(claim)


def _has_ended(now: sa.ColumnElement[int], interval: float) -> sa.ColumnElement[bool]:
    """Return whether it has ended, or was won while the clock was years ahead: no interval is so long."""
    beyond = leases.c.until > now + int(max(interval, _LONGEST) * 1_000_000)
    return sa.or_(leases.c.until <= now, beyond)


def _bounded(name: str) -> str:
    """Return the name as its column takes it: of a long one the beginning, and a hash of all."""
    longest = Name.length or 0
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: longest - len(digest) - 1]} {digest}"


_STEP = timedelta(hours=1)
"""So much may lie between two looks at the clock; each pruning looks, once a minute while a reader runs."""
LASTING = timedelta(hours=12)
"""A longer step counts when the clock still says so after this: also after everything was stopped for a while."""

NAMES = _TRUSTED, _SUSPECTED = "clock: trusted", "clock: suspected"
"""Of the rows among the leases that hold both times."""


class TrustedTime(NamedTuple):
    """Microseconds. `at` is the time to work by; `ahead`: how far the clock is beyond it, 0 while it is trusted."""

    at: int
    ahead: int = 0


def trusted_time(transaction: Transaction) -> TrustedTime:
    """Return the time to work by. Changes nothing: without pruning the trusted time stands still."""
    return _judge(*_read_times(transaction))


def note_time(transaction: Transaction) -> TrustedTime:
    """Return the time to work by, and remember what the clock says: a step is trusted once it has lasted."""
    now, trusted, suspected = _read_times(transaction)
    trusted_now = _judge(now, trusted, suspected)
    if not trusted_now.ahead:
        _set(transaction, _TRUSTED, now)
        if suspected is not None:
            transaction.execute(leases.delete().where(leases.c.name == _SUSPECTED))
    elif suspected is None or suspected > now:  # another step than the one that was seen before
        _set(transaction, _SUSPECTED, now)
    return trusted_now


def _judge(now: int, trusted: int | None, suspected: int | None) -> TrustedTime:
    """Judge the clock. One that went back is trusted: it forgets and deletes less."""
    if trusted is None or now <= trusted + _STEP // MICROSECOND:
        return TrustedTime(now)
    if suspected is not None and suspected + LASTING // MICROSECOND <= now:
        return TrustedTime(now)
    return TrustedTime(trusted, now - trusted)


def _read_times(transaction: Transaction) -> tuple[int, int | None, int | None]:
    rows = transaction.execute(sa.select(leases.c.name, leases.c.until).where(leases.c.name.in_(NAMES)))
    times: dict[str, int] = {row.name: row.until for row in rows}
    now = int(transaction.execute(sa.select(transaction.now())).scalar_one())
    return now, times.get(_TRUSTED), times.get(_SUSPECTED)


def _set(transaction: Transaction, name: str, time: int) -> None:
    transaction.execute(transaction.dialect.insert_if_absent(leases).values(name=name, holder="", until=time))
    transaction.execute(leases.update().where(leases.c.name == name).values(until=time))
