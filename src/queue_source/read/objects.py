"""One object, or a range of one: from its URI to Arrow batches in the declared schema, or a BadObject.

The entry of the executor side. All or nothing: no row leaves before the whole object is known to be good, where it may
be bad in its middle (`batches`). Objects that cannot be (plain text, whose bad records are reported one by one) are
streamed. Either way a worker's memory is bounded by blocks, not by the object.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import OpenObject, Part, data_schema, format_of
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.path_columns import path_columns
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.batches import all_or_nothing
from queue_source.storage.files import ObjectFile, open_object
from queue_source.storage.memory import BoundedMemory, release_memory

BATCH_ROWS = 65_536
"""Rows of the largest batch that is handed to Spark."""
_SMALL = 16 << 20
"""Bytes of an object and its rows up to which the memory that they took is kept for the next one: to give it back and
to take it anew makes reading Parquet take a third longer."""


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
) -> Iterator[pa.RecordBatch]:
    """The rows of the object (or part), in batches of exactly `schema`, none of them empty; bad records go to `bad`.

    Executor worker. `metadata` fills the column `_metadata`, if `schema` has it; path, name, size and time that it
    leaves open are filled from the object. All rows are of the version that was opened. Raises BadObject, ObjectRefused
    and ObjectReplaced before the first batch or never, and ObjectStoreError for what another try may cure.
    """
    part = part or Part()
    wanted = data_schema(schema, options)
    from_path = path_columns(uri, schema, options)
    given = is_small = False
    expected = expected or ExpectedObject()
    with open_object(uri, storage, size=expected.size) as file:
        size = file.size()
        check_unchanged(uri, file, size, expected)
        if size == 0:  # no rows in any format, as in Spark
            return
        filled = None
        if METADATA_COLUMN in schema.names:
            filled = _complete(file, size, schema, metadata or ObjectMetadata(), part)
        format = format_of(options)
        memory = BoundedMemory(format.decode_memory(options))
        rows = 0
        try:
            with memory:
                tables = format.open(OpenObject(uri, file, size, storage), part, wanted, options, bad)
                first = next(tables.rows, None)
            read = _batches(memory.each(tables.rows, first), schema, filled, from_path)
            del first
            batches = _of_one_version(read, file)
            for batch in all_or_nothing(batches, schema) if tables.may_fail_late else batches:
                rows += batch.get_total_buffer_size()
                yield batch
                given = True
            # what had to be read record by record may have taken many times its size
            is_small = size + rows <= _SMALL and not bad.count
        except NewColumns as noticed:
            noticed.where = uri
            raise
        except (BadObject, ObjectRefused, ObjectReplaced) as error:
            traceback.clear_frames(error.__traceback__)  # they hold what was read of the object
            if given:  # it changed while it was read: another try sees it from its beginning
                raise ObjectStoreError(f"{uri!r} became bad while it was read: {error}") from error
            if isinstance(error, BadObject) and not file.is_same():  # what is bad may be parts of two versions
                raise _replaced(uri) from error
            raise
        finally:
            if not is_small:
                release_memory()  # what it took is not held beside the next


def check_unchanged(uri: str, file: ObjectFile, size: int, expected: ExpectedObject) -> None:
    """Raise BadObject("object-changed") when the open object is not the one that was announced."""
    if expected.size is not None and expected.size != size:
        raise BadObject("object-changed", f"{uri!r} has {size} bytes, {expected.size} were announced")
    if expected.etag is not None and not file.is_version(expected.etag):
        etag = file.etag() or "another time"
        raise BadObject("object-changed", f"{uri!r} has the ETag {etag}, {expected.etag} was announced")


def _of_one_version(batches: Iterator[pa.RecordBatch], file: ObjectFile) -> Iterator[pa.RecordBatch]:
    """The same; the last of them leaves when it is known that no other version has been read.

    It is held back where asking is a request, so that one is enough. Raises ObjectReplaced.
    """
    if file.is_pinned:
        yield from batches
        return
    held: pa.RecordBatch | None = None
    for batch in batches:
        if file.tells_at_once:
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


def _complete(file: ObjectFile, size: int, schema: pa.Schema, known: ObjectMetadata, part: Part) -> ObjectMetadata:
    """`known`, with what the object itself says where it is silent."""
    uri = file.uri
    end = size if part.end is None else part.end
    filled = replace(
        known,
        file_path=uri if known.file_path is None else known.file_path,
        file_name=uri.rpartition("/")[2] if known.file_name is None else known.file_name,
        file_size=size if known.file_size is None else known.file_size,
        file_block_start=part.start if known.file_block_start is None else known.file_block_start,
        file_block_length=end - part.start if known.file_block_length is None else known.file_block_length,
    )
    declared = schema.field(METADATA_COLUMN).type
    if filled.file_modification_time is None and declared.get_field_index("file_modification_time") >= 0:
        filled = replace(filled, file_modification_time=file.modified())
    return filled


def _batches(
    tables: Iterator[pa.Table], schema: pa.Schema, metadata: ObjectMetadata | None, from_path: dict[str, pa.Scalar]
) -> Iterator[pa.RecordBatch]:
    """Batches of bounded size, with the columns that are the same for every row."""
    for table in tables:
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
