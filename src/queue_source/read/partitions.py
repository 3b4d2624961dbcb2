"""Divides a plan into the tasks of a micro-batch. Pure.

A task holds neighbours in the plan: so two places identify what it reads, wherever its reader dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from shard_store.model import Content, Plan, Position, Range, end_at, is_end, offset_of, position_at

T = TypeVar("T")

MIN_PIECE = 4 << 20
"""Bytes below which an object is not worth another task."""


class Piece(NamedTuple):
    """What a task reads at a time: a range of the plan, or a part of a large one, from `start` to `end`.

    `place` is the range's place in its plan, the same at every attempt.
    """

    planned: Range
    start: Position
    end: Position
    place: int = 0

    @property
    def content(self) -> Content:
        return self.planned.content

    @property
    def unit(self) -> Hashable:
        """What stays together, in its order: an ordered group of a queue, or the range alone."""
        content = self.content
        return self.place if content.group is None else (content.queue, content.group)

    @property
    def is_whole(self) -> bool:
        """Tell whether no other task reads anything of the range."""
        return (self.start, self.end) == (self.planned.start, _end(self.planned))

    @property
    def size(self) -> int:
        """The bytes of it; 0 if unknown."""
        return offset_of(self.end) - offset_of(self.start)


def partition(
    plan: Plan, min_partitions: int, max_bytes: int, may_be_cut: Callable[[Range], bool]
) -> list[list[Piece]]:
    """Return the tasks of an attempt at the plan, the same at each until an object is suspected.

    Then there is one task.
    """
    pieces = whole_pieces(plan.whole or plan.ranges, plan.ranges)
    if plan.suspected:
        return [pieces]
    return spread(cut(pieces, min_partitions, max_bytes, may_be_cut), min_partitions, max_bytes)


def whole_pieces(whole: Sequence[Range], to_read: Sequence[Range] | None = None) -> list[Piece]:
    """Return a piece for each range of `to_read`, those of an ordered group one after the other."""
    first: dict[Hashable, int] = {}

    def place_of_unit(numbered: tuple[int, Range]) -> int:
        place, entry = numbered
        content = entry.content
        return place if content.group is None else first.setdefault((content.queue, content.group), place)

    in_order: Sequence[Range] = whole
    if any(entry.content.group is not None for entry in whole):
        in_order = [entry for _, entry in sorted(enumerate(whole), key=place_of_unit)]
    pieces = [Piece(entry, entry.start, _end(entry), place) for place, entry in enumerate(in_order)]
    if to_read is None or len(to_read) == len(whole):
        return pieces
    chosen = {(entry.key, entry.start) for entry in to_read}
    return [piece for piece in pieces if (piece.planned.key, piece.start) in chosen]


def _end(entry: Range) -> Position:
    """Return the end of the object.

    The range has it for the version of its snapshot; a newer one may be shorter or longer.
    """
    if is_end(entry.end) and entry.content.size is not None:
        return end_at(max(entry.content.size, offset_of(entry.start)))
    return entry.end


def to_tuples(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    """Return the pieces in the form sent to a task: plain tuples are pickled three times as fast."""
    return [
        (piece.start, piece.end, piece.place, key, first, last, *content)
        for piece in pieces
        for key, content, first, last in [piece.planned]
    ]


def from_tuples(sent: Sequence[tuple[Any, ...]]) -> list[Piece]:
    """Return the pieces of `to_tuples`."""
    return [
        Piece(Range(key, Content(*content), first, last), start, end, place)
        for start, end, place, key, first, last, *content in sent
    ]


def cut(
    pieces: Sequence[Piece], min_partitions: int, max_bytes: int, may_be_cut: Callable[[Range], bool]
) -> list[Piece]:
    """Cut large pieces into parts for several tasks; the readers search the ends of records.

    As Spark cuts files: into parts of `max_bytes`, or smaller ones that give every partition something to read.
    """
    sizes = [piece.size for piece in pieces]
    step = min(max_bytes, max(MIN_PIECE, -(-sum(sizes) // min_partitions)))
    cut_up: list[Piece] = []
    for piece, size in zip(pieces, sizes, strict=True):
        content = piece.content
        if size <= step or content.size is None or content.group is not None or not may_be_cut(piece.planned):
            cut_up.append(piece)
            continue
        start = offset_of(piece.start)
        bounds = [piece.start, *(position_at(start + at) for at in range(step, size, step)), piece.end]
        cut_up += [piece._replace(start=a, end=b) for a, b in itertools.pairwise(bounds)]
    return cut_up


def spread(pieces: Sequence[Piece], min_partitions: int, max_bytes: int) -> list[list[Piece]]:
    """Spread the pieces in their order over several tasks, as `pack_by_size`; no ordered group is divided."""
    parts = [(part, sum(piece.size for piece in part)) for part in _inseparable(pieces)]
    return [list(itertools.chain(*task)) for task in pack_by_size(parts, min_partitions, max_bytes)]


def _inseparable(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield each ordered group, and each piece outside of groups: parts of one object may go to several tasks."""
    for in_group, some in itertools.groupby(pieces, key=lambda piece: piece.content.group is not None):
        if in_group:
            yield from (list(unit) for _, unit in itertools.groupby(some, key=lambda piece: piece.unit))
        else:
            yield from ([piece] for piece in some)


def pack_by_size(items: Sequence[tuple[T, int]], min_partitions: int, max_bytes: int) -> list[list[T]]:
    """Spread items of known bytes in their order over as many tasks as `max_bytes` asks for, at least `min_partitions`.

    As evenly as whole items allow: no task has more than its share and its largest item. An item that is larger than a
    share counts as one share, so that the others are spread over all other tasks. No task is empty; there are no tasks
    without items.
    """
    count = min(max(min_partitions, -(-sum(size for _, size in items) // max_bytes)), len(items))
    weights, share = _weights([size for _, size in items], count)
    tasks: list[list[T]] = [[] for _ in range(count)]
    before, task = 0, -1
    for number, ((item, _), weight) in enumerate(zip(items, weights, strict=True)):
        by_middle = (2 * before + weight) // (2 * share)  # the task in whose share its middle is
        task = max(min(by_middle, task + 1), count - len(items) + number)  # no task is left out
        tasks[task].append(item)
        before += weight
    return tasks


def _weights(sizes: Sequence[int], tasks: int) -> tuple[list[int], int]:
    """Return the weight of each size, and the share of each task, in fractions of a byte, to be exact."""
    sizes = [size + 1 for size in sizes]  # many empty items are spread as well
    remaining = sum(sizes)
    for size in sorted(sizes, reverse=True):
        if size * tasks <= remaining:
            break
        remaining, tasks = remaining - size, tasks - 1
    return [min(size * tasks, remaining) for size in sizes], remaining
