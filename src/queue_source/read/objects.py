"""One object, or a range of one: from its URI to Arrow batches in the declared schema, or a BadObject."""

from __future__ import annotations

import itertools
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.formats.base import BadRecords, EarlierVersions, OpenObject, Part, data_schema, format_of
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column, path_columns
from queue_source.formats.new_columns import NewColumns
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.storage.files import bucket_of, open_object
from queue_source.storage.memory import BoundedMemory, release_memory
from queue_source.storage.open_files import ObjectFile

HELD_BYTES = 64 << 20
"""Bytes of rows that are held in memory until their object's end is known to be good."""
MIN_ROWS = 8_192
"""Rows from which on a batch goes by itself: each costs the JVM some 0.2 ms, however few rows are in it."""
MIN_BYTES = 4 << 20
"""Bytes from which on it does."""
_FEW = 64 << 10


def all_or_nothing(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches once the last of them is read; an error of `batches` is raised before the first.

    More than `HELD_BYTES` goes to a temporary file on local disk.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += _size(batch)
        if size > HELD_BYTES:
            break
    else:
        yield from held
        return
    with tempfile.TemporaryFile(prefix="cuesqueue-held-") as file:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(pa.PythonFile(file, "w"), schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.seek(0)
        yield from held
        held.clear()
        with pa.ipc.open_stream(pa.PythonFile(file, "r")) as reader:
            yield from reader


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, with small batches joined."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= MIN_ROWS and not held:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size += _size(batch)
        if rows >= MIN_ROWS or size >= MIN_BYTES:
            yield from _join(held)
            held, rows, size = [], 0, 0
    yield from _join(held)


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch.

    Those of a small one are the bytes of its buffers, which is 20 times as fast: its table may be small too.
    """
    buffers: int = batch.get_total_buffer_size()
    return buffers if buffers < _FEW else batch.nbytes


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


BATCH_ROWS = 65_536
"""Rows of the largest batch that is handed to Spark."""
_SMALL = 16 << 20
"""Bytes of an object and its rows up to which the memory that they took is kept for the next one: to give it back and
to take it anew makes reading Parquet take a third longer."""


Opener = Callable[[], AbstractContextManager[ObjectFile]]
"""Opens one object."""


@dataclass(frozen=True, slots=True)
class ExpectedObject:
    """The object as it was announced: size in bytes, ETag without quotes; None is not checked."""

    size: int | None = None
    etag: str | None = None


def read_object(
    uri: str,
    schema: pa.Schema,
    options: FormatOptions,
    bad: BadRecords,
    *,
    storage: StorageOptions | None = None,
    expected: ExpectedObject | None = None,
    metadata: ObjectMetadata | None = None,
    part: Part | None = None,
    opener: Opener | None = None,
    held: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the object (or part), in non-empty batches of exactly `schema`; bad records go to `bad`.

    Runs in an executor worker. `metadata` fills the column `_metadata`, if `schema` has it; missing path, name, size
    and time are filled from the object. All rows are of the version that was opened. Raises BadObject, ObjectRefused
    and ObjectReplaced before the first batch or never, and ObjectStoreError for errors that may pass.

    `held`: whether no row goes out before all are read, as of formats in which an object often turns out bad late. One
    of another format that does so is an ObjectStoreError, and bad once it is read with `held`.
    """
    part = part or Part()
    data_columns = data_schema(schema, options)
    from_path = path_columns(uri, schema, options) if options.partition_columns else {}
    has_yielded = is_small = False
    expected = expected or ExpectedObject()
    with (opener or partial(open_object, uri, storage, size=expected.size))() as file:
        size, file.until = file.size(), part.end
        check_unchanged(uri, file, expected)
        if expected.size not in (None, size):  # its store unpacks it: parts of it were planned by packed bytes
            if part.start:
                return
            part, file.until = Part(), None
        if size == 0:  # no rows in any format, as in Spark
            return
        filled = None
        if METADATA_COLUMN in schema.names:
            filled = _complete(file, file.version.stored_size, schema, metadata or ObjectMetadata(), part)
        format = format_of(options)
        memory = BoundedMemory(format.decode_memory(options))
        rows, left_out = 0, None
        try:
            while True:
                try:
                    with memory:
                        source = OpenObject(uri, file, size, storage, left_out)
                        tables = format.open(source, part, data_columns, options, bad)
                        first = next(tables.rows, None)
                    read = _batches(memory.each(tables.rows, first), schema, filled, from_path, bad)
                    del first
                    batches = _of_one_version(read, file)
                    for batch in all_or_nothing(batches, schema) if held or tables.may_fail_late else batches:
                        rows += batch.get_total_buffer_size()
                        yield batch
                        has_yielded = True
                    break
                except EarlierVersions as earlier:  # the rows of an archive are held
                    left_out = earlier.members
                    bad.forget()
                    file.seek(0)
            # parsing record by record may have taken many times its size
            is_small = size + rows <= _SMALL and not bad.count
        except NewColumns as noticed:
            noticed.where = uri
            raise
        except (BadObject, ObjectRefused, ObjectReplaced) as error:
            traceback.clear_frames(error.__traceback__)  # they hold the content of the object
            if has_yielded:  # it changed while it was read, or its end is bad: the next attempt holds its rows
                raise ObjectStoreError(
                    f"{uri!r} is bad behind rows that are on their way already: {error}; the next attempt at the batch "
                    "reads it to its end first, and leaves it out if it is still bad"
                ) from error
            if isinstance(error, BadObject) and not file.is_same():  # the bad part may be a mixture of two versions
                raise _replaced(uri) from error
            raise
        finally:
            if not is_small:
                release_memory()  # its memory is not held while the next is read


def check_unchanged(uri: str, file: ObjectFile, expected: ExpectedObject) -> None:
    """Raise BadObject("object-changed") when the open object is not the announced one.

    Where the store does not say how large it is, its ETag decides, if both sides have one.
    """
    version, expected_etag = file.version, None if expected.etag is None else expected.etag.strip('"')
    is_known = not version.tells_size and expected_etag is not None and version.etag == expected_etag
    if expected.size is not None and expected.size != version.stored_size and not is_known:
        raise BadObject("object-changed", f"{uri!r} has {version.stored_size} bytes, {expected.size} were announced")
    if expected_etag is not None and not version.is_version(expected_etag):
        etag = version.etag or "another time"
        raise BadObject("object-changed", f"{uri!r} has the ETag {etag}, {expected.etag} was announced")


def _of_one_version(batches: Iterator[pa.RecordBatch], file: ObjectFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches; the last of them once it is known that no other version has been read.

    Where checking is a request, one is enough for that. Raises ObjectReplaced.
    """
    if file.version.is_pinned:
        yield from batches
        return
    held: pa.RecordBatch | None = None
    for batch in batches:
        if file.version.tells_at_once:
            if not file.is_same():
                raise _replaced(file.uri)
            yield batch
            continue
        if held is not None:
            yield held
        held = batch
    if not file.is_same():
        raise _replaced(file.uri)
    if held is not None:
        yield held


def _replaced(uri: str) -> ObjectReplaced:
    return ObjectReplaced(f"{uri!r} was written to while it was read; announce objects when they are complete")


def _complete(file: ObjectFile, size: int, schema: pa.Schema, announced: ObjectMetadata, part: Part) -> ObjectMetadata:
    """Return `announced`, with missing facts filled from the object itself."""
    uri = file.uri
    end = size if part.end is None else part.end
    filled = replace(
        announced,
        file_path=uri if announced.file_path is None else announced.file_path,
        file_name=uri.rpartition("/")[2] if announced.file_name is None else announced.file_name,
        file_size=size if announced.file_size is None else announced.file_size,
        file_block_start=part.start if announced.file_block_start is None else announced.file_block_start,
        file_block_length=end - part.start if announced.file_block_length is None else announced.file_block_length,
    )
    declared = schema.field(METADATA_COLUMN).type
    if filled.file_modification_time is None and declared.get_field_index("file_modification_time") >= 0:
        filled = replace(filled, file_modification_time=file.modified())
    return filled


def _batches(
    tables: Iterator[pa.Table],
    schema: pa.Schema,
    metadata: ObjectMetadata | None,
    from_path: dict[str, pa.Scalar],
    bad: BadRecords,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of bounded size, with the columns that are the same for every row of an object, or member."""
    for table in tables:
        if metadata is not None:
            metadata = replace(metadata, archive_member=bad.member)
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            if batch.num_rows == 0:
                continue
            if metadata is None and not from_path:
                yield batch
                continue
            data = iter(batch.columns)
            columns = []
            for field in schema:
                if metadata is not None and field.name == METADATA_COLUMN:
                    columns.append(metadata_column(field.type, [metadata], batch.num_rows))
                elif field.name in from_path:
                    columns.append(pa.repeat(from_path[field.name], batch.num_rows))
                else:
                    columns.append(next(data))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before a next try, for all refused objects of a task together: what was just permitted takes a while."""

PROBES = 256
"""How many other objects of a bucket are tried, at most: nearly all of a plan may be forbidden."""

_Item = TypeVar("_Item")


class Refusals:
    """The refused objects of one task.

    `others`: URIs that may be readable, the likeliest ones first; used when nothing of the bucket was read yet.
    `fails`: no object is tried again, since the first bad one ends the query.
    """

    def __init__(
        self, storage: StorageOptions, max_attempts: int, others: Callable[[], Iterable[str]], *, fails: bool = False
    ) -> None:
        self._storage = storage
        self._max_attempts = max_attempts
        self._others = others
        self._fails = fails
        self._pauses = iter(PAUSES)
        self._known: list[str] | None = None
        self._read: dict[str, str] = {}

    def read(self, uri: str, read: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
        """Yield what `read` yields; it is called again where the object is refused, or replaced, before the first item.

        Raises BadObject for what is given up, and for what is never the same for one reading.
        """
        for tries in itertools.count(1):
            try:
                yield from read()
                self.was_read(uri)
                return
            except ObjectReplaced as error:  # the next try reads the present version
                if tries >= self._max_attempts:
                    raise BadObject("object-changed", f"{error} (after {tries} tries)") from error
            except ObjectRefused as refused:
                if (bad := self.give_up(uri, refused, tries)) is not None:
                    raise bad from refused

    def was_read(self, uri: str) -> None:
        """Remember the object as the likeliest one of its bucket to be readable."""
        self._read[bucket_of(uri)] = uri

    def give_up(self, uri: str, refused: ObjectRefused, tries: int) -> BadObject | None:
        """Return the verdict after so many tries, or None for another try. Waits a moment, in which a refusal may pass.

        Raises ObjectStoreError when everything may be refused.
        """
        if self._fails and refused.cause == "forbidden-object":
            return BadObject(refused.cause, str(refused))
        if tries < self._max_attempts:
            time.sleep(next(self._pauses, 0.0))
            return None
        # credentials may have ended during the task: whether another object of the bucket can be read is tried now
        bucket = bucket_of(uri)
        read = self._read.get(bucket)
        if refused.own or (read is not None and read != uri and self._can_be_read(read)):
            return BadObject(refused.cause, f"{refused} (after {tries} tries)")
        if self._known is None:
            self._known = list(self._others())
        others = (other for other in self._known if other not in (uri, read) and bucket_of(other) == bucket)
        readable = next(filter(self._can_be_read, itertools.islice(others, PROBES)), None)
        if readable is not None:
            self.was_read(readable)
            return BadObject(refused.cause, f"{refused} (after {tries} tries)")
        raise ObjectStoreError(
            f"{refused}, after {tries} tries, and nothing else of {bucket_of(uri)} could be read: if that is wrong, "
            "correct the credentials or the permissions; if it is right, send the query a message that announces an "
            "object of it that can be read, or take this one out with `cuesqueue shards quarantine`"
        ) from refused

    def _can_be_read(self, uri: str) -> bool:
        try:
            with open_object(uri, self._storage) as file:
                file.read(1)  # the size of an archived object is reported even so
        except (BadObject, ObjectStoreError):
            return False
        return True
