"""Partitions: from `partitionBy` to a table's spec, and a batch of rows to one batch for each partition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
from pyiceberg.schema import Accessor, Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from queue_source.common.columns import PartitionField as Wanted
from queue_source.errors import OptionError

_FIRST_ID = 1000
_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "identity": IdentityTransform(),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
_NUMBERS = {
    pa.date32(): pa.int32(),
    pa.time64("us"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", "UTC"): pa.int64(),
}
"""How partition values of these types are written in manifests."""


def partition_spec(schema: Schema, partition_by: Sequence[Wanted]) -> PartitionSpec:
    """Build the spec that `partitionBy` asks for. Raises OptionError for an unsuitable column or type."""
    fields: list[PartitionField] = []
    for number, field in enumerate(partition_by):
        if field.column not in schema.column_names:
            raise OptionError("partitionBy", f"there is no column {field.column!r} to partition by")
        source = schema.find_field(field.column)
        transform, suffix = _transform(field)
        if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
            raise OptionError("partitionBy", f"{field}: the column is of type {source.field_type}, which does not suit")
        fields.append(
            PartitionField(source.field_id, _FIRST_ID + number, transform, f"{field.column}{suffix}")  # Java's names
        )
    return PartitionSpec(*fields)


def _transform(field: Wanted) -> tuple[Transform[Any, Any], str]:
    if field.transform == "bucket":
        return BucketTransform(field.size), "_bucket"
    if field.transform == "truncate":
        return TruncateTransform(field.size), "_trunc"
    return _TRANSFORMS[field.transform], "" if field.transform == "identity" else f"_{field.transform}"


def check_spec(table: str, schema: Schema, spec: PartitionSpec, partition_by: Sequence[Wanted]) -> None:
    """Raise OptionError when an existing table is partitioned in another way than asked for."""
    if not partition_by:
        return
    asked = [(f.source_id, f.transform) for f in partition_spec(schema, partition_by).fields]
    if asked != [(f.source_id, f.transform) for f in spec.fields]:
        present = ", ".join(f"{f.transform} of {schema.find_column_name(f.source_id)}" for f in spec.fields)
        raise OptionError(
            "partitionBy",
            f"asks for {', '.join(map(str, partition_by))}, but {table} is partitioned by {present or 'nothing'}; "
            "leave the option out, or change the table",
        )


class Partitioner:
    """Divides batches by the spec of a table; their columns are those of its schema."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec, self._schema = spec, schema
        self._fields = [
            (
                schema.accessor_for_field(field.source_id),
                field.transform.pyarrow_transform(schema.find_type(field.source_id)),
            )
            for field in spec.fields
        ]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Yield the values and rows of each partition, copied, so that one does not keep all in memory."""
        if not self._fields:
            yield (), batch
            return
        columns = [
            as_numbers(transform(transformable(_reach(batch, accessor)))) for accessor, transform in self._fields
        ]
        keys = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.schema.names])
        keys = keys.take(order)
        begins = sorted(
            {0, *(end for column in keys.columns for end in pc.run_end_encode(column).run_ends.to_pylist())}
        )
        for begin, end in itertools.pairwise(begins):
            yield tuple(c[begin].as_py() for c in keys.columns), batch.take(order.slice(begin, end - begin))

    def key(self, values: tuple[Any, ...]) -> PartitionKey | None:
        """Return the key that names the partition in paths; None for a table without partitions."""
        if not self._fields:
            return None
        key = PartitionKey([], self._spec, self._schema)
        vars(key)["partition"] = Record(*values)  # PyIceberg derives it from one field a column; here it is known
        return key


def _reach(batch: pa.RecordBatch, accessor: Accessor) -> pa.Array:
    array = batch.column(accessor.position)
    while (inner := accessor.inner) is not None:
        accessor = inner
        array = pc.struct_field(array, accessor.position)
    return array


def transformable(array: pa.Array) -> pa.Array:
    """Cast binary columns to the type that PyIceberg's core can transform."""
    return array.cast(pa.binary()) if array.type == pa.large_binary() else array


def as_numbers(array: pa.Array) -> pa.Array:
    number = _NUMBERS.get(array.type)
    return array if number is None else array.cast(number)
