"""Marks of reads: which part of a plan a task was reading when it died. Written before a read, removed after it.

Only plans that have failed before are marked. A mark that is left behind by a task with others beside it is a
suspicion: the whole executor may have died, with all that it was reading. One that is left behind by a read with
nothing of the plan beside it counts against what it was reading. Receive counts would blame healthy messages too.
"""

from __future__ import annotations

import sqlalchemy as sa

from shard_store.model import ALONE, PlanIdentity, ReadMark
from shard_store.sql.schema import read_marks
from shard_store.sql.transaction import Transaction


def begin(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """One read more than `mark` knows of has not ended. Running this again counts nothing more."""
    own = {"task": mark.task, "first_place": mark.first, "end_place": mark.end}
    now = {"unended": mark.unended + 1, "began_at": transaction.now()}
    absent = transaction.dialect.insert_if_absent(read_marks)
    transaction.execute(absent.values(delivery_hash=identity.delivery_hash, **own, **now))
    transaction.execute(read_marks.update().where(*_is(identity, mark)).values(**now))


def end(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """All that is marked was read: what was read alone is cleared of every suspicion that it holds."""
    if mark.task == ALONE:
        every = read_marks.c.task >= ALONE
        within = read_marks.c.first_place >= mark.first, read_marks.c.end_place <= mark.end
        transaction.execute(read_marks.delete().where(_of(identity), every, *within))
    else:
        transaction.execute(read_marks.delete().where(*_is(identity, mark)))


def undo(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """The read failed for a reason that says nothing about its objects: it does not count, and earlier ones do."""
    own = _is(identity, mark)
    if mark.unended:
        transaction.execute(read_marks.update().where(*own).values(unended=mark.unended))
    else:
        transaction.execute(read_marks.delete().where(*own))


def of_plan(transaction: Transaction, identity: PlanIdentity) -> list[ReadMark]:
    """The marks that are there: reads under way, or left behind."""
    query = sa.select(read_marks.c.first_place, read_marks.c.end_place, read_marks.c.task, read_marks.c.unended)
    query = query.where(_of(identity), read_marks.c.task >= ALONE)
    return [ReadMark(*row) for row in transaction.execute(query)]


def forget(transaction: Transaction, delivery_hash: str | None, attempts: int | None) -> None:
    """The plan, made `attempts` times, is published or replaced. The first attempt marks nothing.

    Traces of its readings (`readings.py`) go with the next plan.
    """
    if (attempts or 1) > 1:
        transaction.execute(read_marks.delete().where(read_marks.c.delivery_hash == delivery_hash))


def forget_places(transaction: Transaction, identity: PlanIdentity) -> None:
    """The plan is made again without some of its shards: marks name places in what was left of it before."""
    transaction.execute(read_marks.delete().where(_of(identity), read_marks.c.task >= ALONE))


def _of(identity: PlanIdentity) -> sa.ColumnElement[bool]:
    return read_marks.c.delivery_hash == identity.delivery_hash


def _is(identity: PlanIdentity, mark: ReadMark) -> list[sa.ColumnElement[bool]]:
    c = read_marks.c
    return [_of(identity), c.task == mark.task, c.first_place == mark.first, c.end_place == mark.end]
