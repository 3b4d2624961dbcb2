"""The streaming sink: splits are written by executors and published by the commit, fenced by the plan of the batch.

The sink takes the plan that is the pipeline's current one in the store. Should the store go back while a query runs (it
is replaced by a replica without the last changes), that is an earlier plan: the sink would publish this batch's rows as
that plan's, whose objects would be done without their rows. The reader and the sink are processes of one driver, so the
reader notes its plan in the driver's folder, in one file for each pipeline. It is deleted with that folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from queue_source.common.logs import Origin, one_line_errors, set_up, work_on
from queue_source.errors import CuesqueueError, SinkFailed
from queue_source.options import SinkOptions
from queue_source.queues import register_queues
from queue_source.sinks.base import Batch, Sink, open_sink
from queue_source.spark.process import (
    ArrowStreamWriter,
    arrow_schema,
    as_batches,
    driver_identity,
    keep_loaded,
    presence_folder,
    reading,
    session_time_zone,
    spark_schema,
    task_name,
)
from shard_store.errors import ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import SINK, Noted

_HASH = 64
_LENGTH = _HASH + 20  # with the offset of the new input


class NotedPlan:
    """The reader's note. The file keeps its length, so a full disk cannot leave an old note in it.

    A reader begins with a new file that replaces the earlier one. So a reader that was replaced by one of the same
    driver, and has not noticed it yet, writes to a file that no sink reads.
    """

    def __init__(self, folder: Path, store_id: str, pipeline: str, incarnation: int) -> None:
        """Note that nothing is planned yet. Raises OSError where the folder takes no file."""
        folder.mkdir(parents=True, exist_ok=True)
        head = f"{incarnation} "
        self._place = len(head)
        self._handle, new = tempfile.mkstemp(dir=folder, prefix="plan-")
        self._noted = _text("", 0)
        try:
            os.write(self._handle, f"{head}{self._noted}".encode())
            Path(new).replace(_file(folder, store_id, pipeline))
        except OSError:
            os.close(self._handle)
            Path(new).unlink()
            raise

    def note(self, delivery_hash: str, new_seq: int = 0) -> None:
        """Note the plan of the micro-batch that runs, or the empty text while none is made; see `Noted`."""
        if (text := _text(delivery_hash, new_seq)) != self._noted:
            os.pwrite(self._handle, text.encode(), self._place)
            self._noted = text

    def close(self) -> None:
        """Stop writing. The file stays: it names the last reader here."""
        os.close(self._handle)


def noted_plans(folder: Path | None) -> Callable[[str, str], Noted | None]:
    """Return the function that returns the plan which the newest reader of this driver has noted."""

    def noted(store_id: str, pipeline: str) -> Noted | None:
        if folder is None:
            return None
        try:
            incarnation, _, text = _file(folder, store_id, pipeline).read_text().partition(" ")
        except OSError:
            return None
        return Noted(int(incarnation), text[:_HASH].strip(), int(text[_HASH:])) if len(text) == _LENGTH else None

    return noted


def _text(delivery_hash: str, new_seq: int) -> str:
    return f"{delivery_hash:{_HASH}}{new_seq:>{_LENGTH - _HASH}}"


def _file(folder: Path, store_id: str, pipeline: str) -> Path:
    digest = hashlib.sha256(f"{store_id}\0{pipeline}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return folder / f"plan-{digest}"


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task wrote, and for which plans. `attempt`: its number among all task attempts; None: unknown."""

    batch: Batch
    written: Any
    attempt: int | None


class CuesqueueStreamWriter(ArrowStreamWriter):
    """Publishes the rows of each micro-batch together with the progress of the shards they came from."""

    def __init__(
        self,
        options: SinkOptions,
        schema: StructType,
        queues: Mapping[str, Callable[..., object]] = MappingProxyType({}),
    ) -> None:
        self._options = options
        self._queues = dict(queues)
        self._schema = schema
        self._batch: Batch | None = None
        self._sink: Sink | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle with the batch's plans.

        Happens at planning only: the readers of this driver made them a moment ago.
        """
        if self._batch is not None:
            return self.__dict__
        from shard_store.store import kept_store  # here: executors write without SQL

        self._log()
        try:
            with one_line_errors(), kept_store(self._options.store.reveal()) as store:
                driver = driver_identity() or None
                noted = noted_plans(presence_folder())
                names = self._options.pipelines
                self._batch = Batch(tuple(store.take_plan(name, driver, SINK, noted) for name in names))
                self._sink = open_sink(self._options)
                if any(plan.start_seq == 0 for plan in self._batch.plans):
                    self._sink.check_place()
                self._sink.prepare(store, arrow_schema(self._schema), self._batch.plans)
        except (CuesqueueError, ShardStoreError) as error:
            raise SinkFailed(str(error)) from error
        keep_loaded()
        return self.__dict__

    @one_line_errors()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows, invisible until published. Runs in executors."""
        if self._batch is None or self._sink is None:
            raise ShardStoreError("the sink's writer reached an executor without its plan; report this as a bug")
        self._log(task_name() or None)
        register_queues(self._queues)
        batches = as_batches(iterator, self._schema)
        attempt = reading()
        mine = replace(self._batch, task=task_name(), reading=attempt, zone=session_time_zone())
        written = self._sink.write(batches, arrow_schema(self._schema), mine)
        keep_loaded()
        return TaskWritten(self._batch, written, None if attempt is None else attempt.task)

    @one_line_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what all tasks wrote, in the commit process; a second commit of one plan does nothing."""
        tasks = [message for message in messages if isinstance(message, TaskWritten)]
        batches = {task.batch for task in tasks}
        if not messages:
            return  # no task ran: a batch without new data and without state; a plan has at least one task
        if len(batches) != 1:
            raise ShardStoreError(
                f"batch {batchId}: expected commit messages of one plan and got {len(batches)}; "
                "use one 'pipeline' name for one query only"
            )
        from shard_store.store import kept_store  # here: executors write without SQL

        self._log()
        about = ",".join(self._options.pipelines)
        reach("before-publish", about)
        with kept_store(self._options.store.reveal()) as store:
            written = [task.written for task in tasks]
            winners = frozenset(task.attempt for task in tasks if task.attempt is not None)
            batch = replace(batches.pop(), winners=winners)
            sink = open_sink(self._options)
            columns = sink.published_columns(written)
            published = self._schema if columns is None else spark_schema(columns)
            sink.commit(store, batch, written, row_schema=published.json(), batch_id=batchId)
        reach("published", about)
        keep_loaded()

    def _log(self, task: str | None = None) -> None:
        set_up(self._options.logs.level, self._options.logs.form)
        work_on(Origin(",".join(self._options.pipelines), task=task))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: files and staged messages that no transaction names are invisible, and `vacuum` removes them."""
