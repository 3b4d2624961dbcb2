"""Splits: data files of the sink with `path`, by partition, and their publication."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from queue_source.errors import ObjectStoreError
from queue_source.options import SinkOptions
from queue_source.options.connections import StorageOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.storage.files import check_place, resolve
from queue_source.storage.open_files import is_local
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


def short_folders(path: str, uri: str) -> str:
    """Replace names of folders that the store of a table does not take: the values of partitions are in its log.

    Without `=`: a reader that takes values from names fails, and takes no other value.
    """
    longest = 255 if is_local(uri) else 700  # bytes: a name of a file system, and most of a key of 1,024

    def short(name: str) -> str:
        return name if len(name) <= longest else hashlib.sha256(name.encode()).hexdigest()

    return "/".join(map(short, path.split("/")))


@dataclass(frozen=True, slots=True)
class OpenFile(Generic[File]):
    """A Parquet file that is being written to a stream.

    `look` is shown all rows. `finished` makes the closed file durable, and of its size and footer what a commit needs
    to name it.
    """

    path: str
    stream: pa.NativeFile
    writer: pq.ParquetWriter
    rows_per_group: int
    finished: Callable[[int, pq.FileMetaData], File]
    look: Callable[[pa.Table], None] | None = None


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Say of a failure what was written: pyarrow's text of it may not."""
    try:
        yield
    except OSError as error:
        raise ObjectStoreError(f"{path!r} cannot be written: {error}; nothing of this batch is published") from error


def grouped(rows: pa.RecordBatch, columns: Sequence[pa.Array]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows that have the same values in these columns, copied, so that some do not keep all in memory."""
    if not columns:
        yield (), rows
        return
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    encoded = [pc.dictionary_encode(column, null_encoding="encode") for column in columns]
    for column in encoded:
        _, codes = np.unique(codes * len(column.dictionary) + column.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    begins = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), rows.num_rows]
    for begin, end in itertools.pairwise(begins):
        first = int(order[begin])
        values = tuple(column.dictionary[column.indices[first].as_py()].as_py() for column in encoded)
        yield values, rows if len(begins) == 2 else rows.take(pa.array(order[begin:end]))


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
                for values, rows in self._split(batch) if batch.num_rows else ():
                    self._buffers.setdefault(values, []).append(rows)
                    self._sizes[values] = self._sizes.get(values, 0) + rows.nbytes
                    if self._sizes[values] >= GROUP_BYTES:
                        self._write_out(values)
                while sum(self._sizes.values()) >= BUFFERED_BYTES:
                    self._write_out(max(self._sizes, key=self._sizes.__getitem__))
            for values in [*self._sizes]:
                self._write_out(values)
            for values in [*self._open]:
                self._finish_file(values)
            return self._done
        finally:
            for file in self._open.values():  # after a failure: no commit names them, others may read the folder
                for opened in (file.writer, file.stream):
                    with suppress(Exception):  # another error is being raised already
                        opened.close()

    def _write_out(self, values: Values) -> None:
        """Write the rows that wait, and finish the file where it is large, or one of too many that are open."""
        del self._sizes[values]
        rows = pa.Table.from_batches(self._buffers.pop(values), self._schema)
        if values not in self._open:
            self._open[values] = self._new_file(values)
        file = self._open[values]
        if file.look is not None:
            file.look(rows)
        with writing(file.path):
            file.writer.write_table(rows, row_group_size=file.rows_per_group)
        if len(self._open) > OPEN_FILES or file.stream.tell() >= self._file_bytes:
            self._finish_file(values)

    def _finish_file(self, values: Values) -> None:
        file = self._open[values]
        with writing(file.path):
            file.writer.close()
            size = file.stream.tell()
            file.stream.close()
        self._done.append(file.finished(size, file.writer.writer.metadata))
        del self._open[values]


_ROWS_PER_GROUP = 1_000_000


class SplitSink(Sink):
    """Publishes splits, positions and attempt in one transaction: exactly once.

    They are visible only through the store (view `data`).
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def check_place(self) -> None:
        check_place("path", self._options.path, self._options.storage)

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
    return _SplitFiles(schema, f"{folder.rstrip('/')}/{prefix}", compression, storage).write_all(batches)


class _SplitFiles(PartitionedFiles[Split]):
    """One file, of any size."""

    def __init__(self, schema: pa.Schema, beginning: str, compression: str, storage: StorageOptions | None) -> None:
        super().__init__(schema, sys.maxsize)
        self._path, self._compression = f"{beginning}-{uuid.uuid4().hex}.parquet", compression
        self._filesystem, self._place = resolve(self._path, storage)

    def _split(self, batch: pa.RecordBatch) -> Iterable[tuple[Values, pa.RecordBatch]]:
        return (((), batch),)

    def _new_file(self, values: Values) -> OpenFile[Split]:
        local = Path(self._place) if is_local(self._path) else None
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
        with writing(self._path):
            stream = self._filesystem.open_output_stream(self._place)
            writer = pq.ParquetWriter(stream, self._schema, compression=self._compression)

        def finished(size: int, footer: pq.FileMetaData) -> Split:
            if local is not None:
                make_durable(local)
            reach("split-written")
            return Split(self._path, footer.num_rows, size)

        return OpenFile(self._path, stream, writer, _ROWS_PER_GROUP, finished)


def make_durable(file: Path) -> None:
    """Flush the file to disk, so that it survives a power cut."""
    for target in (file, file.parent):
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
