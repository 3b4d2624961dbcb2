"""Decides what happens to shards, by their owner and position in the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from queue_source.announcements.facts import Stat, looked_up
from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.holding.ready import may_come_in_pieces
from queue_source.coordinator.session import Session
from shard_store.model import STORE, Shard, ShardKey, ShardState

logger = logging.getLogger("cuesqueue")


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
