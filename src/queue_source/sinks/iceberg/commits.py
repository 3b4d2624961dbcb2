"""A batch in the history of a table: its marks in a snapshot's properties, and the snapshot itself."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.utils.properties import property_as_bool

from queue_source.sinks.base import Batch
from queue_source.sinks.iceberg.files import TaskFiles, sync_local
from shard_store.batches.publishing import Published, created_at
from shard_store.errors import ShardStoreError
from shard_store.sql.transaction import Transaction

_MARK = "cuesqueue."
_HASH = f"{_MARK}delivery-hash"
_PIPELINES = (f"{_MARK}pipeline", f"{_MARK}pipeline-created")
_OFFSETS = (f"{_MARK}start-seq", f"{_MARK}end-seq", f"{_MARK}batch-id")


def marks_of(transaction: Transaction, batch: Batch, published: Published, batch_id: int) -> dict[str, str]:
    """Return the properties of a snapshot that identify the batch; several pipelines are separated by commas."""
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


def is_delivered(table: Table, marks: Mapping[str, str]) -> bool:
    """Tell whether an earlier attempt at the batch is in the table, although the store does not have it.

    Only a catalog elsewhere can be ahead of the store, and by one batch: the newest snapshot of the pipeline decides.
    It may have another hash, where a version before 0.3 wrote it and shards have passed to another pipeline since: that
    version hashed the remaining shards of the batch. Their rows are in the table already.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if all(properties.get(name) == marks[name] for name in _PIPELINES):
            return properties.get(_HASH) == marks[_HASH] or all(
                properties.get(name) == marks[name] for name in _OFFSETS
            )
        snapshot = snapshots.get(snapshot.parent_snapshot_id or 0)
    return False


def append(table: Table, files: Sequence[DataFile], marks: Mapping[str, str]) -> None:
    """Append the files in one snapshot, on exactly the snapshot that was checked; else raise CommitFailedException."""
    properties = table.metadata.properties
    # PyIceberg would try again on a newer snapshot, which may have the batch already: forbid that, in memory only
    once = {**properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    merge = property_as_bool(
        properties, TableProperties.MANIFEST_MERGE_ENABLED, TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    )
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=dict(marks))
    with update.merge_append() if merge else update.fast_append() as appended:
        for file in files:
            appended.append_data_file(file)
    transaction.commit_transaction()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [m.manifest_path for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    sync_local([*manifests, snapshot.manifest_list, table.metadata_location])


def check_unchanged(table: Table, written: Sequence[TaskFiles]) -> None:
    check_unchanged_table(table, {(task.table, task.spec_id) for task in written})


def check_unchanged_table(table: Table, written: Set[tuple[uuid.UUID, int]]) -> None:
    """Check that the table and the partition spec are those of the tasks' files. Raises ShardStoreError."""
    if written != {(table.metadata.table_uuid, table.metadata.default_spec_id)}:
        raise ShardStoreError(
            f"Iceberg table {'.'.join(table.name())} was replaced, or partitioned in another way, while the batch was "
            "written; start the query again: its next attempt is written for the table as it is now"
        )
