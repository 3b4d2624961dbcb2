"""Writes the rows of one task to Parquet files of a Delta table. Runs in executors, without delta-rs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.errors import CuesqueueError
from queue_source.options.connections import StorageOptions
from queue_source.sinks.delta.nulls import check_nulls
from queue_source.sinks.delta.partitions import check_partition, folder_of, split
from queue_source.sinks.delta.schemas import DeltaField, arrow_type
from queue_source.sinks.delta.statistics import Statistics
from queue_source.sinks.splits import make_durable
from queue_source.storage.files import is_local, resolve

BUFFERED_BYTES = 128 * 1024 * 1024
"""Rows of one task that wait to become row groups, over all its partitions."""
OPEN_FILES = 16
"""More files than this do not wait for further rows: each holds buffers of its own."""
FILE_BYTES = 512 * 1024 * 1024
"""A file of this size gets no further rows."""
_ROWS_PER_GROUP = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What tasks need to know of the table."""

    uri: str
    table_id: str
    fields: tuple[DeltaField, ...]
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
    writer = _TableWriter(schema, target, prefix, compression, storage)
    try:
        for batch in batches:
            writer.write(batch)
        return TaskFiles(target, writer.finish())
    finally:
        writer.abandon()


class _TableWriter:
    """Buffers rows by partition, and writes the largest buffer out when all together are large."""

    def __init__(
        self, schema: pa.Schema, target: Target, prefix: str, compression: str, storage: StorageOptions
    ) -> None:
        self._target, self._prefix, self._compression, self._storage = target, prefix, compression, storage
        # columns that the rows lack are not in the files either: to readers they are null
        self._fields = [field for field in target.fields if field["name"] in schema.names]
        in_files = [field for field in self._fields if field["name"] not in target.partition_by]
        self._in_files = in_files
        self._schema = pa.schema([(field["name"], arrow_type(field["type"])) for field in in_files])
        self._buffers: dict[tuple[str | None, ...], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str | None, ...], int] = {}
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for values, rows in split(conform(batch, self._fields), self._partition_columns):
            self._buffers.setdefault(values, []).append(rows)
            self._sizes[values] = self._sizes.get(values, 0) + rows.nbytes
        while sum(self._sizes.values()) >= BUFFERED_BYTES:
            values = max(self._sizes, key=self._sizes.__getitem__)
            self._write_out(values)
            if len(self._open) > OPEN_FILES or self._open[values].size >= FILE_BYTES:
                self._finish_file(values)

    @property
    def _partition_columns(self) -> Sequence[str]:
        names = {field["name"] for field in self._fields}
        return [name for name in self._target.partition_by if name in names]

    def finish(self) -> list[DataFile]:
        for values in [*self._sizes]:
            self._write_out(values)
            self._finish_file(values)
        for values in [*self._open]:
            self._finish_file(values)
        return self._done

    def abandon(self) -> None:
        """Close open files after a failure: no commit will name them. Does nothing after `finish`."""
        for file in self._open.values():
            with suppress(Exception):  # another error is being raised already
                file.stream.close()
        self._open.clear()

    def _write_out(self, values: tuple[str | None, ...]) -> None:
        del self._sizes[values]
        rows = pa.Table.from_batches(self._buffers.pop(values), self._schema)
        file = self._open.get(values)
        if file is None:
            by_name = dict(zip(self._partition_columns, values, strict=True))
            partition = {name: by_name.get(name) for name in self._target.partition_by}
            check_partition(self._target.fields, partition)
            path = f"{folder_of(partition)}{self._prefix}-{uuid.uuid4().hex}.parquet"
            statistics = Statistics(self._in_files, self._target.configuration)
            filesystem, place = resolve(f"{self._target.uri}/{path}", self._storage)
            if is_local(self._target.uri):
                filesystem.create_dir(str(PurePosixPath(place).parent), recursive=True)
            stream = filesystem.open_output_stream(place)
            file = self._open[values] = _OpenFile(stream, path, partition, self._schema, statistics, self._compression)
        file.write(rows)

    def _finish_file(self, values: tuple[str | None, ...]) -> None:
        file = self._open[values].finish()
        del self._open[values]
        if is_local(self._target.uri):
            self._make_durable(file.path)
        self._done.append(file)

    def _make_durable(self, path: str) -> None:
        """Flush a local file, and the names of its folders inside of the table, which may be new."""
        _, place = resolve(f"{self._target.uri}/{path}", self._storage)
        file = Path(place)
        for part in (file, *list(file.parents)[: path.count("/")]):
            make_durable(part)


class _OpenFile:
    """A Parquet file that is being written to a stream."""

    def __init__(
        self,
        stream: pa.NativeFile,
        path: str,
        partition: Mapping[str, str | None],
        schema: pa.Schema,
        statistics: Statistics,
        compression: str,
    ) -> None:
        self.stream = stream
        self._path, self._partition, self._statistics = path, partition, statistics
        # without Arrow's own schema: it would make readers give large strings
        self._writer = pq.ParquetWriter(stream, schema, compression=compression, store_schema=False)

    @property
    def size(self) -> int:
        return int(self.stream.tell())

    def write(self, rows: pa.Table) -> None:
        self._statistics.add(rows)
        self._writer.write_table(rows, row_group_size=_ROWS_PER_GROUP)

    def finish(self) -> DataFile:
        """Close the file for good, and return what a commit needs to name it."""
        self._writer.close()
        size = self.size
        self.stream.close()
        footer = self._writer.writer.metadata
        modified = int(time.time() * 1000)
        return DataFile(self._path, size, self._partition, footer.num_rows, modified, self._statistics.text(footer))


def conform(batch: pa.RecordBatch, fields: Sequence[DeltaField]) -> pa.RecordBatch:
    """Return the batch with these columns of a table, in the table's types."""
    columns = []
    for field in fields:
        column, kind = batch.column(field["name"]), arrow_type(field["type"])
        if not column.type.equals(kind):
            try:
                column = column.cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise CuesqueueError(
                    f"column {field['name']!r} of the Delta table is of type {kind}, and rows hold {column.type}, "
                    f"which cannot be written as that: {error}"
                ) from error
        check_nulls(field, column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, [field["name"] for field in fields])
