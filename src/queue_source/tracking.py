"""What one reader knows of the messages it holds and the shards they announced (Quickwit's local state, Onyx's pen).

    message: held until every shard it announced is finished, then acknowledged (invariant 1)
    shard:   ready -> planned (in a snapshot) -> finished;  or foreign: owned by another pipeline, watched

Pure bookkeeping without I/O or threads; the coordinator serialises access.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from queue_source.leases import MessageKey
from shard_store.model import Content, Position, PublishToken, Range, Shard, ShardKey, Snapshot, end_at


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

    messages: dict[MessageKey, _Message] = field(default_factory=dict)
    waiting: dict[ShardKey, set[MessageKey]] = field(default_factory=dict)  # shard -> messages that hang on it
    ready: OrderedDict[ShardKey, _Ready] = field(default_factory=OrderedDict)
    planned: dict[ShardKey, int] = field(default_factory=dict)  # shard -> seq of its snapshot
    snapshots: dict[int, tuple[Range, ...]] = field(default_factory=dict)  # unconfirmed, by seq
    foreign: dict[ShardKey, PublishToken | None] = field(default_factory=dict)

    def hang(self, message: MessageKey, keys: Iterable[ShardKey], now: float) -> None:
        """`message` waits for these unfinished shards; with none it is finished at once."""
        pending = set(keys)
        self.messages[message] = _Message(pending, now)
        for key in pending:
            self.waiting.setdefault(key, set()).add(message)

    def offer(self, shard: Shard, now: float, *, first: bool = False) -> bool:
        """A shard of ours is ready to be read from its position; False if it is known already. Retries go first."""
        self.foreign.pop(shard.key, None)
        if shard.key in self.planned or shard.key in self.ready:
            return False
        self.ready[shard.key] = _Ready(shard.content, shard.position, now)
        if first:
            self.ready.move_to_end(shard.key, last=False)
        return True

    def watch(self, shard: Shard) -> None:
        """Another pipeline owns the shard: look again later, as long as a message waits for it."""
        self.ready.pop(shard.key, None)
        if shard.key in self.waiting:
            self.foreign[shard.key] = shard.token

    def unwatch(self, keys: Iterable[ShardKey]) -> None:
        """No message in our hands waits for these any more."""
        for key in keys:
            self.foreign.pop(key, None)

    def take(self, max_files: int, max_bytes: int | None) -> list[Range]:
        """The next ready shards within both limits, at least one if there is any; they stay ready until `plan`."""
        taken: list[Range] = []
        total = 0
        for key, entry in self.ready.items():
            size = entry.content.size or 0
            if taken and (len(taken) >= max_files or (max_bytes is not None and total + size > max_bytes)):
                break
            taken.append(Range(key, entry.content, entry.position, end_at(size)))
            total += size
        return taken

    def plan(self, snapshot: Snapshot) -> None:
        """The ranges are in a durable snapshot now."""
        self.snapshots[snapshot.seq] = snapshot.ranges
        for entry in snapshot.ranges:
            self.ready.pop(entry.key, None)
            self.planned[entry.key] = snapshot.seq

    def settle(self, seq: int) -> list[ShardKey]:
        """Snapshots up to `seq` are confirmed; returns the shards that were in them."""
        keys: list[ShardKey] = []
        for done in [s for s in self.snapshots if s <= seq]:
            for entry in self.snapshots.pop(done):
                self.planned.pop(entry.key, None)
                keys.append(entry.key)
        return keys

    def keys_until(self, seq: int) -> list[ShardKey]:
        return [entry.key for s, entries in self.snapshots.items() if s <= seq for entry in entries]

    def finish(self, keys: Iterable[ShardKey]) -> list[MessageKey]:
        """The shards are finished in the store; returns the messages that wait for nothing more."""
        complete: list[MessageKey] = []
        for key in keys:
            self.ready.pop(key, None)
            self.foreign.pop(key, None)
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
            if entry is None:
                continue
            for key in entry.pending:
                hanging = self.waiting.get(key)
                if hanging is not None:
                    hanging.discard(message)
                    if not hanging:
                        del self.waiting[key]
                        bare.append(key)
        return bare

    def forget(self, keys: Iterable[ShardKey]) -> list[ShardKey]:
        """Forget shards that are in no snapshot; returns those that were ours (ready), to be released."""
        released: list[ShardKey] = []
        for key in keys:
            self.foreign.pop(key, None)
            if self.ready.pop(key, None) is not None:
                released.append(key)
        return released

    def unplanned(self) -> list[MessageKey]:
        """Messages of which no shard is in a snapshot."""
        return [key for key, entry in self.messages.items() if not any(k in self.planned for k in entry.pending)]

    def overdue(self, before: float) -> list[MessageKey]:
        """Messages held since `before` with a ready shard and none in a snapshot: Onyx's replay timer."""
        return [
            key
            for key, entry in self.messages.items()
            if entry.since < before
            and any(k in self.ready for k in entry.pending)
            and not any(k in self.planned for k in entry.pending)
        ]

    def ready_bytes(self) -> int:
        return sum(entry.content.size or 0 for entry in self.ready.values())
