"""The Iceberg sink: its work at planning, in tasks and at the commit of a micro-batch (docs/decisions/0024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from queue_source.options import SinkOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.iceberg.commits import IcebergTarget
from queue_source.sinks.iceberg.files import TaskFiles, write_files
from queue_source.sinks.iceberg.schemas import arrow_columns, iceberg_schema
from queue_source.sinks.iceberg.tables import CatalogFactory, TableMaker, Target, tried_again
from queue_source.sinks.marks import OnceIn
from shard_store.failpoints import reach
from shard_store.store import ShardStore


class IcebergSink(Sink):
    """Commits table, positions and attempt in one transaction: exactly once.

    A catalog elsewhere is committed to just before the store, with the delivery hash, by which a later attempt at the
    batch recognises its rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        self._options, self._table = options, options.table
        self._target: Target | None = None

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        """Make the table, or add its new columns, where needed: field ids must be known before files are written."""
        self._target = Target.of(TableMaker(self._options).ready(store, iceberg_schema(schema)))

    def own_columns(self, store: ShardStore) -> pa.Schema | None:
        table = store.database.read(TableMaker(self._options).find_inside)
        return None if table is None else arrow_columns(table.schema())

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskFiles:
        assert self._target is not None
        metadata, io = self._target.read()
        files = write_files(batches, metadata, io, batch.digest[:12])
        reach("table-files-written")
        return TaskFiles(metadata.table_uuid, metadata.default_spec_id, files)

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskFiles], *, row_schema: str, batch_id: int
    ) -> None:
        files = [file for task in written for file in task.files]
        check_visible(file.file_path for file in files)
        factory = CatalogFactory(self._table, self._options.storage)
        made_for = {(task.table, task.spec_id) for task in written}
        target = IcebergTarget(factory, self._table.name, store.store_id(), files, made_for, batch.digest[:12])
        tried_again(store.database.patience)(OnceIn(target, store, batch, batch_id).publish)
        target.sweep()
