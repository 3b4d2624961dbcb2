"""Notices that no announced object is within `allowedPrefixes`: then an option is wrong, not the data."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from queue_source.announcements.contents import OUTSIDE_PREFIXES, Announced
from queue_source.coordinator.ending.error_log import PERIOD
from queue_source.coordinator.session import Session
from shard_store.shards.activity import Intake

logger = logging.getLogger("cuesqueue")

WINDOW = 3600.0
"""Seconds. What came in this one and the one before counts; a time in which nothing comes is none."""


class PrefixWatch:
    """Counts the recent messages, on the opener's thread; others read the counts.

    `before` is what the incarnation before has reported. It counts until something comes to this one, since a query
    that runs now and then ends before the next message; from then on only if the prefixes are the `same`.
    """

    def __init__(self, session: Session, before: Intake, *, same: bool = False) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._windows = [before, Intake()]
        self._same = same
        self._began: float | None = None  # of the newer window; None: no message has come to this reader
        self._told: float | None = None

    @property
    def intake(self) -> Intake:
        with self._lock:
            return self._windows[0] + self._windows[1]

    def count(self, announced: Sequence[Announced]) -> None:
        """Count these messages. While all of them are refused, log that once a minute."""
        outside = [
            announcement.error
            for announcement in announced
            if announcement.error is not None and announcement.error.cause == OUTSIDE_PREFIXES
        ]
        came = Intake(
            sum(bool(announcement.contents or announcement.left_out) for announcement in announced), len(outside)
        )
        if not came:
            return
        now = self._session.clock()
        with self._lock:
            if self._began is None or now - self._began >= WINDOW:
                older = self._windows[1] if self._began is not None else self._windows[0] if self._same else Intake()
                self._windows = [older, Intake()]
                self._began = now
            self._windows[1] += came
            lately = self._windows[0] + self._windows[1]
            due = self._told is None or now - self._told >= PERIOD
            if not (outside and lately.all_outside and due):
                return
            self._told = now
        logger.error(
            "pipeline %s: nothing is read: all %d message(s) that came lately announce objects outside of "
            "allowedPrefixes; %s",
            self._session.token,
            lately.all_outside,
            outside[0].detail,
        )
