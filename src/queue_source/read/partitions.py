"""From a plan to partitions: pure. Objects are packed by bytes so that tasks are even, the largest first."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from shard_store.model import Position, Range, ShardKey, offset_of, position_at

T = TypeVar("T")

PieceOf = dict[tuple[ShardKey, Position], Position]
"""For pieces, by key and start: where the range of the plan begins that each is a piece of."""

ISOLATED_FROM = 3
"""The attempt at a plan from which on its objects are read in isolation: it has failed twice."""

LEAST_PIECE = 4 << 20
"""Bytes below which an object is not worth another task."""


def cut(
    ranges: Sequence[Range], min_partitions: int, max_bytes: int, may_be_cut: Callable[[Range], bool]
) -> tuple[list[Range], PieceOf]:
    """The plan's objects, the large ones in pieces for several tasks; where a record ends is for readers to find.

    As Spark cuts files: into pieces of `max_bytes`, or smaller ones that give every partition something to read.
    Pieces are for tasks alone: the store knows the plan's ranges, of which each piece is told.
    """
    step = min(max_bytes, max(LEAST_PIECE, -(-sum(map(_size, ranges)) // min_partitions)))
    pieces: list[Range] = []
    piece_of: PieceOf = {}
    for entry in ranges:
        size = _size(entry)
        if size <= step or entry.content.size is None or entry.content.group is not None or not may_be_cut(entry):
            pieces.append(entry)
            continue
        start = offset_of(entry.start)
        bounds = [entry.start, *(position_at(start + at) for at in range(step, size, step)), entry.end]
        pieces += [entry._replace(start=a, end=b) for a, b in itertools.pairwise(bounds)]
        piece_of.update({(entry.key, bound): entry.start for bound in bounds[:-1]})
    return pieces, piece_of


def isolate(ranges: Sequence[Range]) -> list[list[Range]]:
    """A partition for each object, or ordered group: to find the one that kills its reader."""
    return pack(ranges, max(1, len(ranges)), sys.maxsize)


def _size(entry: Range) -> int:
    """Bytes of the range; 0 when nobody knows."""
    return offset_of(entry.end) - offset_of(entry.start)


def pack(ranges: Sequence[Range], min_partitions: int, max_bytes: int) -> list[list[Range]]:
    """Spread the plan's objects over partitions; one of unknown size counts as empty.

    An ordered group of a queue stays in one partition, in its order.
    """
    items: dict[object, list[Range]] = {}
    for place, entry in enumerate(ranges):
        content = entry.content
        items.setdefault(place if content.group is None else (content.queue, content.group), []).append(entry)
    sized = [(item, sum(map(_size, item))) for item in items.values()]
    return [[entry for item in part for entry in item] for part in pack_by_size(sized, min_partitions, max_bytes)]


def pack_by_size(items: Sequence[tuple[T, int]], min_partitions: int, max_bytes: int) -> list[list[T]]:
    """Spread items of known bytes over as many parts as `max_bytes` asks for, and at least over `min_partitions`.

    Largest first onto the least loaded: no part exceeds the even share by more than its largest item. No part is
    empty; there is none at all without items.
    """
    total = sum(size for _, size in items)
    count = min(max(min_partitions, -(-total // max_bytes)), len(items))
    packed: list[list[T]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for item, size in sorted(items, key=lambda pair: pair[1], reverse=True):
        load, place = heapq.heappop(loads)
        packed[place].append(item)
        heapq.heappush(loads, (load + size + 1, place))  # + 1: many empty ones are spread as well
    return packed
