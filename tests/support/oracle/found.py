"""Relation: each row that a sink has stored in a table is found by a filter of its own value.

Readers leave files out by their statistics and partitions: what these say wrongly hides rows, and nothing tells.
Rows go through the sink's own calls, in files of several row groups, partitioned by one of their columns or not; and
twice more after each thing that another client does to the table.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyiceberg.expressions import BooleanExpression, EqualTo, IsNaN, IsNull, Reference
from pyiceberg.table import Table
from pyiceberg.types import StringType

from queue_source.errors import OptionError
from queue_source.schema.columns import format_columns, parse_columns
from queue_source.sinks import splits
from support.iceberg_tables import Lake, Query
from support.oracle import values
from support.oracle.counting import Draw, one_of_these, reached
from support.oracle.loading import store_of_this_process
from support.oracle.rows import Broken, Row, cells, general
from support.oracle.values import Strategy, arrow_values

NAME = "stored-is-found"
_numbers = itertools.count()


@dataclass(frozen=True)
class Stored:
    """Rows of columns for a new table of the target. `changes`: what others do to it, in turn."""

    target: str
    ddl: str
    rows: tuple[tuple[Any, ...], ...]
    partition_by: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return parse_columns(self.ddl)

    @property
    def steps(self) -> list[Callable[[Any], object]]:
        return [step for change in self.changes for step in CHANGES[self.target][change]]

    def count(self) -> None:
        reached(f"stored in {self.target}: {'' if self.partition_by else 'not '}partitioned")
        for change in self.changes:
            reached(f"stored in {self.target}, and changed: {change}")


_ASIDE = "aside"


def _divide(table: Table) -> None:
    with table.update_schema() as schema:
        schema.add_column(_ASIDE, StringType())
    with table.update_spec() as spec:
        spec.add_identity(_ASIDE)


def _unite(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field(_ASIDE)
    with table.update_schema() as schema:
        schema.delete_column(_ASIDE)


_CODEC, _LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"


def _set(properties: Mapping[str, str]) -> Callable[[Table], object]:
    return lambda table: table.transaction().set_properties(dict(properties)).commit_transaction()


_INDEXED = "delta.dataSkippingNumIndexedCols"
CHANGES: Mapping[str, Mapping[str, Sequence[Callable[[Any], object]]]] = {
    "delta": {
        "a checkpoint": [lambda table: table.create_checkpoint()],
        "one column with statistics": [lambda table: table.alter.set_table_properties({_INDEXED: "1"})],
    },
    "iceberg": {
        "divided by a column that is gone behind": [_divide, _unite],
        "a compression without levels": [_set({_CODEC: "snappy", _LEVEL: "3"})],
        "a compression in capitals": [_set({_CODEC: "GZIP"})],
        "no compression": [_set({_CODEC: "UNCOMPRESSED"})],
        "files elsewhere": [_set({"write.object-storage.enabled": "true"})],
    },
}


def strategy() -> Strategy:
    return _stored()


@st.composite
def _stored(draw: Draw) -> Stored:
    target = draw(one_of_these(("delta", "iceberg")))
    kinds: list[pa.DataType] = [pa.int64(), *draw(st.lists(values.types(nested=True), min_size=1, max_size=2))]
    columns = [pa.field(name, kind) for name, kind in zip("abc", kinds, strict=False)]
    each = [st.one_of(values.values(kind, zone="UTC"), *_long(kind)) for kind in kinds]
    rows = tuple(tuple(map(draw, each)) for _ in range(draw(one_of_these((1, 2, 3, 5)))))
    by = None
    changes = tuple(draw(st.lists(st.sampled_from([*CHANGES[target]]), max_size=3, unique=True)))
    if draw(st.booleans()):
        ways: tuple[str, ...] = ("{}",)
        if target == "iceberg":
            is_time = pt.is_timestamp(kinds[1]) or pt.is_date(kinds[1])
            ways = ("{}", "year({})", "month({})", "day({})") if is_time else ("{}", "bucket(3, {})", "truncate(2, {})")
        by = draw(one_of_these(ways)).format("b")
    return Stored(target, format_columns(columns), rows, by, changes)


def _long(kind: pa.DataType) -> list[Strategy]:
    """Values that are too long for the bounds in a footer."""
    if not (pt.is_string(kind) or pt.is_binary(kind)):
        return []
    some = st.sampled_from("a\xffz\uffff").map(lambda letter: letter * 5000)
    return [some if pt.is_string(kind) else some.map(str.encode)]


def check(stored: Stored) -> None:
    schema = stored.schema
    columns = [[row[at] for row in stored.rows] for at in range(len(schema))]
    arrays = [arrow_values(field.type, column) for field, column in zip(schema, columns, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    backend, number = store_of_this_process(), next(_numbers)
    with tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-") as name:
        folder, table_name = Path(name), f"db.found{number}"
        given = {"delta": name} if stored.target == "delta" else {"table": table_name, "warehouse": name}
        given |= {} if stored.partition_by is None else {"partitionBy": stored.partition_by}
        lake = Lake(backend.views[0], {"store": backend.url, **given}, {"type": "sql", "uri": backend.url}, table_name)
        try:
            query, batch = Query(lake, f"found {number}"), pa.Table.from_batches(table.to_batches(max_chunksize=1))
            with patch.object(splits, "GROUP_BYTES", 1):
                query.batch(batch)
                lake.options.pop("partitionBy", None)
                for step in stored.steps:
                    step(DeltaTable(name) if stored.target == "delta" else lake.table())
                    rows = batch
                    if step is _divide:
                        rows = batch.append_column(_ASIDE, pa.array(["x"] * len(batch)))
                    query.batch(rows)
                    query.batch(rows)
        except OptionError:
            reached(f"stored, the end of {stored.target}: refused")
            return
        except Exception as error:
            # what truncates a number that is the least of its type does not fit into that
            if re.search("no Delta table can be partitioned|precision of value is greater than", str(error)):
                reached(f"stored, the end of {stored.target}: no such partition")
                return
            raise Broken(NAME, stored, f"{stored.target}: {type(error).__name__}", str(error)) from error
        try:
            found, hidden = (_in_delta if stored.target == "delta" else _in_iceberg)(stored, lake, folder)
        except Exception as error:
            raise Broken(NAME, stored, f"{stored.target}: unreadable: {type(error).__name__}", str(error)) from error
    expected = sorted([*zip(*map(cells, arrays), strict=True)] * (1 + 2 * len(stored.steps)))
    if stored.target == "delta" and stored.partition_by is not None and pt.is_string(schema.field("b").type):
        empty, null = cells(pa.array(["", None]))  # Delta has no empty text there
        expected = sorted((row[0], null if row[1] == empty else row[1], *row[2:]) for row in expected)
    if found != expected:
        raise Broken(NAME, stored, f"{stored.target}: other rows", f"{expected}\n  or\n{found}")
    if hidden:
        kinds = ", ".join(general(field.type) for field in schema)
        raise Broken(
            NAME, stored, f"{stored.target}: a filter does not find its own value ({kinds})", "\n".join(hidden)
        )
    reached(f"stored, the end of {stored.target}: rows")


_Answer = tuple[list[Row], list[str]]
"""The rows of the table, and the values that are not found."""


def _rows(stored: Stored, tables: list[pa.Table]) -> list[Row]:
    cast = (table.select(stored.schema.names).cast(stored.schema) for table in tables)
    return sorted(row for table in cast for row in zip(*map(cells, table.columns), strict=True))


def _in_delta(stored: Stored, lake: Lake, folder: Path) -> _Answer:
    hidden: list[str] = []
    found = _rows(stored, [pa.table(DeltaTable(str(folder)).scan())])
    try:
        files = DeltaTable(str(folder)).to_pyarrow_dataset()
    except ValueError:  # as a whole, for a partition of a day that Python does not have
        return found, hidden
    # polars also looks at the names of folders, and fails where only some are named after their values
    if stored.partition_by is None or all("=" in path for path in DeltaTable(str(folder)).file_uris()):
        hidden += _by_polars(pl.scan_delta(str(folder)))
    for fragment in files.get_fragments():
        table = fragment.to_table(schema=fragment.physical_schema)
        for path, value in _values(table):
            asked = ds.field(*path) == value if value.is_valid else ds.field(*path).is_null()
            if not _is_nan(value) and fragment.path not in {f.path for f in files.get_fragments(filter=asked)}:
                hidden.append(f"{'.'.join(path)}: {value.cast(pa.string())!s:.200}")
    return found, hidden


def _in_iceberg(stored: Stored, lake: Lake, folder: Path) -> _Answer:
    table, hidden, tables = lake.table(), [], []
    for task in table.scan().plan_files():
        tables.append(pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None))
        for path, value in _values(tables[-1].select(stored.schema.names)):
            name = ".".join(path)
            if value.type == pa.float32() and value.is_valid and math.isinf(value.as_py()):
                continue  # PyIceberg takes an infinite FLOAT that it is asked for as more than each of them
            with suppress(OverflowError, ValueError):  # Python has no such time, and so asks for none
                alone: BooleanExpression = IsNull(term=Reference(name))
                if value.is_valid:
                    term = Reference(name)
                    alone = IsNaN(term=term) if _is_nan(value) else EqualTo(term=term, value=value.as_py())
                if task.file.file_path not in {f.file.file_path for f in table.scan(row_filter=alone).plan_files()}:
                    hidden.append(f"{name}: {value!r:.200}")
    by = None if stored.partition_by is None else stored.schema.field("b").type
    if by is None or not pt.is_floating(by):  # there polars finds none of them, also in a table of PyIceberg's own
        hidden += _by_polars(pl.scan_iceberg(table))
    return _rows(stored, tables), hidden


@patch.dict(os.environ, {"POLARS_ICEBERG_PLANNER": "pyiceberg"})
def _by_polars(rows: pl.LazyFrame) -> list[str]:
    """Return the values that polars does not find by a filter, and reads without one."""
    read, hidden = rows.collect(), []
    for name, kind in read.schema.items():
        distinct = read[name].unique()
        if kind.is_temporal():  # polars ends the process for those that Python does not have
            distinct = distinct.filter(distinct.dt.year().is_between(1, 9999) | distinct.is_null())
        for value in () if kind.is_nested() else distinct.to_list():
            alone = pl.col(name).is_null() if value is None else pl.col(name) == pl.lit(value, dtype=kind)
            if read.filter(alone).height != rows.filter(alone).collect().height:
                hidden.append(f"polars, {name}: {value!r:.200}")
    return hidden


def _values(table: pa.Table, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], pa.Scalar]]:
    """Yield the values that statistics are of, also those inside of structs, each with its path."""
    for field, column in zip(table.schema, table.columns, strict=True):
        if pt.is_struct(field.type):
            inner = column.combine_chunks().flatten()
            yield from _values(pa.Table.from_arrays(inner, [part.name for part in field.type]), (*above, field.name))
        elif not pt.is_nested(field.type):
            yield from (((*above, field.name), value) for value in column)


def _is_nan(value: pa.Scalar) -> bool:
    return pt.is_floating(value.type) and value.is_valid and math.isnan(value.as_py())
