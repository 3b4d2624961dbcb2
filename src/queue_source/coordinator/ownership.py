"""What becomes of shards as the store has them, by owner and position."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.session import Session
from shard_store.model import Shard, ShardKey, ShardState

logger = logging.getLogger("cuesqueue")


@dataclass
class Ownership:
    """Finished: its messages are acknowledged. Ours: ready. Stale: acquired. Another's: watched. On any thread."""

    _session: Session
    _in_flight: InFlight
    _acquiring: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, shards: Iterable[Shard]) -> None:
        """Raises ShardStoreError when stale ones cannot be acquired: they are watched then."""
        finished: list[ShardKey] = []
        ours: list[Shard] = []
        others: list[Shard] = []
        for shard in shards:
            if shard.state is not ShardState.OPEN:
                finished.append(shard.key)
            else:
                (ours if shard.token == self._session.token else others).append(shard)
        self._in_flight.watch(others)  # first: what is ours in an ordered group may have to wait for them
        self._offer(ours)
        self._in_flight.finish(finished)
        if stale := {shard.key: shard for shard in others if shard.stale}:
            self._acquire(stale)

    def get_again(self, keys: Sequence[ShardKey]) -> None:
        """Resolve shards as they are in the store now. What is missing there was finished, and pruned since."""
        if not keys:
            return
        session = self._session
        found = session.store.look(keys)
        self.resolve(found.values())
        if missing := [key for key in keys if key not in found]:
            # of a store that was emptied everything is missing: then this raises PipelineTakenOver
            session.store.heartbeat(session.token, session.stale_after)
            self._in_flight.finish(missing)

    def get_renewed(self) -> None:
        """What an operator has opened again is announced by nobody, and a newer version perhaps to another pipeline."""
        if self._session.semantics.keeps_shards:
            self.resolve(self._session.store.renewed(self._session.token).values())

    def _offer(self, ours: Iterable[Shard]) -> None:
        """Release what only a message can make readable that has gone: whoever gets it next would wait for us."""
        if released := self._in_flight.offer(ours):
            self._session.store.release(self._session.token, released)

    def _acquire(self, stale: dict[ShardKey, Shard]) -> None:
        token, store = self._session.token, self._session.store
        with self._acquiring:  # two threads may have seen the same ones: they count once
            before = {key for key, shard in store.look(list(stale)).items() if shard.token == token}
            won = store.acquire(token, {key: shard.token for key, shard in stale.items()})
        if acquired := len(won - before):
            self._session.metrics.add(acquired=acquired)
            logger.info("pipeline %s: acquired %d shard(s) whose owner's heartbeats stopped", token, acquired)
        self._offer(shard for key, shard in stale.items() if key in won)
        free = [shard.content for key, shard in stale.items() if shard.token is None and key not in won]
        if free:  # taken by another pipeline, or pruned just now, unread: then it is new
            self.resolve(self._session.store.open_shards(token, self._session.options.source, free).values())
