"""The sink with `table` and `register`: announced Parquet objects become data files where they are (decision 0052)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, OptionError
from queue_source.formats.typed.parquet_facts import Described, describe
from queue_source.options import SinkOptions
from queue_source.read.objects import ExpectedObject, check_unchanged
from queue_source.read.plan_store import PlanStore
from queue_source.read.refused import Refusals
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.iceberg.catalogs import CatalogFactory, load_table
from queue_source.sinks.iceberg.commits import append, check_unchanged_table, is_delivered, marks_of
from queue_source.sinks.iceberg.copying import Copy, all_rows
from queue_source.sinks.iceberg.files import write_files
from queue_source.sinks.iceberg.known_files import KnownFiles
from queue_source.sinks.iceberg.registering import Candidate, TableOfFiles, same_place
from queue_source.sinks.iceberg.tables import TableMaker, Target, tried_again
from queue_source.storage.files import open_object
from shard_store import publishing
from shard_store.failpoints import reach
from shard_store.model import ErrorRecord, PlanIdentity, Range
from shard_store.publishing import Published
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

THREADS = 16
"""Footers that a task asks for at the same time: each takes two or three answers of a store."""
_TRIES = 3
_CLEANED_LATELY = 300.0  # seconds
_COUNTS = ("cuesqueue.registered-objects", "cuesqueue.copied-objects")
_COPIED_INSTEAD = frozenset({"wrong-columns", "wrong-partition", "unsupported-key"})
"""Causes for which the rows of an object can still be read."""


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
    """What one task made of its objects, for which table and partition spec (None: for none).

    `copied` are the new files with the rows of `copies` objects. `empty` objects have no rows.
    """

    table: uuid.UUID | None = None
    spec_id: int = 0
    registered: list[tuple[Named, DataFile]] = field(default_factory=list)
    copied: list[DataFile] = field(default_factory=list)
    copies: int = 0
    empty: int = 0
    refused: list[Refused] = field(default_factory=list)


class RegisteringSink(Sink):
    """As the sink that writes rows: table, positions and attempt in one transaction, exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        assert options.table.register is not None
        self._options, self._table, self._column = options, options.table, options.table.register
        self._target: Target | None = None
        self._store: PlanStore | None = None

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        """The table may not exist yet: then the first task that knows of columns makes it."""
        check_columns(schema, self._column)
        for pipeline in self._options.pipelines:
            source = store.current_plan(pipeline).source
            if store.was_won(f"clean {source}", _CLEANED_LATELY):
                raise OptionError(
                    "register",
                    f"makes data files of the objects of source {source!r}, and its reader has cleanSource, which "
                    "deletes or moves them; leave cleanSource out, and start the query again five minutes later",
                )
        maker = TableMaker(self._options, by_name=True)
        if (table := maker.mapped(store)) is None:
            maker.check_place()
        self._target = None if table is None else Target.of(table)
        self._store = PlanStore.of(self._options.store, store)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskObjects:
        assert self._store is not None
        objects = [named for rows in batches for named in _named(rows, self._column)]
        if not objects:
            return TaskObjects()
        task = _Task(self._options, self._target, self._store)
        task.run(objects, batch.digest[:12])
        reach("table-files-written")
        return task.result

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskObjects], *, row_schema: str, batch_id: int
    ) -> None:
        """What is refused is written down first: if this attempt dies behind it, the next one does not see it again."""
        _Commit(self._options, store, batch, written, batch_id).run()


def check_columns(schema: pa.Schema, column: str) -> None:
    """The rows say which objects they are. Raises OptionError."""
    for name, is_right, kind in (
        (column, pt.is_string, "STRING"),
        ("size", pt.is_int64, "BIGINT"),
        ("etag", pt.is_string, "STRING"),
    ):
        found = schema.field(name).type if name in schema.names else None
        if found is None or not (is_right(found) or (kind == "STRING" and pt.is_large_string(found))):
            raise OptionError(
                "register",
                f"needs a column {name!r} of type {kind}, and the rows have {'none' if found is None else found}; read "
                "the stream with content reference, and leave its columns size and etag in: by them it is noticed "
                "that an object was replaced",
            )


