"""The Iceberg sink: its work at planning, in tasks and at the commit of a micro-batch (decision 0082).

The table is a target with a commit of its own, in whichever catalog: its snapshots, and one property.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.utils.properties import property_as_bool

from queue_source.errors import CuesqueueError, OptionError
from queue_source.options import SinkOptions
from queue_source.sinks import takeover
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.iceberg.files import NamingSpec, TaskFiles, sync_local, write_files
from queue_source.sinks.iceberg.history import History, is_older
from queue_source.sinks.iceberg.schemas import arrow_columns, iceberg_schema, united
from queue_source.sinks.iceberg.tables import CatalogFactory, TableMaker, Target, check_kept, load_table, tried_again
from queue_source.sinks.marks import END, HASH, PIPELINE, STORE, Commit, Mark, OnceIn
from queue_source.storage.files import check_place
from shard_store.batches.publishing import created_at
from shard_store.errors import ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import PlanIdentity
from shard_store.redaction import redact_text
from shard_store.sql.database import Transaction
from shard_store.store import ShardStore

_SNAPSHOT, _SEQUENCE = "snapshot-id", "sequence-number"
_CREATED = "cuesqueue.pipeline-created"
"""By which versions up to 0.3.0 told pipelines of one name in several stores from each other."""

_LOOKED: dict[tuple[str, ...], tuple[int | None, bool, Commit]] = {}
"""By table, store and pipelines: a snapshot, whether it or one after the newest batch replaces what was there, and that
batch: so the batch is known also when its own snapshot has expired."""


class IcebergTarget:
    """The files of one attempt at a batch, and the table to which they go.

    Snapshots expire. So each commit notes its batch in a property of the table, too, which also stays where the table
    is rolled back to an earlier snapshot.
    """

    def __init__(
        self,
        factory: CatalogFactory,
        table: str,
        store_id: str,
        files: Sequence[DataFile],
        written: Set[tuple[uuid.UUID, int]],
        prefix: str,
    ) -> None:
        """Take what was `written`: the UUID of its table, and the partition spec."""
        self._factory, self._table_name, self._store_id, self._prefix = factory, table, store_id, prefix
        self._written = written
        self._property, self._created = f"cuesqueue.newest.{store_id}.", ""
        self._table: Table | None = None
        self._pipelines, self._numbers = list[str](), dict[str, tuple[int, tuple[int, int]]]()
        self.name = f"the Iceberg table {table}"
        self._catalog: Catalog | None = None
        self.use(files)

    def use(self, files: Sequence[DataFile]) -> None:
        """Take these files as those of the batch."""
        self.files = files
        self.brought = sum(f.record_count for f in files), sum(f.file_size_in_bytes for f in files)

    def open(self, transaction: Transaction) -> bool:
        if self._factory.in_store and not self.files:
            return False
        self._catalog = self._factory.open(transaction)
        try:
            self._table = load_table(self._catalog, self._table_name)
        except NoSuchTableError:
            if self.files:
                raise
            self._table = None
        else:
            self._history = History(self._table)
        self._transaction = transaction
        return self._table is not None

    def noted(self, mark: Mark) -> Commit | None:
        self._created = str(created_at(self._transaction, mark.first.token.pipeline))
        self._pipelines = [plan.token.pipeline for plan in mark.plans]
        batches: dict[str, tuple[str, int]] = {}
        for pipeline in self._pipelines:
            text = self.table.properties.get(f"{self._property}{pipeline}")
            if text:
                said = json.loads(text)
                newest: Commit | None = Commit(said)
                self._numbers[said[HASH]] = said.get(_SNAPSHOT, 0), (said.get(_SEQUENCE, 0), 0)
            else:
                commits = map(self._as_commit, self._history.ancestors(expired=False))
                newest = next((commit for commit in commits if pipeline in commit.ends), None)
            if newest is not None:
                batches[pipeline] = newest.delivery_hash, newest.ends[pipeline]
        return Commit.of(batches)

    def lineage(self) -> Iterator[Commit]:
        key = str(self.table.metadata.table_uuid), self._store_id, *self._pipelines
        looked, is_first, replaces = _LOOKED.get(key), True, False
        for snapshot in self._history.ancestors():
            commit = self._as_commit(snapshot)
            replaces |= commit.replaces
            if is_first and not commit.ends.keys().isdisjoint(self._pipelines):
                _LOOKED[key] = self.table.metadata.current_snapshot_id, replaces, commit
                is_first = False
            yield commit
            if looked is not None and looked[0] == snapshot.snapshot_id and is_first:
                _LOOKED[key] = self.table.metadata.current_snapshot_id, replaces or looked[1], looked[2]
                is_first = False
                yield Commit({}, looked[1])
                yield looked[2]

    def was_undone(self, delivery_hash: str, since: int | None) -> bool:
        """Tell whether a snapshot is among those of the table now that is older, and its own is not."""
        ours, older = self._numbers.get(delivery_hash), False
        for snapshot in self._history.ancestors():
            if self._hash(snapshot).startswith(delivery_hash):
                return False
            for other in self._history.snapshots() if ours is None else ():
                if self._hash(other).startswith(delivery_hash):
                    ours = other.snapshot_id, (other.sequence_number or 0, other.timestamp_ms)
            if ours is not None and ours[0] == snapshot.snapshot_id:
                return False
            if older := ours is not None and is_older(snapshot, ours[1]):
                break
        return older and ours is not None and not self._has(ours[0], delivery_hash)

    def _has(self, snapshot_id: int, delivery_hash: str) -> bool:
        """Tell whether the table has files of this snapshot, or of this batch (a snapshot that was picked)."""
        snapshot, io = self.table.current_snapshot(), self.table.io
        entries = (e for m in (snapshot.manifests(io) if snapshot else ()) for e in m.fetch_manifest_entry(io))
        return any(
            entry.snapshot_id == snapshot_id or delivery_hash[:12] in entry.data_file.file_path.rpartition("/")[2]
            for entry in entries
        )

    @staticmethod
    def _hash(snapshot: Snapshot) -> str:
        return snapshot.summary.additional_properties.get(HASH, "") if snapshot.summary else ""

    def _as_commit(self, snapshot: Snapshot) -> Commit:
        summary = snapshot.summary
        properties = dict(summary.additional_properties) if summary else {}
        replaces = summary is not None and (
            summary.operation is Operation.OVERWRITE
            or (summary.operation is Operation.DELETE and properties.get("total-records") == "0")
        )
        if STORE in properties:
            is_ours = properties[STORE] == self._store_id
        else:
            is_ours = self._created in properties.get(_CREATED, "").split(",")
        return Commit(properties if is_ours else {}, replaces)

    def has_files(self) -> bool:
        names = (task.file.file_path.rpartition("/")[2] for task in self.table.scan().plan_files())
        return any(self._prefix in name for name in names)

    def choose(self, transaction: Transaction) -> None:
        """Check that the table and the partition spec are those of the tasks' files. Raises ShardStoreError."""
        if not self.files:
            return
        metadata = self.table.metadata
        check_kept(self._table_name, metadata)
        if self._written != {(metadata.table_uuid, metadata.default_spec_id)}:
            raise ShardStoreError(
                f"Iceberg table {'.'.join(self.table.name())} was replaced, or partitioned in another way, while the "
                "batch was written; start the query again: its next attempt is written for the table as it is now"
            )

    def append(self, mark: Mapping[str, str]) -> None:
        """Append in one snapshot, on exactly the one that was checked; else raise CommitFailedException."""
        table, properties = self.table, self.table.metadata.properties
        # PyIceberg would try again on a newer snapshot, which may have the batch already: forbid that, in memory only
        once = {**properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        naming = [NamingSpec.of(spec) for spec in table.metadata.partition_specs]
        table.metadata = table.metadata.model_copy(update={"properties": once, "partition_specs": naming})
        merge = property_as_bool(
            properties, TableProperties.MANIFEST_MERGE_ENABLED, TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
        )
        columns = index_by_id(table.schema())  # PyIceberg cannot write partitions by columns that are gone
        merge &= all(part.source_id in columns for spec in naming for part in spec.fields)
        transaction = table.transaction()
        update = transaction.update_snapshot(snapshot_properties=dict(mark))
        with update.merge_append() if merge else update.fast_append() as appended:
            for file in self.files:
                appended.append_data_file(file)
        numbers = {_SNAPSHOT: appended.snapshot_id, _SEQUENCE: table.metadata.next_sequence_number()}
        newest = json.dumps({name: mark[name] for name in (HASH, PIPELINE, END)} | numbers)
        transaction.set_properties({f"{self._property}{pipeline}": newest for pipeline in mark[PIPELINE].split(",")})
        transaction.commit_transaction()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        added = (m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id)
        sync_local([*(m.manifest_path for m in added), snapshot.manifest_list, table.metadata_location])

    def sweep(self) -> None:
        """Delete what a commit has left for after the store's transaction."""
        if self._catalog is not None:
            self._factory.sweep(self._catalog)

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table


class IcebergSink(Sink):
    """Commits table, positions and attempt in one transaction: exactly once.

    A catalog elsewhere is committed to just before the store, with the delivery hash, by which a later attempt at the
    batch recognises its rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        self._options, self._table = options, options.table
        self._target: Target | None = None
        self._opened: Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def check_target(self, store: ShardStore) -> None:
        try:
            is_new = self.own_columns(store) is None
        except (CuesqueueError, ShardStoreError):
            raise
        except Exception as error:
            # any library of a catalog raises its own
            raise OptionError(
                "table",
                f"{self._table.name!r} cannot be looked up in its catalog: {type(error).__name__}: "
                f"{redact_text(str(error))[:300]}; mend the catalog.* options, or wait for its server",
            ) from error
        if is_new:
            TableMaker(self._options).check_place()
            if self._table.warehouse is not None:
                check_place("warehouse", self._table.warehouse, self._options.storage)

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        """Make the table, or add its new columns, where needed: field ids must be known before files are written."""
        self._target = Target.of(TableMaker(self._options).ready(store, iceberg_schema(schema)))
        takeover.note(store, self._options, plans)

    def own_columns(self, store: ShardStore) -> pa.Schema | None:
        self._opened = store.database.read(TableMaker(self._options).find_inside)
        return None if self._opened is None else arrow_columns(self._opened.schema())

    def removed_columns(self, store: ShardStore) -> frozenset[str]:
        assert self._opened is not None
        ever = {field.name.casefold() for schema in self._opened.metadata.schemas for field in schema.fields}
        return frozenset(ever - {field.name.casefold() for field in self._opened.schema().fields})

    def check_columns(self, columns: pa.Schema) -> None:
        assert self._opened is not None
        united(self._table.name, self._opened.schema(), iceberg_schema(columns))

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
