"""Which messages wait for which shards. Pure bookkeeping, without I/O or threads.

A message is held until every shard that it announced is finished, and is then acknowledged (invariant 1). What it still
waits for is a set: the same event twice changes a set once (decision 0012).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from queue_source.messages import Group, MessageKey
from shard_store.model import Content, ShardKey


class Waiting:
    """Messages and the unfinished shards that they announced.

    `foreign`: the shards among them that belong to other pipelines, with their ordered groups.

    A message rests when there is nothing for us to do for it: all of its shards are foreign, or none is left.
    `resting` counts such messages of each queue, for its owner.
    """

    def __init__(self, resting: Counter[str]) -> None:
        self._resting = resting
        self._shards: dict[MessageKey, set[ShardKey]] = {}
        self._messages: dict[ShardKey, set[MessageKey]] = {}
        self._bodies: dict[ShardKey, Content] = {}  # of shards whose message is the content
        self.foreign: dict[ShardKey, Group | None] = {}
        self._foreign_of: Counter[MessageKey] = Counter()
        self._complete: set[MessageKey] = set()
        self._idle: set[MessageKey] = set()

    def __contains__(self, shard: ShardKey) -> bool:
        """Whether a message waits for the shard."""
        return shard in self._messages

    @property
    def messages(self) -> list[MessageKey]:
        return list(self._shards)

    @property
    def idle(self) -> list[MessageKey]:
        """Messages that only wait for shards of other pipelines."""
        return list(self._idle)

    @property
    def completing(self) -> bool:
        """Whether messages wait for nothing but their acknowledgement."""
        return bool(self._complete)

    def content(self, shard: ShardKey, otherwise: Content) -> Content:
        """The content with its body, where the message in our hands is it."""
        return self._bodies.get(shard, otherwise)

    def of(self, shards: Iterable[ShardKey]) -> set[MessageKey]:
        """The messages that wait for any of these shards."""
        return {message for shard in shards for message in self._messages.get(shard, ())}

    def wait(self, message: MessageKey, contents: Mapping[ShardKey, Content]) -> None:
        """`message` waits for these unfinished shards; with none it is complete."""
        self._shards[message] = set(contents)
        for key, content in contents.items():
            self._messages.setdefault(key, set()).add(message)
            self._foreign_of[message] += key in self.foreign
            if content.payload is not None:
                self._bodies[key] = content
        self._sort(message)

    def watch(self, shard: ShardKey, group: Group | None = None) -> None:
        """Another pipeline has the shard."""
        if shard not in self.foreign:
            self.foreign[shard] = group
            self._count(shard, 1)

    def unwatch(self, shard: ShardKey) -> Group | None:
        """No other pipeline has it (any more); returns the ordered group for which it was watched."""
        if shard not in self.foreign:
            return None
        self._count(shard, -1)
        return self.foreign.pop(shard)

    def finish(self, shard: ShardKey) -> list[MessageKey]:
        """The shard, which is not foreign, is finished; returns the messages that wait for nothing more."""
        self._bodies.pop(shard, None)
        complete: list[MessageKey] = []
        for message in self._messages.pop(shard, ()):
            self._shards[message].discard(shard)
            self._sort(message)
            if message in self._complete:
                complete.append(message)
        return complete

    def drop(self, message: MessageKey) -> list[ShardKey]:
        """The message has left; returns the shards for which no message waits any more."""
        bare: list[ShardKey] = []
        for key in self._shards.get(message, ()):
            others = self._messages[key]
            others.discard(message)
            if not others:
                del self._messages[key]
                self._bodies.pop(key, None)
                bare.append(key)
        if self._shards.pop(message, None) is not None:
            del self._foreign_of[message]
            self._rest(message, complete=False, idle=False)
        return bare

    def _count(self, shard: ShardKey, by: int) -> None:
        for message in self.of([shard]):
            self._foreign_of[message] += by
            self._sort(message)

    def _sort(self, message: MessageKey) -> None:
        left = len(self._shards[message])
        self._rest(message, complete=left == 0, idle=0 < left == self._foreign_of[message])

    def _rest(self, message: MessageKey, *, complete: bool, idle: bool) -> None:
        before = message in self._complete or message in self._idle
        (self._complete.add if complete else self._complete.discard)(message)
        (self._idle.add if idle else self._idle.discard)(message)
        self._resting[message[0]] += (complete or idle) - before
