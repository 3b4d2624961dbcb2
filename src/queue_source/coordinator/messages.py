"""The messages that this process holds: their stages, and the table of which shards each of them waits for."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice

from queue_source.messages import Group, MessageKey, Received
from queue_source.queues.leases import Lease, LeaseOrder, Terms
from shard_store.model import Content, ShardKey


class State(Enum):
    """The states of a message, in their order."""

    RECEIVED = "its body waits to be opened"
    LATE = "it is left for the next run (AvailableNow)"
    OPENED = "it waits for shards that are ours to read"
    IDLE = "it waits for shards of other pipelines alone"
    COMPLETE = "all that it announced is finished: it waits for its acknowledgement"
    ACKNOWLEDGING = "its queue is asked to delete it"


UNACKNOWLEDGED = frozenset({State.COMPLETE, State.ACKNOWLEDGING})
RESTING = UNACKNOWLEDGED | {State.LATE, State.IDLE}
"""Nothing is left for us to read."""


class Message(Lease):
    """One delivery of a message, from its receipt on. `unopened`: the delivery with its body, until it is opened.

    It waits for the shards that are `pending`, of which so many are `foreign`: other pipelines have them. `since`: how
    many looks at the store had begun when it began to wait. `is_delayed`: its queue was away when it was to be
    acknowledged; so it may be deleted already.
    """

    __slots__ = ("foreign", "is_delayed", "is_grouped", "log_id", "pending", "since", "state", "unopened")

    def __init__(self, received: Received, terms: Terms, state: State) -> None:
        super().__init__(received, terms)
        self.state = state
        self.unopened = received if state is State.RECEIVED else None
        self.is_grouped = received.group is not None
        self.log_id = received.headers.get(terms.log_id_header) if terms.log_id_header else None
        self.pending: set[ShardKey] = set()
        self.foreign = 0
        self.since = 0
        self.is_delayed = False


class MessageTable:
    """Holds the records, and derives from their states: counts, lines, leases and the messages that wait for a shard.

    `foreign`: shards of other pipelines for which messages wait, with their ordered groups.

    `unopened`: bytes of bodies in memory. `grouped`: messages of ordered groups.
    """

    def __init__(self) -> None:
        self._messages: dict[MessageKey, Message] = {}
        self._counts = {state: Counter[str]() for state in State}  # by queue
        self._inbox: deque[Message] = deque()
        self._opening: list[Message] = []
        self._waiting: dict[ShardKey, set[Message]] = {}
        self._contents: dict[ShardKey, Content] = {}  # of shards whose message is the content
        self._lines = defaultdict[str, OrderedDict[Message, None]](OrderedDict)  # complete messages, by queue
        self.leases = LeaseOrder()
        self.foreign: dict[ShardKey, Group | None] = {}
        self.unopened = 0
        self.grouped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, key: MessageKey) -> Message | None:
        """Find the message's record, or None if it is gone."""
        return self._messages.get(key)

    def kept(self, keys: Iterable[MessageKey]) -> list[Message]:
        """Find those of the messages whose leases are kept: they are not gone, nor being acknowledged."""
        messages = [message for key in keys if (message := self._messages.get(key)) is not None]
        return [message for message in messages if message.state is not State.ACKNOWLEDGING]

    def count(self, states: Iterable[State] = State, queue: str | None = None) -> int:
        """Count the messages in one of these states: of all queues, or of one."""
        counts = [self._counts[state] for state in states]
        return sum(count.total() if queue is None else count[queue] for count in counts)

    def keys(self, *states: State) -> list[MessageKey]:
        """List the messages in these states (without any: all), in the order of their receipt."""
        return [key for key, message in self._messages.items() if not states or message.state in states]

    # receiving and opening

    def add(self, message: Message) -> None:
        """Hold a message. A message that is here already stays as it is."""
        if message.key in self._messages:
            return
        self._messages[message.key] = message
        self._counts[message.state][message.key[0]] += 1
        self.grouped += message.is_grouped
        self.leases.keep(message)
        if message.unopened is not None:
            self._inbox.append(message)
            self.unopened += len(message.unopened.body)

    @property
    def is_opening(self) -> bool:
        """Tell whether messages are being opened, or wait for it."""
        return bool(self._inbox or self._opening)

    def begin_opening(self, most: int) -> list[Received]:
        """Hand out the next messages, without those that are gone."""
        taken = [self._inbox.popleft() for _ in range(min(most, len(self._inbox)))]
        self._opening = [message for message in taken if message.unopened is not None]
        return [message.unopened for message in self._opening if message.unopened is not None]

    def end_opening(self) -> None:
        """Forget the bodies of the messages that were handed out."""
        for message in self._opening:
            self._forget_body(message)
        self._opening = []

    def open(self, key: MessageKey, contents: Mapping[ShardKey, Content], looks: int = 0) -> None:
        """Let the message wait for these unfinished shards; without any it is complete. `looks`: as in `since`.

        A message that is gone is skipped.
        """
        message = self._messages.get(key)
        if message is None:
            return
        self._forget_body(message)  # also of a delivery that came while an earlier one was opened
        message.pending, message.since = set(contents), looks
        for shard, content in contents.items():
            self._waiting.setdefault(shard, set()).add(message)
            message.foreign += shard in self.foreign
            if content.payload is not None:
                self._contents[shard] = content
        self._settle(message)

    # shards

    def is_awaited(self, shard: ShardKey) -> bool:
        """Tell whether a message waits for the shard."""
        return shard in self._waiting

    def log_id(self, shard: ShardKey) -> str | None:
        """Find the log id of a message that waits for the shard, if one has any."""
        return next((message.log_id for message in self._waiting.get(shard, ()) if message.log_id is not None), None)

    def content(self, shard: ShardKey, otherwise: Content) -> Content:
        """Find the content with its body, where the content is a message in our hands."""
        return self._contents.get(shard, otherwise)

    def waiting_for(self, shards: Iterable[ShardKey]) -> set[MessageKey]:
        """List the messages that wait for any of these shards."""
        return {message.key for shard in shards for message in self._waiting.get(shard, ())}

    def watch(self, shard: ShardKey, group: Group | None) -> None:
        """Note that another pipeline has the shard."""
        if shard not in self.foreign:
            self.foreign[shard] = group
            self._count_foreign(shard, 1)

    def unwatch(self, shard: ShardKey) -> Group | None:
        """Note that no other pipeline has it (any more); returns the ordered group for which it was watched."""
        if shard not in self.foreign:
            return None
        self._count_foreign(shard, -1)
        return self.foreign.pop(shard)

    def finish(self, shard: ShardKey, look: int | None = None) -> list[MessageKey]:
        """Note that the shard is finished, as this look at the store has found it; None: whoever waits for it.

        Returns the messages that are complete by that. Those that wait for it since the look began go on waiting.
        """
        messages = self._waiting.pop(shard, set())
        if later := {message for message in messages if look is not None and message.since >= look}:
            self._waiting[shard] = later
        else:
            self._contents.pop(shard, None)
        ended = messages - later
        for message in ended:
            message.pending.discard(shard)
            message.foreign -= shard in self.foreign
            self._settle(message)
        return [message.key for message in ended if not message.pending]

    # acknowledging

    def begin_acknowledging(self, queue: str, most: int) -> dict[MessageKey, bool]:
        """Hand out the next complete messages, each with whether it is delayed. Their leases are no longer kept."""
        messages = list(islice(self._lines[queue], most))
        for message in messages:
            del self._lines[queue][message]
            self._move(message, State.ACKNOWLEDGING)
            self.leases.stop(message)
        return {message.key: message.is_delayed for message in messages}

    def put_off(self, queue: str, keys: Sequence[MessageKey]) -> int:
        """Keep these messages of an unavailable queue for another try: they are complete, and first again.

        That delays all of its complete messages; returns how many were not delayed before.
        """
        line = self._lines[queue]
        for key in reversed(keys):
            message = self._messages.get(key)
            if message is not None and message.state is State.ACKNOWLEDGING:
                self._move(message, State.COMPLETE)
                line[message] = None
                line.move_to_end(message, last=False)
                self.leases.keep(message)
        newly_delayed = [message for message in line if not message.is_delayed]
        for message in newly_delayed:
            message.is_delayed = True
        return len(newly_delayed)

    # leaving

    def drop(self, keys: Iterable[MessageKey]) -> list[ShardKey]:
        """Forget the messages; returns the shards for which no message waits any more."""
        unawaited: list[ShardKey] = []
        for key in keys:
            message = self._messages.pop(key, None)
            if message is None:
                continue
            self._counts[message.state][key[0]] -= 1
            self.grouped -= message.is_grouped
            self._forget_body(message)
            self._lines[key[0]].pop(message, None)
            self.leases.stop(message)
            for shard in message.pending:
                waiting = self._waiting[shard]
                waiting.discard(message)
                if not waiting:
                    del self._waiting[shard]
                    self._contents.pop(shard, None)
                    unawaited.append(shard)
        return unawaited

    def _forget_body(self, message: Message) -> None:
        if message.unopened is not None:
            self.unopened -= len(message.unopened.body)
            message.unopened = None

    def _count_foreign(self, shard: ShardKey, by: int) -> None:
        for message in self._waiting.get(shard, ()):
            message.foreign += by
            self._settle(message)

    def _settle(self, message: Message) -> None:
        """Set its state by the shards that it waits for."""
        if message.pending:
            self._move(message, State.IDLE if message.foreign == len(message.pending) else State.OPENED)
        else:
            self._move(message, State.COMPLETE)
            self._lines[message.key[0]][message] = None

    def _move(self, message: Message, state: State) -> None:
        self._counts[message.state][message.key[0]] -= 1
        self._counts[state][message.key[0]] += 1
        message.state = state
