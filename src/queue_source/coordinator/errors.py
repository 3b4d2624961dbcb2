"""Errors on their way out: sent to the error queue, and logged a few at a time.

Executors and the opener write errors into the error table first, where they are durable. The reader process sends final
errors that are not delivered yet: when bad messages come, when a plan is confirmed, and at start-up.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from queue_source.coordinator.session import Session
from queue_source.messages import Outgoing
from queue_source.queues.adapter import log_id_of
from queue_source.queues.base import Queue, Transactional, send_messages, send_possible, transactional
from shard_store.error_table import handling
from shard_store.error_table.search import StoredError
from shard_store.failpoints import reach
from shard_store.model import ErrorRecord, ShardKey
from shard_store.sql.database import Transaction


class ErrorQueue:
    """Sends the errors of one pipeline, from one thread at a time. Without a queue it does nothing.

    To a queue in a table of the store's own database each error goes exactly once, in the transaction that marks it; to
    others at least once: a reader that dies between sending and marking sends it again, with the same `error_id`.
    """

    def __init__(self, session: Session, queue: Queue | None) -> None:
        """Name the queue in the store. Raises ShardStoreError, and QueueError where its table cannot be made."""
        self._session = session
        self._queue = queue
        self._one_at_a_time = threading.Lock()
        self._others_due = session.clock()
        session.store.name_error_queue(session.token, None if queue is None else queue.name)
        joining = None if queue is None else transactional(queue)
        self._inside = joining if joining is not None and joining.joins(session.store.database) else None

    def forward(self) -> None:
        """Send every final error that is not delivered yet, at start-up also what the incarnation before left behind.

        At start-up, and as often as a pipeline may go stale, also those of others of the source that died.
        Raises the queue's error, after back-off, when it cannot be sent: then nothing may be acknowledged.
        """
        queue, session = self._queue, self._session
        if queue is None:
            return
        with self._one_at_a_time:
            others = session.clock() >= self._others_due
            source = session.options.source
            while errors := session.store.undelivered_errors(session.token, source, others=others):
                reach("errors-due")
                if self._inside is None:
                    session.patiently(_send, queue, errors)
                    reach("errors-sent")
                    session.store.mark_delivered(session.token, [error.key for error in errors], queue.name)
                    sent = len(errors)
                else:
                    sent = self._send_inside(self._inside, queue.name, others)
                session.metrics.add(errorsDelivered=sent)
            if others:
                self._others_due = session.clock() + session.stale_after

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _send_inside(self, queue: Transactional, name: str, others: bool) -> int:
        database, token = self._session.store.database, self._session.token

        def work(transaction: Transaction) -> int:
            errors = handling.claim(transaction, token, self._session.options.source, others=others)
            queue.send_in_transaction(transaction, [_outgoing(error) for error in errors])
            handling.mark_delivered(transaction, token, [error.key for error in errors], name)
            return len(errors)

        return database.write(work)


_FEW = 1024


def _send(queue: Queue, errors: Sequence[StoredError]) -> None:
    """Send the errors; of one that the queue cannot carry, as it is too long, the beginning."""
    refused = send_possible(queue, [_outgoing(error) for error in errors])
    shorter = [
        replace(
            e, detail=e.detail[:_FEW], tag="", headers={}, group=None, input=None if e.input is None else e.input[:_FEW]
        )
        for e in (errors[place] for place in sorted(refused))
    ]
    if shorter:
        send_messages(queue, list(map(_outgoing, shorter)))


def _outgoing(error: StoredError) -> Outgoing:
    """Build the message for the error queue.

    Its tag is `error.message`, `error.object` ..., for consumers to choose by. The body is ASCII, since ids may hold
    what UTF-8 cannot encode.
    """
    error_id = error.key.hex()
    headers = {"Content-Type": "application/json", "Error-Id": error_id, "Error-Scope": error.scope}
    headers |= {"Source": error.source, "Pipeline": error.pipeline}
    if error.delivery_hash:
        headers["Delivery-Hash"] = error.delivery_hash
    body = json.dumps(error.as_dict(), separators=(",", ":")).encode("ascii")
    return Outgoing(body, f"error.{error.scope}", headers, deduplication_id=error_id)


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
