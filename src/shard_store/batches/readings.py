"""Who reads a plan, in the table of the marks of reads: which read killed its task, and which rows may be out already.

*Marks* say which part of a plan a task was reading when it died. They are written before a read, and removed after it;
only plans that have failed before are marked. A mark that is left behind by one task of several is a suspicion: the
whole executor may have died, with all that it was reading. One that is left behind by a read that was the only one of
the plan counts against what it was reading. Receive counts would blame healthy messages too.

*Traces* prove that no row is out of an object which a reading of the plan has found bad (decision 0064).
Spark may read a plan more than once: to sample it, for several actions, in copies or repetitions of tasks, again for
lost shuffle files. So tasks leave traces, under numbers that no task of a plan has:

- *begun*: by the task of the plan's first partition, which every reading runs;
- *repeated*: by each repeated task of another one;
- *judged*: by each task attempt that has found an object bad, or has left it out because another attempt had;
- *counted*: beside the two others, how many tasks the plan has.

Once one batch has shown that the tasks which read are those whose rows our sink brings (`is_direct`), its incarnation
leaves no trace of the beginning any more: the winners tell who has read.

A task attempt is known by the numbers that Spark gives it. Where a mark has its first place, a trace has incarnation
and stage; where the end, the number of the task attempt; where the count, the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from shard_store.error_table.records import found_bad, record
from shard_store.model import ALONE, ErrorRecord, PlanIdentity, Position, Reading, ReadMark, ShardKey
from shard_store.shards.announcing import GIVEN_UP
from shard_store.shards.ownership import counts_inserts, fence
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, errors, read_marks

_BEGUN = ALONE - 1
_JUDGED = ALONE - 2
_READ_TWICE = ALONE - 3
"""One reader has planned the batch twice, or one task attempt has begun it twice: its query reads it twice."""
_DOUBTED = ALONE - 4
"""An attempt before has left a verdict of which nothing proves that none of its own rows of the object were taken."""
_REPEATED = ALONE - 5
_COUNTED = ALONE - 6

_STAGES = 1 << 32


class _Trace(NamedTuple):
    """`place` is that of the incarnation and the stage."""

    kind: int
    place: int
    task: int
    partition: int = 0

    @classmethod
    def of(cls, kind: int, identity: PlanIdentity, reading: Reading) -> _Trace:
        return cls(kind, identity.token.incarnation * _STAGES + reading.stage, reading.task, reading.partition)

    @property
    def incarnation(self) -> int:
        return self.place // _STAGES

    @property
    def stage_run(self) -> tuple[int, int]:
        """Return what is the same for all tasks that a stage has begun one after the other.

        Spark numbers task attempts in the order in which they begin. So one that was begun again is not in this run,
        also where it is as good as a first attempt for Spark: in a stage that runs again for lost shuffle files.
        """
        return self.place, self.task - self.partition


def begin_reading(
    transaction: Transaction,
    identity: PlanIdentity,
    reading: Reading,
    *,
    first: bool,
    tasks: int,
    replaced: str | None = None,
) -> set[tuple[ShardKey, Position]]:
    """Leave a trace that this task attempt reads the plan, before any row of it goes out.

    Returns what must not be read, since another attempt has found it bad. The caller has judged as the earlier attempts
    did, which this one replaces. `first`: it reads the plan's first partition. `tasks`: how many the plan has.
    `replaced`: the plan before, whose traces go.
    """
    if replaced:
        old = read_marks.c.delivery_hash == replaced, read_marks.c.task < ALONE
        transaction.execute(read_marks.delete().where(*old))
    own = _Trace.of(_BEGUN if first else _REPEATED, identity, reading)
    if not _write(transaction, identity.delivery_hash, own) and first:
        read_twice(transaction, identity)
    if first:
        _write(transaction, identity.delivery_hash, _Trace(_COUNTED, 0, tasks))
    if not reading.repeated:
        return set()
    own = _Trace.of(_JUDGED, identity, reading)
    # before the bad ranges: a verdict that comes in between is not taken for one that this task has
    same = read_marks.c.task == _JUDGED, read_marks.c.unended == own.partition, read_marks.c.first_place == own.place
    before = _of(transaction, identity.delivery_hash, sa.and_(*same))
    bad = found_bad(transaction, identity)
    if before:
        _delete(transaction, identity.delivery_hash, before)
        _write(transaction, identity.delivery_hash, own)
    return bad


def report(
    transaction: Transaction,
    identity: PlanIdentity,
    records: Sequence[ErrorRecord],
    reading: Reading | None,
    tasks: int = 0,
) -> None:
    """Write what a task has found bad. `reading` is the task attempt, where another one could have read the object.

    `tasks`: how many the plan has.
    """
    record(transaction, identity.source, identity.token.pipeline, records)
    if reading is not None and any(error.scope == "object" for error in records):
        _write(transaction, identity.delivery_hash, _Trace.of(_JUDGED, identity, reading))
        _write(transaction, identity.delivery_hash, _Trace(_COUNTED, 0, tasks))


def judge(
    transaction: Transaction,
    identity: PlanIdentity,
    records: Sequence[ErrorRecord],
    judges: Sequence[Reading],
    *,
    first: Reading | None,
    tasks: int,
) -> None:
    """Write what the tasks whose rows are published have found bad: they are the only ones that have read the plan.

    For a sink whose tasks read, at its commit. `judges`: those that found objects bad, or left them out as such;
    `first`: the one of the first partition. Does nothing to a plan that is published. Raises PipelineTakenOver: what a
    replaced driver has found is no verdict on what the new one reads.
    """
    fence(transaction, identity.token)
    final = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash == identity.delivery_hash)
    if transaction.execute(final).first() is not None:
        return
    record(transaction, identity.source, identity.token.pipeline, records)
    if first is not None:
        _write(transaction, identity.delivery_hash, _Trace.of(_BEGUN, identity, first))
    for reading in judges:
        _write(transaction, identity.delivery_hash, _Trace.of(_JUDGED, identity, reading))
    _write(transaction, identity.delivery_hash, _Trace(_COUNTED, 0, tasks))


def read_twice(transaction: Transaction, identity: PlanIdentity) -> None:
    """Leave a trace that a reader was asked for the plan once more, or a task attempt reads it once more."""
    _write(transaction, identity.delivery_hash, _Trace(_READ_TWICE, identity.token.incarnation, 0))


def is_direct(transaction: Transaction, identity: PlanIdentity, winners: Collection[int]) -> bool:
    """Return whether the tasks that have read a plan are those whose rows are published, each of them, and no other.

    It is so where a query sends what it reads to our sink with nothing shuffled, joined or united in between.
    """
    traces = _of(transaction, identity.delivery_hash)
    begun = [trace for trace in traces if trace.kind == _BEGUN]
    twice = any(trace.kind == _READ_TWICE for trace in traces)
    return len(begun) == 1 and begun[0].task in winners and not twice and _counted(traces) == len(winners)


def settle(transaction: Transaction, identity: PlanIdentity, attempt: int, incarnation: int) -> None:
    """Leave out of a plan that is made again what attempt number `attempt` has found bad, and remove its traces.

    Called before that is asked for. What is reported from now on by its tasks is no verdict of the new attempt.
    """
    traces = _of(transaction, identity.delivery_hash)
    if not traces:
        return
    _delete(transaction, identity.delivery_hash, traces)
    if any(trace.kind == _DOUBTED for trace in traces) or (
        _judges(traces) and not (attempt == 1 and _read_once(traces, incarnation))
    ):
        _write(transaction, identity.delivery_hash, _Trace(_DOUBTED, 0, 0))


def doubt(
    transaction: Transaction,
    identity: PlanIdentity,
    *,
    attempt: int,
    incarnation: int,
    winners: Collection[int],
    fenced: bool,
) -> None:
    """Mark the plan's bad objects as perhaps published in part, unless it is proven that none of their rows are out.

    Called by the transaction that makes the plan final. `attempt` and `incarnation` are those of its last attempt.
    `winners`: the task attempts whose rows are published, where they are known. `fenced`: no attempt before has
    published any.
    """
    unproven = [errors.c.delivery_hash == identity.delivery_hash, errors.c.scope == "object"]
    traces = _of(transaction, identity.delivery_hash)
    judges, kinds = _judges(traces), {trace.kind for trace in traces}
    is_only = fenced or attempt == 1  # else an attempt before may have read it
    is_proven = fenced or _DOUBTED not in kinds
    if is_proven and judges:  # else nothing was found bad but by who publishes, or by attempts before
        by_winners = _is_of_winners(judges, traces, incarnation, winners) or _read_once(traces, incarnation)
        is_proven = is_only and _READ_TWICE not in kinds and by_winners
    if is_proven and is_only:
        return
    if is_proven:
        unproven.append(errors.c.cause == GIVEN_UP)  # by an operator, after an attempt that may have read it
    elif is_only:
        unproven.append(errors.c.cause != GIVEN_UP)  # before the attempt read anything
    transaction.execute(errors.update().where(*unproven).values(scope="part"))


def _is_of_winners(
    judges: Sequence[_Trace], traces: Sequence[_Trace], incarnation: int, winners: Collection[int]
) -> bool:
    """Return whether the attempts that judged are published, and no others have read the same.

    In a cartesian product each partition is read by several tasks of one stage, which are all published. Where no task
    said that it begins, since batches before were read by those who brought them, their number tells.
    """
    if not any(trace.kind == _BEGUN for trace in traces) and _counted(traces) != len(winners):
        return False
    stages = {judge.place for judge in judges}
    first = {(trace.place, trace.partition) for trace in traces if trace.kind == _BEGUN and trace.place in stages}
    return len(first) == len({place for place, _ in first}) and all(
        judge.incarnation == incarnation and judge.task in winners for judge in judges
    )


def _read_once(traces: Sequence[_Trace], incarnation: int) -> bool:
    """Return whether the attempts that judged were a part of the only reading, and the first attempt at its task."""
    begun = [trace for trace in traces if trace.kind in (_BEGUN, _REPEATED)]
    return (
        [trace.kind for trace in begun] == [_BEGUN]
        and begun[0].incarnation == incarnation
        and all(judge.stage_run == begun[0].stage_run for judge in _judges(traces))
        and not any(trace.kind == _READ_TWICE for trace in traces)
    )


def _counted(traces: Iterable[_Trace]) -> int:
    """Return how many tasks the plan has; 0 where that is not known."""
    counts = {trace.task for trace in traces if trace.kind == _COUNTED}
    return counts.pop() if len(counts) == 1 else 0


def _judges(traces: Iterable[_Trace]) -> list[_Trace]:
    return [trace for trace in traces if trace.kind == _JUDGED]


def _of(
    transaction: Transaction, digest: str, which: sa.ColumnElement[bool] = read_marks.c.task < ALONE
) -> list[_Trace]:
    c = read_marks.c
    query = sa.select(c.task, c.first_place, c.end_place, c.unended).where(c.delivery_hash == digest, which)
    return [_Trace(*row) for row in transaction.execute(query)]


def _write(transaction: Transaction, digest: str, trace: _Trace) -> bool:
    """Leave a trace; returns whether it was not there."""
    own = {"task": trace.kind, "first_place": trace.place, "end_place": trace.task, "unended": trace.partition}
    counts = counts_inserts(transaction)
    if not counts and trace in _of(transaction, digest):
        return False
    absent = transaction.dialect.insert_if_absent(read_marks)
    absent = absent.values(delivery_hash=digest, began_at=transaction.now(), **own)
    written = transaction.execute(absent.execution_options(preserve_rowcount=True))
    return not counts or written.rowcount == 1


def _delete(transaction: Transaction, digest: str, traces: Iterable[_Trace]) -> None:
    c = read_marks.c
    for trace in traces:
        own = c.task == trace.kind, c.first_place == trace.place, c.end_place == trace.task
        transaction.execute(read_marks.delete().where(c.delivery_hash == digest, *own))


def begin_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Mark a read: one more than `mark` knows of has not ended. Running this again counts nothing more."""
    own = {"task": mark.task, "first_place": mark.first, "end_place": mark.end}
    now = {"unended": mark.unended + 1, "began_at": transaction.now()}
    absent = transaction.dialect.insert_if_absent(read_marks)
    transaction.execute(absent.values(delivery_hash=identity.delivery_hash, **own, **now))
    transaction.execute(read_marks.update().where(*_is_mark(identity, mark)).values(**now))


