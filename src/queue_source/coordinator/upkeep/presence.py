"""Records which readers of one driver still run: each holds a lock that the system releases when its process ends."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from queue_source.common.file_locks import hold, is_held, release
from queue_source.coordinator.session import Session
from queue_source.errors import OptionError
from shard_store.model import PublishToken

logger = logging.getLogger("cuesqueue")

_POLL = 0.1  # seconds
_FILE = re.compile(r"([0-9a-f]{32})-([0-9]+)")


class Presence:
    """The readers of one pipeline in one driver, as files in a folder of the driver's: one for each incarnation."""

    def __init__(self, folder: Path, store_id: str, pipeline: str) -> None:
        self._folder = folder
        self._pipeline = hashlib.sha256(f"{store_id}\0{pipeline}".encode()).hexdigest()[:32]
        self._own: tuple[Path, int] | None = None

    def enter(self, token: PublishToken) -> None:
        """Register this reader before its first plan, until `leave` or the end of this process.

        Where the folder takes no file, or its file system has no locks, other readers do not see this one.
        """
        file = self._folder / f"{self._pipeline}-{token.incarnation}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own = file, hold(file)
        except OSError as error:
            logger.warning(
                "pipeline %s: another query of this driver would not notice that this one runs the same pipeline: %s",
                token,
                error,
            )

    def leave(self) -> None:
        """Unregister this reader, which plans nothing more: Spark ends a reader when its thread has ended."""
        own, self._own = self._own, None
        if own is not None:
            release(*own)

    def has_others(self, token: PublishToken) -> bool:
        """Tell whether a reader of an earlier incarnation still runs."""
        return any(is_held(file) for file in self._before(token.incarnation))

    def _before(self, incarnation: int) -> Iterator[Path]:
        for file in self._folder.iterdir() if self._folder.is_dir() else ():
            named = _FILE.fullmatch(file.name)
            if named and named[1] == self._pipeline and int(named[2]) < incarnation:
                yield file


def await_readers_before(session: Session, presence: Presence, *, unfinished: bool) -> None:
    """Wait until this pipeline's earlier readers in this driver have ended: their sinks must not take our plans.

    A sink is built after its reader's plan, perhaps long after: Spark may run jobs in between. It takes the plan that
    is the pipeline's current one in its driver. The earlier reader is fenced, so its query ends at its next call.
    `unfinished`: its last plan is not finished, so its sink may still be to come; then we begin only after its end.
    Otherwise it gets the time of a heartbeat, in which it notices that it was replaced. Raises OptionError where its
    end does not come.
    """
    clock, token = session.clock, session.token
    began = beat = clock()
    if presence.has_others(token):
        logger.warning(
            "pipeline %s: another query of this driver runs the same pipeline; it was replaced, and this one begins "
            "when it has ended; stop it, or give each query its own 'pipeline'",
            token,
        )
    while presence.has_others(token):
        now = clock()
        if not unfinished and now - began > session.heartbeat:
            return
        if now - began > session.stale_after:
            raise OptionError(
                "pipeline",
                f"{token.pipeline!r} is run by another query of this driver, whose batch does not end: stop that "
                "query, and start this one again, or give each query its own 'pipeline'; if there is no other query, "
                "this one joins the stream with itself, which Spark reads as two: join each batch with itself in "
                "foreachBatch instead",
            )
        if now - beat > session.heartbeat:
            session.store.heartbeat(token, session.stale_after)
            beat = now
        if session.stopping.wait(_POLL):
            return