def _named(rows: pa.RecordBatch, column: str) -> Iterator[Named]:
    for uri, size, etag in zip(*(rows.column(name).to_pylist() for name in (column, "size", "etag")), strict=True):
        if uri is None:
            raise CuesqueueError(f"column {column!r} is null in a row; leave such rows out of the query")
        yield Named(uri, size, etag)


class _Task:
    """Executor: footers side by side, and then one object after the other."""

    def __init__(self, options: SinkOptions, target: Target | None, store: PlanStore) -> None:
        assert options.table is not None
        self._options, self._table, self._target, self._store = options, options.table, target, store
        self._files: TableOfFiles | None = None
        self._names: dict[Copy, Named] = {}
        self.result = TaskObjects()
        self._use(target)

    def run(self, objects: Sequence[Named], prefix: str) -> None:
        copies: list[Copy] = []
        for named, found in self._described(objects):
            if isinstance(found, BadObject):
                self._refuse(named, found)
            elif not found.rows:
                self.result.empty += 1
            else:
                copies += self._register(named, found)
        if copies:
            self._copy(copies, prefix)
        if self._files is not None:
            metadata = self._files.metadata
            self.result.table, self.result.spec_id = metadata.table_uuid, metadata.default_spec_id

    def _use(self, target: Target | None) -> None:
        self._target = target
        self._files = None if target is None else TableOfFiles(target.read()[0])

    def _described(self, objects: Sequence[Named]) -> Iterator[tuple[Named, Described | BadObject]]:
        refusals = Refusals(self._options.storage, _TRIES, lambda: [named.uri for named in objects])
        with ThreadPoolExecutor(min(THREADS, len(objects)), thread_name_prefix="cuesqueue-footers") as threads:
            found = list(threads.map(self._describe, objects))
        for named, one in zip(objects, found, strict=True):
            if isinstance(one, Described):
                refusals.was_read(named.uri)
        for named, one in zip(objects, found, strict=True):
            tries = 1
            while isinstance(one, ObjectRefused):
                one = refusals.give_up(named.uri, one, tries) or self._describe(named)
                tries += 1
            yield named, one

    def _describe(self, named: Named) -> Described | BadObject | ObjectRefused:
        try:
            with open_object(named.uri, self._options.storage) as file:
                check_unchanged(named.uri, file, file.size(), named.expected)
                return describe(file)
        except (BadObject, ObjectRefused) as error:
            return error

    def _register(self, named: Named, described: Described) -> list[Copy]:
        """Or refuse it, or return what is to be copied."""
        try:
            try:
                with _footer_may_say_anything():
                    candidate = Candidate(named.uri, described)
                table = self._prepared(candidate)
                with _footer_may_say_anything():
                    data_file = candidate.as_data_file(table)
            except BadObject as error:
                if self._table.on_unregistrable != "copy" or error.cause not in _COPIED_INSTEAD:
                    raise
                copy = Copy(named.uri, named.expected, described)
                copy.check(self._prepared(copy))
                self._names[copy] = named
                return [copy]
            self.result.registered.append((named, data_file))
        except BadObject as error:
            self._refuse(named, error)
        return []

    def _prepared(self, one: Candidate | Copy) -> TableOfFiles:
        """The table with the columns that the object has. Raises BadObject where it cannot have them."""
        partition_by = self._table.partition_by
        wanted = one.wanted(self._table.name, None if self._files is None else self._files.metadata, partition_by)
        if self._files is None or not self._files.takes(wanted):
            with self._store.open() as store:
                try:
                    table = TableMaker(self._options, by_name=True).ready(store, wanted)
                except OptionError as error:  # another task has given the table other columns meanwhile
                    if error.option not in ("table", "partitionBy"):
                        raise
                    raise BadObject("wrong-columns", error.problem.partition(";")[0]) from error
            self._use(Target.of(table))
        assert self._files is not None
        return self._files

    def _copy(self, copies: Sequence[Copy], prefix: str) -> None:
        assert self._files is not None
        assert self._target is not None
        bad: set[Copy] = set()

        def refuse(copy: Copy, error: BadObject) -> None:
            bad.add(copy)
            self._refuse(self._names[copy], error)

        rows = all_rows(copies, self._files, self._options.storage, refuse)
        self.result.copied = write_files(rows, self._files.metadata, self._target.read()[1], prefix)
        self.result.copies = len(copies) - len(bad)

    def _refuse(self, named: Named, error: BadObject) -> None:
        detail = error.detail if named.uri in error.detail else f"{named.uri!r}: {error.detail}"
        if self._table.on_unregistrable == "fail":
            raise BadObject(error.cause, detail) from error
        self.result.refused.append(Refused(named, error.cause, detail))


