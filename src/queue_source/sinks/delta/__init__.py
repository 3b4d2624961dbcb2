"""The sink with `delta`: rows are appended to a Delta Lake table (decision 0082). Needs delta-rs, and no JAR.

Executors write Parquet files with pyarrow alone; delta-rs (the extra `delta`) is loaded by what plans and commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from queue_source.options import SinkOptions
from queue_source.sinks import takeover
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.delta.files import Target, TaskFiles, write_files
from shard_store.failpoints import reach

if TYPE_CHECKING:  # executors write without SQL, and without delta-rs
    from queue_source.sinks.delta.tables import OpenTable
    from shard_store.model import PlanIdentity
    from shard_store.store import ShardStore


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

    def check_place(self) -> None:
        """Raise OptionError where delta-rs is not installed."""
        import queue_source.sinks.delta.tables  # noqa: F401

    def check_target(self, store: ShardStore) -> None:
        from queue_source.sinks.delta.tables import TableMaker

        TableMaker(self._options).check_target()

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        """Make the table, or add its new columns, where needed; refuse what it cannot hold."""
        from queue_source.sinks.delta.tables import TableMaker

        maker = TableMaker(self._options, self._opened)
        self._target = maker.ready(schema, store.database.patience).target()
        takeover.note(store, self._options, plans, schema.names)

    def own_columns(self, store: ShardStore) -> pa.Schema | None:
        from queue_source.sinks.delta.tables import TableMaker

        self._opened = TableMaker(self._options).open()
        return None if self._opened is None else self._opened.columns(large=False)

    def removed_columns(self, store: ShardStore) -> frozenset[str]:
        """Compare with what this pipeline has noted: the log of a table is cleaned."""
        assert self._opened is not None
        noted = takeover.noted_columns(store, self._options)
        return noted - {name.casefold() for name in self._opened.schema.names}

    def check_columns(self, columns: pa.Schema) -> None:
        assert self._opened is not None
        self._opened.lacking(columns)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskFiles:
        assert self._target is not None
        options = self._options
        written = write_files(batches, schema, self._target, batch.digest[:12], options.compression, options.storage)
        reach("table-files-written")
        return written

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskFiles], *, row_schema: str, batch_id: int
    ) -> None:
        from queue_source.sinks.delta.commits import DeltaTarget
        from queue_source.sinks.delta.tables import TableMaker, tried_again
        from queue_source.sinks.marks import OnceIn

        target = DeltaTarget(TableMaker(self._options), store.store_id(), batch, written)
        check_visible(f"{target.uri}/{file.path}" for file in target.files)
        tried_again(store.database.patience)(OnceIn(target, store, batch, batch_id).publish)
