"""What is ready to be read, in which order, and how much more a reader may hold. Pure.

What is announced waits for a batch in the order of its arrival, each group by itself and sources in turn: `greedy`
empties the queues in their order, `round-robin` takes one of each in turn, `percentage:70,30` takes by weight. An empty
queue leaves its part to the others.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from queue_source.coordinator.messages import RESTING, MessageTable
from queue_source.formats.base import may_be_cut
from queue_source.messages import Group, Received
from queue_source.options import ReaderOptions
from queue_source.read.partitions import MIN_PIECE
from shard_store.model import (
    LISTING,
    WITHOUT_MESSAGE,
    Content,
    Position,
    Range,
    ShardKey,
    end_at,
    offset_of,
    position_at,
)

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
            return
        # smooth weighted round-robin: at each step every queue earns its weight, and the richest pays for one item
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
    usual: int = 0
    """Bytes that it counts for where its size is unknown."""

    @property
    def bytes(self) -> int:
        return self.usual if self.content.size is None else self.content.size

    @property
    def remaining_bytes(self) -> int:
        """Bytes from its position to its end."""
        return max(self.bytes - offset_of(self.position), 0)


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
        self.bytes += entry.bytes
        heapq.heappush(self._order.setdefault(entry.content.queue, []), (entry.arrival, entry.key))

    def is_outdated(self, key: ShardKey, content: Content) -> bool:
        """Tell whether the shard is queued as another version than this."""
        queued = self._entries.get(key)
        return queued is not None and (queued.content.size, queued.content.etag, queued.content.reference) != (
            content.size,
            content.etag,
            content.reference,
        )

    def remove(self, key: ShardKey) -> bool:
        """Remove the shard; return False when it is not here."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        group = group_of(entry.content)
        if group is None or self._blocked.get(group, {}).pop(key, None) is None:
            self.free -= 1
            self.bytes -= entry.bytes
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
        # each that comes is removed; some of them are put back
        waiting = {queue: self._of(queue) for queue, order in self._order.items() if order}
        for entry in self._shares.interleave(waiting):
            size = entry.remaining_bytes
            if taken and (len(taken) >= max_files or (max_bytes is not None and total + size > max_bytes)):
                self.put(entry)
                break
            content, end = entry.content, end_at(entry.content.size or 0)
            part = max(max_bytes or 0, LEAST_PART)
            may_end = content.size is not None and content.group is None and size > part
            if max_bytes is not None and may_end and may_be_cut(content):
                end = position_at(offset_of(entry.position) + part)
            taken.append((entry, Range(entry.key, content, entry.position, end)))
            total += size
        return taken

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


