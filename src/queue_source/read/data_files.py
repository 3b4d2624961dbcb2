"""The rows of published data files, each with the columns that were published last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.errors import OptionError
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import resolve

_ROWS = 65_536


def read_data_files(paths: Iterable[str], schema: pa.Schema, storage: StorageOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files, one file after the other: an earlier one may lack columns, or have narrower ones."""
    for path in paths:
        filesystem, inner = resolve(path, storage)
        with pq.ParquetFile(inner, filesystem=filesystem) as file:
            present = set(file.schema_arrow.names)
            names = [field.name for field in schema if field.name in present]
            for batch in file.iter_batches(batch_size=_ROWS, columns=names):
                arrays = [
                    _converted(batch.column(field.name), field, path)
                    if field.name in present
                    else pa.nulls(batch.num_rows, field.type)  # a column that was added later
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            "pipeline",
            f"column {field.name!r} of {path!r} is {column.type} and cannot be read as {field.type}, as published "
            f"last ({error}); name the pipeline or source whose rows have one type",
        ) from error
