"""The rows of published data files, each with the columns that were published last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.errors import OptionError
from queue_source.formats.types import fields_of, inner_types
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


def _loses(kind: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether Arrow converts values where some lose a part, and raises no error as it does for others.

    A driver that was started before a type became wider may publish last.
    """
    if pt.is_struct(kind) and pt.is_struct(target):
        kinds = {field.name: field.type for field in fields_of(kind)}
        return any(field.name in kinds and _loses(kinds[field.name], field.type) for field in fields_of(target))
    inner, inner_target = inner_types(kind), inner_types(target)
    if inner and len(inner) == len(inner_target):
        return any(_loses(*pair) for pair in zip(inner, inner_target, strict=True))
    if pt.is_floating(target):
        return bool(pt.is_floating(kind)) and kind.bit_width > target.bit_width
    return bool(pt.is_date(target) and pt.is_timestamp(kind))


def _converted(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        if _loses(column.type, field.type):
            raise pa.ArrowInvalid("that would lose digits, or times of a day")
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            "pipeline",
            f"column {field.name!r} of {path!r} is {column.type} and cannot be read as {field.type}, as published "
            f"last ({error}); name the pipeline or source whose rows have one type",
        ) from error
