"""An Iceberg table as a target with a commit of its own, in whichever catalog: its snapshots, and one property."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.utils.properties import property_as_bool

from queue_source.sinks.iceberg.files import sync_local
from queue_source.sinks.iceberg.tables import CatalogFactory, load_table
from queue_source.sinks.marks import END, HASH, PIPELINE, STORE, Commit, Mark
from shard_store.batches.publishing import created_at
from shard_store.errors import ShardStoreError
from shard_store.sql.database import Transaction

_CREATED = "cuesqueue.pipeline-created"
"""By which versions up to 0.3.0 told pipelines of one name in several stores from each other."""


class IcebergTarget:
    """The files of one attempt at a batch, and the table to which they go.

    Snapshots expire. So each commit notes its batch in a property of the table, too, which also stays where the table
    is rolled back to an earlier snapshot.
    """

    bound: int | None = None

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
        self._transaction = transaction
        return self._table is not None

    def noted(self, mark: Mark) -> Commit | None:
        self._created = str(created_at(self._transaction, mark.first.token.pipeline))
        batches: dict[str, tuple[str, int]] = {}
        for pipeline in (plan.token.pipeline for plan in mark.plans):
            text = self.table.properties.get(f"{self._property}{pipeline}")
            commits = (commit for commit in self.lineage() if pipeline in commit.ends)
            if (newest := Commit(json.loads(text)) if text else next(commits, None)) is not None:
                batches[pipeline] = newest.delivery_hash, newest.ends[pipeline]
        return Commit.of(batches)

    def lineage(self) -> Iterator[Commit]:
        for snapshot in self._ancestors(self.table.metadata.current_snapshot_id):
            summary = snapshot.summary
            properties = dict(summary.additional_properties) if summary else {}
            replaces = summary is not None and (
                summary.operation is Operation.OVERWRITE
                or (summary.operation is Operation.DELETE and properties.get("total-records") == "0")
            )
            yield Commit(self._mark_in(properties), replaces)

    def was_undone(self, delivery_hash: str) -> bool:
        """Tell whether its snapshot is beside those of the table now: on another way from one that both have."""
        now = {s.snapshot_id for s in self._ancestors(self.table.metadata.current_snapshot_id)}
        for snapshot in self.table.metadata.snapshots:
            properties = snapshot.summary.additional_properties if snapshot.summary else {}
            if properties.get(HASH, "").startswith(delivery_hash) and snapshot.snapshot_id not in now:
                return any(s.snapshot_id in now for s in self._ancestors(snapshot.snapshot_id))
        return False

    def has_files(self) -> bool:
        names = (task.file.file_path.rpartition("/")[2] for task in self.table.scan().plan_files())
        return any(self._prefix in name for name in names)

    def choose(self, transaction: Transaction) -> None:
        if self.files:
            check_unchanged(self.table, self._written)

    def append(self, mark: Mapping[str, str]) -> None:
        newest = json.dumps({name: mark[name] for name in (HASH, PIPELINE, END)})
        noted = {f"{self._property}{pipeline}": newest for pipeline in mark[PIPELINE].split(",")}
        append(self.table, self.files, mark, noted)

    def sweep(self) -> None:
        """Delete what a commit has left for after the store's transaction."""
        if self._catalog is not None:
            self._factory.sweep(self._catalog)

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    def _ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}
        snapshot = snapshots.get(snapshot_id or 0)
        while snapshot is not None:
            yield snapshot
            snapshot = snapshots.get(snapshot.parent_snapshot_id or 0)

    def _mark_in(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        if STORE in properties:
            return properties if properties[STORE] == self._store_id else {}
        return properties if self._created in properties.get(_CREATED, "").split(",") else {}


def append(table: Table, files: Sequence[DataFile], mark: Mapping[str, str], noted: Mapping[str, str]) -> None:
    """Append the files in one snapshot, on exactly the snapshot that was checked; else raise CommitFailedException.

    `noted` are properties of the table that change with it.
    """
    properties = table.metadata.properties
    # PyIceberg would try again on a newer snapshot, which may have the batch already: forbid that, in memory only
    once = {**properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    merge = property_as_bool(
        properties, TableProperties.MANIFEST_MERGE_ENABLED, TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    )
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=dict(mark))
    with update.merge_append() if merge else update.fast_append() as appended:
        for file in files:
            appended.append_data_file(file)
    if noted:
        transaction.set_properties(dict(noted))
    transaction.commit_transaction()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [m.manifest_path for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    sync_local([*manifests, snapshot.manifest_list, table.metadata_location])


def check_unchanged(table: Table, written: Set[tuple[uuid.UUID, int]]) -> None:
    """Check that the table and the partition spec are those of the tasks' files. Raises ShardStoreError."""
    if written != {(table.metadata.table_uuid, table.metadata.default_spec_id)}:
        raise ShardStoreError(
            f"Iceberg table {'.'.join(table.name())} was replaced, or partitioned in another way, while the batch was "
            "written; start the query again: its next attempt is written for the table as it is now"
        )
