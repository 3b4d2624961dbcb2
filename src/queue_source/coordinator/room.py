"""How many more messages a reader may receive, and whether its queues have given all they had. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from queue_source.coordinator.shares import Shares
from queue_source.messages import MessageKey
from queue_source.options import ReaderOptions

_TRIGGERS = 3  # what so many can take is held: more would only be kept from other pipelines
_MESSAGE_BYTES = 256 << 20  # of messages that are the content themselves: all that is held is in memory


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a reader holds before it receives no more.

    `messages`: of any kind. `work`: messages with something left for us to do, and as many shards to read. `bytes`: of
    the shards to read, and of messages that are not opened yet. `batch_bytes`: of shards alone, and only while anything
    is ready.
    """

    messages: int
    work: int
    bytes: int | None = None
    batch_bytes: int | None = None


def limits_of(options: ReaderOptions) -> Limits:
    """What `maxInFlightMessages` and `maxInFlightBytes` allow, and no more than a few triggers can take."""
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
    """The messages inside, and the receives that may bring more. `resting`: messages of a queue that are no work."""

    def __init__(self, queues: Iterable[str], limits: Limits, shares: Shares) -> None:
        self.limits = limits
        self._shares = shares
        self._inside: set[MessageKey] = set()
        self._of_queue: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()  # for messages that receives under way may bring
        self._emptiness = {name: _Emptiness() for name in queues}
        self._periods: Counter[str] = Counter()  # a receive of an earlier one proves nothing

    def __len__(self) -> int:
        return len(self._inside)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._inside

    def left(self, queue: str, resting: int) -> int:
        """How many more messages of this queue may come."""
        held = self._of_queue[queue] + self._reserved[queue]
        for_work = self._shares.room(queue, self.limits.work) - held + resting
        for_queue = self._shares.room(queue, self.limits.messages) - held
        in_all = self.limits.messages - len(self._inside) - sum(self._reserved.values())
        return max(0, min(for_work, for_queue, in_all))

    def begin(self, queue: str, receiver: int, room: int) -> Receive:
        self._reserved[queue] += room
        empty = self._emptiness[queue].proven
        self._emptiness[queue].begin(receiver)
        return Receive(queue, receiver, room, self._periods[queue], empty)

    def end(self, receive: Receive, keys: Iterable[MessageKey], *, brought: bool) -> None:
        """What it brought is inside; `brought`: something that counts against the queue's emptiness."""
        before = len(self._inside)
        self._inside.update(keys)
        self._of_queue[receive.queue] += len(self._inside) - before
        self._reserved[receive.queue] -= receive.room
        proves = receive.period == self._periods[receive.queue]
        self._emptiness[receive.queue].end(receive.receiver, brought=brought, proves=proves)

    def leave(self, key: MessageKey) -> None:
        if key in self._inside:
            self._inside.discard(key)
            self._of_queue[key[0]] -= 1

    def full(self, resting: int) -> bool:
        inside = len(self._inside)
        return inside - resting >= self.limits.work or inside >= self.limits.messages

    def receiving(self, queues: Iterable[str]) -> bool:
        """Whether a receive of one of these queues is under way."""
        return any(self._emptiness[name].under_way for name in queues)

    @property
    def queues(self) -> Collection[str]:
        return self._emptiness.keys()

    def forget_proofs(self, queues: Iterable[str]) -> None:
        """From here on these queues are empty only by a receive that begins later."""
        for name in queues:
            self._periods[name] += 1
            self._emptiness[name].awaited = None

    def proven_empty(self, queue: str) -> bool:
        return self._emptiness[queue].proven

    def gives_no_more(self, resting: Mapping[str, int] | None = None) -> bool:
        """Every queue is empty, or (with `resting`) there is no room for more of it, and none is under way."""
        return all(
            emptiness.proven
            or (resting is not None and not emptiness.under_way and self.left(queue, resting[queue]) == 0)
            for queue, emptiness in self._emptiness.items()
        )


class _Emptiness:
    """What the receives of one queue prove.

    A receive that came back empty proves that the queue is empty, once every other that was under way at that moment
    has ended and brought nothing: what was visible before is in somebody's hands by then.
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
