"""What a reader holds between receipt and acknowledgement. One object owns this state and locks itself.

message: received -> opened (waits for the shards that it announced) -> complete -> acknowledging (`messages.py`)
shard:   ready -> taken (its snapshot is being stored) -> planned (in a snapshot) -> finished
         or foreign: another pipeline has it, and messages of ours wait for it
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from queue_source.coordinator.messages import UNACKNOWLEDGED, Message, MessageTable, State
from queue_source.coordinator.ready import Limits, Ready, ReadyQueue, Receive, Room, Shares, group_of
from queue_source.messages import MESSAGE_URI, MessageKey, Received, key_of
from queue_source.queues.leases import Due, Terms
from shard_store.model import LISTING, Content, Range, Shard, ShardKey, Snapshot, is_end

_EQUAL = Shares()
_POLL = 0.1  # seconds: time-outs of a wait are noticed as late as this


class Opened(NamedTuple):
    """A message whose shards are in the store: it waits for the `pending` ones."""

    message: MessageKey
    pending: Mapping[ShardKey, Content]


class Counts(NamedTuple):
    """How much there is: messages, and shards in each state. `held`: shards of other pipelines that are waited for.

    `bytes`: of what is ready, taken or planned.
    """

    in_flight: int
    ready: int
    planned: int
    held: int
    bytes: int


class Finished(NamedTuple):
    """Messages that are `complete` now, and shards that are to be looked at again: they may be open since."""

    complete: list[MessageKey]
    again: list[ShardKey]


class Leftovers(NamedTuple):
    """What remains at the end of a reader: messages without and with a shard in a snapshot, and shards in none.

    `complete`: messages that are to be acknowledged; `unanswered`: those that their queues were asked to delete.
    """

    unplanned: list[MessageKey]
    planned: list[MessageKey]
    complete: list[MessageKey]
    unanswered: list[MessageKey]
    shards: list[ShardKey]


class InFlight:
    """Holds messages and shards. All methods may be called from any thread; every change wakes the waiting threads.

    What one thread has read in the store is old by the time at which it comes here: meanwhile another one may have
    opened a shard again, and announced or offered it. So each look at the store is counted when it begins (`look`), and
    what it says of a shard ends nothing that came here since.
    """

    def __init__(self, queues: Iterable[str], limits: Limits, shares: Shares = _EQUAL) -> None:
        self._changed = threading.Condition()
        self._messages = MessageTable()
        self._ready = ReadyQueue(shares)
        self._room = Room(queues, limits, shares, self._messages, self._ready)
        self._arrivals: dict[ShardKey, int] = {}
        self._looks = 0
        self._heard: dict[ShardKey, int] = {}  # how many looks had begun when a shard was last said to be open
        self._numbers = itertools.count()
        self._taken: dict[ShardKey, Ready] = {}
        self._planned: set[ShardKey] = set()
        self._snapshots: dict[int, tuple[Range, ...]] = {}  # not confirmed
        self._expected: set[str] = set()
        self._done: set[ShardKey] = set()  # at-least-once: their messages will come again

    def wait(self, seconds: float | None = None, condition: Callable[[], bool] | None = None) -> None:
        """Wait until something changes (and `condition` holds), or `seconds` have passed."""
        with self._changed:
            if condition is None:
                self._changed.wait(seconds)
            else:
                self._changed.wait_for(condition, seconds)

    def wake(self) -> None:
        """Wake the waiting threads, so that they see that the reader ends."""
        with self._changed:
            self._changed.notify_all()

    def look(self) -> int:
        """Begin a look at the store, by the number that it has from now on."""
        with self._changed:
            self._looks += 1
            return self._looks

    # receiving

    def begin_receive(self, queue: str, receiver: int, max_messages: int, seconds: float = 0.0) -> Receive | None:
        """Reserve room for a receive, or return None; without room, wait up to `seconds` for a change."""
        with self._changed:
            receive = self._room.begin(queue, receiver, max_messages)
            if receive is None:
                self._changed.wait(seconds)
            return receive

    def end_receive(
        self, receive: Receive, messages: Sequence[Received], terms: Terms, late: Sequence[Received] = ()
    ) -> None:
        """Hold the messages of a receive, under these terms. `late` ones are left for the next run (AvailableNow)."""
        with self._changed:
            # some queues have one receipt for all deliveries of a message
            self._leave(map(key_of, (*messages, *late)))
            for state, brought in ((State.RECEIVED, messages), (State.LATE, late)):
                for received in brought:
                    self._messages.add(Message(received, terms, state))
            self._room.end(receive, messages)
            self._changed.notify_all()

    @contextmanager
    def pausing(self, queues: Collection[str], until: Callable[[], bool]) -> Iterator[None]:
        """Let no receive of these queues run inside the block: wait for those under way, or for `until`."""
        with self._changed:
            self._room.paused = queues
            self._changed.wait_for(lambda: not self._room.receiving(queues) or until())
        try:
            yield
        finally:
            with self._changed:
                self._room.paused = ()
                self._changed.notify_all()

    def lift_limits(self) -> None:
        """Hold what any number of triggers could take: the next batch has no limit. `maxInFlight...` limits stay."""
        with self._changed:
            self._room.limits = replace(self._room.limits, work=sys.maxsize, batch_bytes=None)
            self._changed.notify_all()

    def forget_proofs(self) -> None:
        """Forget which queues are empty: only a receive that begins later can prove it."""
        with self._changed:
            self._room.forget_proofs()
            self._changed.notify_all()

    def proven_empty(self, queue: str) -> bool:
        with self._changed:
            return self._room.proven_empty(queue)

    # leases

    def begin_extending(self, now: float) -> Due:
        """Hand out the leases that are to be extended now. Messages whose leases have ended leave."""
        with self._changed:
            due = self._messages.leases.take_due(now)
            self._leave(due.ended)
            return due

    def end_extending(self, keys: Iterable[MessageKey], until: float, gone: Collection[MessageKey]) -> list[MessageKey]:
        """Note that the leases of these messages end at `until`; those that are `gone` leave, and are returned.

        A message that has left meanwhile, or is being acknowledged, is not returned: it is not lost.
        """
        with self._changed:
            for message in self._messages.kept(keys):
                if message.key not in gone:
                    message.until = until
                    self._messages.leases.keep(message)
            return self._leave(message.key for message in self._messages.kept(gone))

    def fail_extending(self, keys: Iterable[MessageKey], now: float) -> list[MessageKey]:
        """Try these leases again soon; messages whose leases have ended leave, and are returned."""
        with self._changed:
            kept = self._messages.kept(keys)
            for message in kept:
                self._messages.leases.try_again(message, now)
            return self._leave(message.key for message in kept if message.until <= now)

    # opening

    def begin_opening(self, max_messages: int, seconds: float) -> list[Received]:
        """Hand out the next received messages; waits so many seconds for the first. `end_opening` follows."""
        with self._changed:
            if not self._messages.is_opening:
                self._changed.wait(seconds)
            return self._messages.begin_opening(max_messages)

    def end_opening(self) -> None:
        """Forget the bodies of what was handed out: its shards are offered, watched or finished by now."""
        with self._changed:
            self._messages.end_opening()
            self._changed.notify_all()

    def awaited(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """Select those of the shards for which a message waits."""
        with self._changed:
            return {key for key in keys if self._messages.is_awaited(key)}

    def log_id(self, key: ShardKey) -> str | None:
        """Find the log id of a message that announced this shard, while it waits for it."""
        with self._changed:
            return self._messages.log_id(key)

    def announce(self, opened: Iterable[Opened]) -> None:
        """Let these messages, in their order of arrival, wait for the shards they announced.

        Messages without shards are complete. Those that have left meanwhile announce nothing: their next deliveries do.
        """
        with self._changed:
            for message, pending in opened:
                self._messages.open(message, pending, self._looks)
                for key in pending:
                    self._arrive(key)
                    self._heard[key] = self._looks
            self._changed.notify_all()

    def recall_done(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """Find those of the shards that `remember_done` has kept, and forget them: their messages have come."""
        with self._changed:
            done = self._done.intersection(keys)
            self._done -= done
            return done

    # listing

    def expect_listing(self, due: bool, of: str = LISTING) -> None:
        """Note whether a listing is due or under way: then work may come although the queues are empty.

        `of`: or what brings shards without messages in another way, by the name of its queue.
        """
        with self._changed:
            (self._expected.add if due else self._expected.discard)(of)
            self._changed.notify_all()

    def room_for_listed(self) -> int:
        """Return how many more shards without messages may come: at least one."""
        with self._changed:
            return self._room.left_for_listed

    def wait_for_listed(self, seconds: float) -> bool:
        """Wait up to `seconds` for room for a page of a listing; return whether there is some."""
        with self._changed:
            if self._room.is_listed_enough:
                self._changed.wait(seconds)
            return not self._room.is_listed_enough

    # shards

    def recover(
        self, shards: Iterable[Shard], snapshots: Iterable[Snapshot], done: Iterable[ShardKey]
    ) -> list[ShardKey]:
        """Take over what the incarnation before left unfinished; `shards` in the order in which they were opened.

        Returns those that only their messages' next deliveries make readable, as `offer` does.
        """
        with self._changed:
            self._done.update(done)
            shards = list(shards)
            for shard in shards:
                if not _needs_message(shard.content):  # else the order of the queue decides
                    self._arrive(shard.key)
            for snapshot in snapshots:
                self.plan(snapshot)
            return self.offer(shards)

    def offer(self, shards: Iterable[Shard], usual: int = 0) -> list[ShardKey]:
        """Make shards of ours ready to be read from their positions, unless they are here already.

        A shard of an ordered group, or that is a message itself, is ready only while the message that announced it is
        in our hands: in a group the queue's order decides, and a message's body is nowhere else. Returns the shards
        whose message is not: its next delivery may be another pipeline's. A ready shard takes the newest size and ETag;
        a taken or planned one does not. `usual`: the bytes that one of unknown size counts for.
        """
        with_message_gone: list[ShardKey] = []
        with self._changed:
            for shard in shards:
                self._unwatch(shard.key)
                self._heard[shard.key] = self._looks
                if self._ready.is_outdated(shard.key, shard.content):
                    self._not_ready(shard.key)
                content = self._messages.content(shard.key, shard.content)
                if shard.key in self._room:
                    continue
                needs_message = _needs_message(content) and not self._messages.is_awaited(shard.key)
                if needs_message or (content.uri == MESSAGE_URI and content.payload is None):
                    with_message_gone.append(shard.key)
                    self._heard.pop(shard.key, None)
                    continue
                ready = Ready(shard.key, content, shard.position, self._arrive(shard.key), usual)
                self._room.enter(shard.key, content, ready.bytes)
                self._ready.put(ready)
            self._changed.notify_all()
        return with_message_gone

    def watch(self, shards: Iterable[Shard], look: int | None = None) -> None:
        """Note that other pipelines have these shards. A planned shard is resolved when its snapshot is.

        Where a message waits, the store is asked again at each heartbeat; else nobody would ask for what is ours since.
        """
        with self._changed:
            for shard in shards:
                key = shard.key
                if key in self._planned or key in self._taken:
                    continue
                if self._is_newer(key, look) and not self._messages.is_awaited(key):
                    continue
                self._not_ready(key)
                if self._messages.is_awaited(key):
                    group = group_of(shard.content)
                    self._messages.watch(key, group)
                    if group is not None:
                        self._ready.block(group, key, self._arrive(key))
                else:
                    self._forget(key)
            self._changed.notify_all()

    def foreign(self) -> list[ShardKey]:
        """List the shards of other pipelines for which messages wait."""
        with self._changed:
            return list(self._messages.foreign)

    def finish(self, keys: Iterable[ShardKey], look: int | None = None) -> Finished:
        """Note that the shards are finished, as this look at the store has found them; None: whatever came since.

        It completes no message that began to wait since, and a shard that was said to be open since is left as it is.
        """
        with self._changed:
            finished = Finished([], [])
            for key in keys:
                finished.complete.extend(self._messages.finish(key, look))
                if self._is_newer(key, look):
                    finished.again.append(key)
                    continue
                self._unwatch(key)
                self._not_ready(key)
                self._forget(key)
            self._changed.notify_all()
            return finished

    def remember_done(self, keys: Iterable[ShardKey]) -> None:
        """Remember finished shards whose messages are not in our hands: with at-least-once no store does."""
        with self._changed:
            self._done.update(key for key in keys if not self._messages.is_awaited(key))

    # micro-batches

    def wait_for_batch(self, max_files: int, max_bytes: int | None, over: Callable[[], bool]) -> None:
        """Wait until a whole batch is ready, or the queues gave all they had, or `over` is true."""
        with self._changed:
            ready = self._ready
            while not (over() or self._drained()):
                if ready.free >= max_files or 0 < (max_bytes or 0) <= ready.bytes:
                    return
                self._changed.wait(_POLL)

    def take(
        self, max_files: int, max_bytes: int | None, may_be_cut: Callable[[Content], bool] = lambda _: False
    ) -> tuple[Range, ...]:
        """Take the next micro-batch (see `ReadyQueue.take`). `plan` or `put_back` follows."""
        with self._changed:
            taken = self._ready.take(max_files, max_bytes, may_be_cut)
            self._taken = {entry.key: entry for entry, _ in taken}
            return tuple(part for _, part in taken)

    def put_back(self) -> None:
        """Make the taken shards ready again, in their places: their snapshot is not stored."""
        with self._changed:
            for entry in self._taken.values():
                self._ready.put(entry)
            self._taken = {}
            self._changed.notify_all()

    def plan(self, snapshot: Snapshot) -> None:
        """Note that the snapshot is stored. Taken shards that are not in it have to be resolved again."""
        with self._changed:
            self._snapshots[snapshot.seq] = snapshot.ranges
            for entry in snapshot.ranges:
                self._ready.remove(entry.key)
                self._arrive(entry.key)
                self._room.enter(entry.key, entry.content, entry.content.size or 0)
                self._planned.add(entry.key)
            for key in self._taken.keys() - self._planned:
                self._room.leave(key)
            self._taken = {}

    def continues(self, seq: int) -> bool:
        """Tell whether a shard in a snapshot up to `seq` continues after it.

        Such a shard is ready again once that snapshot is confirmed.
        """
        with self._changed:
            return any(not is_end(entry.end) for entry in self._until(seq))

    def planned_until(self, seq: int) -> list[ShardKey]:
        """List the shards in snapshots up to `seq`."""
        with self._changed:
            return [entry.key for entry in self._until(seq)]

    def confirm(self, seq: int) -> list[ShardKey]:
        """Forget the snapshots up to `seq`, which are confirmed; returns the shards that were in them."""
        with self._changed:
            keys = self.planned_until(seq)
            for key in keys:
                self._planned.discard(key)
                self._room.leave(key)
            self._snapshots = {s: ranges for s, ranges in self._snapshots.items() if s > seq}
            self._changed.notify_all()
            return keys

    # acknowledging

    def begin_acknowledging(self, queue: str, max_messages: int, seconds: float = 0.0) -> dict[MessageKey, bool]:
        """Hand out the next complete messages of a queue; wait up to `seconds` for the first.

        Their leases are no longer kept, until they leave or are `put_off`. Each comes with whether that has happened
        before.
        """
        with self._changed:
            messages = self._messages.begin_acknowledging(queue, max_messages)
            if not messages and seconds:
                self._changed.wait(seconds)
                messages = self._messages.begin_acknowledging(queue, max_messages)
            return messages

    def put_off(self, queue: str, keys: Sequence[MessageKey]) -> int:
        """Keep these messages of an unavailable queue for another try; return how many messages are newly delayed."""
        with self._changed:
            self._changed.notify_all()
            return self._messages.put_off(queue, keys)

    def has(self, states: Collection[State], keys: Iterable[MessageKey] | None = None) -> bool:
        """Tell whether a message (one of these) is in one of the states."""
        with self._changed:
            if keys is None:
                return self._messages.count(states) > 0
            return any(message is not None and message.state in states for message in map(self._messages.get, keys))

    # leaving

    def leave(self, keys: Iterable[MessageKey]) -> None:
        """Forget messages that are acknowledged or given back. Ready shards stay ready: they are ours without them."""
        with self._changed:
            self._leave(keys)

    def make_room(self) -> list[MessageKey]:
        """Let messages leave that only wait for other pipelines, where these fill most of a full reader; return them.

        As long as it is full of our own work there will be room without that, and holding messages costs no receive.
        """
        with self._changed:
            held, idle = len(self._messages), self._messages.count([State.IDLE])
            if held < self._room.limits.messages or 2 * idle <= held:
                return []
            return self._leave(self._messages.keys(State.IDLE))

    def empty(self) -> Leftovers:
        """Let everything leave, at the end."""
        with self._changed:
            begun = self._messages.waiting_for((*self._planned, *self._taken))
            held = self._messages.keys(State.RECEIVED, State.LATE, State.OPENED, State.IDLE)
            complete = self._messages.keys(State.COMPLETE)
            unanswered = self._messages.keys(State.ACKNOWLEDGING)
            unplanned = [key for key in held if key not in begun]
            unawaited = self._messages.drop(unplanned)
            self._messages.drop(self._messages.keys())
            # objects that listings found have no messages: no pipeline would take them before they are stale
            shards = [key for key in (*unawaited, *self._room.listed) if self._ready.remove(key)]
            return Leftovers(unplanned, [key for key in held if key in begun], complete, unanswered, shards)

    def counts(self) -> Counts:
        with self._changed:
            foreign = len(self._messages.foreign)
            return Counts(len(self._messages), len(self._ready), len(self._planned), foreign, self._room.bytes)

    # with the lock

    def _drained(self) -> bool:
        """Tell whether waiting brings nothing more.

        Then the queues are empty, or there is no room and nothing is about to leave.
        """
        messages, room = self._messages, self._room
        if messages.is_opening or (self._expected and not room.is_listed_enough):
            return False
        if room.is_proven_empty and not messages.grouped:
            return True
        if messages.count(UNACKNOWLEDGED):
            return False
        return room.is_announced_enough or room.is_full or room.gives_no_more

    def _until(self, seq: int) -> Iterable[Range]:
        return (entry for s, ranges in self._snapshots.items() if s <= seq for entry in ranges)

    def _arrive(self, key: ShardKey) -> int:
        """Return the arrival number of the shard, which it keeps as long as it is here."""
        if key not in self._arrivals:
            self._arrivals[key] = next(self._numbers)
        return self._arrivals[key]

    def _is_newer(self, key: ShardKey, look: int | None) -> bool:
        """Tell whether the shard was said to be open since the look began, perhaps by what came after it."""
        return look is not None and self._heard.get(key, -1) >= look

    def _forget(self, key: ShardKey) -> None:
        self._arrivals.pop(key, None)
        self._heard.pop(key, None)

    def _not_ready(self, key: ShardKey) -> None:
        if self._ready.remove(key):
            self._room.leave(key)

    def _unwatch(self, key: ShardKey) -> None:
        if group := self._messages.unwatch(key):
            self._ready.unblock(group, key)

    def _leave(self, keys: Iterable[MessageKey]) -> list[MessageKey]:
        """Forget the messages, and return those that were here."""
        messages = [message for key in keys if (message := self._messages.get(key)) is not None]
        # the next message of a group can be delivered now
        self._room.forget_proofs({message.key[0] for message in messages if message.is_grouped})
        for shard in self._messages.drop([message.key for message in messages]):
            self._unwatch(shard)
            if shard not in self._room:
                self._forget(shard)
        if messages:
            self._changed.notify_all()
        return [message.key for message in messages]


def _needs_message(content: Content) -> bool:
    return content.group is not None or content.uri == MESSAGE_URI
