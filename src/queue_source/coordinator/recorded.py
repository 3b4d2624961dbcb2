"""What receivers have recorded for a source: taking it over, and which shards of a source are this pipeline's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from queue_source.announcements.contents import is_allowed, is_wanted
from queue_source.announcements.facts import Stat, looked_up
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.session import Session, with_back_off
from queue_source.coordinator.threads import Threads
from queue_source.uris import climbs
from shard_store.errors import StoreUnavailable
from shard_store.failpoints import reach
from shard_store.model import STORE, Shard, ShardKey, ShardState
from shard_store.shards.changes import Audit

logger = logging.getLogger("cuesqueue")

_POLL = 0.5  # seconds between two looks at the store, while nothing is there
_ROOM = 0.5  # seconds for which room is waited for at a time
_AT_A_TIME = 1000


class Recorded:
    """Looks again and again at what waits for the source, and takes as much of it as there is room for.

    Its shards are held as those of listings: no message leads to them, and a graceful end releases those in no batch.
    """

    def __init__(self, session: Session, in_flight: InFlight, ownership: Ownership) -> None:
        self._session = session
        self._in_flight = in_flight
        self._ownership = ownership
        self._is_on = session.options.queue.from_store
        self._until: int | None = None  # AvailableNow takes no more than is recorded at its start
        self._looks = 0  # how often `look` was called
        self._wanted = threading.Event()
        if self._is_on:
            self.look()

    def start(self, threads: Threads) -> None:
        if self._is_on:
            threads.on_stop(self._wanted.set)
            threads.start("recorded", self._run)

    def drain(self) -> None:
        """Take what is recorded now, and leave what comes later to the next run (AvailableNow)."""
        if self._is_on:
            self._until = self._session.store.database_time()
            self.look()

    def look(self) -> None:
        """Look at once, since something was recorded; until then a batch that is waited for is not complete."""
        self._looks += 1
        self._in_flight.expect_listing(True, of=STORE)
        self._wanted.set()

    def _run(self) -> None:
        session = self._session
        while not session.stopping.is_set():
            if not self._in_flight.wait_for_listed(_ROOM):
                continue
            looks = self._looks
            self._wanted.clear()
            if not self._patiently(self._take):
                if looks == self._looks:  # else there may be something that this has not looked for
                    self._in_flight.expect_listing(False, of=STORE)
                self._wanted.wait(_POLL)

    def _patiently(self, take: Callable[[], bool]) -> bool:
        """Wait for a store that is away as long as the reader's heartbeats do, which then end the query."""
        seconds = self._session.stale_after
        return with_back_off(
            self._session.stopping, seconds, self._session.clock, lambda error: isinstance(error, StoreUnavailable)
        )(take)

    def _take(self) -> bool:
        """Take what there is room for; return whether there may be more."""
        session = self._session
        room = min(_AT_A_TIME, self._in_flight.room_for_listed())
        waiting = session.store.recorded(session.options.source, room, self._until)
        if not waiting:
            return False
        chosen = self._choose(waiting)
        reach("recorded-found")
        self._ownership.resolve(chosen)
        reach("recorded-taken")
        return len(waiting) == room

    def _choose(self, waiting: Sequence[Shard]) -> list[Shard]:
        """Leave out what the options do not choose, and have given up, unread, what is outside of `allowedPrefixes`.

        What another pipeline has begun is read: part of its rows would be missing.
        """
        session, options = self._session, self._session.options.notifications
        outside = [shard for shard in waiting if not is_allowed(shard.content.uri, options)]
        foreign = self._refuse(outside) if outside else set()
        left_out = {
            shard.key
            for shard in waiting
            if shard.token is None and not shard.position and not is_wanted(shard.content.uri, options)
        } - foreign
        if gone := foreign | left_out:
            session.store.decline(session.token, list(gone))
            session.metrics.add(ignored=len(left_out), foreign=len(foreign))
        return [shard for shard in waiting if shard.key not in gone]

    def _refuse(self, outside: Sequence[Shard]) -> set[ShardKey]:
        """Mark objects outside of the prefixes, for the next batch to give them up; return those to be left out."""
        session = self._session
        ignores = session.options.notifications.on_foreign_object == "ignore"
        foreign = {shard.key for shard in outside if ignores and shard.token is None and not climbs(shard.content.uri)}
        marked = [shard.key for shard in outside if shard.key not in foreign]
        reason = "it is outside of allowedPrefixes; name its prefix there, and run `cuesqueue shards reopen`"
        session.store.quarantine(marked, Audit(str(session.token), reason))
        return foreign


