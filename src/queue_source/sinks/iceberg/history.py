"""The history of an Iceberg table: of which snapshots it is made now, also where these have expired (decision 0092)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


class History:
    """A table's snapshots, and those that it had: older metadata files name them for as long as these are kept."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        self._older = self._read_older()
        self._oldest = table.metadata

    def ancestors(self, *, expired: bool = True) -> Iterator[Snapshot]:
        """Yield the snapshots of which the table is made now, the newest first.

        `expired`: also those that are not the table's any more, for which older metadata files are read.
        """
        snapshot = self._known.get(self._table.metadata.current_snapshot_id or 0)
        while snapshot is not None:
            yield snapshot
            snapshot = self._parent(snapshot) if expired else self._known.get(snapshot.parent_snapshot_id or 0)

    def snapshots(self) -> Iterable[Snapshot]:
        """Return the snapshots that are known so far, whether the table is made of them or not."""
        return self._known.values()

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        """Return its parent. Some clients take the id of a parent that expires out of its children."""
        while (parent := self._known[snapshot.snapshot_id].parent_snapshot_id) not in self._known:
            is_new = all(other.snapshot_id != snapshot.snapshot_id for other in self._oldest.snapshots)
            if (parent is None and is_new) or not self._read_one():
                return None
        return None if parent is None else self._known[parent]

    def _read_one(self) -> bool:
        """Take in the next older metadata; returns whether there is one."""
        older = next(self._older, None)
        for snapshot in () if older is None else older.snapshots:
            before = self._known.get(snapshot.snapshot_id)
            if before is None or before.parent_snapshot_id is None:
                self._known[snapshot.snapshot_id] = snapshot
        self._oldest = older or self._oldest
        return older is not None

    def _read_older(self) -> Iterator[TableMetadata]:
        for entry in reversed(self._table.metadata.metadata_log):
            try:
                yield FromInputFile.table_metadata(self._table.io.new_input(entry.metadata_file))
            except FileNotFoundError:  # cleaned away, with those before it
                return


def is_older(snapshot: Snapshot, other: tuple[int, int]) -> bool:
    """Tell whether it is older than one with this sequence number, and this time: versions before 2 number nothing."""
    return ((snapshot.sequence_number or 0), snapshot.timestamp_ms) < other
