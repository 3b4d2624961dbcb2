"""`cuesqueue.published`: the files of the sink with `path`, and their rows as Arrow, without a session of Spark.

They are those of the view `data`, and so are the columns. Spark's types are converted by PySpark, which needs no Java
for it, and is imported when rows are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.formats.types import cast_exactly, fields_of, inner_types
from queue_source.options import StorageOptions, parse_view_options
from queue_source.storage.files import resolve
from shard_store.model import time_of
from shard_store.operators.views import AsOf, DataFiles
from shard_store.store import ShardStore, open_store

_COLUMNS = ("path", "rows", "bytes", "published_at", "delivery_hash", "source", "pipeline")


def published(
    store: str | ShardStore,
    *,
    pipeline: str | None = None,
    source: str | None = None,
    as_of: datetime | str | None = None,
    as_of_attempt: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Published:
    """What the sink with `path` has published, for programs without Spark: as the view `data` has it.

    It waits for publishes that are under way: on PostgreSQL and MySQL it needs the right to UPDATE the table
    `cuesqueue_pipelines`.

    Args:
        store: As in the option `storeUrl`, or an open store, which has to stay open while the result is used.
        pipeline: Only what belongs to this pipeline.
        source: Only what belongs to this source.
        as_of: Only what was published at this time; UTC where it has no zone.
        as_of_attempt: Only what was published by this attempt (a `delivery_hash`) and those before it.
        options: Options of a view that reach the files (`s3.*`, `aws.*`, `azure.*`).

    Returns:
        The files of this moment: what is published later is not among them.

    Raises:
        OptionError: An option, a name or a time is wrong.
        StoreConfigurationError: There is no such store, or no such attempt; or files of this past were joined, and
            vacuum has removed them.

    Process:
        Any, without Java.
    """
    time = as_of.isoformat() if isinstance(as_of, datetime) else as_of
    texts = {"pipeline": pipeline, "source": source, "asOf": time, "asOfAttempt": as_of_attempt, "view": "data"}
    if isinstance(store, str):
        texts["storeUrl"] = store
    given_texts = {name: text for name, text in texts.items() if text is not None}
    view = parse_view_options({**(options or {}), **given_texts})
    place = view.store.reveal() if isinstance(store, str) else store
    with _opened(place) as opened:
        files = opened.published_files(
            source=view.source, pipeline=view.pipeline, as_of=AsOf(view.as_of, view.as_of_attempt)
        )
        row_schema = opened.row_schema(view.pipeline, view.source)  # after the files: it has the columns of all of them
    return Published(place, files, row_schema, view.storage)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A Parquet file that is published. `bytes` is its size; all files of one publish have one `published_at`.

    A file that was joined from others (`cuesqueue compact`) has that of the last of them, and no `delivery_hash` where
    they are of several attempts.
    """

    path: str
    rows: int
    bytes: int
    published_at: datetime
    delivery_hash: str | None
    source: str
    pipeline: str


