"""What is announced and waits for a batch, in the order of its arrival, each group by itself and sources in turn.

`greedy` empties the queues in their order, `round-robin` takes one of each in turn, `percentage:70,30` takes by weight.
An empty queue leaves its part to the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from queue_source.formats.base import may_be_cut
from queue_source.messages import Group
from queue_source.options import ReaderOptions
from queue_source.read.partitions import MIN_PIECE
from shard_store.model import LISTING, Content, Position, Range, ShardKey, end_at, offset_of, position_at

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shares:
    """`weights`: the part of each queue by name, all together 1; `greedy`: the first queue goes first."""

    weights: Mapping[str, float] = field(default_factory=dict)
    greedy: bool = False

    def room(self, queue: str, limit: int) -> int:
        """Return how many of `limit` messages one queue may hold, so that it cannot keep the others out."""
        weight = self.weights.get(queue, 1.0)
        return max(1, int(limit * weight + 0.5))

    def interleave(self, queued: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """Yield the waiting items of all queues, in the order in which they are to be taken."""
        if self.greedy or len(queued) == 1:
            for name in dict.fromkeys((*self.weights, *queued)):
                yield from queued.get(name, ())
        else:
            yield from self._by_weight(queued)

    def _by_weight(self, queued: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """Yield items by smooth weighted round-robin.

        At each step every queue earns its weight, and the richest pays for one item.
        """
        iterators = {name: iter(items) for name, items in queued.items()}
        earned = dict.fromkeys(iterators, 0.0)
        while iterators:
            for name in iterators:
                earned[name] += self.weights.get(name, 1.0)
            name = max(iterators, key=earned.__getitem__)
            earned[name] -= sum(self.weights.get(other, 1.0) for other in iterators)
            item = next(iterators[name], _END)
            if item is _END:
                del iterators[name]
            else:
                yield item  # type: ignore[misc]


_END = object()


def shares_of(text: str, queues: Iterable[str], *, listing: bool = False) -> Shares:
    """Parse option `queueShares` (already checked) into the shares of these queues, and of `listing`.

    What listings find counts as one more queue, which takes no room from the others: this reader fills it itself.
    """
    names = list(queues)
    kind, _, numbers = text.partition(":")
    every = [*names, LISTING] if listing else names
    if kind == "percentage":
        return Shares({name: int(number) / 100 for name, number in zip(every, numbers.split(","), strict=True)})
    return Shares(dict.fromkeys(every, 1 / max(1, len(names))), greedy=kind == "greedy")


LEAST_PART = 256 << 10
"""Bytes of an object below which a part of it is not worth a micro-batch."""


class Ready(NamedTuple):
    """An unfinished shard of ours, to be read from `position`."""

    key: ShardKey
    content: Content
    position: Position
    arrival: int

    @property
    def remaining_bytes(self) -> int:
        """Bytes from its position to its end."""
        return max((self.content.size or 0) - offset_of(self.position), 0)


class ReadyQueue:
    """Ready shards of several queues, which share a batch as `shares` says.

    A shard of an ordered group waits while another pipeline has an earlier one of the group.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._entries: dict[ShardKey, Ready] = {}
        # a heap for each queue; entries that are gone are skipped
        self._order: dict[str, list[tuple[int, ShardKey]]] = {}
        self._blocking: dict[Group, dict[ShardKey, int]] = {}
        self._blocked: dict[Group, dict[ShardKey, Ready]] = {}  # not in the heaps
        self.free = 0  # how many of them may be taken
        self.bytes = 0  # of these

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Ready) -> None:
        self._entries[entry.key] = entry
        if group := self._waits_in(entry):
            self._blocked.setdefault(group, {})[entry.key] = entry
            return
        self.free += 1
        self.bytes += entry.content.size or 0
        heapq.heappush(self._order.setdefault(entry.content.queue, []), (entry.arrival, entry.key))

    def is_outdated(self, key: ShardKey, content: Content) -> bool:
        """Tell whether the shard is queued as another version than this."""
        queued = self._entries.get(key)
        return queued is not None and _version(queued.content) != _version(content)

    def remove(self, key: ShardKey) -> bool:
        """Remove the shard; return False when it is not here."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        group = group_of(entry.content)
        if group is None or self._blocked.get(group, {}).pop(key, None) is None:
            self.free -= 1
            self.bytes -= entry.content.size or 0
        return True

    def block(self, group: Group, key: ShardKey, arrival: int) -> None:
        """Note that another pipeline has this shard of the group: later ones wait."""
        self._blocking.setdefault(group, {})[key] = arrival

    def unblock(self, group: Group, key: ShardKey) -> None:
        blocking = self._blocking.get(group, {})
        if blocking.pop(key, None) is not None:
            if not blocking:
                del self._blocking[group]
            for entry in self._blocked.pop(group, {}).values():
                self.put(entry)

    def take(
        self, max_files: int, max_bytes: int | None, may_be_cut: Callable[[Content], bool]
    ) -> list[tuple[Ready, Range]]:
        """Return the next shards within both limits, at least one if there is any; they are no longer here.

        A shard that is larger than `max_bytes` comes alone, and if it may be cut, as many bytes of it as that (or as
        are worth a micro-batch): it is put here again, at its new position, when these are published.
        """
        taken: list[tuple[Ready, Range]] = []
        total = 0
        for entry in self._in_turn():
            size = entry.remaining_bytes
            if taken and (len(taken) >= max_files or (max_bytes is not None and total + size > max_bytes)):
                self.put(entry)
                break
            taken.append((entry, _part(entry, max_bytes, may_be_cut)))
            total += size
        return taken

    def _in_turn(self) -> Iterator[Ready]:
        """Yield the shards that may be taken, in the order of the shares; each is removed."""
        return self._shares.interleave({queue: self._of(queue) for queue, order in self._order.items() if order})

    def _of(self, queue: str) -> Iterator[Ready]:
        order = self._order[queue]
        while order:
            arrival, key = heapq.heappop(order)
            entry = self._entries.get(key)
            if entry is None or entry.arrival != arrival:
                continue
            self.remove(key)
            if self._waits_in(entry):
                self.put(entry)
            else:
                yield entry

    def _waits_in(self, entry: Ready) -> Group | None:
        group = group_of(entry.content)
        blocking = self._blocking.get(group) if group else None
        return group if blocking and min(blocking.values()) < entry.arrival else None


def may_come_in_pieces(options: ReaderOptions, uri: str, size: int) -> bool:
    """Tell whether several tasks or micro-batches may read parts of an object: all of them have to read one version."""
    batches = options.batches
    least = min(MIN_PIECE, batches.max_partition_bytes)
    if batches.max_bytes_per_trigger is not None:
        least = min(least, max(batches.max_bytes_per_trigger, LEAST_PART))
    return size > least and may_be_cut(uri, options.content)


def group_of(content: Content) -> Group | None:
    return None if content.group is None else (content.queue, content.group)


def _version(content: Content) -> tuple[object, ...]:
    return content.size, content.etag, content.reference


def _part(entry: Ready, max_bytes: int | None, may_be_cut: Callable[[Content], bool]) -> Range:
    content, end = entry.content, end_at(entry.content.size or 0)
    if max_bytes is not None and content.group is None:
        part = max(max_bytes, LEAST_PART)
        if entry.remaining_bytes > part and may_be_cut(content):
            end = position_at(offset_of(entry.position) + part)
    return Range(entry.key, content, entry.position, end)
