"""Registers landed Parquet files in an Iceberg table: checked in tasks, appended by the commit.

Refuses those that the table has already, and commits the others in one transaction.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, OptionError
from queue_source.options import SinkOptions
from queue_source.read.objects import ExpectedObject, Refusals, check_unchanged
from queue_source.read.partitions import PlanStore
from queue_source.sinks import takeover
from queue_source.sinks.base import Batch, Sink, check_object_columns
from queue_source.sinks.iceberg.commits import IcebergTarget
from queue_source.sinks.iceberg.footers import Footer, read_footer
from queue_source.sinks.iceberg.landed import Candidate, TableOfFiles, covers, same_place
from queue_source.sinks.iceberg.tables import CatalogFactory, TableMaker, Target, tried_again
from queue_source.sinks.marks import OnceIn
from queue_source.storage.fetching import LEAST, Requested
from queue_source.storage.files import open_object
from queue_source.uris import azure_uri
from shard_store.batches.plans import planned_ranges
from shard_store.error_table.records import reject
from shard_store.failpoints import reach
from shard_store.model import ErrorRecord, PlanIdentity, Range
from shard_store.sql.database import Transaction
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_COUNT = "cuesqueue.registered-objects"


class Named(NamedTuple):
    """An object as its row names it."""

    uri: str
    size: int | None
    etag: str | None

    @property
    def expected(self) -> ExpectedObject:
        return ExpectedObject(self.size, self.etag)


class Refused(NamedTuple):
    """A bad object, which is recorded at the commit: there the plan is known, and with it the shard."""

    object: Named
    cause: str
    detail: str


@dataclass(slots=True)
class TaskObjects:
    """What one task did with its objects, with their tables and partition specs: one, unless it changed meanwhile."""

    targets: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    registered: list[tuple[Named, DataFile]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class Registration(IcebergTarget):
    """One commit, in the commit process. Refused objects are recorded with it (decision 0082)."""

    def __init__(
        self, options: SinkOptions, store: ShardStore, batch: Batch, written: Sequence[TaskObjects], batch_id: int
    ) -> None:
        assert options.table is not None
        self._options, self._store, self._batch, self._batch_id = options.table, store, batch, batch_id
        self._bad = [refused for task in written for refused in task.refused]
        self._objects = [registered for task in written for registered in task.registered]
        self._places = {same_place(file.file_path) for _, file in self._objects}
        self._checked: int | None = None
        self._known: set[str] = set()
        self._registered: list[tuple[Named, DataFile]] = []
        self._refused: list[Refused] = []
        self._maker = TableMaker(options, by_name=True)
        made_for = {target for task in written for target in task.targets}
        files = [file for _, file in self._objects]
        factory = CatalogFactory(options.table, options.storage)
        super().__init__(factory, options.table.name, store.store_id(), files, made_for, batch.digest[:12])

    def run(self) -> None:
        once = OnceIn(self, self._store, self._batch, self._batch_id)

        def look_for_objects(transaction: Transaction) -> None:
            """Find out which objects the table has: before its commit, since that may take long with many manifests."""
            self.use([file for _, file in self._objects])
            if (table := self._maker.find_inside(transaction)) is not None:  # else no task of this batch has needed one
                self._checked = table.metadata.current_snapshot_id
                self._known = _places_in(table, self._places)

        def attempt() -> None:
            self._store.database.read(look_for_objects)
            once.publish()

        tried_again(self._store.database.patience)(attempt)
        self.sweep()
        if self._registered or self._refused:
            counts = len(self._registered), len(self._refused)
            logger.info("table %s: %d objects registered, %d refused", self._options.name, *counts)

    def has_files(self) -> bool:
        return bool(_places_in(self.table, self._places))

    def choose(self, transaction: Transaction) -> None:
        """Refuse what the table has already, and what is there twice; record all that is refused.

        Raises PipelineTakenOver for a driver that was replaced, whose findings are not valid.
        """
        self._refused, self._registered = list(self._bad), []
        places: set[str] = set()
        for named, file in self._objects:
            place = same_place(file.file_path)
            if place in places:
                self._refuse(named, "is in this batch twice, and is registered once")
            elif place in self._known:
                self._refuse(named, f"is a data file of table {self._options.name} already")
            else:
                self._registered.append((named, file))
            places.add(place)
        self.use([file for _, file in self._registered])
        super().choose(transaction)
        if self._registered and self.table.metadata.current_snapshot_id != self._checked:
            raise CommitFailedException("another writer has added files that may be the same")
        ranges = [(plan, entry) for plan in self._batch.plans for entry in planned_ranges(transaction, plan)]
        records = _records(self._batch.plans[0], [named for named, _ in self._registered], self._refused, ranges)
        for plan in self._batch.plans:
            if own := [record for record in records if record.plan_hash == plan.delivery_hash]:
                reject(transaction, plan, own)

    def append(self, mark: Mapping[str, str]) -> None:
        super().append({**mark, _COUNT: str(len(self._registered))})

    def _refuse(self, named: Named, problem: str) -> None:
        detail = f"{named.uri!r} {problem}; a changed object has to have a new name"
        if self._options.on_unregistrable == "fail":
            raise BadObject("already-registered", detail)
        self._refused.append(Refused(named, "already-registered", detail))


def _places_in(table: Table, places: Collection[str]) -> set[str]:
    """Return those of `places` (`same_place`) that are data files of the table now."""
    if not places:
        return set()
    return {same_place(task.file.file_path) for task in table.scan().plan_files()}.intersection(places)


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
        same = (pair for pair in ranges_of_uri if (pair[1].content.size, pair[1].content.etag) == named[1:])
        match = next(same, None) or next(iter(ranges_of_uri), None)
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


_THREADS = 16
"""Footers that a task asks for at the same time: each takes two or three answers of a store."""
_TRIES = 3


class RegisteringSink(Sink):
    """Registers objects: table, positions and attempt in one transaction, exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        assert options.table.register is not None
        self._options, self._table, self._column = options, options.table, options.table.register
        self._target: Target | None = None
        self._store: PlanStore | None = None

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        """Check the rows' columns, and prepare the table, if it exists.

        An absent table is made by the first task that knows its columns.
        """
        check_object_columns(schema, "register", self._column)
        maker = TableMaker(self._options, by_name=True)
        if (table := maker.mapped(store)) is None:
            maker.check_place()
        self._target = None if table is None else Target.of(table)
        self._store = PlanStore.of(self._options.store, store)
        takeover.note(store, self._options, plans)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskObjects:
        assert self._store is not None
        objects: list[Named] = []
        for rows in batches:
            columns = (rows.column(name).to_pylist() for name in (self._column, "size", "etag"))
            objects += map(Named._make, zip(*columns, strict=True))
        if any(named.uri is None for named in objects):
            raise CuesqueueError(f"column {self._column!r} is null in a row; leave such rows out of the query")
        task = _Task(self._options, self._target, self._store)
        if objects:
            task.run(objects)
            reach("table-files-written")
        return task.result

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskObjects], *, row_schema: str, batch_id: int
    ) -> None:
        """Commit; refused objects are recorded in the same transaction of the store.

        Before all else the objects are kept from `cleanSource` of any source.
        """
        places = {same_place(named.uri) for task in written for named, _ in task.registered}
        if places:
            store.note_registered({azure_uri(place) or place for place in places})
        Registration(self._options, store, batch, written, batch_id).run()


