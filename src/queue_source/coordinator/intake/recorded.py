"""Takes what a receiver has recorded for the source of a reader without a queue (`queueUrl=store`, decision 0086)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from queue_source.announcements.contents import is_allowed, is_wanted
from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.intake.routing import Ownership
from queue_source.coordinator.session import Session, with_back_off
from queue_source.coordinator.threads import Threads
from queue_source.uris import climbs
from shard_store.errors import StoreUnavailable
from shard_store.failpoints import reach
from shard_store.model import STORE, Shard, ShardKey
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
