"""Divides a plan into the tasks of a micro-batch, and leads each of them to the plan's store.

A task holds neighbours in the plan: so two places identify what it reads, wherever its reader dies. Dividing is pure.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from queue_source.options import SecretUrl
from shard_store.errors import StoreConfigurationError
from shard_store.model import Content, Met, Plan, Position, Range, end_at, is_end, offset_of, position_at
from shard_store.sql.shared_file import SharedFile

if TYPE_CHECKING:
    from shard_store.store import ShardStore

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

    def counts_for(self, usual: int) -> int:
        """Return the bytes of it, or the usual number where they are unknown."""
        return usual if self.content.size is None else self.size

    def as_met(self, met: Met) -> Piece:
        """Return the piece of an object whose size the plan does not know, in the version that counts."""
        planned = self.planned._replace(content=self.content._replace(size=met.size, etag=met.etag))
        return self._replace(planned=planned, end=_end(planned))


def partition(
    plan: Plan, min_partitions: int, max_bytes: int, may_be_cut: Callable[[Range], bool], usual: int = 0
) -> list[list[Piece]]:
    """Return the tasks of an attempt at the plan, the same at each until an object is suspected.

    Then there is one task. `usual`: the bytes that an object of unknown size counts for.
    """
    pieces = whole_pieces(plan.whole or plan.ranges, plan.ranges)
    if plan.suspected:
        return [pieces]
    return spread(cut(pieces, min_partitions, max_bytes, may_be_cut, usual), min_partitions, max_bytes, usual)


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
    pieces: Sequence[Piece], min_partitions: int, max_bytes: int, may_be_cut: Callable[[Range], bool], usual: int = 0
) -> list[Piece]:
    """Cut large pieces into parts for several tasks; the readers search the ends of records.

    As Spark cuts files: into parts of `max_bytes`, or smaller ones that give every partition something to read.
    """
    sizes = [piece.counts_for(usual) for piece in pieces]
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


def spread(pieces: Sequence[Piece], min_partitions: int, max_bytes: int, usual: int = 0) -> list[list[Piece]]:
    """Spread the pieces in their order over several tasks, as `pack_by_size`; no ordered group is divided."""
    inseparable: list[list[Piece]] = []  # each ordered group, and each piece outside of groups
    for in_group, some in itertools.groupby(pieces, key=lambda piece: piece.content.group is not None):
        if in_group:
            inseparable += (list(unit) for _, unit in itertools.groupby(some, key=lambda piece: piece.unit))
        else:
            inseparable += ([piece] for piece in some)
    parts = [(part, sum(piece.counts_for(usual) for piece in part)) for part in inseparable]
    return [list(itertools.chain(*task)) for task in pack_by_size(parts, min_partitions, max_bytes)]


def pack_by_size(items: Sequence[tuple[T, int]], min_partitions: int, max_bytes: int) -> list[list[T]]:
    """Spread items of known bytes in their order over as many tasks as `max_bytes` asks for, at least `min_partitions`.

    As evenly as whole items allow: no task has more than its share and its largest item. An item that is larger than a
    share counts as one share, so that the others are spread over all other tasks. No task is empty; there are no tasks
    without items.
    """
    count = min(max(min_partitions, -(-sum(size for _, size in items) // max_bytes)), len(items))
    # the weight of each size, and the share of each task, in fractions of a byte, to be exact
    sizes = [size + 1 for _, size in items]  # many empty items are spread as well
    share, parts = sum(sizes), count
    for size in sorted(sizes, reverse=True):
        if size * parts <= share:
            break
        share, parts = share - size, parts - 1
    weights = [min(size * parts, share) for size in sizes]
    tasks: list[list[T]] = [[] for _ in range(count)]
    before, task = 0, -1
    for number, ((item, _), weight) in enumerate(zip(items, weights, strict=True)):
        by_middle = (2 * before + weight) // (2 * share)  # the task in whose share its middle is
        task = max(min(by_middle, task + 1), count - len(items) + number)  # no task is left out
        tasks[task].append(item)
        before += weight
    return tasks


@dataclass(frozen=True, slots=True)
class PlanStore:
    """Made by the driver, and pickled into every task. `file`: the store's file, if it is one."""

    url: SecretUrl
    store_id: str
    file: SharedFile | None = None

    @classmethod
    def of(cls, url: SecretUrl, store: ShardStore) -> PlanStore:
        """Describe the driver's open store for tasks."""
        file = store.database.file()
        return cls(url, store.store_id(), None if file is None else SharedFile.of(file))

    def check(self) -> None:
        """Refuse a store that this process cannot use, before anything is read. Makes no request to a server.

        A store on a server is checked when it is used: by a plan's first task, by repeated ones, and for errors.
        """
        if self.file is not None and (problem := self.file.problem()):
            raise StoreConfigurationError(f"option 'storeUrl': {problem}")

    def open(self) -> ShardStore:
        """Open the store. Raises StoreConfigurationError where there is none, or another one."""
        from shard_store.store import QUERY_PATIENCE, open_store  # most tasks have nothing to write, and need no SQL

        self.check()
        with self._explained():
            store = open_store(self.url.reveal(), create=False, patience=QUERY_PATIENCE)
        try:
            self._compare(store)
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def kept(self) -> Iterator[ShardStore]:
        """Yield the store for writes in each micro-batch: its compiled statements are kept for the next one.

        No connection to a server is kept: each process of a large cluster would have one.
        """
        from shard_store.store import kept_store  # as above

        self.check()
        with ExitStack() as stack:
            with self._explained():
                store = stack.enter_context(kept_store(self.url.reveal()))
            self._compare(store)
            yield store
            if self.file is None:
                store.database.engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreConfigurationError as error:
            raise StoreConfigurationError(
                f"option 'storeUrl': a task on {platform.node()!r} cannot use the store of its query: {error}. The URL "
                "has to lead to the same database from all machines, for the same user"
            ) from error

    def _compare(self, store: ShardStore) -> None:
        if (store_id := store.store_id()) != self.store_id:
            raise StoreConfigurationError(
                f"option 'storeUrl': {self.url} is another store for a task on {platform.node()!r} ({store_id}) than "
                f"for the driver ({self.store_id}); the URL has to lead to the same database from all machines"
            )
