"""The heartbeats of a pipeline, on a thread of their own: nothing else may delay them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from queue_source.coordinator.session import Session
from shard_store.errors import StoreUnavailable
from shard_store.shards.activity import Report

logger = logging.getLogger("cuesqueue")

_RETRY = 1.0  # seconds


def send_heartbeats(session: Session, started: float, report: Callable[[], Report | None] = lambda: None) -> None:
    """Report that this reader lives, and what it holds. `started`: the clock's time when the store began it.

    Raises PipelineTakenOver when a newer incarnation runs: the query then stops. While the store is unavailable it
    tries again until the moment at which others may take our shards over, and raises StoreUnavailable then.
    """
    fresh_until = started + session.stale_after
    pause = session.heartbeat
    while not session.stopping.wait(pause):
        asked = session.clock()
        try:
            session.store.heartbeat(session.token, session.stale_after, report())
        except StoreUnavailable as error:
            if session.clock() >= fresh_until:
                raise
            logger.warning("pipeline %s: a heartbeat failed and is tried again: %s", session.token, error)
            pause = min(_RETRY, session.heartbeat)
        else:
            fresh_until = asked + session.stale_after
            pause = session.heartbeat
