"""What pyarrow (or Python's json) wrote is what is read, for any values; and damage never passes unnoticed as rows."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.formats.text import blocks, csv
from queue_source.formats.text import json as json_format
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.json_structure import cut_objects
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_bytes, read_with_problems

UTC = dt.timezone.utc
CALM = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# pandas' bounds are not ours: the years that datetime can hold, in microseconds
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f64": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "flag": (pa.bool_(), st.booleans()),
    "dec": (pa.decimal128(10, 2), st.decimals(-(10**7), 10**7, places=2)),
    "day": (pa.date32(), st.dates()),
    "at": (UTC_MICROS, TIMES.map(lambda at: at.replace(tzinfo=UTC))),
    "local": (pa.timestamp("us"), TIMES),
    "text": (pa.string(), ANY_TEXT),
    "raw": (pa.binary(), st.binary(max_size=8)),
}
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "point": (
        pa.struct([("x", pa.int64()), ("at", UTC_MICROS)]),
        st.fixed_dictionaries({"x": st.none() | COLUMNS["i64"][1], "at": st.none() | COLUMNS["at"][1]}),
    ),
    "list": (pa.list_(pa.string()), st.lists(st.none() | ANY_TEXT, max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.decimal128(10, 2)),
        st.dictionaries(ANY_TEXT, st.none() | COLUMNS["dec"][1], max_size=3).map(lambda d: list(d.items())),
    ),
    "deep": (
        pa.list_(pa.struct([("b", pa.binary()), ("l", pa.list_(pa.date32()))])),
        st.lists(
            st.none() | st.fixed_dictionaries({"b": st.binary(max_size=4), "l": st.lists(st.dates(), max_size=2)}),
            max_size=3,
        ),
    ),
}


@st.composite
def tables(draw: st.DrawFn, columns: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=5, unique=True))
    schema = pa.schema([(name, columns[name][0]) for name in names])
    row = st.fixed_dictionaries({name: st.none() | columns[name][1] for name in names})
    return pa.Table.from_pylist(draw(st.lists(row, max_size=8)), schema=schema)


@CALM
@given(tables({**COLUMNS, **NESTED}), st.integers(1, 5))
def test_parquet_written_by_pyarrow_is_read_back_equal(table: pa.Table, group: int) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group)
    assert read_bytes(sink.getvalue(), table.schema, FormatOptions("parquet")) == table.to_pylist()


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        is_map = value and isinstance(value[0], tuple)
        return {k: _jsonable(v) for k, v in value} if is_map else [_jsonable(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date):  # datetimes too
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _json_bytes(table: pa.Table, *, ascii_only: bool, blank: bool) -> bytes:
    empty_maps = {f.name for f in table.schema if pa.types.is_map(f.type)}
    lines: list[str] = []
    for row in table.to_pylist():
        plain = {
            name: {} if name in empty_maps and value == [] else _jsonable(value)
            for name, value in row.items()
            if value is not None or len(lines) % 2 == 0
        }
        lines.append(json.dumps(plain, ensure_ascii=ascii_only))
    return ("\n\n" if blank else "\n").join(lines).encode()


@CALM
@given(tables({**COLUMNS, **NESTED}), st.booleans(), st.booleans())
def test_json_written_by_python_is_read_back_equal(table: pa.Table, ascii_only: bool, blank: bool) -> None:
    data = _json_bytes(table, ascii_only=ascii_only, blank=blank)
    assert read_bytes(data, table.schema, FormatOptions("json")) == table.to_pylist()


@CALM
@given(tables({k: v for k, v in {**COLUMNS, **NESTED}.items() if k != "map"}))
def test_the_quick_and_the_slow_way_read_the_same_json(table: pa.Table) -> None:
    data = _json_bytes(table, ascii_only=True, blank=False)
    reader = json_format.JsonReader(table.schema, FormatOptions("json"), BadRecords("FAILFAST"), "uri")
    quick = reader.read_quickly(data)
    assert quick is not None
    assert pa.concat_tables(reader.read_slowly(Block(0, data))).equals(quick)


@CALM
@given(
    tables({**{k: v for k, v in COLUMNS.items() if k != "raw"}, "text": (pa.string(), TEXT.filter(bool))}),
    st.booleans(),
)
def test_csv_written_by_pyarrow_is_read_back_equal(table: pa.Table, header: bool) -> None:
    sink = io.BytesIO()
    # the zone as Z; and a column that is never null, because a line of nothing is no row
    plain = pa.table({"never null": [7] * table.num_rows, **{name: table[name] for name in table.column_names}})
    pa_csv.write_csv(plain, sink, pa_csv.WriteOptions(include_header=header))
    options = FormatOptions("csv", header=header, escape='"')  # pyarrow doubles quotes and escapes nothing
    assert read_bytes(sink.getvalue(), plain.schema, options) == plain.to_pylist()


def _spark_field(text: str) -> str:
    """A field as Spark writes it: quoted when it must be; `\\` before quotes and before itself."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@CALM
