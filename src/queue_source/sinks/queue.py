"""The sink of a queue: rows become messages, staged by tasks and sent when the batch is published."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import CuesqueueError, OptionError, QueueError
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.messages import Outgoing
from queue_source.options import SinkOptions, TargetQueue, connection_options
from queue_source.queues import Queue, adapter_name, open_queue
from queue_source.queues.base import Unsendable, send_messages
from queue_source.queues.sql.database import Address, create_tables, metadata, open_database, parse_address
from queue_source.queues.sql.staging import Staging
from queue_source.read.fixed_rows import MESSAGE_SCHEMA
from queue_source.sinks.base import Batch, Sink
from shard_store.batches.publishing import Published
from shard_store.failpoints import reach
from shard_store.model import PlanIdentity
from shard_store.sql.database import Database, Transaction
from shard_store.sql.engines import same_database
from shard_store.sql.shared_file import SharedFile
from shard_store.store import ShardStore

HASH_HEADER = "Delivery-Hash"
"""Which batch a message belongs to: the delivery hash of its plan."""
INDEX_HEADER = "Delivery-Index"
"""Which row of that batch it is: messages that agree in both headers are the same row."""

_TEXT = ("STRING", (pa.string(), pa.large_string()))
_COLUMNS = {
    "value": ("BINARY or STRING", (pa.binary(), pa.large_binary(), *_TEXT[1])),
    "tag": _TEXT,
    "headers": ("MAP<STRING, STRING>", ()),
    "group": _TEXT,
}
_UNSENT = {*MESSAGE_SCHEMA.names, METADATA_COLUMN} - _COLUMNS.keys()
"""The reader's columns about a message beside its content: rows that it read may be written as they are."""

_STAMPS = {HASH_HEADER: re.compile("[0-9a-f]{64}"), INDEX_HEADER: re.compile(r"[0-9]+\.[0-9]+\.[0-9a-f.]+")}


