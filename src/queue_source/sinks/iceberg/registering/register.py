"""The sink with `table` and `register`: announced Parquet objects become data files where they are (decision 0052)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa

from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, OptionError
from queue_source.options import SinkOptions
from queue_source.read.objects import check_unchanged
from queue_source.read.plan_store import PlanStore
from queue_source.read.refused import Refusals
from queue_source.sinks.base import Batch, Sink
from queue_source.sinks.iceberg.files import write_files
from queue_source.sinks.iceberg.registering.candidates import Candidate, TableOfFiles, same_place
from queue_source.sinks.iceberg.registering.copying import Copy, all_rows
from queue_source.sinks.iceberg.registering.footers import Described, describe
from queue_source.sinks.iceberg.registering.objects import Named, Refused, TaskObjects
from queue_source.sinks.iceberg.registering.registration import Registration
from queue_source.sinks.iceberg.tables import TableMaker, Target
from queue_source.sinks.named_rows import check_columns
from queue_source.storage.files import open_object
from queue_source.uris import azure_uri
from shard_store.failpoints import reach
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

THREADS = 16
"""Footers that a task asks for at the same time: each takes two or three answers of a store."""
_TRIES = 3
_COPIED_INSTEAD = frozenset({"wrong-columns", "wrong-partition", "unsupported-key"})
"""Causes for which the rows of an object can still be read."""


class RegisteringSink(Sink):
    """Registers objects: table, positions and attempt in one transaction, exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.table is not None
        assert options.table.register is not None
        self._options, self._table, self._column = options, options.table, options.table.register
        self._target: Target | None = None
        self._store: PlanStore | None = None

    def prepare(self, store: ShardStore, schema: pa.Schema) -> None:
        """Check the rows' columns, and prepare the table, if it exists.

        An absent table is made by the first task that knows its columns.
        """
        check_columns(schema, "register", self._column)
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
        """Record refused objects, then commit: if this attempt dies in between, the next one skips them.

        Before all else the objects are kept from `cleanSource` of any source (invariant 15).
        """
        places = {same_place(named.uri) for task in written for named, _ in task.registered}
        if places:
            store.note_registered({azure_uri(place) or place for place in places})
        Registration(self._options, store, batch, written, batch_id).run()


def _named(rows: pa.RecordBatch, column: str) -> Iterator[Named]:
    for uri, size, etag in zip(*(rows.column(name).to_pylist() for name in (column, "size", "etag")), strict=True):
        if uri is None:
            raise CuesqueueError(f"column {column!r} is null in a row; leave such rows out of the query")
        yield Named(uri, size, etag)


class _Task:
    """The work of one executor task: reads footers in parallel, then handles one object after the other."""

    def __init__(self, options: SinkOptions, target: Target | None, store: PlanStore) -> None:
        assert options.table is not None
        self._options, self._table, self._target, self._store = options, options.table, target, store
        self._files: TableOfFiles | None = None
        self._names: dict[Copy, Named] = {}
        self.result = TaskObjects()
        self._use(target)

    def run(self, objects: Sequence[Named], prefix: str) -> None:
        copies: list[Copy] = []
        refusals = Refusals(self._options.storage, _TRIES, lambda: [named.uri for named in objects])
        for named, described in self._described(objects, refusals):
            if isinstance(described, BadObject):
                self._refuse(named, described)
            elif not described.rows:
                self.result.empty += 1
            else:
                copies += self._register(named, described)
        if copies:
            self._copy(copies, prefix, refusals)

    def _use(self, target: Target | None) -> None:
        self._target = target
        self._files = None if target is None else TableOfFiles(target.read()[0])

    def _described(self, objects: Sequence[Named], refusals: Refusals) -> Iterator[tuple[Named, Described | BadObject]]:
        with ThreadPoolExecutor(min(THREADS, len(objects)), thread_name_prefix="cuesqueue-footers") as threads:
            results = list(threads.map(self._describe, objects))
        for named, result in zip(objects, results, strict=True):
            if isinstance(result, Described):
                refusals.was_read(named.uri)
        for named, result in zip(objects, results, strict=True):
            tries = 1
            while isinstance(result, ObjectRefused):
                result = refusals.give_up(named.uri, result, tries) or self._describe(named)
                tries += 1
            yield named, result

    def _describe(self, named: Named) -> Described | BadObject | ObjectRefused:
        try:
            with open_object(named.uri, self._options.storage) as file:
                check_unchanged(named.uri, file, file.size(), named.expected)
                return describe(file)
        except (BadObject, ObjectRefused) as error:
            return error

    def _register(self, named: Named, described: Described) -> list[Copy]:
        """Register the object, or refuse it, or return its copy."""
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
            self.result.targets.add(table.identity)
        except BadObject as error:
            self._refuse(named, error)
        return []

    def _prepared(self, candidate: Candidate | Copy) -> TableOfFiles:
        """Return the table with the columns of the object. Raises BadObject where it cannot have them."""
        partition_by = self._table.partition_by
        columns = candidate.columns_needed(
            self._table.name, None if self._files is None else self._files.metadata, partition_by
        )
        if self._files is None or not self._files.takes(columns):
            with self._store.open() as store:
                try:
                    table = TableMaker(self._options, by_name=True).ready(store, columns)
                except OptionError as error:  # another task has given the table other columns meanwhile
                    if error.option not in ("table", "partitionBy"):
                        raise
                    raise BadObject("wrong-columns", error.problem.partition(";")[0]) from error
            self._use(Target.of(table))
        assert self._files is not None
        return self._files

    def _copy(self, copies: Sequence[Copy], prefix: str, refusals: Refusals) -> None:
        assert self._files is not None
        assert self._target is not None
        bad: set[Copy] = set()

        def refuse(copy: Copy, error: BadObject) -> None:
            bad.add(copy)
            self._refuse(self._names[copy], error)

        rows = all_rows(copies, self._files, self._options.storage, refusals, refuse)
        self.result.copied = write_files(rows, self._files.metadata, self._target.read()[1], prefix)
        self.result.copies = len(copies) - len(bad)
        self.result.targets.add(self._files.identity)

    def _refuse(self, named: Named, error: BadObject) -> None:
        detail = error.detail if named.uri in error.detail else f"{named.uri!r}: {error.detail}"
        if self._table.on_unregistrable == "fail":
            raise BadObject(error.cause, detail) from error
        self.result.refused.append(Refused(named, error.cause, detail))


@contextmanager
def _footer_may_say_anything() -> Iterator[None]:
    """Map any error of the block to a bad object: footers may hold values that no library expects, such as year 0."""
    try:
        yield
    except CuesqueueError:
        raise
    except (ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        raise BadObject("corrupt-object", f"its footer says what cannot be: {error}") from error
