"""Who reads a plan, in the table of the marks of reads: which read killed its task, and which rows may be out already.

*Marks* say which part of a plan a task was reading when it died. They are written before a read, and removed after it;
only plans that have failed before are marked. A mark that is left behind by one task of several is a suspicion: the
whole executor may have died, with all that it was reading. One that is left behind by a read that was the only one of
the plan counts against what it was reading. Receive counts would blame healthy messages too.

*Traces* prove that no row is out of an object which a reading of the plan has found bad (decision 0064).
Spark may read a plan more than once: to sample it, for several actions, in copies or repetitions of tasks, again for
lost shuffle files. So tasks leave traces, whose states `_Said` names. Once one batch has shown that the tasks which
read are those whose rows our sink brings (`is_direct`), its incarnation leaves no trace of the beginning any more: the
winners tell who has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import sqlalchemy as sa

from shard_store.error_table.records import found_bad, record
from shard_store.model import ALONE, ErrorRecord, Met, PlanIdentity, Position, Reading, ReadMark, ShardKey
from shard_store.shards.announcing import GIVEN_UP
from shard_store.shards.ownership import counts_inserts, fence
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import attempts, errors, read_marks, shards


class _Said(IntEnum):
    """What a trace says. It is kept in the place of a mark's task, as a number that no task has."""

    BEGUN = ALONE - 1  # by the task of the plan's first partition, which every reading runs
    JUDGED = ALONE - 2  # by each task attempt that found an object bad, or left it out because another attempt had
    READ_TWICE = ALONE - 3  # one reader has planned the batch twice, or one task attempt has begun it twice
    DOUBTED = ALONE - 4  # nothing proves that no rows of an object are out that an attempt before has found bad
    REPEATED = ALONE - 5  # by each repeated task of another partition than the first
    COUNTED = ALONE - 6  # beside BEGUN and JUDGED: `task` is how many tasks the plan has


_STAGES = 1 << 32


class _Trace(NamedTuple):
    """What a task attempt says, by the numbers that Spark gives it; those that do not matter are 0.

    The row of a mark has incarnation and stage as its first place, the task attempt as its end, the partition as its
    count.
    """

    said: _Said
    incarnation: int = 0
    stage: int = 0
    task: int = 0
    partition: int = 0

    @classmethod
    def of(cls, said: _Said, identity: PlanIdentity, reading: Reading) -> _Trace:
        return cls(said, identity.token.incarnation, reading.stage, reading.task, reading.partition)

    @property
    def in_stage(self) -> tuple[int, int]:
        return self.incarnation, self.stage

    @property
    def stage_run(self) -> tuple[int, int, int]:
        """Return what is the same for all tasks that a stage has begun one after the other.

        Spark numbers task attempts in the order in which they begin. So one that was begun again is not in this run,
        also where it is as good as a first attempt for Spark: in a stage that runs again for lost shuffle files.
        """
        return *self.in_stage, self.task - self.partition


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
        transaction.execute(read_marks.delete().where(read_marks.c.delivery_hash == replaced, _IS_TRACE))
    was_absent = _leave(transaction, identity, _Trace.of(_Said.BEGUN if first else _Said.REPEATED, identity, reading))
    if first:
        if not was_absent:
            read_twice(transaction, identity)
        _leave(transaction, identity, _Trace(_Said.COUNTED, task=tasks))
    if not reading.repeated:
        return set()
    own = _Trace.of(_Said.JUDGED, identity, reading)
    # before the bad ranges: a verdict that comes in between is not taken for one that this task has
    before = [trace for trace in _of(transaction, identity) if trace._replace(task=own.task) == own]
    bad = found_bad(transaction, identity)
    if before:
        _remove(transaction, identity, before)
        _leave(transaction, identity, own)
    return bad


