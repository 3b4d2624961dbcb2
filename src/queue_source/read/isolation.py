"""Identifies the object that ends its reader's process; error records of bad objects. In executor workers.

A plan that has failed before is read with marks in the store: each task marks what it reads, and removes the mark when
it ends. What is still marked at the next attempt is suspected, guilty or not: whole executors die, with all that they
read. So that attempt reads the plan in one task. It reads the suspects first, in parts, each with its own mark, and
then all the others under one mark. Now a remaining mark counts as a death: the next try, often by the same task, splits
that part again, until it is one object. An object at which `maxAttempts` readers have died is given up.

Where the same process writes the rows, too, suspects are tried without rows first (`read_tried`, decision 0037).

So it takes a few deaths to identify one object among 100,000, and some dozens of short transactions for each of them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError, SchemaChanged
from queue_source.formats.base import BadRecords
from queue_source.messages import kept_message
from queue_source.read.partitions import Piece, PlanStore
from shard_store.errors import ShardStoreError
from shard_store.model import ALONE, ErrorRecord, PlanIdentity, ReadMark, position_at

FAN_OUT = 32
"""Into so many parts a suspect is split, each of which is read by itself: two transactions a part."""

BLAMELESS = (ObjectStoreError, BadObject, SchemaChanged, ShardStoreError, GeneratorExit)
"""Errors that are not the fault of what is read, or that are reported anyway. GeneratorExit: whoever takes the rows
has failed. All others count like a death: an error that nobody knows would fail this plan for ever."""

Interval = tuple[int, int]
"""Places in a plan: the first, and the first that is not in it."""

EVERYTHING = ReadMark(0, 1 << 62, ALONE)

Read = Callable[[Sequence[Piece]], Iterator[pa.RecordBatch]]
Try = Callable[[Sequence[Piece]], None]
GiveUp = Callable[[Piece, int], None]

_FIRST = 0
"""A task's number, for what is read while others work, too."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one plan's reads. Each call is a short connection of its own, since a read may take long."""

    identity: PlanIdentity
    store: PlanStore

    def left_behind(self) -> list[ReadMark]:
        with self.store.open() as store:
            return store.read_marks(self.identity)

    def clear(self) -> None:
        """Remove the marks: all suspects are read, or given up."""
        with self.store.open() as store:
            store.end_read(self.identity, EVERYTHING)

    @contextmanager
    def during(self, mark: ReadMark) -> Iterator[None]:
        """Mark a read for as long as it lasts; the mark remains when the process dies, or fails in an unknown way."""
        with self.store.open() as store:
            store.begin_read(self.identity, mark)
        try:
            yield
        except BLAMELESS:
            with self.store.open() as store:
                store.undo_read(self.identity, mark)
            raise
        with self.store.open() as store:
            store.end_read(self.identity, mark)


def read_alone(
    marks: Marks, pieces: Sequence[Piece], max_attempts: int, read: Read, give_up: GiveUp
) -> Iterator[pa.RecordBatch]:
    """Read a whole plan in one task, each piece once, and identify the object that ends its reader's process.

    `give_up` gets a piece that is not read, since at least `max_attempts` readers have died at it.
    """
    remaining_marks = marks.left_behind()
    suspects, others = split_suspects(pieces, remaining_marks)
    for part, mark in _still_read(suspects, remaining_marks, max_attempts, give_up):
        with marks.during(mark):
            yield from read(part)
    if remaining_marks:
        marks.clear()
    if others:
        with marks.during(ReadMark(*interval_of(others), ALONE)):
            yield from read(others)


def read_tried(
    marks: Marks, pieces: Sequence[Piece], max_attempts: int, attempt: Try, read: Read, give_up: GiveUp
) -> Iterator[pa.RecordBatch]:
    """Read a whole plan in one task whose process writes the rows, too: all suspects are tried without rows, then read.

    The process may end for rows that are written, of any object or of none: no mark counts a death meanwhile. That of
    the others only makes them suspects, which the next attempt tries.
    """
    remaining_marks = marks.left_behind()
    suspects, others = split_suspects(pieces, remaining_marks)
    readable = [*others]
    for part, mark in _still_read(suspects, remaining_marks, max_attempts, give_up):
        with marks.during(mark):
            attempt(part)
        readable += part
    if remaining_marks:
        marks.clear()
    readable.sort(key=lambda piece: (piece.place, piece.start))
    with marks.during(ReadMark(*interval_of(others), _FIRST)) if others else nullcontext():
        yield from read(readable)


def _still_read(
    suspects: Sequence[list[Piece]], remaining_marks: Sequence[ReadMark], max_attempts: int, give_up: GiveUp
) -> Iterator[tuple[list[Piece], ReadMark]]:
    """Yield each part with its mark, but what is given up."""
    deaths = {(mark.first, mark.end): mark.unended for mark in remaining_marks if mark.task == ALONE}
    for part in suspects:
        interval = interval_of(part)
        killed = deaths.get(interval, 0)
        if len(part) == 1 and killed >= max_attempts:
            give_up(part[0], killed)
        else:
            yield part, ReadMark(*interval, ALONE, killed)


def interval_of(pieces: Sequence[Piece]) -> Interval:
    return pieces[0].place, pieces[-1].place + 1


def split_suspects(pieces: Sequence[Piece], marks: Sequence[ReadMark]) -> tuple[list[list[Piece]], list[Piece]]:
    """Divide the pieces into suspects, part by part, and all others. Each piece occurs once.

    `pieces` are in the order of their places. All of an ordered group is on one side, in its order.
    """
    # the smallest known intervals in which readers died alone, and in which they died with others: where one has died
    # alone in a part of another interval, the same object ended both
    died = {(mark.first, mark.end) for mark in marks if mark.task == ALONE}
    marked = {(mark.first, mark.end) for mark in marks}
    explained = {
        whole for part in died for whole in marked if whole != part and whole[0] <= part[0] and part[1] <= whole[1]
    }
    suspected, died = marked - died - explained, died - explained
    places = [piece.place for piece in pieces]
    owners: list[Interval | None] = [None] * len(pieces)
    units: set[Hashable] = set()
    for first, end in (*suspected, *sorted(died, key=lambda interval: interval[0] - interval[1])):
        here = slice(bisect_left(places, first), bisect_left(places, end))
        units.update(piece.unit for piece in pieces[here])
        owners[here] = [(first, end) if (first, end) in died else None] * len(places[here])
    by_itself = [(piece, owner) for piece, owner in zip(pieces, owners, strict=True) if piece.unit in units]
    parts: list[list[Piece]] = []
    for _, pairs in itertools.groupby(by_itself, key=lambda pair: pair[1]):
        run = [piece for piece, _ in pairs]
        count = min(FAN_OUT, len(run))  # parts of about equal numbers
        bounds = [number * len(run) // count for number in range(count + 1)]
        parts += [run[a:b] for a, b in itertools.pairwise(bounds)]
    return parts, [piece for piece in pieces if piece.unit not in units]


KILLS = "kills-its-reader"


def bad_records(piece: Piece, identity: PlanIdentity, problems: BadRecords) -> list[ErrorRecord]:
    """Build records of the first errors, each at its position; and of the number of others, at the last position."""

    def record(
        cause: str, offset: int, detail: str, input: bytes | None = None, size: int | None = None
    ) -> ErrorRecord:
        content = piece.content
        return ErrorRecord(
            scope="record",
            cause=cause,
            detail=detail,
            subject=content.shard_id,
            plan_hash=identity.delivery_hash,
            position=position_at(offset),
            queue=content.queue,
            message_id=content.message_id,
            input=input,
            input_size=size,
        )

    records = [record("bad-record", bad.offset, bad.reason, bad.record, bad.size) for bad in problems.reported]
    if problems.omitted:
        detail = f"{problems.omitted} more bad records, the last of them at byte {problems.last}"
        records.append(record("bad-records", problems.last, detail))
    return records


def bad_object(piece: Piece, identity: PlanIdentity, error: BadObject, *, skipped: bool) -> ErrorRecord:
    """Build the record of a bad object. Scopes `object` and `part` quarantine the shard when its plan is published.

    `skipped` ones count as done. All pieces of a range report it at one position, so that it is one error, and a
    repeated plan recognises its range.
    """
    content, payload = piece.content, piece.content.payload
    message = {} if payload is None else kept_message(payload.value, payload.tag, payload.headers, content.group)
    return ErrorRecord(
        scope="skipped" if skipped else "object" if piece.is_whole else "part",
        cause=error.cause,
        detail=error.detail,
        subject=content.shard_id,
        plan_hash=identity.delivery_hash,
        position=piece.planned.start,
        queue=content.queue,
        message_id=content.message_id,
        **message,
    )


def fatal_object(piece: Piece, identity: PlanIdentity, killed: int) -> ErrorRecord:
    detail = (
        f"{killed} readers died, or failed with an unknown error, while they read this object alone (out of memory, a "
        "crash of native code, a bug); read it with more memory, or report it; 'maxAttempts' is how many may die"
    )
    return bad_object(piece, identity, BadObject(KILLS, detail), skipped=False)
