"""The Delta sink: its work at planning, in tasks and at the commit of a micro-batch (docs/decisions/0081)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from queue_source.options import SinkOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.delta.files import Target, TaskFiles, write_files
from queue_source.sinks.delta.schemas import arrow_columns
from shard_store.errors import ShardStoreError
from shard_store.failpoints import reach

if TYPE_CHECKING:  # executors write without SQL, and without delta-rs
    from queue_source.sinks.delta.tables import OpenTable
    from shard_store.batches.publishing import Published
    from shard_store.sql.transaction import Transaction
    from shard_store.store import ShardStore


class _ShownBefore(Exception):
    """The table has the rows of an attempt before this one, so what this one has found bad is judged anew."""


class DeltaSink(Sink):
    """Commits to the table just before the store, with the delivery hash in an application transaction.

    A later attempt at the batch recognises its rows by that: exactly once.
    """

    def __init__(self, options: SinkOptions) -> None:
        assert options.delta is not None
        self._options = options
        self._target: Target | None = None
        self._opened: OpenTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        """Make the table, or add its new columns, where needed; refuse what it cannot hold."""
        from queue_source.sinks.delta.tables import TableMaker

        maker = TableMaker(self._options, self._opened)
        self._target = maker.ready(schema, store.database.patience).target()

    def own_columns(self, store: ShardStore) -> pa.Schema | None:
        from queue_source.sinks.delta.tables import TableMaker

        self._opened = TableMaker(self._options).open()
        return None if self._opened is None else arrow_columns(self._opened.fields)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskFiles:
        assert self._target is not None
        options = self._options
        written = write_files(batches, schema, self._target, batch.digest[:12], options.compression, options.storage)
        reach("table-files-written")
        return written

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskFiles], *, row_schema: str, batch_id: int
    ) -> None:
        from queue_source.sinks.delta.commits import append, is_delivered, is_ours, marks_of
        from queue_source.sinks.delta.tables import TableMaker, tried_again

        files = [file for task in written for file in task.files]
        targets = {(task.target.table_id, task.target.partition_by): task.target for task in written}
        uri = next((target.uri for target in targets.values()), "")
        check_visible(f"{uri}/{file.path}" for file in files)
        brought = sum(file.rows for file in files), sum(file.size for file in files)
        maker, attempt = TableMaker(self._options), uuid.uuid4().hex
        store_id = store.store_id()

        def commit(transaction: Transaction, published: Published, *, shown_before: bool) -> None:
            if published.already:
                return
            table = maker.open()  # anew each time: the pipeline's row is locked, and others write to the table
            if table is None:
                if files:
                    raise ShardStoreError(f"the Delta table {uri} has gone while the batch was written; start again")
                return
            marks = marks_of(store_id, batch, published, batch_id, attempt)
            if is_delivered(table, marks):  # also where this attempt brings no rows: all objects may be bad by now
                if not (shown_before or is_ours(table, marks)):
                    raise _ShownBefore
            elif files:
                for target in targets.values():
                    if change := table.changed_since(target):
                        raise ShardStoreError(
                            f"the Delta table {uri} {change} while the batch was written; start the query again: its "
                            "next attempt is written for the table as it is now"
                        )
                append(table, files, marks)
            if files:
                reach("table-committed")

        def publish(*, shown_before: bool = False) -> None:
            store.publish_with(
                batch.plans,
                partial(commit, shown_before=shown_before),
                batch_id=batch_id,
                brought=brought,
                fenced=False,
                winners=batch.winners,
                shown_before=shown_before,
            )

        again = tried_again(store.database.patience)
        try:
            again(publish)
        except _ShownBefore:
            again(lambda: publish(shown_before=True))
