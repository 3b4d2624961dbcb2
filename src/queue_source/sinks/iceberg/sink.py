"""The Iceberg sink: its work at planning, in tasks and at the commit of a micro-batch (docs/decisions/0024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog

from queue_source.options import SinkOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.iceberg.catalogs import CatalogFactory, load_table
from queue_source.sinks.iceberg.commits import append, check_unchanged, is_delivered, marks_of
from queue_source.sinks.iceberg.files import TaskFiles, write_files
from queue_source.sinks.iceberg.schemas import arrow_columns, iceberg_schema
from queue_source.sinks.iceberg.tables import TableMaker, Target, tried_again
from shard_store.batches.publishing import Published
from shard_store.failpoints import reach
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore


class _ShownBefore(Exception):
    """The table has the rows of an attempt before this one, so what this one has found bad is judged anew."""


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
        brought = sum(f.record_count for f in files), sum(f.file_size_in_bytes for f in files)
        factory = CatalogFactory(self._table, self._options.storage)

        is_ours = False  # what the table has of the batch: the database may run all again once it is appended

        def commit(transaction: Transaction, published: Published, *, shown_before: bool) -> Catalog | None:
            nonlocal is_ours
            if published.already or (factory.in_store and not files):
                return None
            catalog = factory.open(transaction)
            table = load_table(catalog, self._table.name)
            if files:
                check_unchanged(table, written)
            marks = marks_of(transaction, batch, published, batch_id)
            if is_delivered(table, marks):  # also where this attempt brings no rows: all objects may be bad by now
                if not (shown_before or is_ours):
                    raise _ShownBefore
            elif files:
                append(table, files, marks)
                is_ours = True
            if not files:
                return None
            reach("table-committed")
            return catalog

        def publish(*, shown_before: bool = False) -> Catalog | None:
            return store.publish_with(
                batch.plans,
                partial(commit, shown_before=shown_before),
                batch_id=batch_id,
                brought=brought,
                fenced=factory.in_store,
                winners=batch.winners,
                shown_before=shown_before,
            )

        again = tried_again(store.database.patience)
        try:
            catalog = again(publish)
        except _ShownBefore:
            catalog = again(lambda: publish(shown_before=True))
        if catalog is not None:
            factory.sweep(catalog)
