"""Statistics of a data file in the form of Delta's log: from the footer that pyarrow has just written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.formats.types import is_bytes
from queue_source.sinks.delta.schemas import parts

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
            if path not in self._with_nan and pc.any(pc.is_nan(_values(rows, path))).as_py():
                self._with_nan.add(path)

    def text(self, footer: pq.FileMetaData) -> str:
        """Return the statistics of the file as JSON."""
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        summary: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        for number, (path, kind) in self._chosen.items():
            columns = [group.column(number) for group in groups]
            _put(summary["nullCount"], path, sum(column.statistics.null_count for column in columns))
            filled = [c.statistics for c in columns if c.statistics.null_count < c.num_values]
            low = high = None
            if not is_bytes(kind) and all(statistics.has_min_max for statistics in filled):
                try:
                    low = min((_bound(statistics.min, is_low=True) for statistics in filled), default=None)
                    high = max((_bound(statistics.max, is_low=False) for statistics in filled), default=None)
                except OverflowError:  # a date or time that Python does not have
                    low = None
                except UnicodeDecodeError:
                    low, high = "", _LAST_CHARACTER
            if path in self._with_nan:
                low, high = -math.inf if low is None else low, math.inf  # a group of rows may have nothing else
            if low is not None and high is not None:  # to deltalake's filters it has no rows where there is none
                _put(summary["minValues"], path, low)
                _put(summary["maxValues"], path, high)
        return _json(summary)


def _values(rows: pa.Table, path: tuple[str, ...]) -> Any:
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


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
        paths = [tuple(part.strip("`") for part in re.findall(r"`[^`]*`|[^.]+", name)) for name in names.split(",")]
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