@dataclass
class Ownership:
    """Routes shards. Finished: its messages are acknowledged. Ours: ready. Stale: acquired. Another's: watched.

    Any thread may call it.
    """

    _session: Session
    _in_flight: InFlight
    _stat: Stat
    _acquiring: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, shards: Iterable[Shard]) -> None:
        """Route these shards. Raises ShardStoreError when stale ones cannot be acquired; then they are watched."""
        finished: list[ShardKey] = []
        ours: list[Shard] = []
        others: list[Shard] = []
        for shard in shards:
            if shard.state is not ShardState.OPEN:
                finished.append(shard.key)
            else:
                (ours if shard.token == self._session.token else others).append(shard)
        self._in_flight.watch(others)  # first: a shard of ours in an ordered group may have to wait for them
        self._offer(ours)
        self._in_flight.finish(finished)
        if stale := {shard.key: shard for shard in others if shard.stale}:
            self._acquire(stale)

    def get_again(self, keys: Sequence[ShardKey]) -> None:
        """Resolve shards as they are in the store now. Those that are missing there were finished, and pruned since."""
        if not keys:
            return
        session = self._session
        shards = session.store.look(keys)
        self.resolve(shards.values())
        if missing := [key for key in keys if key not in shards]:
            # in an emptied store everything is missing: then this raises PipelineTakenOver
            session.store.heartbeat(session.token, session.stale_after)
            self._in_flight.finish(missing)

    def get_renewed(self) -> None:
        """Resolve shards that no message announces to us.

        They were reopened by an operator, or by a newer version that was announced to another pipeline.
        """
        if self._session.semantics.keeps_shards:
            self.resolve(self._session.store.renewed(self._session.token).values())

    def with_facts(self, shards: Sequence[Shard]) -> list[Shard]:
        """Give shards the facts that the store lacks, and leave out what only rows of references need."""
        options, contents = self._session.options, [shard.content for shard in shards]
        if options.content.kind.is_announced:
            contents = list(looked_up(contents, self._stat, partial(may_come_in_pieces, options)))
            if not options.notifications.by_reference:
                contents = [c if c.reference is None else c._replace(reference=None) for c in contents]
        both = zip(shards, contents, strict=True)
        return [shard if shard.content is content else shard._replace(content=content) for shard, content in both]

    def _offer(self, ours: Iterable[Shard]) -> None:
        """Offer shards, and release those whose message has gone: the next pipeline that gets it would wait for us."""
        if released := self._in_flight.offer(self.with_facts(list(ours))):
            self._session.store.release(self._session.token, released)

    def _acquire(self, stale: dict[ShardKey, Shard]) -> None:
        token, store = self._session.token, self._session.store
        with self._acquiring:  # two threads may have seen the same shards: they count once
            before = {key for key, shard in store.look(list(stale)).items() if shard.token == token}
            won = store.acquire(token, {key: shard.token for key, shard in stale.items()})
        # what a receiver has recorded is taken from no one
        recorded = {key for key, shard in stale.items() if shard.token is None and shard.content.queue == STORE}
        if acquired := len(won - before - recorded):
            self._session.metrics.add(acquired=acquired)
            logger.info("pipeline %s: acquired %d shard(s) whose owner's heartbeats stopped", token, acquired)
        self._offer(shard for key, shard in stale.items() if key in won)
        # what a receiver has recorded is found again by the next look at the store
        free = [
            shard.content
            for key, shard in stale.items()
            if shard.token is None and key not in won and key not in recorded
        ]
        if free:  # taken by another pipeline, or pruned just now, unread: then it is new
            self.resolve(self._session.store.open_shards(token, self._session.options.source, free).values())