def meet(transaction: Transaction, identity: PlanIdentity, met: Mapping[ShardKey, Met]) -> dict[ShardKey, Met]:
    """Record the versions in which a task has met objects whose snapshot knows no size, and return those that count.

    The attempt that meets an object first decides for all attempts at the plan (decision 0093), until the first attempt
    at another plan (`settle`). Called before any row of these objects goes out. A plan that was replaced decides
    nothing. Raises PipelineTakenOver.
    """
    c = shards.c
    if fence(transaction, identity.token).plan_hash == identity.delivery_hash:
        token = identity.token
        row_set = transaction.row_set(key=c.shard_key, size=c.size, etag=c.etag)
        first = shards.update().where(
            c.shard_key == row_set.c["key"],
            c.size.is_(None),
            c.owner == token.pipeline,
            c.incarnation == token.incarnation,
        )
        first = first.values(size=row_set.c["size"], etag=sa.func.coalesce(c.etag, row_set.c["etag"]))
        for chunk in chunks(sorted(met)):
            row_set.execute(transaction.connection, first, [(key, *met[key]) for key in chunk])
    recorded = transaction.select_among(sa.select(c.shard_key, c.size, c.etag), c.shard_key, met)
    return {**met, **{ShardKey(key): Met(size, etag) for key, size, etag in recorded if size is not None}}


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
        _leave(transaction, identity, _Trace.of(_Said.JUDGED, identity, reading))
        _leave(transaction, identity, _Trace(_Said.COUNTED, task=tasks))


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
    begun = [] if first is None else [_Trace.of(_Said.BEGUN, identity, first)]
    judged = [_Trace.of(_Said.JUDGED, identity, reading) for reading in judges]
    for trace in (*begun, *judged, _Trace(_Said.COUNTED, task=tasks)):
        _leave(transaction, identity, trace)


def read_twice(transaction: Transaction, identity: PlanIdentity) -> None:
    """Leave a trace that a reader was asked for the plan once more, or a task attempt reads it once more."""
    _leave(transaction, identity, _Trace(_Said.READ_TWICE, identity.token.incarnation))


def is_direct(transaction: Transaction, identity: PlanIdentity, winners: Collection[int]) -> bool:
    """Return whether the tasks that have read a plan are those whose rows are published, each of them, and no other.

    It is so where a query sends what it reads to our sink with nothing shuffled, joined or united in between.
    """
    traces = _of(transaction, identity)
    begun, twice = _those(traces, _Said.BEGUN), _those(traces, _Said.READ_TWICE)
    return len(begun) == 1 and begun[0].task in winners and not twice and _counted(traces) == len(winners)


def settle(transaction: Transaction, identity: PlanIdentity, attempt: int, incarnation: int) -> None:
    """Leave out of a plan that is made again what attempt number `attempt` has found bad, and remove its traces.

    Called before that is asked for. What is reported from now on by its tasks is no verdict of the new attempt.
    """
    traces = _of(transaction, identity)
    _remove(transaction, identity, traces)
    is_proven = attempt == 1 and _read_once(traces, incarnation)
    if _those(traces, _Said.DOUBTED) or (_those(traces, _Said.JUDGED) and not is_proven):
        _leave(transaction, identity, _Trace(_Said.DOUBTED))


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
    traces = _of(transaction, identity)
    judges, said = _those(traces, _Said.JUDGED), {trace.said for trace in traces}
    is_only = fenced or attempt == 1  # else an attempt before may have read it
    is_proven = fenced or _Said.DOUBTED not in said
    if is_proven and judges:  # else nothing was found bad but by who publishes, or by attempts before
        by_winners = _is_of_winners(judges, traces, incarnation, winners) or _read_once(traces, incarnation)
        is_proven = is_only and _Said.READ_TWICE not in said and by_winners
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
    begun = _those(traces, _Said.BEGUN)
    if not begun and _counted(traces) != len(winners):
        return False
    stages = {judge.in_stage for judge in judges}
    first = {(trace.in_stage, trace.partition) for trace in begun if trace.in_stage in stages}
    return len(first) == len({stage for stage, _ in first}) and all(
        judge.incarnation == incarnation and judge.task in winners for judge in judges
    )


def _read_once(traces: Sequence[_Trace], incarnation: int) -> bool:
    """Return whether the attempts that judged were a part of the only reading, and the first attempt at its task."""
    begun = _those(traces, _Said.BEGUN)
    return (
        len(begun) == 1
        and not _those(traces, _Said.REPEATED, _Said.READ_TWICE)
        and begun[0].incarnation == incarnation
        and all(judge.stage_run == begun[0].stage_run for judge in _those(traces, _Said.JUDGED))
    )


def _counted(traces: Iterable[_Trace]) -> int:
    """Return how many tasks the plan has; 0 where that is not known."""
    counts = {trace.task for trace in _those(traces, _Said.COUNTED)}
    return counts.pop() if len(counts) == 1 else 0


