"""From a plan to partitions: pure. Objects are packed by bytes so that tasks are even, the largest first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

from shard_store.model import Range

T = TypeVar("T")


def pack(ranges: Sequence[Range], min_partitions: int, max_bytes: int) -> list[list[Range]]:
    """Spread the plan's objects over partitions; one of unknown size counts as empty.

    An ordered group of a queue stays in one partition, in its order.
    """
    items: dict[object, list[Range]] = {}
    for place, entry in enumerate(ranges):
        content = entry.content
        items.setdefault(place if content.group is None else (content.queue, content.group), []).append(entry)
    sized = [(item, sum(r.content.size or 0 for r in item)) for item in items.values()]
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