def end_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Remove the marks of what was read; what was read alone is cleared of every suspicion that it holds."""
    if mark.task == ALONE:
        every = read_marks.c.task >= ALONE
        within = read_marks.c.first_place >= mark.first, read_marks.c.end_place <= mark.end
        transaction.execute(read_marks.delete().where(_is_of_plan(identity), every, *within))
    else:
        transaction.execute(read_marks.delete().where(*_is_mark(identity, mark)))


def undo_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Take back the mark of a read that failed for a reason that says nothing about its objects; earlier ones count."""
    own = _is_mark(identity, mark)
    if mark.unended:
        transaction.execute(read_marks.update().where(*own).values(unended=mark.unended))
    else:
        transaction.execute(read_marks.delete().where(*own))


def marks_of_plan(transaction: Transaction, identity: PlanIdentity) -> list[ReadMark]:
    """Return the marks of the plan: of reads that are under way, or were left behind."""
    query = sa.select(read_marks.c.first_place, read_marks.c.end_place, read_marks.c.task, read_marks.c.unended)
    rows = transaction.execute(query.where(_is_of_plan(identity), read_marks.c.task >= ALONE))
    return [ReadMark(*row) for row in rows]


def forget_marks(transaction: Transaction, delivery_hash: str | None, attempts: int | None) -> None:
    """Remove the marks of a plan, made `attempts` times, that is published or replaced. The first attempt has none.

    Traces of its readings go with the next plan.
    """
    if (attempts or 1) > 1:
        transaction.execute(read_marks.delete().where(read_marks.c.delivery_hash == delivery_hash))


def forget_places(transaction: Transaction, identity: PlanIdentity) -> None:
    """Remove the marks of a plan that is made again without some of its shards: they name places in it."""
    transaction.execute(read_marks.delete().where(_is_of_plan(identity), read_marks.c.task >= ALONE))


def _is_of_plan(identity: PlanIdentity) -> sa.ColumnElement[bool]:
    return read_marks.c.delivery_hash == identity.delivery_hash


def _is_mark(identity: PlanIdentity, mark: ReadMark) -> list[sa.ColumnElement[bool]]:
    c = read_marks.c
    return [_is_of_plan(identity), c.task == mark.task, c.first_place == mark.first, c.end_place == mark.end]
