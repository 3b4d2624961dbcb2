"""The sink with `queueUrl`: rows become messages of a queue.

Into a SQL queue in the store's database, exactly once: tasks stage their messages there, invisible, and the transaction
that publishes the batch shows them. Into any other queue, at least once: tasks send, every message is confirmed by the
queue, and only then is the batch published; a batch that fails in between is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import CuesqueueError, OptionError, QueueError
from queue_source.messages import Outgoing
from queue_source.options import SinkOptions, TargetQueue, connection_options
from queue_source.queues import Queue, adapter_name, open_queue
from queue_source.queues.base import Unsendable, send_messages
from queue_source.queues.sql.database import Address, create_tables, metadata, open_database, parse_address
from queue_source.queues.sql.staging import Staging
from queue_source.sinks.base import Batch, Sink
from queue_source.sinks.queue_rows import Messages, RowRefused, check_columns
from shard_store.batches.publishing import Published
from shard_store.failpoints import reach
from shard_store.sql.database import Database
from shard_store.sql.engines import same_database
from shard_store.sql.shared_file import SharedFile
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

_PORTION = 5_000, 8 << 20
"""Maximum messages and bytes of bodies in one transaction or one call."""

logger = logging.getLogger("cuesqueue")


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one task: messages, bytes of their bodies, and the name under which they are staged.

    The name is empty where they are not.
    """

    rows: int
    size: int
    staged: str | None = None


class QueueSink(Sink):
    """Sends rows as messages, each with a stamp; `queue_rows` reads their columns."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._target: TargetQueue = options.queue
        self._file: SharedFile | None = None  # the SQLite file of the target, where it is one

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        check_columns(schema)
        self._open().close()  # refuses an invalid URL; connects to nothing
        self._file = self._sqlite_file()

    def _sqlite_file(self) -> SharedFile | None:
        """Create the file now: a task without it would create one of its own, which no consumer reads."""
        if adapter_name(self._target.url.reveal()) != "sql":
            return None
        with closing(open_database(parse_address(self._target.url.reveal()), None, 30.0)) as database:
            if (file := database.file()) is None:
                return None
            create_tables(database, metadata)
            return SharedFile.of(file)

    # executors

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> Written:
        """Write the rows; return when all are staged, or confirmed by the queue."""
        if self._file is not None and (problem := self._file.problem()):
            raise OptionError("queueUrl", problem)
        if not batch.task:  # stamps would not be unique
            raise CuesqueueError("Spark does not report which task this is; report this as a bug, with Spark's version")
        address = self._address_in_store()
        messages = Messages(batch.digest, batch.task, by_content=address is None).of(batches)
        if address is None:
            return self._send(messages, batch)
        with closing(self._staging(address, batch)) as staging:
            return self._stage(messages, batch, staging, address.name)

    def _stage(self, messages: Iterable[Outgoing], batch: Batch, staging: Staging, name: str) -> Written:
        rows, size, entry = 0, 0, None
        with _naming_rows(name, batch) as count:
            for portion in _portions(messages):
                entry = entry or staging.begin()
                count.before = rows
                rows = staging.add(entry, rows, portion)
                size += _size(portion)
        reach("rows-staged")
        return Written(rows, size, entry)

    def _send(self, messages: Iterable[Outgoing], batch: Batch) -> Written:
        rows, size = 0, 0
        with self._open() as queue, _naming_rows(queue.name, batch) as count:
            for portion in _portions(messages):
                count.before = rows
                send_messages(queue, portion)
                rows += len(portion)
                size += _size(portion)
        reach("rows-sent")
        return Written(rows, size)

    # the commit process

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[Written], *, row_schema: str, batch_id: int
    ) -> None:
        """Publish without `row_schema`, which is for the view `data`: that has no rows here."""
        brought = sum(task.rows for task in written), sum(task.size for task in written)
        names = [task.staged for task in written if task.staged]
        address = self._address_in_store()
        if address is None and not names:
            self._warn_of_at_least_once(batch_id)
            # all sent messages stay sent, also those of failed tasks
            store.publish_with(batch.plans, lambda *_: None, batch_id=batch_id, brought=brought, fenced=False)
            return
        # staged messages are shown or the batch fails, whatever this process would have done in the tasks' place
        address = address or parse_address(self._target.url.reveal())
        with closing(self._staging(address, batch)) as staging:
            staging.prepare()

            def show(transaction: Transaction, published: Published) -> list[str]:
                if published.already:
                    return staging.abandon(transaction)
                abandoned = staging.show(transaction, names)
                reach("rows-shown")
                return abandoned

            winners = batch.winners
            staging.clean(store.publish_with(batch.plans, show, batch_id=batch_id, brought=brought, winners=winners))

    def _warn_of_at_least_once(self, batch_id: int) -> None:
        if batch_id == 0 and adapter_name(self._target.url.reveal()) == "sql":
            logger.warning(
                "queue %s is not in the store's database %s: its messages are sent at least once; for exactly once, "
                "give both the same database URL",
                self._target.url,
                self._options.store,
            )

    # both

    def _address_in_store(self) -> Address | None:
        """Return the address of a SQL queue in the store's database; None for every other queue."""
        url = self._target.url.reveal()
        if adapter_name(url) != "sql":
            return None
        address = parse_address(url)
        return address if same_database(Database(self._options.store.reveal()).url, address.url) else None

    def _staging(self, address: Address, batch: Batch) -> Staging:
        """Open the staging, which the first pipeline owns, even where it is idle in this batch."""
        return Staging(address, min(plan.token.pipeline for plan in batch.plans))

    def _open(self) -> Queue:
        return open_queue(self._target.url.reveal(), **connection_options(self._target.url, self._target))


@dataclass(slots=True)
class _Count:
    """The number of rows of the task before the present portion."""

    before: int = 0


@contextmanager
def _naming_rows(queue: str, batch: Batch) -> Iterator[_Count]:
    """Name the row that the queue cannot carry, without its content: errors end in logs."""
    count = _Count()

    def refused(row: int, problem: str) -> QueueError:
        return QueueError(
            queue,
            f"row {row} of task {batch.task} cannot be a message: {problem}. The batch fails, and nothing that it read "
            "is acknowledged: change the query, and start it again",
        )

    try:
        yield count
    except RowRefused as error:
        raise refused(error.row, str(error)) from error
    except Unsendable as error:
        raise refused(count.before + error.place, error.problem) from error


def _portions(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    max_messages, max_bytes = _PORTION
    portion: list[Outgoing] = []
    size = 0
    for message in messages:
        portion.append(message)
        size += len(message.body)
        if len(portion) == max_messages or size >= max_bytes:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _size(messages: Iterable[Outgoing]) -> int:
    return sum(len(message.body) for message in messages)
