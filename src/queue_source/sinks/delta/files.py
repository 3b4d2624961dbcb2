"""Writes the data files of a Delta table, by partition, with the statistics that its readers prune by."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.errors import CuesqueueError, OptionError
from queue_source.formats.types import is_bytes, is_plain, is_text
from queue_source.options.connections import StorageOptions
from queue_source.sinks.delta.schemas import check_nulls, parts, text_of
from queue_source.sinks.splits import OpenFile, PartitionedFiles, Values, grouped, make_durable, short_folders, writing
from queue_source.storage.files import resolve
from queue_source.storage.open_files import is_local

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


_MOST_DAYS = 95_000_000
"""From 1970, into the past and the future: delta-rs opens no table with a partition beyond."""


def _text(value: Any, kind: pa.DataType) -> str | None:
    """Return a value as the protocol of Delta writes it; days and moments are given as numbers.

    It has no empty text: that is null. Raises CuesqueueError.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not pt.is_temporal(kind):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    is_day = pt.is_date(kind)
    if abs(days := value if is_day else value // 86_400_000_000) > _MOST_DAYS:
        raise CuesqueueError(
            f"rows hold a time {days} days from 1970, by which no Delta table can be partitioned, as its readers fail "
            "there; leave such rows out, or partition by another column"
        )
    day, _, time = str(np.datetime64(value, "D" if is_day else "us")).partition("T")  # beyond Python's years, too
    year, month_and_day = day[:-6], day[-6:]
    text = f"{int(year):+05}{month_and_day}" if len(year) != 4 or year[0] == "-" else day
    if is_day:
        return text
    return f"{text} {time}" if kind.tz is None else f"{text}T{time}Z"  # else readers take it as local time


_INDEXED = 32
"""Columns with statistics, unless the table says otherwise; so many have other writers of Delta."""
_TEXT = 32
"""Characters of a text that bounds a column."""
_LAST_CHARACTER = "\U0010ffff"

Leaf = tuple[tuple[str, ...], pa.DataType]
"""A column of the Parquet file: its path, and its type."""


class Statistics:
    """Collects what the footer of a file does not know while its rows are written, and makes the text at its end."""

    def __init__(self, columns: pa.Schema, configuration: Mapping[str, str]) -> None:
        """`columns` are those of the file."""
        self._chosen = _chosen(columns, configuration)
        self._floats = [path for path, kind in self._chosen.values() if pt.is_floating(kind)]
        self._with_nan: set[tuple[str, ...]] = set()

    def add(self, rows: pa.Table) -> None:
        """Look for NaN, which Parquet's bounds leave out: it is greater than all others to Spark."""
        for path in self._floats:
            if path not in self._with_nan:
                column = rows.column(path[0])
                if pc.any(pc.is_nan(pc.struct_field(column, path[1:]) if path[1:] else column)).as_py():
                    self._with_nan.add(path)

    def text(self, footer: pq.FileMetaData) -> str:
        """Return the statistics of the file as JSON."""
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        summary: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        has_bounds = True
        for number, (path, kind) in self._chosen.items():
            columns = [group.column(number) for group in groups]
            _put(summary["nullCount"], path, sum(column.statistics.null_count for column in columns))
            filled = [c.statistics for c in columns if c.statistics.null_count < c.num_values]
            if is_bytes(kind) or not filled:
                continue
            low = high = None
            try:
                if all(statistics.has_min_max for statistics in filled):
                    low = min(_bound(statistics.min, is_low=True) for statistics in filled)
                    high = max(_bound(statistics.max, is_low=False) for statistics in filled)
            except (OverflowError, UnicodeDecodeError):  # a date or time that Python does not have; no UTF-8
                low = None
            if low is None and is_text(kind):  # or too long for a footer
                low, high = "", _LAST_CHARACTER
            if path in self._with_nan:
                low, high = -math.inf if low is None else low, math.inf  # a group of rows may have nothing else
            has_bounds &= low is not None
            _put(summary["minValues"], path, low)
            _put(summary["maxValues"], path, high)
        if not has_bounds:  # to deltalake's filters a file has no rows where it bounds other columns alone
            del summary["minValues"], summary["maxValues"]
        return _json(summary)


def _leaves(path: tuple[str, ...], field: pa.Field) -> Iterator[Leaf | None]:
    """Yield the columns of a Parquet file for a column of the table, in their order; None inside of arrays and maps."""
    inner = [leaf for part in parts(field.type) for leaf in _leaves((*path, part.name), part)]
    if inner:
        yield from inner if pt.is_struct(field.type) else [None] * len(inner)
    else:
        yield path, field.type


def _chosen(columns: pa.Schema, configuration: Mapping[str, str]) -> dict[int, Leaf]:
    """Return number in the file -> column, of those that have statistics."""
    leaves = [leaf for column in columns for leaf in _leaves((column.name,), column)]
    plain = {number: leaf for number, leaf in enumerate(leaves) if leaf is not None}
    names = configuration.get("delta.dataSkippingStatsColumns")
    if names is not None:
        paths = [
            tuple(part.strip("`") for part in re.findall(r"`[^`]*`|[^.]+", name.strip())) for name in names.split(",")
        ]
        return {n: leaf for n, leaf in plain.items() if any(leaf[0][: len(path)] == path for path in paths)}
    try:
        most = int(configuration.get("delta.dataSkippingNumIndexedCols", _INDEXED))
    except ValueError:
        most = _INDEXED
    return plain if most < 0 else dict(list(plain.items())[:most])


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bound(value: Any, *, is_low: bool) -> Any:
    """Return a bound that is no narrower, as other readers have it: a text is cut, a time has milliseconds."""
    if isinstance(value, str) and len(value) > _TEXT:
        return value[:_TEXT] + ("" if is_low else _LAST_CHARACTER)
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=None) + timedelta(microseconds=0 if is_low else 999)
        return moment.isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value


