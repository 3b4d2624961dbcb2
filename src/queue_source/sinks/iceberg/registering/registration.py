"""The commit of registered objects.

Refuses those that the table has already, and commits the others in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from queue_source.errors import BadObject
from queue_source.options import SinkOptions
from queue_source.sinks.base import Batch, check_visible
from queue_source.sinks.iceberg.catalogs import CatalogFactory, load_table
from queue_source.sinks.iceberg.commits import append, check_unchanged_table, is_delivered, marks_of
from queue_source.sinks.iceberg.registering.candidates import same_place
from queue_source.sinks.iceberg.registering.known_files import KnownFiles
from queue_source.sinks.iceberg.registering.objects import Named, Refused, TaskObjects
from queue_source.sinks.iceberg.tables import TableMaker, tried_again
from shard_store.batches import publishing
from shard_store.batches.publishing import Published
from shard_store.failpoints import reach
from shard_store.model import ErrorRecord, PlanIdentity, Range
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_COUNTS = ("cuesqueue.registered-objects", "cuesqueue.copied-objects")


class Registration:
    """One commit, in the commit process. Refused objects are recorded before it (decision 0052)."""

    def __init__(
        self, options: SinkOptions, store: ShardStore, batch: Batch, written: Sequence[TaskObjects], batch_id: int
    ) -> None:
        assert options.table is not None
        self._table, self._store, self._batch, self._batch_id = options.table, store, batch, batch_id
        self._written = [task for task in written if task.registered or task.copied]
        self._copied = [file for task in written for file in task.copied]
        self._copies = sum(task.copies for task in written)
        self._refused = [refused for task in written for refused in task.refused]
        self._registered: list[tuple[Named, DataFile]] = []
        places: set[str] = set()
        for named, file in (registered for task in written for registered in task.registered):
            if same_place(file.file_path) in places:
                self._refuse(named, "is in this batch twice, and is registered once")
            else:
                places.add(same_place(file.file_path))
                self._registered.append((named, file))
        self._factory = CatalogFactory(self._table, options.storage)
        self._maker = TableMaker(options, by_name=True)
        self._known = KnownFiles()
        self._checked: int | None = None

    def run(self) -> None:
        check_visible(file.file_path for file in self._copied)
        catalog = tried_again(self._store.database.patience)(self._attempt)
        if catalog is not None:
            self._factory.sweep(catalog)
        if self._registered or self._copies or self._refused:
            counts = (len(self._registered), self._copies, len(self._refused))
            logger.info("table %s: %d objects registered, %d copied, %d refused", self._table.name, *counts)

    def _attempt(self) -> Catalog | None:
        is_committed = self._is_committed()
        if not is_committed:
            self._record()
        files = [*(file for _, file in self._registered), *self._copied]
        brought = sum(f.record_count for f in files), sum(f.file_size_in_bytes for f in files)

        def commit(transaction: Transaction, published: Published) -> Catalog | None:
            if published.already or not files:
                return None
            catalog = self._factory.open(transaction)
            table = load_table(catalog, self._table.name)
            check_unchanged_table(table, {target for task in self._written for target in task.targets})
            marks = marks_of(transaction, self._batch, published, self._batch_id)
            if not is_delivered(table, marks):
                if self._registered and table.metadata.current_snapshot_id != self._checked:
                    raise CommitFailedException("another writer has added files that may be the same")
                counts = dict(zip(_COUNTS, map(str, (len(self._registered), self._copies)), strict=True))
                append(table, files, {**marks, **counts})
            reach("table-committed")
            return catalog

        return self._store.publish_with(
            self._batch.plans, commit, batch_id=self._batch_id, brought=brought, shown_before=is_committed
        )

    def _is_committed(self) -> bool:
        """Tell whether the batch is in the table, or in the store.

        If not, refuse objects that the table has already.
        """

        def find_table(transaction: Transaction) -> tuple[Table | None, bool]:
            published = publishing.find_delivery(transaction, self._batch.plans, self._batch_id)
            if published.already:
                return None, True
            if (table := self._maker.find_inside(transaction)) is None:  # no task of this batch has needed one
                return None, False
            return table, is_delivered(table, marks_of(transaction, self._batch, published, self._batch_id))

        table, is_there = self._store.database.read(find_table)
        if table is None:
            return is_there
        if is_there:
            self._record_again(table)
            return True
        self._checked = table.metadata.current_snapshot_id
        known_places = self._known.among(table, {same_place(file.file_path) for _, file in self._registered})
        for named, file in self._registered:
            if same_place(file.file_path) in known_places:
                self._refuse(named, f"is a data file of table {self._table.name} already")
        self._registered = [
            registered for registered in self._registered if same_place(registered[1].file_path) not in known_places
        ]
        return False

    def _record_again(self, table: Table) -> None:
        """Record what was refused and is no file of the table, which has the batch.

        The store may be a backup that has lost this verdict. An object that the table may have as a copy stays what
        the attempt before has made of it.
        """
        if self._table.on_unregistrable == "copy":
            return
        known_places = self._known.among(table, {same_place(refused.object.uri) for refused in self._refused})
        self._refused = [refused for refused in self._refused if same_place(refused.object.uri) not in known_places]
        self._record()

    def _refuse(self, named: Named, problem: str) -> None:
        detail = f"{named.uri!r} {problem}; a changed object has to have a new name"
        if self._table.on_unregistrable == "fail":
            raise BadObject("already-registered", detail)
        self._refused.append(Refused(named, "already-registered", detail))

    def _record(self) -> None:
        """Record the refused objects.

        Raises PipelineTakenOver for a driver that was replaced, whose findings are not valid.
        """
        if not self._refused:
            return
        ranges = [(plan, entry) for plan in self._batch.plans for entry in self._store.planned_ranges(plan)]
        records = _records(self._batch.plans[0], [named for named, _ in self._registered], self._refused, ranges)
        for plan in self._batch.plans:
            if own := [record for record in records if record.plan_hash == plan.delivery_hash]:
                self._store.reject(plan, own)


def _records(
    first: PlanIdentity,
    registered: Iterable[Named],
    refused: Iterable[Refused],
    ranges: Sequence[tuple[PlanIdentity, Range]],
) -> list[ErrorRecord]:
    """Build the errors of the plans' own objects.

    A refused object that is not planned is recorded as a rejected row.
    """
    free: dict[str, list[tuple[PlanIdentity, Range]]] = {}
    for plan, entry in ranges:
        free.setdefault(entry.content.uri, []).append((plan, entry))

    def take(named: Named) -> tuple[PlanIdentity, Range] | None:
        """Take the range of the object with the row's size and ETag, if there is one, else any of its URI."""
        ranges_of_uri = free.get(named.uri, [])
        match = next(
            (refusal for refusal in ranges_of_uri if (refusal[1].content.size, refusal[1].content.etag) == named[1:]),
            None,
        )
        match = match or next(iter(ranges_of_uri), None)
        if match is not None:
            ranges_of_uri.remove(match)
        return match

    for named in registered:
        take(named)
    records = []
    for number, refusal in enumerate(refused):
        match = take(refusal.object)
        if match is None:
            uri = refusal.object.uri.encode("utf-8", "surrogatepass")
            record = ErrorRecord("row", refusal.cause, refusal.detail, "", first.delivery_hash, input=uri)
            records.append(replace(record, occurrence=f"register {number}"))
            continue
        plan, entry = match
        records.append(
            ErrorRecord(
                scope="object",
                cause=refusal.cause,
                detail=refusal.detail,
                subject=entry.content.shard_id,
                plan_hash=plan.delivery_hash,
                position=entry.start,
                queue=entry.content.queue,
                message_id=entry.content.message_id,
            )
        )
    return records
