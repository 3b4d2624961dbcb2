"""Sends errors to the error queue (`errorQueueUrl`) before their messages are acknowledged (decision 0022).

Executors and the opener write errors into the error table first, where they are durable. The reader process sends final
errors that are not delivered yet: when bad messages come, when a plan is confirmed, and at start-up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from queue_source.coordinator.session import Session
from queue_source.messages import Outgoing
from queue_source.queues.base import Queue, Transactional, send_messages, transactional
from shard_store.error_table import handling
from shard_store.error_table.search import StoredError
from shard_store.failpoints import reach
from shard_store.sql.transaction import Transaction


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
                inside = self._inside
                sent = self._send(queue, errors) if inside is None else self._send_inside(inside, queue.name, others)
                session.metrics.add(errorsDelivered=sent)
            if others:
                self._others_due = session.clock() + session.stale_after

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _send(self, queue: Queue, errors: Sequence[StoredError]) -> int:
        session = self._session
        session.patiently(send_messages, queue, [_outgoing(error) for error in errors])
        reach("errors-sent")
        session.store.mark_delivered(session.token, [error.key for error in errors], queue.name)
        return len(errors)

    def _send_inside(self, queue: Transactional, name: str, others: bool) -> int:
        database, token = self._session.store.database, self._session.token

        def work(transaction: Transaction) -> int:
            errors = handling.claim(transaction, token, self._session.options.source, others=others)
            queue.send_in_transaction(transaction, [_outgoing(error) for error in errors])
            handling.mark_delivered(transaction, token, [error.key for error in errors], name)
            return len(errors)

        return database.write(work)


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