@given(st.lists(st.tuples(TEXT.filter(bool), TEXT.filter(bool)), max_size=8))
def test_csv_quoted_with_the_escapes_of_spark_is_read_back_equal(rows: list[tuple[str, str]]) -> None:
    data = "".join(f"{_spark_field(a)},{_spark_field(b)}\n" for a, b in rows).encode()
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert [tuple(row.values()) for row in read_bytes(data, schema, FormatOptions("csv"))] == rows


@CALM
@given(st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan]))
def test_every_float_is_read_back_from_json(value: float) -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.float32())])
    (row,) = read_bytes(json.dumps({"a": value, "b": value}).encode(), schema, FormatOptions("json"))
    for found in row.values():
        assert found == value or (math.isnan(value) and math.isnan(found))


@settings(CALM, max_examples=150)
@given(st.integers(0, 2000), st.integers(0, 255), st.sampled_from(["set", "cut", "insert"]))
def test_damaged_parquet_is_a_bad_object_or_good_rows_but_no_other_error(place: int, byte: int, how: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    table = pa.table({"a": list(range(50)), "b": [f"text {i}" for i in range(50)]}, schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    good = sink.getvalue()
    at = place % len(good)
    damaged = good[:at] + {"set": bytes([byte]) + good[at + 1 :], "cut": b"", "insert": bytes([byte]) + good[at:]}[how]
    with contextlib.suppress(BadObject):  # any other error fails this test, and a crash all of them
        rows = read_bytes(damaged, schema, FormatOptions("parquet"))
        assert rows == [] or set(rows[0]) == {"a", "b"}


NOISE = st.lists(
    st.sampled_from([*'{}[]":,\\ \n\t\r\0x', "null", '"a"', '"A"', "1", "1.5", "true", '{"a":1}\n', "é", '","', '""'])
)


@settings(CALM, max_examples=300)
@given(NOISE, st.sampled_from(["csv", "json"]))
def test_any_text_is_as_many_rows_and_bad_records_as_lines(parts: list[str], file_format: str) -> None:
    data = "".join(parts).encode()
    lines = data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    schema = pa.schema([("a", pa.string())])
    if file_format == "json":
        lines = [record.decode() for line in lines for _, record in cut_objects(line.encode())]
    records = sum(1 for line in lines if line.strip("".join(map(chr, range(33))) if file_format == "csv" else " \t"))
    found = {}
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        try:
            found[mode] = read_with_problems(data, schema, FormatOptions(file_format, mode=mode))
        except BadObject as error:
            if error.cause == "wrong-columns" or "of its records" in error.detail:
                return
            assert mode == "FAILFAST"
    kept, dropped = found["PERMISSIVE"], found["DROPMALFORMED"]
    assert kept.problems.count == dropped.problems.count
    assert len(kept.rows) == len(dropped.rows) + dropped.problems.count
    assert ("FAILFAST" in found) == (kept.problems.count == 0)
    if file_format == "csv" or "[" not in "".join(parts):  # an array is several rows
        assert len(kept.rows) == records


@settings(CALM, max_examples=200)
@given(NOISE, st.sampled_from([pa.string(), pa.int32(), pa.float64(), pa.decimal128(5, 2), pa.bool_()]))
def test_what_is_read_quickly_from_csv_is_read_slowly_alike(parts: list[str], kind: pa.DataType) -> None:
    data = "".join(parts).encode()
    schema = pa.schema([("a", pa.string()), ("b", kind)])
    problems = BadRecords("PERMISSIVE")
    reader = csv.CsvReader(schema, FormatOptions("csv"), problems, "uri")
    quick = reader.read_quickly(data)
    if quick is not None:
        assert pa.concat_tables(reader.read_slowly(Block(0, data))).equals(quick)
        assert problems.count == 0


@pytest.mark.parametrize("block", [32, 100, 1000])
@CALM
@given(tables({"i64": COLUMNS["i64"], "text": (pa.string(), TEXT.filter(bool)), "at": COLUMNS["at"]}))
def test_the_size_of_blocks_changes_nothing(block: int, table: pa.Table) -> None:
    plain = pa.table({"never null": [7] * table.num_rows, **{name: table[name] for name in table.column_names}})
    sink = io.BytesIO()
    pa_csv.write_csv(plain, sink)
    data = sink.getvalue()
    lines = _json_bytes(plain, ascii_only=False, blank=True)
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, csv, json_format):
            patch.setattr(module, "BLOCK_SIZE", block)
        assert read_bytes(data, plain.schema, FormatOptions("csv", header=True, escape="")) == plain.to_pylist()
        assert read_bytes(lines, plain.schema, FormatOptions("json")) == plain.to_pylist()
