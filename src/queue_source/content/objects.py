"""One object, whole: from its URI to Arrow batches in the declared schema, or a BadObject.

The entry of the executor side. All or nothing: `load_object` returns when every row is known to be good. The formats
take lines (or row groups) at a time, so that ranges of objects can be read by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from queue_source.content.csv_lines import read_csv
from queue_source.content.files import ObjectFile, StorageOptions, open_object, stat_object
from queue_source.content.formats import FormatOptions, data_schema
from queue_source.content.json_lines import read_json
from queue_source.content.line_data import decompress
from queue_source.content.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column
from queue_source.content.parquet import read_parquet
from queue_source.errors import BadObject

BATCH_ROWS = 65_536
"""Rows of the largest batch that is handed to Spark."""


@dataclass(frozen=True, slots=True)
class ExpectedObject:
    """The object as it was announced: size in bytes, ETag without quotes; None is not checked."""

    size: int | None = None
    etag: str | None = None


def load_object(
    uri: str,
    schema: pa.Schema,
    options: FormatOptions,
    *,
    storage: StorageOptions | None = None,
    expected: ExpectedObject | None = None,
    metadata: ObjectMetadata | None = None,
) -> list[pa.RecordBatch]:
    """Every row of the object, in batches of exactly `schema`; no batch is empty, an empty object has none.

    Executor worker. `metadata` fills the column `_metadata`, if `schema` has it; path, name, size and time that it
    leaves open are filled from the object. Raises BadObject (`missing-object`, `object-changed`, `corrupt-object`,
    `wrong-columns`), and ObjectStoreError for what another try may cure.
    """
    wanted = data_schema(schema)
    with open_object(uri, storage) as file:
        size = file.size()
        _check_unchanged(uri, file, size, expected or ExpectedObject())
        table = _read(uri, file, size, wanted, options)
    filled = None
    if METADATA_COLUMN in schema.names:
        filled = _complete(uri, size, schema, storage, metadata or ObjectMetadata())
    return list(_batches(table, schema, filled))


def _read(uri: str, file: ObjectFile, size: int, schema: pa.Schema, options: FormatOptions) -> pa.Table:
    if size == 0:
        return schema.empty_table()
    if options.file_format == "parquet":
        return read_parquet(file, schema, options)
    data = file.read()
    if len(data) != size:
        raise BadObject("object-changed", f"{uri!r}: {len(data)} bytes were read of {size}")
    read = read_csv if options.file_format == "csv" else read_json
    return read(decompress(data, uri), schema, options)


def _check_unchanged(uri: str, file: ObjectFile, size: int, expected: ExpectedObject) -> None:
    if expected.size is not None and expected.size != size:
        raise BadObject("object-changed", f"{uri!r} has {size} bytes, {expected.size} were announced")
    if expected.etag is None:
        return
    etag = file.etag()
    if etag is not None and etag != expected.etag.strip('"'):
        raise BadObject("object-changed", f"{uri!r} has the ETag {etag}, {expected.etag} was announced")


def _complete(
    uri: str, size: int, schema: pa.Schema, storage: StorageOptions | None, known: ObjectMetadata
) -> ObjectMetadata:
    """`known`, with what the object itself tells where it is silent."""
    filled = replace(
        known,
        file_path=uri if known.file_path is None else known.file_path,
        file_name=uri.rpartition("/")[2] if known.file_name is None else known.file_name,
        file_size=size if known.file_size is None else known.file_size,
        file_block_start=0 if known.file_block_start is None else known.file_block_start,
        file_block_length=size if known.file_block_length is None else known.file_block_length,
    )
    declared = schema.field(METADATA_COLUMN).type
    if filled.file_modification_time is None and declared.get_field_index("file_modification_time") >= 0:
        filled = replace(filled, file_modification_time=stat_object(uri, storage).modified)
    return filled


def _batches(table: pa.Table, schema: pa.Schema, metadata: ObjectMetadata | None) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        if batch.num_rows == 0:
            continue
        if metadata is None:
            yield batch
            continue
        declared = schema.field(METADATA_COLUMN).type
        data = iter(batch.columns)
        columns = [
            metadata_column(declared, metadata, batch.num_rows) if name == METADATA_COLUMN else next(data)
            for name in schema.names
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