@contextmanager
def _footer_may_say_anything() -> Iterator[None]:
    """Also what no library has thought of, such as a year that is none: the object is bad, and not the query."""
    try:
        yield
    except CuesqueueError:
        raise
    except (ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        raise BadObject("corrupt-object", f"its footer says what cannot be: {error}") from error


class _Commit:
    """Commit process."""

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
        for named, file in (one for task in written for one in task.registered):
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
        if not self._look():
            self._record()
        files = [*(file for _, file in self._registered), *self._copied]
        brought = sum(f.record_count for f in files), sum(f.file_size_in_bytes for f in files)

        def commit(transaction: Transaction, published: Published) -> Catalog | None:
            if published.already or not files:
                return None
            catalog = self._factory.open(transaction)
            table = load_table(catalog, self._table.name)
            check_unchanged_table(table, {(task.table, task.spec_id) for task in self._written})
            marks = marks_of(transaction, self._batch, published, self._batch_id)
            if not is_delivered(table, marks):
                if self._registered and table.metadata.current_snapshot_id != self._checked:
                    raise CommitFailedException("another writer has added files that may be the same")
                counts = dict(zip(_COUNTS, map(str, (len(self._registered), self._copies)), strict=True))
                append(table, files, {**marks, **counts})
            reach("table-committed")
            return catalog

        return self._store.publish_with(self._batch.plans, commit, batch_id=self._batch_id, brought=brought)

    def _look(self) -> bool:
        """Whether the batch is in the table, or in the store. If not, what the table has already is refused."""

        def look(transaction: Transaction) -> tuple[Table | None, bool]:
            published = publishing.look(transaction, self._batch.plans, self._batch_id)
            if published.already:
                return None, True
            if (table := self._maker.find_inside(transaction)) is None:  # nothing of this batch has needed one
                return None, False
            return table, is_delivered(table, marks_of(transaction, self._batch, published, self._batch_id))

        table, is_there = self._store.database.read(look)
        if is_there or table is None:
            return is_there
        self._checked = table.metadata.current_snapshot_id
        there = self._known.among(table, {same_place(file.file_path) for _, file in self._registered})
        for named, file in self._registered:
            if same_place(file.file_path) in there:
                self._refuse(named, f"is a data file of table {self._table.name} already")
        self._registered = [one for one in self._registered if same_place(one[1].file_path) not in there]
        return False

    def _refuse(self, named: Named, problem: str) -> None:
        detail = f"{named.uri!r} {problem}; a changed object has to have a new name"
        if self._table.on_unregistrable == "fail":
            raise BadObject("already-registered", detail)
        self._refused.append(Refused(named, "already-registered", detail))

    def _record(self) -> None:
        """Raises PipelineTakenOver for a driver that was replaced: what it finds is not for it to judge."""
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
    """Errors of the plans' own objects. What is none of them, or one that is registered, is a row that was rejected."""
    free: dict[str, list[tuple[PlanIdentity, Range]]] = {}
    for plan, entry in ranges:
        free.setdefault(entry.content.uri, []).append((plan, entry))

    def take(named: Named) -> tuple[PlanIdentity, Range] | None:
        """The range that is announced as the row says; of several versions another one has another ETag."""
        left = free.get(named.uri, [])
        found = next((one for one in left if (one[1].content.size, one[1].content.etag) == named[1:]), None)
        found = found or next(iter(left), None)
        if found is not None:
            left.remove(found)
        return found

    for named in registered:
        take(named)
    records = []
    for number, one in enumerate(refused):
        found = take(one.object)
        if found is None:
            uri = one.object.uri.encode("utf-8", "surrogatepass")
            record = ErrorRecord("row", one.cause, one.detail, "", first.delivery_hash, input=uri)
            records.append(replace(record, occurrence=f"register {number}"))
            continue
        plan, entry = found
        records.append(
            ErrorRecord(
                scope="object",
                cause=one.cause,
                detail=one.detail,
                subject=entry.content.shard_id,
                plan_hash=plan.delivery_hash,
                position=entry.start,
                queue=entry.content.queue,
                message_id=entry.content.message_id,
            )
        )
    return records
