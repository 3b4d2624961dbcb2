"""What one reader knows of the messages it holds and the shards they announced (Quickwit's local state, Onyx's pen).

    message: held until every shard it announced is finished, then acknowledged (invariant 1)
    shard:   ready -> planned (in a snapshot) -> finished;  or foreign: owned by another pipeline, watched

Which shards a message still waits for is a set, not Onyx's XOR value: the same event twice changes a set once (decision
0012). Pure bookkeeping without I/O or threads; the coordinator serialises access.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from queue_source.coordinator.leases import MessageKey
from queue_source.coordinator.shares import Shares
from queue_source.messages import MESSAGE_URI
from shard_store.model import (
    Content,
    Position,
    Range,
    Shard,
    ShardKey,
    Snapshot,
    end_at,
    is_end,
    offset_of,
    position_at,
)

LEAST_PART = 256 << 10
"""Bytes of an object below which a part of it is not worth a micro-batch."""


@dataclass(slots=True)
class _Message:
    pending: set[ShardKey]
    since: float


@dataclass(slots=True)
class _Ready:
    content: Content
    position: Position
    since: float


@dataclass(slots=True)
class Tracker:
    """Times are seconds of the coordinator's clock."""

    shares: Shares = field(default_factory=Shares)
    least_part: int = LEAST_PART
    messages: dict[MessageKey, _Message] = field(default_factory=dict)
    waiting: dict[ShardKey, set[MessageKey]] = field(default_factory=dict)  # shard -> messages that hang on it
    bodies: dict[ShardKey, Content] = field(default_factory=dict)  # of shards whose message is the content
    ready: OrderedDict[ShardKey, _Ready] = field(default_factory=OrderedDict)
    planned: dict[ShardKey, int] = field(default_factory=dict)  # shard -> seq of its snapshot
    snapshots: dict[int, tuple[Range, ...]] = field(default_factory=dict)  # unconfirmed, by seq
    foreign: dict[ShardKey, Shard] = field(default_factory=dict)
    awaited: set[ShardKey] = field(default_factory=set)  # done, but for messages that come again (at-least-once)
    bytes_held: int = 0  # of what is ready or planned
    _sizes: dict[ShardKey, int] = field(default_factory=dict)

    # messages

    def hang(self, message: MessageKey, contents: Mapping[ShardKey, Content], now: float) -> None:
        """`message` waits for these unfinished shards; with none it is finished at once."""
        self.messages[message] = _Message(set(contents), now)
        for key, content in contents.items():
            self.waiting.setdefault(key, set()).add(message)
            if content.payload is not None:
                self.bodies[key] = content

    def await_messages(self, done: Iterable[ShardKey]) -> None:
        """No store remembers what is done: where a message is not in our hands, we do until it comes."""
        self.awaited.update(key for key in done if key not in self.waiting)

    def finish(self, keys: Iterable[ShardKey]) -> list[MessageKey]:
        """The shards are finished in the store; returns the messages that wait for nothing more."""
        complete: list[MessageKey] = []
        for key in keys:
            self.foreign.pop(key, None)
            self._not_ready(key)
            self.bodies.pop(key, None)
            for message in self.waiting.pop(key, ()):
                entry = self.messages[message]
                entry.pending.discard(key)
                if not entry.pending:
                    complete.append(message)
        return complete

    def drop(self, messages: Iterable[MessageKey]) -> list[ShardKey]:
        """Forget messages (acknowledged, given back, lost); returns shards on which nothing hangs any more."""
        bare: list[ShardKey] = []
        for message in messages:
            entry = self.messages.pop(message, None)
            for key in () if entry is None else entry.pending:
                hanging = self.waiting.get(key)
                if hanging is not None:
                    hanging.discard(message)
                    if not hanging:
                        del self.waiting[key]
                        self.bodies.pop(key, None)
                        bare.append(key)
        return bare

    def unplanned(self) -> list[MessageKey]:
        """Messages of which no shard is in a snapshot."""
        return [key for key, entry in self.messages.items() if entry.pending.isdisjoint(self.planned)]

    def overdue(self, before: float) -> list[MessageKey]:
        """Messages held since `before` with a ready shard and none in a snapshot: Onyx's replay timer."""
        return [
            key
            for key, entry in self.messages.items()
            if entry.since < before
            and not entry.pending.isdisjoint(self.ready)
            and entry.pending.isdisjoint(self.planned)
        ]

    def idle(self) -> list[MessageKey]:
        """Messages that only wait for shards of other pipelines: the first to leave a full pen."""
        return [key for key, entry in self.messages.items() if entry.pending and entry.pending <= self.foreign.keys()]

    # shards

    def offer(self, shard: Shard, now: float, *, first: bool = False) -> bool:
        """A shard of ours is ready to be read from its position; False if it is known already, or has to wait.

        Retries go first (`first`). What is in an ordered group, or is a message itself, waits until the message that
        announced it is in our hands: in a group the queue's order decides, and a message's body is nowhere else.
        """
        self.foreign.pop(shard.key, None)
        if shard.key in self.planned or shard.key in self.ready:
            return False
        content = self.bodies.get(shard.key, shard.content)
        needs_message = content.group is not None or content.uri == MESSAGE_URI
        if needs_message and (shard.key not in self.waiting or (content.uri == MESSAGE_URI and not content.payload)):
            return False
        self.ready[shard.key] = _Ready(content, shard.position, now)
        self._enter(shard.key, content)
        if first:
            self.ready.move_to_end(shard.key, last=False)
        return True

    def watch(self, shard: Shard) -> None:
        """Another pipeline owns the shard: look again later, as long as a message waits for it."""
        self._not_ready(shard.key)
        if shard.key in self.waiting:
            self.foreign[shard.key] = shard

    def unwatch(self, keys: Iterable[ShardKey]) -> None:
        """No message in our hands waits for these any more."""
        for key in keys:
            self.foreign.pop(key, None)

    def forget(self, keys: Iterable[ShardKey]) -> list[ShardKey]:
        """Forget shards that are in no snapshot; returns those that were ours (ready), to be released."""
        released: list[ShardKey] = []
        for key in keys:
            self.foreign.pop(key, None)
            if key in self.ready:
                self._not_ready(key)
                released.append(key)
        return released

    # snapshots

    def take(
        self, max_files: int, max_bytes: int | None, may_be_cut: Callable[[Content], bool] = lambda _: False
    ) -> list[Range]:
        """The next ready shards within both limits, at least one if there is any; they stay ready until `plan`.

        A shard that is larger than `max_bytes` comes alone, and if it may be cut, as many bytes of it as that (or as
        are worth a micro-batch): it is offered again, from its new position, when these are published.
        """
        taken: list[Range] = []
        total = 0
        part = None if max_bytes is None else max(max_bytes, self.least_part)
        for key, entry in self._in_turn():
            content, start = entry.content, offset_of(entry.position)
            size = max((content.size or 0) - start, 0)
            if taken and (len(taken) >= max_files or (max_bytes is not None and total + size > max_bytes)):
                break
            end = end_at(content.size or 0)
            if part is not None and size > part and content.group is None and may_be_cut(content):
                end = position_at(start + part)
            taken.append(Range(key, content, entry.position, end))
            total += size
        return taken

    def continues(self, seq: int) -> bool:
        """Whether a shard in a snapshot up to `seq` goes on after it: it is ready again once that is confirmed."""
        return any(not is_end(entry.end) for s, entries in self.snapshots.items() if s <= seq for entry in entries)

    def plan(self, snapshot: Snapshot) -> None:
        """The ranges are in a durable snapshot now."""
        self.snapshots[snapshot.seq] = snapshot.ranges
        for entry in snapshot.ranges:
            self.ready.pop(entry.key, None)
            self.planned[entry.key] = snapshot.seq
            self._enter(entry.key, entry.content)

    def settle(self, seq: int) -> list[ShardKey]:
        """Snapshots up to `seq` are confirmed; returns the shards that were in them."""
        keys: list[ShardKey] = []
        for done in [s for s in self.snapshots if s <= seq]:
            for entry in self.snapshots.pop(done):
                self.planned.pop(entry.key, None)
                self._leave(entry.key)
                keys.append(entry.key)
        return keys

    def keys_until(self, seq: int) -> list[ShardKey]:
        return [entry.key for s, entries in self.snapshots.items() if s <= seq for entry in entries]

    def ready_bytes(self) -> int:
        return sum(self._sizes[key] for key in self.ready)

    def _in_turn(self) -> Iterable[tuple[ShardKey, _Ready]]:
        """What is ready, in the order in which it is to be taken; groups that wait for another pipeline are not."""
        blocked = {(s.content.queue, s.content.group) for s in self.foreign.values() if s.content.group is not None}
        queued: dict[str, list[tuple[ShardKey, _Ready]]] = {}
        for key, entry in self.ready.items():
            content = entry.content
            if content.group is None or (content.queue, content.group) not in blocked:
                queued.setdefault(content.queue, []).append((key, entry))
        return self.shares.interleave(queued)

    def _not_ready(self, key: ShardKey) -> None:
        if self.ready.pop(key, None) is not None:
            self._leave(key)

    def _enter(self, key: ShardKey, content: Content) -> None:
        if key not in self._sizes:
            self._sizes[key] = content.size or 0
            self.bytes_held += content.size or 0

    def _leave(self, key: ShardKey) -> None:
        self.bytes_held -= self._sizes.pop(key, 0)
