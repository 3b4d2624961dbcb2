"""Splits: data files of the sink with `path`, by partition, and their publication."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from queue_source.errors import ObjectStoreError, OptionError
from queue_source.options import SinkOptions
from queue_source.options.connections import StorageOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.storage.files import bucket_of, is_local, resolve
from shard_store.failpoints import reach
from shard_store.model import Split

if TYPE_CHECKING:
    from shard_store.store import ShardStore  # executors write without SQL


GROUP_BYTES = 32 << 20
"""Rows of one file that wait, in memory, to become a row group. What is read costs less where groups are few; with half
as much a task that loads needs 40 MB less."""
BUFFERED_BYTES = 64 << 20
"""Rows of one task that wait to become row groups, over all its partitions."""
OPEN_FILES = 16
"""More files than this do not wait for further rows: each holds buffers of its own."""

Values = tuple[Any, ...]
"""What a partition has in its columns; nothing where the table has no partitions."""
File = TypeVar("File")


class OpenFile(ABC, Generic[File]):
    """A Parquet file that is being written to a stream."""

    def __init__(self, stream: pa.NativeFile, writer: pq.ParquetWriter, rows_per_group: int) -> None:
        self.stream = stream
        self._writer, self._rows_per_group = writer, rows_per_group

    @property
    def size(self) -> int:
        return int(self.stream.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=self._rows_per_group)

    def finish(self) -> File:
        """Close the file for good, durably, and return what a commit needs to name it."""
        self._writer.close()
        size = self.size
        self.stream.close()
        return self._finished(size, self._writer.writer.metadata)

    @abstractmethod
    def _finished(self, size: int, footer: pq.FileMetaData) -> File: ...


class PartitionedFiles(ABC, Generic[File]):
    """Writes the largest buffer out when all together are large. A file of `file_bytes` gets no further rows."""

    def __init__(self, schema: pa.Schema, file_bytes: int) -> None:
        self._schema, self._file_bytes = schema, file_bytes
        self._buffers: dict[Values, list[pa.RecordBatch]] = {}
        self._sizes: dict[Values, int] = {}
        self._open: dict[Values, OpenFile[File]] = {}
        self._done: list[File] = []

    @abstractmethod
    def _split(self, batch: pa.RecordBatch) -> Iterable[tuple[Values, pa.RecordBatch]]:
        """Yield the values and rows of each partition, with the columns that files have."""

    @abstractmethod
    def _new_file(self, values: Values) -> OpenFile[File]: ...

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> list[File]:
        """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._write(batch)
            for values in [*self._sizes]:
                self._write_out(values)
            for values in [*self._open]:
                self._finish_file(values)
            return self._done
        finally:
            for file in self._open.values():  # after a failure: no commit will name them
                with suppress(Exception):  # another error is being raised already
                    file.stream.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        for values, rows in self._split(batch):
            self._buffers.setdefault(values, []).append(rows)
            self._sizes[values] = self._sizes.get(values, 0) + rows.nbytes
            if self._sizes[values] >= GROUP_BYTES:
                self._write_out(values)
        while sum(self._sizes.values()) >= BUFFERED_BYTES:
            self._write_out(max(self._sizes, key=self._sizes.__getitem__))

    def _write_out(self, values: Values) -> None:
        """Write the rows that wait, and finish the file where it is large, or one of too many that are open."""
        del self._sizes[values]
        rows = pa.Table.from_batches(self._buffers.pop(values), self._schema)
        if values not in self._open:
            self._open[values] = self._new_file(values)
        self._open[values].write(rows)
        if len(self._open) > OPEN_FILES or self._open[values].size >= self._file_bytes:
            self._finish_file(values)

    def _finish_file(self, values: Values) -> None:
        self._done.append(self._open[values].finish())
        del self._open[values]


_ROWS_PER_GROUP = 1_000_000


class SplitSink(Sink):
    """Publishes splits, positions and attempt in one transaction: exactly once.

    They are visible only through the store (view `data`).
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def check_place(self) -> None:
        path = self._options.path
        if is_local(path):
            _check_folder(path)
            return
        bucket = bucket_of(path)
        with suppress(OSError):  # who may only write there is refused an answer
            filesystem, inner = resolve(path, self._options.storage)
            place = filesystem.get_file_info(inner.partition("/")[0])
            if place.type is pafs.FileType.NotFound:
                raise OptionError(
                    "path", f"{path!r} cannot be written: {bucket} does not exist; create it, or mend path"
                )

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> list[Split]:
        options = self._options
        prefix = f"split-{batch.digest[:12]}"
        return write_split(batches, schema, options.path, prefix, options.compression, options.storage)

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[list[Split]], *, row_schema: str, batch_id: int
    ) -> None:
        splits = [split for task in written for split in task]
        check_visible(split.path for split in splits)
        store.publish(batch.plans, splits, row_schema=row_schema, batch_id=batch_id, winners=batch.winners)


def _check_folder(path: str) -> None:
    folder = Path(path.removeprefix("file://"))
    above = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not above.is_dir():
        raise OptionError("path", f"{path!r} cannot be written: {above} is a file; name a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OptionError("path", f"{path!r} cannot be written: {above} is not ours to write to; name another folder")


def write_split(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    folder: str,
    prefix: str,
    compression: str,
    storage: StorageOptions | None = None,
) -> list[Split]:
    """Write the rows to one file of its own name under `folder`; return it, or nothing when there were no rows.

    Runs once for each task attempt: an attempt that is not published leaves a file that no transaction names. The file
    is durable when this returns, because its publication survives a power cut.
    """
    path = f"{folder.rstrip('/')}/{prefix}-{uuid.uuid4().hex}.parquet"
    rows = 0
    writer: pq.ParquetWriter | None = None
    filesystem, inner = resolve(path, storage)
    local = is_local(path)
    try:
        for group in _row_groups(batches):
            if writer is None:
                if local:
                    filesystem.create_dir(inner.rpartition("/")[0], recursive=True)
                with _writing(path):
                    writer = pq.ParquetWriter(inner, schema, filesystem=filesystem, compression=compression)
            with _writing(path):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=_ROWS_PER_GROUP)
            rows += sum(batch.num_rows for batch in group)
            group.clear()  # or it would be held while the next one is gathered
    finally:
        if writer is not None:
            with _writing(path):
                writer.close()
    if writer is None:
        return []
    if local:
        make_durable(Path(inner))
    reach("split-written")
    return [Split(path, rows, int(filesystem.get_file_info(inner).size))]


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Say of a failure what was written: pyarrow's text of it may not."""
    try:
        yield
    except OSError as error:
        raise ObjectStoreError(f"{path!r} cannot be written: {error}; nothing of this batch is published") from error


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches that have rows, in groups of about equal size."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS_PER_GROUP or size >= GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def make_durable(file: Path) -> None:
    """Flush the file to disk, so that it survives a power cut."""
    for target in (file, file.parent):
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
