"""The heartbeats of a pipeline, on a thread of their own: nothing else may delay them."""

from __future__ import annotations

import logging

from queue_source.coordinator.session import Session
from shard_store.errors import StoreUnavailable

logger = logging.getLogger("cuesqueue")

_RETRY = 1.0  # seconds


class Heartbeats:
    """Say that this reader lives. `started` is the time (of the session's clock) at which the store began it."""

    def __init__(self, session: Session, started: float) -> None:
        self._session = session
        self._fresh_until = started + session.stale_after

    def run(self) -> None:
        """The thread. Raises PipelineTakenOver when a newer incarnation runs: the query then stops.

        While the store is unavailable it tries again until the moment at which others may take our shards over, and
        raises StoreUnavailable then.
        """
        session = self._session
        pause = session.heartbeat
        while not session.stopping.wait(pause):
            asked = session.clock()
            try:
                session.store.heartbeat(session.token, session.stale_after)
            except StoreUnavailable as error:
                if session.clock() >= self._fresh_until:
                    raise
                logger.warning("pipeline %s: a heartbeat failed and is tried again: %s", session.token, error)
                pause = min(_RETRY, session.heartbeat)
            else:
                self._fresh_until = asked + session.stale_after
                pause = session.heartbeat