def _those(traces: Iterable[_Trace], *said: _Said) -> list[_Trace]:
    return [trace for trace in traces if trace.said in said]


_IS_TRACE = read_marks.c.task < ALONE
_IS_MARK = read_marks.c.task >= ALONE


def _of(transaction: Transaction, identity: PlanIdentity) -> list[_Trace]:
    c = read_marks.c
    query = sa.select(c.task, c.first_place, c.end_place, c.unended).where(_is_of_plan(identity), _IS_TRACE)
    return [
        _Trace(_Said(said), place // _STAGES, place % _STAGES, task, partition)
        for said, place, task, partition in transaction.execute(query)
    ]


def _leave(transaction: Transaction, identity: PlanIdentity, trace: _Trace) -> bool:
    """Leave a trace; returns whether it was not there."""
    counts = counts_inserts(transaction)
    if not counts and trace in _of(transaction, identity):
        return False
    absent = transaction.dialect.insert_if_absent(read_marks).values(
        delivery_hash=identity.delivery_hash,
        task=trace.said.value,
        first_place=trace.incarnation * _STAGES + trace.stage,
        end_place=trace.task,
        unended=trace.partition,
        began_at=transaction.now(),
    )
    written = transaction.execute(absent.execution_options(preserve_rowcount=True))
    return not counts or written.rowcount == 1


def _remove(transaction: Transaction, identity: PlanIdentity, traces: Iterable[_Trace]) -> None:
    c = read_marks.c
    for trace in traces:
        place = trace.incarnation * _STAGES + trace.stage
        own = c.task == trace.said.value, c.first_place == place, c.end_place == trace.task
        transaction.execute(read_marks.delete().where(_is_of_plan(identity), *own))


def begin_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Mark a read: one more than `mark` knows of has not ended. Running this again counts nothing more."""
    own = {"task": mark.task, "first_place": mark.first, "end_place": mark.end}
    now = {"unended": mark.unended + 1, "began_at": transaction.now()}
    absent = transaction.dialect.insert_if_absent(read_marks)
    transaction.execute(absent.values(delivery_hash=identity.delivery_hash, **own, **now))
    transaction.execute(read_marks.update().where(*_is(identity, mark)).values(**now))


def end_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Remove the marks of what was read; what was read alone is cleared of every suspicion that it holds."""
    read = _is(identity, mark)
    if mark.task == ALONE:
        within = read_marks.c.first_place >= mark.first, read_marks.c.end_place <= mark.end
        read = [_is_of_plan(identity), _IS_MARK, *within]
    transaction.execute(read_marks.delete().where(*read))


def undo_read(transaction: Transaction, identity: PlanIdentity, mark: ReadMark) -> None:
    """Take back the mark of a read that failed for a reason that says nothing about its objects; earlier ones count."""
    own = _is(identity, mark)
    if mark.unended:
        transaction.execute(read_marks.update().where(*own).values(unended=mark.unended))
    else:
        transaction.execute(read_marks.delete().where(*own))


def marks_of_plan(transaction: Transaction, identity: PlanIdentity) -> list[ReadMark]:
    """Return the marks of the plan: of reads that are under way, or were left behind."""
    query = sa.select(read_marks.c.first_place, read_marks.c.end_place, read_marks.c.task, read_marks.c.unended)
    return [ReadMark(*row) for row in transaction.execute(query.where(_is_of_plan(identity), _IS_MARK))]


def forget_marks(transaction: Transaction, delivery_hash: str | None, attempts: int | None) -> None:
    """Remove the marks of a plan, made `attempts` times, that is published or replaced. The first attempt has none.

    Traces of its readings go with the next plan.
    """
    if (attempts or 1) > 1:
        transaction.execute(read_marks.delete().where(read_marks.c.delivery_hash == delivery_hash))


def forget_places(transaction: Transaction, identity: PlanIdentity) -> None:
    """Remove the marks of a plan that is made again without some of its shards: they name places in it."""
    transaction.execute(read_marks.delete().where(_is_of_plan(identity), _IS_MARK))


def _is_of_plan(identity: PlanIdentity) -> sa.ColumnElement[bool]:
    return read_marks.c.delivery_hash == identity.delivery_hash


def _is(identity: PlanIdentity, mark: ReadMark) -> list[sa.ColumnElement[bool]]:
    c = read_marks.c
    return [_is_of_plan(identity), c.task == mark.task, c.first_place == mark.first, c.end_place == mark.end]
