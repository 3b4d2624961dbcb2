"""Buffers the rows of one task by partition, and writes them to Parquet files of a table. Runs in executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

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
