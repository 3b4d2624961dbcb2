"""Writes the rows of one task to Parquet files of a Delta table. Runs in executors, without delta-rs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.errors import CuesqueueError
from queue_source.options.connections import StorageOptions
from queue_source.sinks.delta.partitions import check_partition, folder_of, split
from queue_source.sinks.delta.schemas import check_nulls
from queue_source.sinks.delta.statistics import Statistics
from queue_source.sinks.partitioned_files import OpenFile, PartitionedFiles, Values
from queue_source.sinks.splits import make_durable
from queue_source.storage.files import is_local, resolve

FILE_BYTES = 512 * 1024 * 1024
"""A file of this size gets no further rows."""
_ROWS_PER_GROUP = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What tasks need to know of the table.

    Attributes:
        schema: The columns of the table, and what must not be null.
        columns: Those that can be filled here, in the types in which they are written, which may all be null.
    """

    uri: str
    table_id: str
    schema: pa.Schema
    columns: pa.Schema
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that no commit names yet. `path` counts from the table's folder; `modified` in milliseconds."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    rows: int
    modified: int
    statistics: str


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files that one task wrote, and the table for which it wrote them."""

    target: Target
    files: list[DataFile]


def write_files(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    target: Target,
    prefix: str,
    compression: str,
    storage: StorageOptions,
) -> TaskFiles:
    """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
    return TaskFiles(target, _TableFiles(schema, target, prefix, compression, storage).write_all(batches))


class _TableFiles(PartitionedFiles[DataFile]):
    def __init__(
        self, schema: pa.Schema, target: Target, prefix: str, compression: str, storage: StorageOptions
    ) -> None:
        self._target, self._prefix, self._compression, self._storage = target, prefix, compression, storage
        # columns that the rows lack are not in the files either: to readers they are null
        self._columns = [column for column in target.columns if column.name in schema.names]
        self._partition_columns = [name for name in target.partition_by if name in schema.names]
        in_files = [column for column in self._columns if column.name not in target.partition_by]
        super().__init__(pa.schema(in_files), FILE_BYTES)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        return split(self._conform(batch), self._partition_columns)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns of the table, in its types."""
        arrays = []
        for column in self._columns:
            values = batch.column(column.name)
            if not values.type.equals(column.type):
                try:
                    values = values.cast(column.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                    raise CuesqueueError(
                        f"column {column.name!r} of the Delta table is of type {column.type}, and rows hold "
                        f"{values.type}, which cannot be written as that: {error}"
                    ) from error
            check_nulls(self._target.schema.field(column.name), values)
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, [column.name for column in self._columns])

    def _new_file(self, values: Values) -> _OpenFile:
        by_name = dict(zip(self._partition_columns, values, strict=True))
        partition = {name: by_name.get(name) for name in self._target.partition_by}
        check_partition(self._target.schema, partition)
        path = f"{folder_of(partition)}{self._prefix}-{uuid.uuid4().hex}.parquet"
        statistics = Statistics(self._schema, self._target.configuration)
        filesystem, place = resolve(f"{self._target.uri}/{path}", self._storage)
        local = Path(place) if is_local(self._target.uri) else None
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
        stream = filesystem.open_output_stream(place)
        return _OpenFile(stream, path, local, partition, self._schema, statistics, self._compression)


class _OpenFile(OpenFile[DataFile]):
    def __init__(
        self,
        stream: pa.NativeFile,
        path: str,
        local: Path | None,
        partition: Mapping[str, str | None],
        schema: pa.Schema,
        statistics: Statistics,
        compression: str,
    ) -> None:
        # without Arrow's own schema: it would make readers give large strings
        writer = pq.ParquetWriter(stream, schema, compression=compression, store_schema=False)
        super().__init__(stream, writer, _ROWS_PER_GROUP)
        self._path, self._local, self._partition, self._statistics = path, local, partition, statistics

    def write(self, rows: pa.Table) -> None:
        self._statistics.add(rows)
        super().write(rows)

    def _finished(self, size: int, footer: pq.FileMetaData) -> DataFile:
        if self._local is not None:  # with the names of its folders inside of the table, which may be new
            for part in (self._local, *list(self._local.parents)[: self._path.count("/")]):
                make_durable(part)
        modified = int(time.time() * 1000)
        return DataFile(self._path, size, self._partition, footer.num_rows, modified, self._statistics.text(footer))
