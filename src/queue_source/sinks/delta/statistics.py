"""Statistics of a data file in the form of Delta's log: from the footer that pyarrow has just written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from queue_source.sinks.delta.schemas import DeltaField, DeltaType

_INDEXED = 32
"""Columns with statistics, unless the table says otherwise; so many have other writers of Delta."""
_TEXT = 32
"""Characters of a text that bounds a column."""
_DECIMAL = "decimal("
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = date(1970, 1, 1)
_MICROSECONDS = {"timestamp": "Z", "timestamp_ntz": ""}
_AS_THEY_ARE = frozenset({"byte", "short", "integer", "long", "boolean"})
_FLOATS = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of the Parquet file; `kind` is "" where it is inside of an array or a map, or has no bounds."""

    path: tuple[str, ...]
    kind: str


@dataclass(slots=True)
class _Bounds:
    """What is known of a column. `low` and `high` are None while no value was seen; `bounded`: all are within them."""

    is_decimal: bool
    nulls: int | None = 0
    bounded: bool = True
    low: Any = None
    high: Any = None

    def add(self, statistics: pq.Statistics | None, values: int) -> None:
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        self.nulls = None if nulls is None or self.nulls is None else self.nulls + nulls
        if nulls == values:
            return
        if statistics is None or not statistics.has_min_max:
            self.bounded = False
            return
        low, high = (statistics.min, statistics.max) if self.is_decimal else (statistics.min_raw, statistics.max_raw)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class Statistics:
    """Collects what the footer of a file does not know while its rows are written, and makes the text at its end."""

    def __init__(self, fields: Sequence[DeltaField], configuration: Mapping[str, str]) -> None:
        """`fields` are the columns of the file."""
        self._leaves = [leaf for column in fields for leaf in _leaves((column["name"],), column["type"])]
        self._chosen = _chosen(self._leaves, configuration)
        self._floats = [leaf for leaf in self._chosen.values() if leaf.kind in _FLOATS]
        self._with_nan: set[tuple[str, ...]] = set()

    def add(self, rows: pa.Table) -> None:
        """Look for NaN, which Parquet's bounds leave out: it is greater than all others to Spark."""
        for leaf in self._floats:
            if leaf.path not in self._with_nan:
                values: Any = rows.column(leaf.path[0])
                for name in leaf.path[1:]:
                    values = pc.struct_field(values, name)
                if pc.any(pc.is_nan(values)).as_py():
                    self._with_nan.add(leaf.path)

    def text(self, footer: pq.FileMetaData) -> str:
        """Return the statistics of the file as JSON."""
        bounds = {number: _Bounds(leaf.kind.startswith(_DECIMAL)) for number, leaf in self._chosen.items()}
        for group in range(footer.num_row_groups):
            columns = footer.row_group(group)
            for number, of_column in bounds.items():
                column = columns.column(number)
                of_column.add(column.statistics, column.num_values)
        summary: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        for number, leaf in self._chosen.items():
            of_column = bounds[number]
            if of_column.nulls is not None:
                _put(summary["nullCount"], leaf.path, of_column.nulls)
            if leaf.path in self._with_nan:
                low = of_column.low if of_column.bounded else -math.inf  # a group of rows has nothing else
                of_column.bounded, of_column.low, of_column.high = True, low, math.inf
            if of_column.bounded and of_column.low is not None:
                _put(summary["minValues"], leaf.path, _value(leaf.kind, of_column.low, is_low=True))
                _put(summary["maxValues"], leaf.path, _value(leaf.kind, of_column.high, is_low=False))
        return _json(summary)


def _leaves(path: tuple[str, ...], kind: DeltaType) -> Iterator[Leaf]:
    """Yield the columns of a Parquet file for a column of the table, in their order."""
    if isinstance(kind, str):
        yield Leaf(path, kind)
    elif kind["type"] == "struct":
        for inner in kind["fields"]:
            yield from _leaves((*path, inner["name"]), inner["type"])
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                yield from (Leaf(leaf.path, "") for leaf in _leaves(path, kind[part]))


def _chosen(leaves: Sequence[Leaf], configuration: Mapping[str, str]) -> dict[int, Leaf]:
    """Return number in the file -> column, of those that have statistics."""
    plain = {number: leaf for number, leaf in enumerate(leaves) if leaf.kind}
    names = configuration.get("delta.dataSkippingStatsColumns")
    if names is not None:
        paths = [tuple(part.strip("`") for part in re.findall(r"`[^`]*`|[^.]+", name)) for name in names.split(",")]
        return {n: leaf for n, leaf in plain.items() if any(leaf.path[: len(path)] == path for path in paths)}
    try:
        most = int(configuration.get("delta.dataSkippingNumIndexedCols", _INDEXED))
    except ValueError:
        most = _INDEXED
    return plain if most < 0 else dict(list(plain.items())[:most])


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is not None:
        for name in path[:-1]:
            tree = tree.setdefault(name, {})
        tree[path[-1]] = value


def _value(kind: str, raw: Any, *, is_low: bool) -> Any:
    """Return a bound as the log has it; None where there is none: to deltalake's filters it has no rows then."""
    if kind in _AS_THEY_ARE or kind.startswith(_DECIMAL):
        return raw
    if kind in _FLOATS:
        return raw if math.isfinite(raw) else "Infinity" if raw > 0 else "-Infinity"
    if kind == "string":
        text = raw.decode("utf-8", "replace")
        return text if len(text) <= _TEXT else text[:_TEXT] + ("" if is_low else _LAST_CHARACTER)
    try:
        if kind == "date":
            return (_EPOCH + timedelta(days=raw)).isoformat()
        if kind in _MICROSECONDS:
            return _moment(raw if is_low else raw + 999) + _MICROSECONDS[kind]
    except OverflowError:
        return None
    return None


def _moment(microseconds: int) -> str:
    """Return the time with milliseconds, as Spark reads it from statistics."""
    moment = datetime(1970, 1, 1) + timedelta(milliseconds=microseconds // 1000)
    return moment.isoformat(timespec="milliseconds")


def _json(value: Any) -> str:
    """Return the text; decimals as numbers with all their digits, as Spark writes and reads them."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_json(v)}" for name, v in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, allow_nan=False)
