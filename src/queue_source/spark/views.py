"""Batch views of the store: `data` (the published rows), and its tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queue_source.common.logs import one_line_errors
from queue_source.errors import OptionError
from queue_source.options import ViewOptions
from queue_source.read.partitions import PlanStore
from queue_source.spark.process import arrow_schema
from queue_source.spark.published import read_data_files
from shard_store.operators.views import BY_SHARD, VIEWS, AsOf, DataFiles, KeyRange
from shard_store.store import open_store

_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "integer": LongType(),
    "time": TimestampType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
}
_PARTITION_BYTES = 128 * 1024 * 1024
_PARTITION_SHARDS = 250_000


@dataclass
class ViewPartition(InputPartition):
    """A table of `store`, read page by page by one task, or a range of it.

    For view `data` some of the files, listed by their task.
    """

    store: PlanStore
    files: DataFiles | None = None
    keys: KeyRange | None = None


def view_schema(options: ViewOptions) -> StructType:
    """Return the columns of a view; those of `data` are what the sink published last."""
    if options.view != "data":
        return StructType([StructField(c.name, _TYPES[c.kind], True) for c in VIEWS[options.view]])
    with open_store(options.store.reveal(), create=False) as store:
        text = store.row_schema(options.pipeline, options.source)
    if text is None:
        raise OptionError("view", "no sink has published rows to this store yet, so view 'data' has no columns")
    return StructType.fromJson(json.loads(text))


class CuesqueueViewReader(DataSourceReader):
    """Reads a view as it is when its partitions are planned; of a table, the columns of `schema`.

    A declared schema that is no choice of the view's columns is refused: OptionError.
    """

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        if options.view == "data":
            return
        kinds = {column.name: _TYPES[column.kind] for column in VIEWS[options.view]}
        for field in schema:
            if kinds.get(field.name) != field.dataType:
                has = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
                raise OptionError(
                    "schema",
                    f"view {options.view!r} has no column {field.name} {field.dataType.simpleString()}; leave the "
                    f"schema out, or choose among: {has}",
                )

    @one_line_errors()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        as_of = AsOf(options.as_of, options.as_of_attempt)
        with open_store(options.store.reveal(), create=False) as store:
            own = PlanStore.of(options.store, store)
            if options.view in BY_SHARD:
                return [ViewPartition(own, keys=keys) for keys in store.key_ranges(_PARTITION_SHARDS)]
            if options.view != "data":
                return [ViewPartition(own)]
            files = store.data_files(_PARTITION_BYTES, source=options.source, pipeline=options.pipeline, as_of=as_of)
        return [ViewPartition(own, part) for part in files or [DataFiles(1, 0, 0)]]  # Spark wants one partition

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ViewPartition)
        with one_line_errors(), partition.store.open() as store:
            schema = arrow_schema(self._schema)
            if partition.files is not None:
                yield from read_data_files(store.paths(partition.files), schema, self._options.storage)
                return
            options = self._options
            for page in store.pages(
                options.view,
                source=options.source,
                pipeline=options.pipeline,
                as_of=AsOf(options.as_of, options.as_of_attempt),
                keys=partition.keys,
                columns=self._schema.names,
            ):
                columns = zip(*page, strict=True)
                arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else bool(v) for v in values], kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_string(kind):  # ids may hold what UTF-8 cannot encode
        return pa.array([None if v is None else str(v).encode("utf-8", "replace").decode() for v in values], kind)
    return pa.array(values, kind)
