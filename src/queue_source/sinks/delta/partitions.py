"""Partitions of a Delta table: a batch of rows as one batch for each, and how values are written in log and paths."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.errors import CuesqueueError, OptionError
from queue_source.formats.types import is_plain
from queue_source.sinks.delta.schemas import text_of

_NULL = "__HIVE_DEFAULT_PARTITION__"


def check_partitioning(table: str, fields: Iterable[pa.Field], partition_by: Sequence[str], *, new: bool) -> None:
    """Raise OptionError for columns by which the table cannot be partitioned, or whose values cannot be written."""
    types = {field.name: field.type for field in fields}
    for name in partition_by:
        if name not in types:
            raise OptionError("partitionBy", f"there is no column {name!r} to partition by")
        kind = types[name]
        # deltalake 1.6 cannot read decimals between -1 and 0 with pyarrow
        unfit = pt.is_floating(kind) or pt.is_binary(kind) or (new and pt.is_decimal(kind))
        if unfit or not is_plain(kind):
            raise OptionError(
                "partitionBy" if new else "delta",
                f"column {name!r} of {table} is of type {text_of(kind)}, by which this sink writes no partitions; "
                f"{'leave it out' if new else 'name another table'}",
            )
    if new and len(partition_by) == len(types):
        raise OptionError("partitionBy", "names all columns, and files would have none; leave one out")


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the values, as the table's log has them, and the rows of each partition, without its columns."""
    if not columns:
        yield (), batch
        return
    rows = batch.select([name for name in batch.schema.names if name not in columns])
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    encoded = [pc.dictionary_encode(batch.column(name), null_encoding="encode") for name in columns]
    for column in encoded:
        _, codes = np.unique(codes * len(column.dictionary) + column.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), batch.num_rows]
    for begin, end in itertools.pairwise(begins):
        first = int(order[begin])
        values = tuple(_text(column.dictionary[column.indices[first].as_py()].as_py()) for column in encoded)
        some = order[begin:end]  # copied, so that one partition does not keep all in memory
        yield values, rows if len(begins) == 2 else rows.take(pa.array(some))


def _text(value: Any) -> str | None:
    """Return a value as the protocol of Delta writes it. It has no empty text: that is null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return text if value.tzinfo is None else f"{text.replace(' ', 'T')}Z"  # else readers take it as local time
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def check_partition(fields: Iterable[pa.Field], values: Mapping[str, str | None]) -> None:
    """Raise CuesqueueError for an empty text in a column that must not be null."""
    for field in fields:
        if not field.nullable and values.get(field.name, "") is None:
            raise CuesqueueError(
                f"column {field.name!r} of the Delta table must not be null, and rows hold an empty text in it, "
                "which a partition of Delta cannot tell from null"
            )


def folder_of(values: Mapping[str, str | None]) -> str:
    """Return the folder of a partition, as Hive names it: some readers look there, and not in the table's log."""
    return "".join(f"{quote(name, safe='')}={quote(value or _NULL, safe='')}/" for name, value in values.items())