_TRIGGERS = 3  # batches of work that are held: more would only be kept from other pipelines
_MESSAGE_BYTES = 256 << 20  # of messages that are the content themselves: all of them are held in memory


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a reader holds before it receives no more.

    `messages`: of any kind. `work`: messages with work left for us, and as many shards to read. `bytes`: of the shards
    to read, and of messages that are not opened yet. `batch_bytes`: of shards alone, and only while one is ready.
    """

    messages: int
    work: int
    bytes: int | None = None
    batch_bytes: int | None = None


def limits_of(options: ReaderOptions) -> Limits:
    """Return what `maxInFlightMessages` and `maxInFlightBytes` allow, and no more than a few triggers can take."""
    batches, queue = options.batches, options.queue
    default = None if options.content.kind.is_announced else _MESSAGE_BYTES
    return Limits(
        messages=queue.max_in_flight_messages,
        work=min(queue.max_in_flight_messages, _TRIGGERS * max(batches.max_files_per_trigger, len(queue.urls))),
        bytes=default if queue.max_in_flight_bytes is None else queue.max_in_flight_bytes,
        batch_bytes=None if batches.max_bytes_per_trigger is None else _TRIGGERS * batches.max_bytes_per_trigger,
    )


class Receive(NamedTuple):
    """A receive under way: it may bring `room` messages. `empty`: the queue was proved to be empty before it."""

    queue: str
    receiver: int
    room: int
    period: int
    empty: bool


class Room:
    """How much more may come in addition to the messages, and the shards to be read.

    Shards that listings find, or a receiver has recorded, are counted separately from those that queues announce:
    neither may keep the others out.
    """

    def __init__(
        self, queues: Iterable[str], limits: Limits, shares: Shares, messages: MessageTable, ready: ReadyQueue
    ) -> None:
        self.limits = limits
        self.paused: Collection[str] = ()  # queues of which no receive begins
        self.bytes = 0  # of the shards
        self._shares = shares
        self._messages = messages
        self._ready = ready
        self._sizes: dict[ShardKey, int] = {}
        self.listed: dict[ShardKey, int] = {}  # the sizes of the shards that listings have found
        self._listed_bytes = 0
        self._reserved: Counter[str] = Counter()  # for messages that receives under way may bring
        self._largest: dict[str, int] = {}  # body of each queue's last receive
        self._emptiness = {name: _Emptiness() for name in queues}
        self._periods: Counter[str] = Counter()  # a receive of an earlier period proves nothing

    # shards

    def __contains__(self, key: ShardKey) -> bool:
        return key in self._sizes

    def enter(self, key: ShardKey, content: Content, size: int) -> None:
        if key not in self._sizes:
            self._sizes[key] = size
            self.bytes += size
            if content.queue in WITHOUT_MESSAGE:
                self.listed[key] = size
                self._listed_bytes += size

    def leave(self, key: ShardKey) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        self._listed_bytes -= self.listed.pop(key, 0)

    @property
    def is_listed_enough(self) -> bool:
        """Tell whether there is no room for more of what listings find."""
        return self._is_enough(len(self.listed), self._listed_bytes, self._shares.room(LISTING, self.limits.work))

    @property
    def left_for_listed(self) -> int:
        """Return how many more of them there is room for, by number, and at least one."""
        return max(1, self._shares.room(LISTING, self.limits.work) - len(self.listed))

    @property
    def is_announced_enough(self) -> bool:
        """Tell whether there is no room for more of what queues announce."""
        announced = len(self._sizes) - len(self.listed)
        return self._is_enough(announced, self.bytes - self._listed_bytes, self.limits.work)

    def _is_enough(self, count: int, size: int, work: int) -> bool:
        batch = self.limits.batch_bytes
        is_much = count >= work or (batch is not None and size >= batch)
        return self._bytes_left <= 0 or (is_much and self._ready.free > 0)

    @property
    def _bytes_left(self) -> int:
        limit = self.limits.bytes
        return sys.maxsize if limit is None else limit - self.bytes - self._messages.unopened

    # receives

    def begin(self, queue: str, receiver: int, most: int) -> Receive | None:
        """Reserve room for a receive, or return None."""
        if queue in self.paused or self.is_announced_enough:
            return None
        # if they are as large as the largest of the last receive; one is received however large it is
        by_bytes = max(1, self._bytes_left // max(1, self._largest.get(queue, 1)))
        room = min(most, self._room_left(queue), by_bytes)
        if room == 0:
            return None
        empty = self._emptiness[queue].proven
        self._reserved[queue] += room
        self._emptiness[queue].begin(receiver)
        return Receive(queue, receiver, room, self._periods[queue], empty)

    def end(self, receive: Receive, messages: Sequence[Received]) -> None:
        """End a receive; `messages` are those that it brought and that prove that the queue was not empty."""
        if messages:
            self._largest[receive.queue] = max(len(message.body) for message in messages)
        self._reserved[receive.queue] -= receive.room
        proves = receive.period == self._periods[receive.queue]
        self._emptiness[receive.queue].end(receive.receiver, brought=bool(messages), proves=proves)

    def receiving(self, queues: Iterable[str]) -> bool:
        """Tell whether a receive of one of these queues is under way."""
        return any(self._emptiness[name].under_way for name in queues)

    def forget_proofs(self, queues: Iterable[str] | None = None) -> None:
        """Forget that these queues (or all) are empty: only a receive that begins later can prove it."""
        for name in self._emptiness if queues is None else queues:
            self._periods[name] += 1
            self._emptiness[name].awaited = None

    def proven_empty(self, queue: str) -> bool:
        return self._emptiness[queue].proven

    @property
    def is_proven_empty(self) -> bool:
        """Tell whether all queues are empty."""
        return all(emptiness.proven for emptiness in self._emptiness.values())

    @property
    def gives_no_more(self) -> bool:
        """Tell whether every queue is empty, or has no room, and none of its receives is under way."""
        return all(
            emptiness.proven or (not emptiness.under_way and self._room_left(queue) == 0)
            for queue, emptiness in self._emptiness.items()
        )

    @property
    def is_full(self) -> bool:
        """Tell whether there is no room for more messages, of whatever queue."""
        messages = len(self._messages)
        return messages - self._messages.count(RESTING) >= self.limits.work or messages >= self.limits.messages

    def _room_left(self, queue: str) -> int:
        """Return how many more messages of this queue may come. Idle messages are not counted as work."""
        held = self._messages.count(queue=queue) + self._reserved[queue]
        for_work = self._shares.room(queue, self.limits.work) - held + self._messages.count(RESTING, queue)
        for_queue = self._shares.room(queue, self.limits.messages) - held
        in_all = self.limits.messages - len(self._messages) - self._reserved.total()
        return max(0, min(for_work, for_queue, in_all))


class _Emptiness:
    """What the receives of one queue prove.

    A receive that came back empty proves that the queue is empty, once every other that was under way at that moment
    has ended and brought nothing: all messages that were visible before are held by some reader by then.
    """

    def __init__(self) -> None:
        self.under_way: set[int] = set()
        self.awaited: set[int] | None = None  # None: no proof; else the receives whose end is waited for

    def begin(self, receiver: int) -> None:
        self.under_way.add(receiver)

    def end(self, receiver: int, *, brought: bool, proves: bool) -> None:
        self.under_way.discard(receiver)
        if brought:
            self.awaited = None
        elif self.awaited is not None:
            self.awaited.discard(receiver)
        elif proves:
            self.awaited = set(self.under_way)

    @property
    def proven(self) -> bool:
        return self.awaited is not None and not self.awaited
