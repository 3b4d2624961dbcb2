"""Errors to the error queue (`errorQueueUrl`): before anything that they concern is acknowledged (decision 0022).

The error table is their durable place: executors and the opener write there first. What is final there and not
delivered is sent from here, in the reader process: when messages were found bad, when a plan is confirmed, at start-up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from queue_source.coordinator import error_messages
from queue_source.coordinator.metrics import Metrics
from queue_source.coordinator.receiving import with_back_off
from queue_source.queues.base import Queue, Transactional, send_messages, transactional
from shard_store import error_delivery
from shard_store.error_search import StoredError
from shard_store.failpoints import reach
from shard_store.model import PublishToken
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore


class ErrorForwarder:
    """Sends the errors of one pipeline; of several threads, one at a time. Without a queue it does nothing.

    To a queue in a table of the store's own database each error goes exactly once, in the transaction that marks it;
    to others at least once: a reader that dies between sending and marking sends it again, with the same `error_id`.
    """

    def __init__(
        self, queue: Queue | None, store: ShardStore, source: str, metrics: Metrics, stopping: threading.Event
    ) -> None:
        self._queue = queue
        self._store = store
        self._source = source
        self._metrics = metrics
        self._patiently = with_back_off(stopping)
        self._token: PublishToken
        self._inside: Transactional | None = None
        self._one_at_a_time = threading.Lock()

    def start(self, token: PublishToken) -> None:
        """Send what the incarnation before left behind. Raises as `forward` does."""
        self._token = token
        queue, database = self._queue, self._store.database
        database.write(lambda c: error_delivery.name_queue(c, token, None if queue is None else queue.name))
        joining = transactional(queue) if queue is not None else None
        if joining is not None and joining.joins(database):
            self._inside = joining
        self.forward()

    def forward(self) -> None:
        """Send every final error that is not delivered yet.

        Raises the queue's error, after back-off, when it cannot be sent: then nothing may be acknowledged.
        """
        queue = self._queue
        if queue is None:
            return
        database, token = self._store.database, self._token
        with self._one_at_a_time:
            while found := database.read(lambda c: error_delivery.undelivered(c, token, self._source)):
                reach("errors-due")
                sent = self._send(queue, found) if self._inside is None else self._send_inside(self._inside, queue.name)
                self._metrics.add(errorsDelivered=sent)

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _send(self, queue: Queue, found: Sequence[StoredError]) -> int:
        self._patiently(send_messages, queue, [error_messages.outgoing(error) for error in found])
        reach("errors-sent")
        database, keys = self._store.database, [error.key for error in found]
        database.write(lambda c: error_delivery.mark_delivered(c, self._token, keys, queue.name))
        return len(found)

    def _send_inside(self, queue: Transactional, name: str) -> int:
        database, token = self._store.database, self._token

        def work(transaction: Transaction) -> int:
            found = error_delivery.claim(transaction, token, self._source)
            queue.send_in_transaction(transaction, [error_messages.outgoing(error) for error in found])
            error_delivery.mark_delivered(transaction, token, [error.key for error in found], name)
            return len(found)

        return database.write(work)
