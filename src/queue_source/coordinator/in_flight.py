"""What a reader holds between receipt and acknowledgement: the one owner of its state, which locks itself.

message: received -> opened (waits for the shards that it announced) -> complete -> acknowledged
shard:   ready -> taken (its snapshot is being stored) -> planned (in a snapshot) -> finished
         or foreign: another pipeline has it, and messages of ours wait for it
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from queue_source.coordinator.ready import Ready, ReadyQueue, group_of
from queue_source.coordinator.room import Limits, Receive, Room
from queue_source.coordinator.shares import Shares
from queue_source.coordinator.waiting import Waiting
from queue_source.messages import MESSAGE_URI, MessageKey, Received, key_of
from shard_store.model import LISTING, Content, Range, Shard, ShardKey, Snapshot, is_end

_EQUAL = Shares()
_POLL = 0.1  # seconds: time-outs of a wait are noticed as late as this


class Opened(NamedTuple):
    """A message whose shards are in the store: it waits for the `pending` ones."""

    message: MessageKey
    pending: Mapping[ShardKey, Content]


class Counts(NamedTuple):
    """How much there is: messages, and shards in each state. `held`: shards of other pipelines that are waited for."""

    in_flight: int
    ready: int
    planned: int
    held: int


class Left(NamedTuple):
    """What is left at the end of a reader: messages without and with a shard in a snapshot, and shards in none."""

    unplanned: list[MessageKey]
    planned: list[MessageKey]
    shards: list[ShardKey]


class InFlight:
    """All methods may be called from any thread. Whoever waits here is woken by every change."""

    def __init__(self, queues: Iterable[str], limits: Limits, shares: Shares = _EQUAL) -> None:
        self._changed = threading.Condition()
        self._room = Room(queues, limits, shares)
        self._paused: set[str] = set()  # queues of which no receive begins
        self._inbox: deque[Received] = deque()
        self._opening: list[Received] = []
        self._unopened = 0  # bytes of the messages in both
        self._largest: dict[str, int] = {}  # body of each queue's last receive
        self._aside: set[MessageKey] = set()
        self._grouped: set[MessageKey] = set()  # while one is here its queue withholds the rest of its ordered group
        self._resting: Counter[str] = Counter()  # messages of each queue with nothing left for us to do
        self._arrivals: dict[ShardKey, int] = {}
        self._numbers = itertools.count()
        self._waiting = Waiting(self._resting)
        self._ready = ReadyQueue(shares)
        self._taken: dict[ShardKey, Ready] = {}
        self._planned: dict[ShardKey, int] = {}  # the seq of its snapshot
        self._snapshots: dict[int, tuple[Range, ...]] = {}  # not confirmed
        self._sizes: dict[ShardKey, int] = {}  # of what is ready, taken or planned
        self._bytes = 0
        self._listed: dict[ShardKey, int] = {}  # the sizes of those that listings have found
        self._listed_bytes = 0
        self._listed_work = shares.room(LISTING, limits.work)
        self._listing = False
        self._awaited: set[ShardKey] = set()  # at-least-once: done, and its message will come again

    # receiving

    def begin_receive(self, queue: str, receiver: int, max_messages: int, seconds: float = 0.0) -> Receive | None:
        """Reserve room for what a receive may bring. None: there was none; it waits so many seconds for a change."""
        with self._changed:
            full = queue in self._paused or self._heavy()
            room = 0 if full else self._room.left(queue, self._resting[queue])
            room = min(max_messages, room, self._room_by_bytes(queue))
            if room:
                return self._room.begin(queue, receiver, room)
            self._changed.wait(seconds)
            return None

    def end_receive(self, receive: Receive, messages: Sequence[Received], late: Sequence[Received] = ()) -> None:
        """What it brought. `late` messages are held, and left for the next run (AvailableNow)."""
        with self._changed:
            aside = [key_of(message) for message in late]
            self._room.end(receive, [*map(key_of, messages), *aside], brought=bool(messages))
            self._inbox.extend(messages)
            self._unopened += _size(messages)
            if messages:
                self._largest[receive.queue] = max(len(message.body) for message in messages)
            self._aside.update(aside)
            self._grouped.update(key_of(message) for message in messages if message.group is not None)
            self._resting[receive.queue] += len(aside)
            self._changed.notify_all()

    @contextmanager
    def pausing(self, queues: Collection[str], until: Callable[[], bool]) -> Iterator[None]:
        """No receive of these queues is under way: none begins, and those under way are waited for, or for `until`."""
        with self._changed:
            self._paused = set(queues)
            self._changed.wait_for(lambda: not self._room.receiving(queues) or until())
        try:
            yield
        finally:
            with self._changed:
                self._paused = set()
                self._changed.notify_all()

    def forget_proofs(self) -> None:
        """From here on a queue is empty only by a receive that begins later."""
        with self._changed:
            self._room.forget_proofs(self._room.queues)
            self._changed.notify_all()

    def proven_empty(self, queue: str) -> bool:
        with self._changed:
            return self._room.proven_empty(queue)

    def wait(self, seconds: float, condition: Callable[[], bool] | None = None) -> None:
        """Until something changes (and `condition` holds), or so many seconds."""
        with self._changed:
            if condition is None:
                self._changed.wait(seconds)
            else:
                self._changed.wait_for(condition, seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # opening

    def begin_opening(self, max_messages: int, seconds: float) -> list[Received]:
        """The next received messages; waits so many seconds for the first. Those that have left are skipped."""
        with self._changed:
            if not self._inbox:
                self._changed.wait(seconds)
            taken = [self._inbox.popleft() for _ in range(min(max_messages, len(self._inbox)))]
            self._opening = [message for message in taken if key_of(message) in self._room]
            self._unopened -= _size(taken) - _size(self._opening)
            return self._opening

    def end_opening(self) -> None:
        with self._changed:
            self._unopened -= _size(self._opening)
            self._opening = []
            self._changed.notify_all()

    def waited_for(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """Those of the shards for which a message waits."""
        with self._changed:
            return {key for key in keys if key in self._waiting}

    def announce(self, opened: Iterable[Opened]) -> None:
        """These messages, in the order of their arrival, wait for what they announced."""
        with self._changed:
            for message, pending in opened:
                self._waiting.wait(message, pending)
                for key in pending:
                    self._arrive(key)

    def came_again(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """At-least-once: those of which only the message was still awaited."""
        with self._changed:
            found = self._awaited.intersection(keys)
            self._awaited -= found
            return found

    # listing

    def expect_listing(self, due: bool) -> None:
        """Whether a listing of ours is due or under way: then the queues are not all that may bring something."""
        with self._changed:
            self._listing = due
            self._changed.notify_all()

    def wait_for_listed(self, seconds: float) -> bool:
        """Whether there is room for a page of a listing, if need be after so many seconds.

        Counted apart from what queues announce: neither may keep the other out.
        """
        with self._changed:
            if self._listed_enough():
                self._changed.wait(seconds)
            return not self._listed_enough()

    # shards

    def recover(self, shards: Iterable[Shard], snapshots: Iterable[Snapshot], awaited: Iterable[ShardKey]) -> None:
        """What the incarnation before left unfinished; `shards` in the order in which they were opened."""
        with self._changed:
            self._awaited.update(awaited)
            shards = list(shards)
            for shard in shards:
                if not _needs_message(shard.content):  # else the order of the queue decides
                    self._arrive(shard.key)
            for snapshot in snapshots:
                self.plan(snapshot)
            self.offer(shards)

    def offer(self, shards: Iterable[Shard]) -> None:
        """Shards of ours are ready to be read from their positions, unless they are known already, or have to wait.

        What is in an ordered group, or is a message itself, waits until the message that announced it is in our hands:
        in a group the queue's order decides, and a message's body is nowhere else. What is ready takes the newest size
        and ETag; what is taken or planned does not.
        """
        with self._changed:
            for shard in shards:
                self._unwatch(shard.key)
                if self._ready.is_outdated(shard.key, shard.content):
                    self._not_ready(shard.key)
                if shard.key not in self._sizes:
                    self._offer(shard)
            self._changed.notify_all()

    def watch(self, shards: Iterable[Shard]) -> None:
        """Other pipelines have these shards. What is planned is resolved when its snapshot is."""
        with self._changed:
            for shard in shards:
                key = shard.key
                if key in self._planned or key in self._taken:
                    continue
                self._not_ready(key)
                if key in self._waiting:
                    group = group_of(shard.content)
                    self._waiting.watch(key, group)
                    if group is not None:
                        self._ready.block(group, key, self._arrive(key))
                else:
                    self._arrivals.pop(key, None)
            self._changed.notify_all()

    def foreign(self) -> list[ShardKey]:
        with self._changed:
            return list(self._waiting.foreign)

    def finish(self, keys: Iterable[ShardKey]) -> list[MessageKey]:
        """The shards are finished in the store; returns the messages that wait for nothing more."""
        complete: list[MessageKey] = []
        with self._changed:
            for key in keys:
                self._unwatch(key)
                self._not_ready(key)
                self._arrivals.pop(key, None)
                complete += self._waiting.finish(key)
            self._changed.notify_all()
        return complete

    def await_messages(self, done: Iterable[ShardKey]) -> None:
        """At-least-once: no store remembers what is done. We do, where its message is not in our hands."""
        with self._changed:
            self._awaited.update(key for key in done if key not in self._waiting)

    # micro-batches

    def wait_for_batch(self, max_files: int, max_bytes: int | None, over: Callable[[], bool]) -> None:
        """Wait until a whole batch is ready, or the queues gave all they had, or it is `over`."""
        with self._changed:
            while not (over() or self._has_batch(max_files, max_bytes) or self._drained()):
                self._changed.wait(_POLL)

    def take(
        self, max_files: int, max_bytes: int | None, may_be_cut: Callable[[Content], bool] = lambda _: False
    ) -> tuple[Range, ...]:
        """The next micro-batch (see `ReadyQueue.take`); it is ours alone until `plan` or `put_back`."""
        with self._changed:
            taken = self._ready.take(max_files, max_bytes, may_be_cut)
            self._taken = {entry.key: entry for entry, _ in taken}
            return tuple(part for _, part in taken)

    def put_back(self) -> None:
        """The snapshot of what was taken is not stored: all of it is ready again, where it was."""
        with self._changed:
            for entry in self._taken.values():
                self._ready.put(entry)
            self._taken = {}
            self._changed.notify_all()

    def plan(self, snapshot: Snapshot) -> None:
        """The snapshot is stored. What was taken and is not in it has to be resolved anew."""
        with self._changed:
            self._snapshots[snapshot.seq] = snapshot.ranges
            for entry in snapshot.ranges:
                self._ready.remove(entry.key)
                self._arrive(entry.key)
                self._enter(entry.key, entry.content)
                self._planned[entry.key] = snapshot.seq
            for key in self._taken.keys() - self._planned.keys():
                self._leave(key)
            self._taken = {}

    def continues(self, seq: int) -> bool:
        """Whether a shard in a snapshot up to `seq` goes on after it: it is ready again once that is confirmed."""
        with self._changed:
            return any(not is_end(entry.end) for entry in self._until(seq))

    def planned_until(self, seq: int) -> list[ShardKey]:
        with self._changed:
            return [entry.key for entry in self._until(seq)]

    def confirm(self, seq: int) -> list[ShardKey]:
        """Snapshots up to `seq` are confirmed; returns the shards that were in them."""
        with self._changed:
            keys = self.planned_until(seq)
            for key in keys:
                self._planned.pop(key, None)
                self._leave(key)
            self._snapshots = {s: ranges for s, ranges in self._snapshots.items() if s > seq}
            self._changed.notify_all()
            return keys

    # leaving

    def leave(self, keys: Iterable[MessageKey]) -> None:
        """The messages are acknowledged, given back or lost. What is ready stays so: it is ours without them."""
        with self._changed:
            keys = list(keys)
            grouped = self._grouped.intersection(keys)
            self._grouped -= grouped
            self._room.forget_proofs({name for name, _ in grouped})  # what comes next in the group is delivered now
            for shard in self._drop(keys):
                self._unwatch(shard)
                if shard not in self._sizes:
                    self._arrivals.pop(shard, None)
            self._changed.notify_all()

    def make_room(self) -> list[MessageKey]:
        """Where most of a full reader only waits for other pipelines, these messages leave: they are returned.

        As long as it is full of our own work there will be room by itself, and what is held costs no receive.
        """
        with self._changed:
            idle = self._waiting.idle
            if len(self._room) < self._room.limits.messages or 2 * len(idle) <= len(self._room):
                return []
            self.leave(idle)
            return idle

    def empty(self) -> Left:
        """At the end: everything leaves."""
        with self._changed:
            planned = self._waiting.of((*self._planned, *self._taken))
            unopened = [key_of(message) for message in (*self._opening, *self._inbox)]
            held = dict.fromkeys((*self._waiting.messages, *unopened, *self._aside))
            unplanned = [message for message in held if message not in planned]
            bare = self._drop(unplanned)
            self._inbox.clear()
            self._opening = []
            self._unopened = 0
            # what listings have found has no messages: nobody would come for it before it is stale
            return Left(unplanned, list(planned), [key for key in (*bare, *self._listed) if self._ready.remove(key)])

    def counts(self) -> Counts:
        with self._changed:
            return Counts(len(self._room), len(self._ready), len(self._planned), len(self._waiting.foreign))

    @property
    def bytes_held(self) -> int:
        """Of what is ready, taken or planned."""
        with self._changed:
            return self._bytes

    # with the lock

    def _heavy(self) -> bool:
        announced = len(self._sizes) - len(self._listed)
        return self._too_much(announced, self._bytes - self._listed_bytes, self._room.limits.work)

    def _listed_enough(self) -> bool:
        return self._too_much(len(self._listed), self._listed_bytes, self._listed_work)

    def _too_much(self, count: int, size: int, work: int) -> bool:
        """Whether so many shards of so many bytes, of one kind, are as many as may be held."""
        limits = self._room.limits
        if limits.bytes is not None and self._bytes + self._unopened >= limits.bytes:
            return True
        many = count >= work or (limits.batch_bytes is not None and size >= limits.batch_bytes)
        return many and self._ready.free > 0

    def _room_by_bytes(self, queue: str) -> int:
        """How many messages fit, if they are as large as the largest of the last receive. At least one is received."""
        limit = self._room.limits.bytes
        if limit is None:
            return sys.maxsize
        return max(1, (limit - self._bytes - self._unopened) // max(1, self._largest.get(queue, 1)))

    def _drained(self) -> bool:
        """Waiting brings nothing more: the queues are empty, or there is no room and nothing is about to leave."""
        if self._inbox or self._opening or (self._listing and not self._listed_enough()):
            return False
        if self._room.gives_no_more() and not self._grouped:
            return True
        if self._waiting.completing:
            return False
        return self._heavy() or self._room.full(self._resting.total()) or self._room.gives_no_more(self._resting)

    def _has_batch(self, max_files: int, max_bytes: int | None) -> bool:
        return self._ready.free >= max_files or 0 < (max_bytes or 0) <= self._ready.bytes

    def _until(self, seq: int) -> Iterable[Range]:
        return (entry for s, ranges in self._snapshots.items() if s <= seq for entry in ranges)

    def _arrive(self, key: ShardKey) -> int:
        """Its number, which it keeps as long as it is here."""
        if key not in self._arrivals:
            self._arrivals[key] = next(self._numbers)
        return self._arrivals[key]

    def _offer(self, shard: Shard) -> None:
        content = self._waiting.content(shard.key, shard.content)
        if _needs_message(content) and shard.key not in self._waiting:
            return
        if content.uri == MESSAGE_URI and not content.payload:
            return
        self._enter(shard.key, content)
        self._ready.put(Ready(shard.key, content, shard.position, self._arrive(shard.key)))

    def _unwatch(self, key: ShardKey) -> None:
        if group := self._waiting.unwatch(key):
            self._ready.unblock(group, key)

    def _drop(self, keys: Iterable[MessageKey]) -> list[ShardKey]:
        bare: list[ShardKey] = []
        for key in keys:
            self._room.leave(key)
            if key in self._aside:
                self._aside.discard(key)
                self._resting[key[0]] -= 1
            bare += self._waiting.drop(key)
        return bare

    def _not_ready(self, key: ShardKey) -> None:
        if self._ready.remove(key):
            self._leave(key)

    def _enter(self, key: ShardKey, content: Content) -> None:
        if key not in self._sizes:
            self._sizes[key] = content.size or 0
            self._bytes += content.size or 0
            if content.queue == LISTING:
                self._listed[key] = content.size or 0
                self._listed_bytes += content.size or 0

    def _leave(self, key: ShardKey) -> None:
        self._bytes -= self._sizes.pop(key, 0)
        self._listed_bytes -= self._listed.pop(key, 0)


def _size(messages: Iterable[Received]) -> int:
    return sum(len(message.body) for message in messages)


def _needs_message(content: Content) -> bool:
    return content.group is not None or content.uri == MESSAGE_URI
