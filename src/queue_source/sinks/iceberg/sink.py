"""The sink itself: what happens at planning, in tasks and at the commit of a micro-batch (docs/decisions/0024)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import tenacity
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.utils.properties import property_as_bool

from queue_source.errors import OptionError
from queue_source.options import SinkOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.iceberg.catalogs import CatalogFactory, load_table
from queue_source.sinks.iceberg.files import TaskFiles, sync_local, write_files
from queue_source.sinks.iceberg.partitions import check_spec, partition_spec
from queue_source.sinks.iceberg.schemas import iceberg_schema, united
from shard_store.errors import ShardStoreError
from shard_store.failpoints import reach
from shard_store.publishing import Published, created_at
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

_NEW_TABLE = {
    # each micro-batch adds a manifest and a metadata file: neither may grow without end
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
_MARK = "cuesqueue."
_HASH = f"{_MARK}delivery-hash"
_PIPELINES = (f"{_MARK}pipeline", f"{_MARK}pipeline-created")
_OFFSETS = (f"{_MARK}start-seq", f"{_MARK}end-seq", f"{_MARK}batch-id")


@dataclass(frozen=True, slots=True)
class _Target:
    """What tasks need to know of the table: its metadata without history, and how its files are reached."""

    metadata: str
    io_properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, table: Table) -> _Target:
        history: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
            "partition_statistics": [],
        }
        return cls(table.metadata.model_copy(update=history).model_dump_json(), dict(table.io.properties))


class IcebergSink(Sink):
    """Table, positions and attempt in one transaction: exactly once. A catalog elsewhere is committed to just before
    the store, with the delivery hash, by which a later attempt at the batch finds its rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        self._options, self._table = options, options.table
        self._target: _Target | None = None

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        """Make the table, or add its new columns, where that is needed: field ids must be known before files are."""
        wanted = iceberg_schema(schema)
        factory = CatalogFactory(self._table, self._options.storage)

        def look(transaction: Transaction) -> Table | None:
            if not factory.installed(transaction):
                return None
            try:
                table = load_table(factory.open(transaction), self._table.name)
            except NoSuchTableError:
                return None
            return None if self._evolve(table, wanted, commit=False) else table

        def make(transaction: Transaction) -> Table:
            with factory.installing(transaction):
                catalog = factory.open(transaction)
                try:
                    table = load_table(catalog, self._table.name)
                except NoSuchTableError:
                    return self._create(catalog, wanted, needs_warehouse=factory.in_store)
                self._evolve(table, wanted, commit=True)
                return table

        database = store.database
        table = database.read(look) or _tried_again(database.patience)(lambda: database.write(make))
        check_spec(self._table.name, table.schema(), table.spec(), self._table.partition_by)
        self._target = _Target.of(table)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskFiles:
        assert self._target is not None
        metadata = TableMetadataUtil.parse_raw(self._target.metadata)
        io = load_file_io(dict(self._target.io_properties), metadata.location)
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

        def append(transaction: Transaction, published: Published) -> Catalog | None:
            if published.already or not files:
                return None
            catalog = factory.open(transaction)
            table = load_table(catalog, self._table.name)
            _check_unchanged(table, written)
            marks = _marks(transaction, batch, published, batch_id)
            if not _delivered(table, marks):
                _append(table, files, marks)
            reach("table-committed")
            return catalog

        catalog = _tried_again(store.database.patience)(
            lambda: store.publish_with(batch.plans, append, batch_id=batch_id, brought=brought)
        )
        if catalog is not None:
            factory.sweep(catalog)

    def _create(self, catalog: Catalog, wanted: Schema, *, needs_warehouse: bool) -> Table:
        name = self._table.name
        if needs_warehouse and self._table.warehouse is None:
            raise OptionError("warehouse", f"is required to make the table {name}: name the folder for its files")
        united(name, Schema(), wanted)  # names that differ in case alone
        parts = name.split(".")
        for depth in range(1, len(parts)):  # the outermost namespace first
            catalog.create_namespace_if_not_exists(".".join(parts[:depth]))
        properties = {**_NEW_TABLE, TableProperties.PARQUET_COMPRESSION: self._options.compression}
        spec = partition_spec(wanted, self._table.partition_by)
        return catalog.create_table(name, wanted, partition_spec=spec, properties=properties)

    def _evolve(self, table: Table, wanted: Schema, *, commit: bool) -> bool:
        """Whether the rows need other columns than the table has; with `commit` it gets them."""
        transaction = table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(united(self._table.name, table.schema(), wanted))
        changed = transaction.table_metadata.schema() != table.schema()
        if changed and commit:
            transaction.commit_transaction()
        return changed


def _tried_again(patience: float) -> tenacity.Retrying:
    """Others commit to the same table at the same time: then all is rolled back and done again on what they left."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((CommitFailedException, TableAlreadyExistsError)),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )


def _marks(transaction: Transaction, batch: Batch, published: Published, batch_id: int) -> dict[str, str]:
    """What a snapshot's properties say of the batch; of several pipelines, separated by commas."""
    plans = batch.plans
    created = [created_at(transaction, plan.token.pipeline) for plan in plans]
    values: dict[str, Sequence[object]] = {
        "source": [plan.source for plan in plans],
        "pipeline": [plan.token.pipeline for plan in plans],
        "pipeline-created": created,
        "start-seq": [plan.start_seq for plan in plans],
        "end-seq": [plan.end_seq for plan in plans],
        "batch-id": [batch_id],
        "delivery-hash": [published.delivery_hash],
    }
    return {f"{_MARK}{name}": ",".join(map(str, value)) for name, value in values.items()}


def _delivered(table: Table, marks: Mapping[str, str]) -> bool:
    """Whether an earlier attempt at the batch is in the table, though the store does not know of it.

    Only a catalog elsewhere can be ahead of the store, and by one batch: the newest snapshot of the pipeline decides.
    It may have another hash, when shards passed to another pipeline after that attempt: their rows are there already.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found = snapshot.summary.additional_properties if snapshot.summary else {}
        if all(found.get(name) == marks[name] for name in _PIPELINES):
            return found.get(_HASH) == marks[_HASH] or all(found.get(name) == marks[name] for name in _OFFSETS)
        snapshot = snapshots.get(snapshot.parent_snapshot_id or 0)
    return False


def _append(table: Table, files: Sequence[DataFile], marks: Mapping[str, str]) -> None:
    """Append in one snapshot, on exactly the snapshot that was checked; else CommitFailedException."""
    properties = table.metadata.properties
    # PyIceberg would try again by itself, on a newer snapshot in which the batch may stand: in memory only, say no
    once = {**properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    merge = property_as_bool(
        properties, TableProperties.MANIFEST_MERGE_ENABLED, TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    )
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=dict(marks))
    with update.merge_append() if merge else update.fast_append() as append:
        for file in files:
            append.append_data_file(file)
    transaction.commit_transaction()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [m.manifest_path for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    sync_local([*manifests, snapshot.manifest_list, table.metadata_location])


def _check_unchanged(table: Table, written: Sequence[TaskFiles]) -> None:
    expected = {(table.metadata.table_uuid, table.metadata.default_spec_id)}
    if {(task.table, task.spec_id) for task in written} != expected:
        raise ShardStoreError(
            f"Iceberg table {'.'.join(table.name())} was replaced, or partitioned in another way, while the batch was "
            "written; start the query again: its next attempt is written for the table as it is now"
        )
