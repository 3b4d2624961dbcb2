"""A model of a reader and its queue: small enough to be copied for each race, and as careful as the coordinator is."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shard_store.batches.publishing import Looked, Published
from shard_store.batches.takeover import Committed, Left
from shard_store.model import (
    BEGINNING,
    SINK,
    STORE,
    Content,
    ErrorRecord,
    Met,
    PlanIdentity,
    Position,
    Range,
    Reading,
    Semantics,
    Shard,
    ShardKey,
    ShardState,
    Split,
    end_at,
    is_end,
    shard_key,
)
from shard_store.sql.database import Transaction
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline

SOURCE = "s"


class Died(Exception):
    """The process has ended, and its transaction is rolled back."""


@dataclass
class Queue:
    """All messages that were ever sent, those that are acknowledged, and the objects that are deleted since.

    `table`: what a table with commits of its own has, by the marks of its commits.
    """

    messages: dict[str, Content] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    gone: set[tuple[str, str | None]] = field(default_factory=set)
    read_when_gone: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    table: dict[str, str] = field(default_factory=dict)


@dataclass
class Reader(Pipeline):
    """One incarnation: which shards its messages wait for, what is ready, and the batch under way.

    As in the coordinator, a look at the store has a number: what was said to be open since is not finished by it.
    """

    queue: Queue = field(default_factory=Queue)
    waiting: dict[str, tuple[int, set[ShardKey]]] = field(default_factory=dict)
    ready: dict[ShardKey, Shard] = field(default_factory=dict)
    in_plan: dict[ShardKey, Range] = field(default_factory=dict)
    heard: dict[ShardKey, int] = field(default_factory=dict)
    looks: int = 0
    identity: PlanIdentity | None = None
    is_published: bool = False
    is_retired: bool = False
    driver: str = ""
    semantics: Semantics = Semantics.EXACTLY_ONCE
    lock: threading.RLock = field(default_factory=threading.RLock)

    def copied(self, queue: Queue) -> Reader:
        lives = {name: copy.copy(getattr(self, name)) for name in ("ready", "in_plan", "heard")}
        waiting = {message: (look, {*keys}) for message, (look, keys) in self.waiting.items()}
        return replace(self, queue=queue, waiting=waiting, lock=threading.RLock(), **lives)

    @property
    def name(self) -> str:
        return self.token.pipeline

    def again(self) -> Reader:
        """Start the pipeline once more, as a new query on the same checkpoint."""
        return begun(self.store, self.name, self.queue, f"{self.driver} again", self.semantics)

    # messages

    def receive(self, *contents: Content) -> None:
        """Open what these messages announce, in one call."""
        for content in contents:
            self.queue.messages.setdefault(content.message_id, content)
        look = self._look()
        shards = self.store.open_shards(self.token, SOURCE, contents)
        with self.lock:
            for content in contents:
                key = shard_key(SOURCE, content.shard_id)
                if shards[key].state is ShardState.OPEN:
                    self.waiting.setdefault(content.message_id, (self.looks, set()))[1].add(key)
                    self.heard[key] = self.looks
                elif content.message_id not in self.waiting:
                    self.queue.acknowledged.add(content.message_id)
        self.resolve(shards.values(), look)

    def resolve(self, shards: Iterable[Shard], look: int) -> None:
        """Finished: its messages are acknowledged. Ours: ready. Stale: acquired. Another's: waited for."""
        shards = list(shards)
        others = [s for s in shards if s.state is ShardState.OPEN and s.token != self.token]
        with self.lock:
            for shard in others:
                if self.heard.get(shard.key, -1) < look or self._is_awaited(shard.key):
                    self.ready.pop(shard.key, None)
        self._offer(s for s in shards if s.state is ShardState.OPEN and s.token == self.token)
        self.finish([s.key for s in shards if s.state is not ShardState.OPEN], look)
        stale = {shard.key: shard for shard in others if shard.stale}
        names = sorted({shard.token.pipeline for shard in stale.values() if shard.token is not None})
        waits = self.store.settle(names, self._look_for, repeats=False) if names else {}
        if not (stale := {k: s for k, s in stale.items() if s.token is None or s.token.pipeline not in waits}):
            return
        won = self.store.acquire(self.token, {key: shard.token for key, shard in stale.items()})
        self._offer(shard for key, shard in stale.items() if key in won)
        lost = [s for key, s in stale.items() if key not in won and s.token is None and s.content.queue != STORE]
        if lost:
            look = self._look()
            self.resolve(self.store.open_shards(self.token, SOURCE, [s.content for s in lost]).values(), look)

    def _look_for(self, left: Left) -> Committed | None:
        """Look for a batch of a stopped pipeline in the table, if it is the one that was noted."""
        if (digest := left.plan.delivery_hash) not in self.queue.table or left.target != {"plan": digest}:
            return None
        return Committed(digest, [left.plan.token.pipeline], left.plan.end_seq, Looked((1, 10), shown_before=True))

    def get_again(self, keys: Collection[ShardKey] | None = None) -> None:
        """Resolve shards as they are now (None: those of others). Missing ones were finished, and pruned since."""
        if keys is None:
            with self.lock:
                mine = self.ready.keys() | self.in_plan.keys()
                keys = sorted({key for _, waited in self.waiting.values() for key in waited} - mine)
        if keys:
            look = self._look()
            shards = self.store.look(keys)
            self.resolve(shards.values(), look)
            if missing := [key for key in keys if key not in shards]:
                self.store.heartbeat(self.token, STALE)
                self.finish(missing, look)

    def get_renewed(self) -> None:
        look = self._look()
        self.resolve(self.store.renewed(self.token).values(), look)

    def take_unannounced(self) -> None:
        """What listings of stopped pipelines have found, and what a receiver has recorded."""
        look = self._look()
        self.resolve(self.store.abandoned(SOURCE, 100), look)
        look = self._look()
        self.resolve(self.store.recorded(SOURCE, 100), look)

    def give_up(self, *ids: str) -> None:
        """Give shards back, with their messages."""
        keys = [shard_key(SOURCE, name) for name in ids]
        self.store.release(self.token, keys)
        with self.lock:
            for key in keys:
                self.ready.pop(key, None)
            self.waiting = {m: waited for m, waited in self.waiting.items() if not waited[1].intersection(keys)}

    def stop(self) -> None:
        """A graceful end: what is in no snapshot is given up."""
        self.is_retired = True
        self.store.release(self.token, sorted(self.ready))
        self.store.retire(self.token)

    def finish(self, keys: Iterable[ShardKey], look: int) -> None:
        again = []
        with self.lock:
            for key in keys:
                for message, (since, waited) in list(self.waiting.items()):
                    if key in waited and since < look:
                        waited.discard(key)
                        if not waited:
                            del self.waiting[message]
                            self.queue.acknowledged.add(message)
                if self.heard.get(key, -1) >= look:
                    again.append(key)
                else:
                    self.ready.pop(key, None)
        self.get_again(again) if again else None

    def _look(self) -> int:
        with self.lock:
            self.looks += 1
            return self.looks

    def _is_awaited(self, key: ShardKey) -> bool:
        return any(key in waited for _, waited in self.waiting.values())

    def _offer(self, shards: Iterable[Shard]) -> None:
        with self.lock:
            for shard in shards:
                self.heard[shard.key] = self.looks
                if shard.key not in self.in_plan:
                    self.ready[shard.key] = shard

    # micro-batches: Spark's calls, one after the other

    def take(self, *ids: str, until: Position | None = None) -> None:
        """Write the next snapshot, of all that is ready or of these."""
        if self.seq > self.confirmed:
            return
        keys = [shard_key(SOURCE, name) for name in ids] or sorted(self.ready)
        with self.lock:
            taken = {key: self.ready[key] for key in keys if key in self.ready}
        if not taken:
            return
        ranges = [Range(k, s.content, s.position, until or end_at(s.content.size or 0)) for k, s in taken.items()]
        look = self._look()
        written = self.store.advance(self.token, snapshot=(self.seq + 1, ranges)).written
        self.seq += 1
        with self.lock:
            self.in_plan = {entry.key: entry for entry in written}
            for key in taken:
                self.ready.pop(key, None)
        if self.semantics.final_at_snapshot:
            self.finish([entry.key for entry in written if is_end(entry.end)], look)
            self.get_again([key for key in taken if key not in self.in_plan])

    def make(self) -> None:
        """Plan what is in snapshots; its sink takes it."""
        if self.seq > self.confirmed:
            self.plan()
            self.identity = self.store.take_plan(self.name, self.driver, SINK)

    def report(self, causes: Mapping[str, str]) -> None:
        """Have tasks find these objects bad."""
        assert self.identity is not None
        bad = [self.in_plan[shard_key(SOURCE, name)].content for name in causes]
        digest = self.identity.delivery_hash
        self.store.report(
            self.identity,
            [
                ErrorRecord("object", causes[c.shard_id], "", c.shard_id, digest, BEGINNING, c.queue, c.message_id)
                for c in bad
            ],
            None,
        )

    def bring(self) -> None:
        """Publish what the plan on record has, as tasks read it: what is bad is not among the rows."""
        if self.identity is None or self.seq == self.confirmed:
            return
        plan, _ = self.store.plan_to_load(self.identity)
        if not plan.published:
            for entry in plan.ranges:
                if (entry.content.shard_id, entry.content.etag) in self.queue.gone:
                    self.queue.read_when_gone.add(entry.content.shard_id)
        self.store.publish([self.identity], [Split(path_of(plan.ranges, self.identity), len(plan.ranges), 10)])
        self.is_published = True

    def bring_by_tasks(self) -> None:
        """Publish what the only task reads, which leaves out what another attempt has found bad before it began."""
        assert self.identity is not None
        reading = Reading(1, 0, 1)
        plan, _ = self.store.plan_to_load(self.identity)
        bad = self.store.begin_reading(self.identity, reading, first=True, tasks=1)
        read = [entry for entry in plan.ranges if (entry.key, entry.start) not in bad]
        found = {(entry.key, entry.start) for entry in plan.whole} - {(entry.key, entry.start) for entry in read}
        self.store.judge(self.identity, [], [reading] if found else [], first=reading, tasks=1)
        files = [Split(path_of(read, self.identity), len(read), 10)]
        self.store.publish([self.identity], files, winners=[reading.task])
        self.is_published = True

    def begin_again(self) -> None:
        """Have a copy of the task begin, which is never published."""
        assert self.identity is not None
        self.store.begin_reading(self.identity, Reading(1, 0, 2, repeated=True), first=True, tasks=1)

    def find_bad(self, name: str) -> None:
        """Have a copy of the task find an object bad."""
        assert self.identity is not None
        reading = Reading(1, 0, 2, repeated=True)
        if (shard_key(SOURCE, name), BEGINNING) in self.store.begin_reading(
            self.identity, reading, first=True, tasks=1
        ):
            return
        digest = self.identity.delivery_hash
        content = self.in_plan[shard_key(SOURCE, name)].content
        found = ErrorRecord("object", "missing-object", "", name, digest, BEGINNING, content.queue, content.message_id)
        self.store.report(self.identity, [found], reading, 1)

    def meet(self) -> None:
        """Have a task say in which version it has met each object."""
        assert self.identity is not None
        self.store.meet(self.identity, {key: Met(10, "v1") for key in self.in_plan})

    def bring_elsewhere(self) -> None:
        """Commit the plan on record in the table, and die before the store does."""
        assert self.identity is not None
        plan, _ = self.store.plan_to_load(self.identity)
        self.store.note_target([self.token], json.dumps({"plan": self.identity.delivery_hash}))

        def commit(transaction: Transaction, published: Published) -> None:
            assert self.identity is not None
            if not published.already:
                self.queue.table[published.delivery_hash] = path_of(plan.ranges, self.identity)
                raise Died

        with suppress(Died):
            self.store.publish_with([self.identity], commit, batch_id=self.identity.end_seq)

    def conclude(self) -> None:
        """Confirm the batch that is published, and acknowledge what is finished."""
        if self.seq == self.confirmed or not self.is_published:
            return
        look = self._look()
        keys = sorted(self.in_plan)
        finished = self.store.advance(self.token, confirm=self.seq, keys=keys).finished
        self.confirmed, self.is_published = self.seq, False
        with self.lock:
            self.in_plan = {}
        self.finish(finished, look)
        self.get_again([key for key in keys if key not in finished])

    def batch(self, causes: Mapping[str, str] | None = None) -> None:
        self.take()
        self.make()
        if causes:
            self.report(causes)
        self.bring()
        self.conclude()


def begun(
    store: ShardStore, name: str, queue: Queue, driver: str, semantics: Semantics = Semantics.EXACTLY_ONCE
) -> Reader:
    """Start a pipeline, with what the incarnation before has left."""
    settings = {"allowedPrefixes": "file:///"}
    started = store.start(SOURCE, name, driver=driver, stale_after=STALE, semantics=semantics, settings=settings)
    seqs = started.last_seq, started.confirmed_seq
    reader = Reader(store, started.token, SOURCE, *seqs, queue=queue, driver=driver, semantics=semantics)
    reader.in_plan = {entry.key: entry for part in started.unconfirmed for entry in part.ranges}
    reader._offer(started.unfinished)
    return reader


def path_of(ranges: Sequence[Range], identity: PlanIdentity) -> str:
    """The name of a file, from which it can be seen whose rows are in it."""
    rows = [f"{r.content.shard_id}:{r.start}:{r.end}:{r.content.etag or ''}" for r in ranges if r.content.size != 0]
    return f"/{'+'.join(sorted(rows))}/{identity.token.pipeline}-{identity.end_seq}"