class Published:
    """The files that were published at one moment, in the order in which they were: the result of `published`.

    Each method has the same result until `cuesqueue prune --data-older-than` or `reset` removes a file. Files that were
    joined (`cuesqueue compact`) come after older ones; once vacuum has removed what they replaced,
    `StoreConfigurationError` refuses the moments before.
    """

    def __init__(
        self, store: str | ShardStore, files: DataFiles, row_schema: str | None, storage: StorageOptions
    ) -> None:
        self._store = store
        self._files = files
        self._row_schema = row_schema
        self._storage = storage

    @property
    def schema(self) -> pa.Schema:
        """The columns that were published last, which all rows are given: those added later are null in older files.

        Raises `OptionError` where no sink has published rows.
        """
        if self._row_schema is None:
            chosen = (("pipeline", self._files.pipeline), ("source", self._files.source))
            names = "".join(f" of {kind} {name!r}" for kind, name in chosen if name is not None)
            raise OptionError("store", f"no sink has published rows{names} to it yet, so their columns are not known")
        from pyspark.sql.types import StructType

        from queue_source.spark.process import arrow_schema

        return arrow_schema(StructType.fromJson(json.loads(self._row_schema)))

    def paths(self) -> Iterator[str]:
        """Yield the path or URI of each file. Memory holds one page of them."""
        with _opened(self._store) as store:
            yield from store.paths(self._files)

    def files(self) -> Iterator[PublishedFile]:
        """Yield each file with its numbers, and by which attempt it was published. Memory holds one page of them."""
        with _opened(self._store) as store:
            for page in store.pages("splits", files=self._files, columns=_COLUMNS):
                for path, rows, size, published_at, *names in page:
                    yield PublishedFile(path, rows, size, time_of(published_at), *names)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of all files as one table, or only these `columns`; it has to fit into memory."""
        schema = self._chosen(columns)
        return pa.Table.from_batches(read_data_files(self.paths(), schema, self._storage), schema)

    def to_batches(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return a reader of the rows, or only of these `columns`: it opens one file at a time, and is read once."""
        schema = self._chosen(columns)
        return pa.RecordBatchReader.from_batches(schema, read_data_files(self.paths(), schema, self._storage))

    def _chosen(self, columns: Sequence[str] | None) -> pa.Schema:
        schema = self.schema
        if columns is None:
            return schema
        if unknown := [name for name in columns if name not in schema.names]:
            raise OptionError("columns", f"the rows have no column {unknown[0]!r}; choose among {schema.names}")
        return pa.schema([schema.field(name) for name in columns])


@contextmanager
def _opened(store: str | ShardStore) -> Iterator[ShardStore]:
    """Yield the store; it is closed again if it was opened here."""
    if isinstance(store, ShardStore):
        yield store
        return
    with open_store(store, create=False) as opened:
        yield opened


_ROWS = 65_536


def read_data_files(paths: Iterable[str], schema: pa.Schema, storage: StorageOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files, one file after the other: an earlier one may lack columns, or have narrower ones."""
    for path in paths:
        filesystem, inner = resolve(path, storage)
        with pq.ParquetFile(inner, filesystem=filesystem) as file:
            yield from rows_of(file, path, schema)


def rows_of(file: pq.ParquetFile, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an open file, as `read_data_files`; `path` names it."""
    present = set(file.schema_arrow.names)
    # a name in another case is the same column, as to Spark
    others = {name.casefold(): name for name in present.difference(schema.names)}
    names = {name: name if name in present else others.get(name.casefold()) for name in schema.names}
    for batch in file.iter_batches(batch_size=_ROWS, columns=[name for name in names.values() if name is not None]):
        arrays = []
        for field in schema:
            if (name := names[field.name]) is None:  # a column that was added later
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(name)
            try:
                if _loses(column.type, field.type):
                    raise pa.ArrowInvalid("that would lose digits, or times of a day")
                arrays.append(cast_exactly(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise OptionError(
                    "pipeline",
                    f"column {field.name!r} of {path!r} is {column.type} and cannot be read as {field.type}, "
                    f"as published last ({error}); name the pipeline or source whose rows have one type",
                ) from error
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _loses(kind: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether Arrow converts values where some lose a part, and raises no error as it does for others.

    A driver that was started before a type became wider may publish last.
    """
    if pt.is_struct(kind) and pt.is_struct(target):
        kinds = {field.name: field.type for field in fields_of(kind)}
        return any(field.name in kinds and _loses(kinds[field.name], field.type) for field in fields_of(target))
    inner, inner_target = inner_types(kind), inner_types(target)
    if inner and len(inner) == len(inner_target):
        return any(_loses(*pair) for pair in zip(inner, inner_target, strict=True))
    if pt.is_floating(target):
        return bool(pt.is_floating(kind)) and kind.bit_width > target.bit_width
    return bool(pt.is_date(target) and pt.is_timestamp(kind))