def _json(value: Any) -> str:
    """Return the text; decimals as numbers with all their digits, as Spark writes and reads them."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_json(v)}" for name, v in value.items()) + "}"
    if isinstance(value, float) and math.isinf(value):
        value = "Infinity" if value > 0 else "-Infinity"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


FILE_BYTES = 512 * 1024 * 1024
"""A file of this size gets no further rows."""
_ROWS_PER_GROUP = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What tasks need to know of the table.

    Attributes:
        schema: The columns of the table, and what must not be null.
        columns: Those that can be filled here, in the types in which they are written, which may all be null.
    """

    uri: str
    table_id: str
    schema: pa.Schema
    columns: pa.Schema
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that no commit names yet. `path` counts from the table's folder; `modified` in milliseconds."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    rows: int
    modified: int
    statistics: str


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files that one task wrote, and the table for which it wrote them."""

    target: Target
    files: list[DataFile]


def write_files(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    target: Target,
    prefix: str,
    compression: str,
    storage: StorageOptions,
) -> TaskFiles:
    """Write the rows to new files, one or more for each partition. They are invisible until a commit names them."""
    return TaskFiles(target, _TableFiles(schema, target, prefix, compression, storage).write_all(batches))


class _TableFiles(PartitionedFiles[DataFile]):
    def __init__(
        self, schema: pa.Schema, target: Target, prefix: str, compression: str, storage: StorageOptions
    ) -> None:
        self._target, self._prefix, self._compression, self._storage = target, prefix, compression, storage
        # columns that the rows lack are not in the files either: to readers they are null
        self._columns = [column for column in target.columns if column.name in schema.names]
        self._partition_columns = [name for name in target.partition_by if name in schema.names]
        in_files = [column for column in self._columns if column.name not in target.partition_by]
        super().__init__(pa.schema(in_files), FILE_BYTES)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        arrays = []  # in the types of the table
        for column in self._columns:
            values = batch.column(column.name)
            if not values.type.equals(column.type):
                try:
                    values = values.cast(column.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                    raise CuesqueueError(
                        f"column {column.name!r} of the Delta table is of type {column.type}, and rows hold "
                        f"{values.type}, which cannot be written as that: {error}"
                    ) from error
            check_nulls(self._target.schema.field(column.name), values)
            arrays.append(values)
        rows = pa.RecordBatch.from_arrays(arrays, [column.name for column in self._columns])
        in_path = [rows.column(name) for name in self._partition_columns]
        kinds = [column.type for column in in_path]
        numbers = [
            c.view(pa.int32() if pt.is_date(c.type) else pa.int64()) if pt.is_temporal(c.type) else c for c in in_path
        ]
        for values, some in grouped(rows.select(self._schema.names), numbers):
            yield tuple(map(_text, values, kinds)), some

    def _new_file(self, values: Values) -> OpenFile[DataFile]:
        by_name = dict(zip(self._partition_columns, values, strict=True))
        partition = {name: by_name.get(name) for name in self._target.partition_by}
        for field in self._target.schema:
            if not field.nullable and partition.get(field.name, "") is None:
                raise CuesqueueError(
                    f"column {field.name!r} of the Delta table must not be null, and rows hold an empty text in it, "
                    "which a partition of Delta cannot tell from null"
                )
        # as Hive names folders: some readers look there, and not in the table's log
        folders = (f"{quote(name, safe='')}={quote(value or _NULL, safe='')}/" for name, value in partition.items())
        path = f"{short_folders(''.join(folders), self._target.uri)}{self._prefix}-{uuid.uuid4().hex}.parquet"
        statistics = Statistics(self._schema, self._target.configuration)
        filesystem, place = resolve(f"{self._target.uri}/{path}", self._storage)
        local = Path(place) if is_local(self._target.uri) else None
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
        with writing(path):
            stream = filesystem.open_output_stream(place)
            # without Arrow's own schema: it would make readers give large strings
            writer = pq.ParquetWriter(stream, self._schema, compression=self._compression, store_schema=False)

        def finished(size: int, footer: pq.FileMetaData) -> DataFile:
            if local is not None:  # with the names of its folders inside of the table, which may be new
                for part in (local, *list(local.parents)[: path.count("/")]):
                    make_durable(part)
            modified = int(time.time() * 1000)
            return DataFile(path, size, partition, footer.num_rows, modified, statistics.text(footer))

        return OpenFile(path, stream, writer, _ROWS_PER_GROUP, finished, look=statistics.add)
