"""Relation (e) over days: without a declared schema each value is loaded, rescued, or said, and no day stops the query.

Objects of one batch each go into one target, whose columns are inferred and grow. A value of a record is in its column,
or in the rescued ones, or a line of the log names its column as not loaded, or the record is in the error table.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import OptionError, SchemaChanged
from support.oracle import inference
from support.oracle.counting import reached
from support.oracle.loading import query_of, tables_of
from support.oracle.rows import Broken
from support.oracle.values import Strategy
from support.registering import Referencing

NAME = "nothing-is-dropped-over-days"
TARGETS = ("delta", "iceberg", "path")
_RESTARTS = 4
Record = Mapping[str, Any]

_TYPED: dict[str, Any] = {
    "INT": pa.scalar(7, pa.int32()),
    "BIGINT": pa.scalar(1 << 40, pa.int64()),
    "FLOAT": pa.scalar(0.5, pa.float32()),
    "DOUBLE": pa.scalar(1e300, pa.float64()),
    "STRING": pa.scalar("x", pa.string()),
    "DECIMAL(9, 2)": pa.scalar(Decimal("1.25"), pa.decimal128(9, 2)),
    "DECIMAL(38, 10)": pa.scalar(Decimal("12345678901234567890123456.5"), pa.decimal128(38, 10)),
    "DATE": pa.scalar(date(2024, 2, 29), pa.date32()),
    "BOOLEAN": pa.scalar(True),
    "TIMESTAMP": pa.scalar(1, pa.timestamp("us", "UTC")),
    "ARRAY<INT>": pa.scalar([1], pa.list_(pa.int32())),
    "STRUCT<x: INT>": pa.scalar({"x": 1}, pa.struct([("x", pa.int32())])),
    "STRUCT<x: INT, y: STRING>": pa.scalar({"x": 1, "y": "y"}, pa.struct([("x", pa.int32()), ("y", pa.string())])),
    "STRUCT<x: STRING>": pa.scalar({"x": "x"}, pa.struct([("x", pa.string())])),
}


@dataclass(frozen=True)
class Days:
    """The records of each day; of Parquet the types of columns."""

    file_format: str
    target: str
    days: tuple[tuple[Record, ...], ...]
    infers: bool = True

    def count(self) -> None:
        reached(f"days of {self.file_format}: {self.target}")

    @property
    def options(self) -> dict[str, str]:
        if self.file_format == "parquet":
            return {}
        return {"inferColumnTypes": str(self.infers).lower()} | (
            {"header": "true"} if self.file_format == "csv" else {}
        )


def strategy() -> Strategy:
    names = st.sampled_from(["a", "b", "c", "A", "ä", "a b", "d.e"])
    plain = st.sampled_from(["a", "b", "c", "A", "d.e", "d e"])
    texts = st.sampled_from([text for text in inference._TEXTS if text])
    of_csv = st.lists(plain, min_size=1, max_size=3, unique_by=str.casefold).flatmap(
        lambda some: st.lists(st.fixed_dictionaries(dict.fromkeys(some, texts)), min_size=1, max_size=3)
    )
    of_json = st.lists(st.dictionaries(names, inference._JSON, min_size=1, max_size=3), min_size=1, max_size=3)
    of_parquet = st.lists(
        st.dictionaries(plain, st.sampled_from([*_TYPED]), min_size=1, max_size=3), min_size=1, max_size=1
    )
    records = {"csv": of_csv, "json": of_json, "parquet": of_parquet}

    def of(file_format: str) -> Strategy:
        days: Strategy = st.lists(records[file_format], min_size=2, max_size=4)
        return st.builds(
            Days,
            st.just(file_format),
            st.sampled_from(TARGETS),
            days.map(lambda some: tuple(map(tuple, some))),
            st.booleans(),
        )

    return st.sampled_from(["json", "json", "csv", "parquet"]).flatmap(of)


def _numbered(days: Days) -> list[list[dict[str, Any]]]:
    """The records with an id of their own; of Parquet with their values."""

    def values(record: Record) -> Record:
        if days.file_format != "parquet":
            return record
        return {name: _TYPED[kind].as_py() for name, kind in record.items()}

    return [
        [{"id": 100 * day + at, **values(record)} for at, record in enumerate(records)]
        for day, records in enumerate(days.days)
    ]


def _write(path: Path, days: Days, day: int, records: Sequence[Record]) -> None:
    if days.file_format == "json":
        path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
    elif days.file_format == "csv":
        out = io.StringIO()
        names = [*records[0]]
        csv.writer(out, lineterminator="\n").writerows([names, *([r[name] for name in names] for r in records)])
        path.write_text(out.getvalue())
    else:
        kinds = {name: _TYPED[kind].type for name, kind in days.days[day][0].items()}
        columns = {name: pa.array([value], kinds.get(name)) for name, value in records[0].items()}
        pq.write_table(pa.table(columns), path)


@contextmanager
def _lines() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("cuesqueue")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def check(days: Days) -> None:
    with tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-") as name, _lines() as said:
        folder, numbered = Path(name), _numbered(days)
        (folder / "in").mkdir()
        given = {"load": days.file_format, "schemaLocation": str(folder / "schemas"), **days.options}
        query = query_of(days.target, folder, given)
        for day, records in enumerate(numbered):
            path = folder / "in" / f"{day}.data"
            _write(path, days, day, records)
            try:
                _load(days, query, path)
            except Refused:
                reached(f"days, the end of {days.target}: refused")
                return
        rows = [row for table in tables_of(days.target, query, folder) for row in table.to_pylist()]
        bad = query._rows("errors")
    if days.file_format != "parquet" and any(row["scope"] == "object" for row in bad):
        raise Broken(NAME, days, f"{days.target}: {days.file_format}: an object is bad", str(bad))
    by_id = {row["id"]: row for row in rows}
    records = [record for some in numbered for record in some]
    if len(rows) != len(by_id) or len(rows) + len(bad) != len(records):
        raise Broken(NAME, days, f"{days.target}: {days.file_format}: other rows", f"{rows}\n  and\n{bad}")
    for record in records:
        for name, value in record.items() if record["id"] in by_id else ():
            if value is not None and _is_lost(name, value, by_id[record["id"]], said):
                found = by_id[record["id"]]
                raise Broken(NAME, days, f"{days.target}: {days.file_format}: lost", f"{name}={value!r} of {found}")
    reached(f"days, the end of {days.target}: {'some bad' if bad else 'all loaded'}")


class Refused(Exception):
    """The target cannot have a column: the query says so before anything is written."""


def _load(days: Days, query: Referencing, path: Path) -> None:
    query.announce(path)
    for _ in range(_RESTARTS):
        try:
            query.attempt(query.references([path]))
        except SchemaChanged:
            query.restart()
        except OptionError as error:
            if days.target != "delta" or not re.search("which a Delta table cannot have|differ in case", str(error)):
                raise Broken(NAME, days, f"{days.target}: {days.file_format}: refused", str(error)) from error
            raise Refused from None
        except Exception as error:
            kind = f"{days.target}: {days.file_format}: {type(error).__name__}"
            raise Broken(NAME, days, kind, str(error)) from error
        else:
            query.end()
            return
    raise Broken(NAME, days, f"{days.target}: {days.file_format}: new columns without an end", str(path))


def _is_lost(name: str, value: Any, row: Record, said: Sequence[str]) -> bool:
    """Whether a value of a record is in none of the places where it may be."""
    rescued = json.loads(row["_rescued_data"]) if row.get("_rescued_data") else {}
    columns = [row[column] for column in row if column.casefold() == name.casefold()]
    if any(_is_within(value, found) for found in columns) or name.casefold() in map(str.casefold, rescued):
        return False
    return not any(f"of column {name}" in line or f": {name}, as" in line for line in said)


def _is_within(value: Any, found: Any) -> bool:
    if value is None or value in ({}, []) or value == found:
        return True
    if found is None:
        return False
    if isinstance(found, str):
        if isinstance(value, str):
            return False
        try:
            return _is_within(value, json.loads(found)) or str(value) == found
        except ValueError:
            return str(value) == found
    if isinstance(value, Mapping):
        inner = dict(found) if isinstance(found, list | Mapping) else None
        return inner is not None and all(
            v is None or any(_is_within(v, f) for n, f in inner.items() if n.casefold() == name.casefold())
            for name, v in value.items()
        )
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(_is_within, value, found))
    if isinstance(value, str):
        return True  # a text that is spelled as what the column is; other relations look at its value
    if isinstance(value, bool) or isinstance(found, bool):
        return value is found
    if isinstance(value, int) and isinstance(found, int | Decimal):
        return value == found
    if isinstance(value, int | float | Decimal) and isinstance(found, int | float | Decimal):
        return math.isclose(float(value), float(found), rel_tol=1e-7 if isinstance(value, Decimal) else 0.0)
    return False
