"""The sink with `table` and `register`: announced Parquet objects become data files where they are (decision 0052)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, OptionError
from queue_source.options import SinkOptions
from queue_source.read.objects import check_unchanged
from queue_source.read.plan_store import PlanStore
from queue_source.read.refused import Refusals
from queue_source.sinks.base import Batch, Sink
from queue_source.sinks.iceberg.registering.data_files import Candidate, TableOfFiles, same_place
from queue_source.sinks.iceberg.registering.footers import Footer, read_footer
from queue_source.sinks.iceberg.registering.registration import Named, Refused, Registration, TaskObjects
from queue_source.sinks.iceberg.tables import TableMaker, Target
from queue_source.sinks.named_rows import check_columns
from queue_source.storage.files import open_object
from queue_source.uris import azure_uri
from shard_store.failpoints import reach
from shard_store.store import ShardStore

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
        task = _Task(self._options, self._target, self._store)
        if objects:
            task.run(objects)
            reach("table-files-written")
        return task.result

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskObjects], *, row_schema: str, batch_id: int
    ) -> None:
        """Commit; refused objects are recorded in the same transaction of the store.

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
            with open_object(named.uri, self._options.storage) as file:
                check_unchanged(named.uri, file, file.size(), named.expected)
                return read_footer(file)
        except (BadObject, ObjectRefused) as error:
            return error

    def _register(self, named: Named, footer: Footer) -> None:
        try:
            candidate = Candidate(named.uri, footer)
            table = self._prepared(candidate)
            self.result.registered.append((named, candidate.as_data_file(table)))
            self.result.targets.add(table.identity)
        except CuesqueueError:
            raise
        except (ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
            # footers may hold values that no library expects, such as year 0
            raise BadObject("corrupt-object", f"its footer says what cannot be: {error}") from error

    def _prepared(self, candidate: Candidate) -> TableOfFiles:
        """Return the table with the columns of the object. Raises BadObject where it cannot have them."""
        metadata = None if self._files is None else self._files.metadata
        columns = candidate.columns_needed(self._table.name, metadata, self._table.partition_by)
        if self._files is None or not self._files.takes(columns):
            with self._store.open() as store:
                try:
                    table = TableMaker(self._options, by_name=True).ready(store, columns)
                except OptionError as error:  # another task has given the table other columns meanwhile
                    if error.option not in ("table", "partitionBy"):
                        raise
                    raise BadObject("wrong-columns", error.problem.partition(";")[0]) from error
            self._files = TableOfFiles(table.metadata)
        return self._files