class _Task:
    """The work of one executor task: reads footers in parallel, then handles one object after the other."""

    def __init__(self, options: SinkOptions, target: Target | None, store: PlanStore) -> None:
        assert options.table is not None
        self._options, self._table, self._store = options, options.table, store
        self._files = None if target is None else TableOfFiles(target.read()[0])
        self.result = TaskObjects()

    def run(self, objects: Sequence[Named]) -> None:
        with ThreadPoolExecutor(min(_THREADS, len(objects)), thread_name_prefix="cuesqueue-footers") as threads:
            results = list(threads.map(self._footer, objects))
        refusals = Refusals(self._options.storage, _TRIES, lambda: [named.uri for named in objects])
        for named, result in zip(objects, results, strict=True):
            if isinstance(result, Footer):
                refusals.was_read(named.uri)
        for named, result in zip(objects, results, strict=True):
            tries = 1
            while isinstance(result, ObjectRefused):
                result = refusals.give_up(named.uri, result, tries) or self._footer(named)
                tries += 1
            try:
                if isinstance(result, BadObject):
                    raise result
                if result.rows:
                    self._register(named, result)
            except BadObject as error:
                detail = error.detail if named.uri in error.detail else f"{named.uri!r}: {error.detail}"
                if self._table.on_unregistrable == "fail":
                    raise BadObject(error.cause, detail) from error
                self.result.refused.append(Refused(named, error.cause, detail))

    def _footer(self, named: Named) -> Footer | BadObject | ObjectRefused:
        try:
            end = Requested(named.uri, named.size, None, LEAST).range()
            with open_object(named.uri, self._options.storage, first=end) as file:
                check_unchanged(named.uri, file, named.expected)
                if file.size() != file.version.stored_size or not file.version.tells_size:
                    raise BadObject(
                        "corrupt-object",
                        "its store unpacks it (Content-Encoding), so readers of the table would not find its bytes "
                        "where its footer says; store it without",
                    )
                return read_footer(file)
        except (BadObject, ObjectRefused) as error:
            return error

    def _register(self, named: Named, footer: Footer) -> None:
        """Make a data file of the table of an object, after its columns are the table's. Raises BadObject."""
        try:
            candidate, files = Candidate(named.uri, footer), self._files
            metadata = None if files is None else files.metadata
            columns = candidate.columns_needed(self._table.name, metadata, self._table.partition_by)
            if files is None or not covers(files.schema.fields, columns.fields):
                with self._store.open() as store:
                    try:
                        table = TableMaker(self._options, by_name=True).ready(store, columns)
                    except OptionError as error:  # another task has given the table other columns meanwhile
                        if error.option not in ("table", "partitionBy"):
                            raise
                        raise BadObject("wrong-columns", error.problem.partition(";")[0]) from error
                files = self._files = TableOfFiles(table.metadata)
            self.result.registered.append((named, candidate.as_data_file(files)))
            self.result.targets.add(files.identity)
        except CuesqueueError:
            raise
        except (ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
            # footers may hold values that no library expects, such as year 0
            raise BadObject("corrupt-object", f"its footer says what cannot be: {error}") from error
