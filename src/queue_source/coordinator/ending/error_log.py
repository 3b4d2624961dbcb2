"""Logs every handled error as one line, and counts it by its cause.

Errors happen in executors, which write them into the store; they are read back here when their plan is final. So a
repeated attempt logs nothing, and each error is logged once, whichever process detected it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from queue_source.coordinator.session import Session
from queue_source.queues.adapter import log_id_of
from shard_store.error_table.search import StoredError
from shard_store.model import ErrorRecord, ShardKey

logger = logging.getLogger("cuesqueue")

LINES = 20
"""Errors that are logged one by one in a period; of those beyond, one line says how many of which cause."""

PERIOD = 60.0
"""Seconds."""

_LONGEST = 300  # characters of an id or a detail


class ErrorLog:
    """The errors of one pipeline. May be used on any thread.

    `log_id`: finds the log id of a message that announced the shard, while it is in our hands.
    """

    def __init__(self, session: Session, log_id: Callable[[ShardKey], str | None] = lambda _: None) -> None:
        self._session = session
        self._log_id = log_id
        self._lock = threading.Lock()
        self._began = session.clock()
        self._lines_left = LINES
        self._omitted: Counter[str] = Counter()

    def of_messages(self, records: Sequence[ErrorRecord]) -> None:
        """Log messages that were not understood, once they are recorded."""
        with self._lock:
            self._start_period()
            for record in records[: self._lines_left]:
                log_id = log_id_of(self._session.queues.get(record.queue), dict(record.headers))
                where = {"queue": record.queue, "message": record.message_id, "log_id": log_id}
                self._log(record.scope, record.cause, record.detail, **where)
            self._count(
                Counter(record.cause for record in records), [record.cause for record in records[: self._lines_left]]
            )

    def of_plans(self, hashes: Sequence[str]) -> None:
        """Log the errors that these final plans have left in the error table."""
        if not hashes:
            return
        with self._lock:
            self._start_period()
            causes, first = self._session.store.errors_of_plans(hashes, self._lines_left)
            for error in first:
                self._log_stored(error)
            self._count(causes, [error.cause for error in first])

    def flush(self, *, end: bool = False) -> None:
        """Log how many errors were left out, once their minute is over; at the `end` in any case."""
        with self._lock:
            self._start_period(end=end)

    def _start_period(self, *, end: bool = False) -> None:
        now = self._session.clock()
        if not end and now - self._began < PERIOD:
            return
        if self._omitted:
            causes = ", ".join(f"{count} {cause}" for cause, count in sorted(self._omitted.items()))
            logger.warning(
                "pipeline %s: %d more error(s) are not logged one by one: %s; `cuesqueue errors list` shows them",
                self._session.token,
                sum(self._omitted.values()),
                causes,
            )
        self._began, self._lines_left = now, LINES
        self._omitted.clear()

    def _count(self, causes: Mapping[str, int], logged: Sequence[str]) -> None:
        self._session.metrics.count_errors(causes)
        self._lines_left -= len(logged)
        self._omitted += Counter(causes) - Counter(logged)

    def _log_stored(self, error: StoredError) -> None:
        start, end = error.seqs or ("", "")
        self._log(
            error.scope,
            error.cause,
            error.detail,
            shard=error.subject,
            plan=f"{start}-{end}",
            delivery_hash=error.delivery_hash,
            queue=error.queue,
            message=error.message_id,
            log_id=None if error.shard_key is None else self._log_id(error.shard_key),
        )

    def _log(self, scope: str, cause: str, detail: str, **where: str | None) -> None:
        """Log an error. The fields are also attributes of the log record, for handlers that write JSON."""
        fields = {name: _one_line(text) for name, text in where.items() if text is not None}
        texts = " ".join(f"{name}={text}" for name, text in fields.items())
        logger.warning(
            "pipeline %s: bad %s: cause=%s %s: %s",
            self._session.token,
            scope,
            cause,
            texts,
            _one_line(detail),
            extra={f"cuesqueue_{name}": text for name, text in {"scope": scope, "cause": cause, **fields}.items()},
        )


def _one_line(text: str) -> str:
    """Shorten the text and escape what is not printable: ids and details come from messages."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in short)
