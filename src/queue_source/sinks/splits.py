"""The sink with `path`: each task writes a Parquet file (a split) that is invisible before its publication names it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from queue_source.errors import ObjectStoreError, OptionError
from queue_source.options import SinkOptions
from queue_source.options.connections import StorageOptions
from queue_source.sinks.base import Batch, Sink, check_visible
from queue_source.sinks.partitioned_files import GROUP_BYTES
from queue_source.storage.files import bucket_of, is_local, resolve
from shard_store.failpoints import reach
from shard_store.model import Split

if TYPE_CHECKING:
    from shard_store.store import ShardStore  # executors write without SQL

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
