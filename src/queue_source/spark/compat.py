"""The differences between PySpark versions, in one place. 4.0 and 4.1 have neither limits nor AvailableNow sources."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import datasource
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from queue_source.errors import OptionError
from queue_source.options import EVERYTHING, BatchLimits

if TYPE_CHECKING:

    class AvailableNow:
        """The mixin that makes Spark call `prepareForTriggerAvailableNow`."""

    ArrowStreamWriter = datasource.DataSourceStreamWriter
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:

        class AvailableNow:
            """Stands for the mixin in Spark before 4.2, which runs AvailableNow as one batch without notice."""

    ArrowStreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

WRITES_ARROW: bool = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether a streaming writer is given Arrow batches (4.1 and later) or rows."""

_ROWS_PER_BATCH = 10_000


def default_read_limit(max_files: int) -> Any:
    """Return the limit that Spark is to give; it asks from 4.2 on, and `Trigger.Once` gives another.

    Spark has none of both files and bytes: the one of bytes stays with the source.
    """
    return importlib.import_module("pyspark.sql.streaming.datasource").ReadMaxFiles(max_files)


def given_limits(limit: object, own: BatchLimits) -> BatchLimits:
    """Return the limits of a batch: Spark's, and the source's `own` where Spark gives none."""
    if type(limit).__name__ == "ReadAllAvailable":
        return EVERYTHING
    return BatchLimits(getattr(limit, "max_files", own.files), getattr(limit, "max_bytes", own.bytes))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form that Spark requires for a source's batches: timestamps in UTC.

    OptionError if there is none.
    """
    try:
        return _arrow_schema(schema)
    except PySparkTypeError:
        for field in schema:
            try:
                _arrow_schema(StructType([field]))
            except PySparkTypeError as error:
                kind = field.dataType.simpleString()
                raise OptionError(
                    "schema", f"column {field.name!r} is of type {kind}, which cannot leave Spark as Arrow; cast it"
                ) from error
        raise


def _arrow_schema(schema: StructType) -> pa.Schema:
    if "timestamp_utc" in inspect.signature(arrow_types.to_arrow_schema).parameters:
        return arrow_types.to_arrow_schema(schema)
    return arrow_types.to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns of an Arrow schema as Spark's."""
    return arrow_types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def as_batches(iterator: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the input of a streaming writer as batches in the Arrow form of `schema`."""
    target = arrow_schema(schema)
    if WRITES_ARROW:
        for batch in iterator:
            yield _conform(batch, target)
        return
    rows = iter(iterator)
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        for batch in LocalDataToArrowConversion.convert(chunk, schema, False).to_batches():
            yield _conform(batch, target)


def _conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Conform a batch of Spark's, which has timestamps in the session's time zone, and may have large strings."""
    if batch.schema.equals(target):
        return batch
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