class RowRefused(ValueError):
    """A row that cannot be a message; `row` counts from 0 in its task."""

    def __init__(self, row: int, problem: str) -> None:
        self.row = row
        super().__init__(problem)


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that a message does not have. Planning; raises OptionError naming the column."""
    takes = ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
    for field in schema:
        if field.name in _UNSENT:
            continue
        if field.name not in _COLUMNS:
            raise OptionError(
                "queueUrl",
                f"a message has no place for the column {field.name!r}; it takes {takes}: put other columns into "
                "value, as in select(to_json(struct('*')).alias('value'))",
            )
        kind, types = _COLUMNS[field.name]
        if schema.names.count(field.name) > 1:
            raise OptionError("queueUrl", f"the column {field.name!r} is there twice; leave one of them out")
        is_text_map = pa.types.is_map(field.type) and {field.type.key_type, field.type.item_type} <= set(_TEXT[1])
        if not (is_text_map if field.name == "headers" else field.type in types):
            raise OptionError(
                "queueUrl", f"the column {field.name!r} of a message is {kind}, not {field.type}; cast it before"
            )
    if "value" not in schema.names:
        raise OptionError(
            "queueUrl",
            "a message needs the column 'value' (BINARY or STRING); make it of others, as in "
            "select(to_json(struct('*')).alias('value'))",
        )


def messages_of(batches: Iterable[pa.RecordBatch], digest: str, task: str, *, by_content: bool) -> Iterator[Outgoing]:
    """Yield the rows of one task as messages, stamped with the delivery hash and an index.

    `by_content`: the index depends on the content of the row and on the number of equal rows before it in the task, not
    on the row's number. It is needed where messages may be sent a second time: rows of a repeated task may come in
    another order, and consumers that drop duplicates would take two different rows with one stamp for one. It costs
    some 100 bytes of memory a row. Raises RowRefused for rows that lack what a message needs.
    """
    seen: dict[bytes, int] = {}
    number = -1
    for batch in batches:
        columns = []
        for name in _COLUMNS:
            column = batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)
            if name == "value" and column.type not in (pa.binary(), pa.large_binary()):
                column = column.cast(pa.large_binary())
            columns.append(column.to_pylist())
        for value, tag, headers, group in zip(*columns, strict=True):
            number += 1
            if value is None:
                raise RowRefused(number, "its value is null; filter such rows, or give them a value with coalesce")
            named, row = _headers_of(headers or (), number), str(number)
            if by_content:
                others = json.dumps([tag or "", group or "", sorted(named.items())]).encode()
                content = hashlib.sha256(others + b"\0" + value).digest()[:16]
                before = seen[content] = seen.get(content, -1) + 1
                row = f"{content.hex()}.{before}"
            index = f"{task}.{row}"
            stamped = {**named, HASH_HEADER: digest, INDEX_HEADER: index}
            yield Outgoing(value, tag or "", stamped, group or None, f"{digest}.{index}")


def _headers_of(headers: Iterable[tuple[str, str | None]], row: int) -> Mapping[str, str]:
    """Return the headers without the stamp of an earlier pipeline, when a received message is sent on."""
    named = {}
    for name, text in headers:
        if text is None:
            raise RowRefused(row, f"its header {name!r} is null; filter it out with map_filter")
        stamp = _STAMPS.get(name)
        if stamp is None:
            named[name] = text
        elif not stamp.fullmatch(text):
            raise RowRefused(
                row, f"its header {name!r} is the name of a stamp that every message gets; give it another name"
            )
    return named


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

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        check_columns(schema)
        self._open().close()  # refuses an invalid URL; connects to nothing
        if adapter_name(self._target.url.reveal()) == "sql":
            with closing(open_database(parse_address(self._target.url.reveal()), None, 30.0)) as database:
                if (file := database.file()) is not None:
                    # now: a task without the file would create one of its own, which no consumer reads
                    create_tables(database, metadata)
                    self._file = SharedFile.of(file)

    # executors

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> Written:
        """Write the rows; return when all are staged, or confirmed by the queue."""
        if self._file is not None and (problem := self._file.problem()):
            raise OptionError("queueUrl", problem)
        if not batch.task:  # stamps would not be unique
            raise CuesqueueError("Spark does not report which task this is; report this as a bug, with Spark's version")
        address = self._address_in_store()
        messages = messages_of(batches, batch.digest, batch.task, by_content=address is None)
        if address is None:
            with self._open() as queue, _naming_rows(queue.name, batch) as count:
                for portion in _portions(messages):
                    send_messages(queue, portion)
                    count.add(portion)
            reach("rows-sent")
            return Written(count.rows, count.size)
        entry = None
        with closing(self._staging(address, batch)) as staging, _naming_rows(address.name, batch) as count:
            for portion in _portions(messages):
                entry = entry or staging.begin()
                staging.add(entry, count.rows, portion)
                count.add(portion)
        reach("rows-staged")
        return Written(count.rows, count.size, entry)

    # the commit process

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[Written], *, row_schema: str, batch_id: int
    ) -> None:
        """Publish without `row_schema`, which is for the view `data`: that has no rows here."""
        brought = sum(task.rows for task in written), sum(task.size for task in written)
        names = [task.staged for task in written if task.staged]
        address = self._address_in_store()
        if address is None and not names:
            if batch_id == 0 and adapter_name(self._target.url.reveal()) == "sql":
                logger.warning(
                    "queue %s is not in the store's database %s: its messages are sent at least once; for exactly "
                    "once, give both the same database URL",
                    self._target.url,
                    self._options.store,
                )
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
    """The rows of the task before the present portion, and the bytes of their values."""

    rows: int = 0
    size: int = 0

    def add(self, portion: Sequence[Outgoing]) -> None:
        self.rows += len(portion)
        self.size += sum(len(message.body) for message in portion)


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
        raise refused(count.rows + error.place, error.problem) from error


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
