from __future__ import annotations

import datetime as dt
import gzip
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats import parquet as parquet_reader
from queue_source.formats import typed as typed_tables
from queue_source.formats.base import BadRecords, OpenObject, Part, format_of
from queue_source.options.content import FormatOptions
from queue_source.storage.files import open_object
from queue_source.storage.open_files import InMemory, ObjectFile
from support.hostile.typed import one_page
from support.reading import UTC_MICROS, load_object, read_bytes, read_column, refused

PARQUET = FormatOptions("parquet")
ONE = pa.schema([("a", pa.int64())])
NOON = dt.datetime(2020, 7, 1, 12)


@pytest.fixture(params=["in memory", "fetched", "in pieces"], autouse=True)
def place_of_small_objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of tests are small: they are also read in the ways of large ones."""
    if request.param != "in memory":
        monkeypatch.setattr(parquet_reader, "SMALL", 0)
    if request.param == "in pieces":
        monkeypatch.setattr(parquet_reader, "IN_MEMORY", 0)


def read_parquet(file: ObjectFile, part: Part | None = None) -> Iterator[pa.Table]:
    """The column `a` of an open file."""
    source = OpenObject(file.uri, file, 0)
    return format_of(PARQUET).open(source, part or Part(), ONE, PARQUET, BadRecords("FAILFAST")).rows


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def column(values: Any, kind: pa.DataType | None = None) -> bytes:
    return parquet(pa.table({"a": pa.array(values, kind)}))


@pytest.mark.parametrize(
    ("written", "declared", "values"),
    [
        (pa.int32(), pa.int64(), [1, None]),
        (pa.int64(), pa.int8(), [-128, 127]),
        (pa.uint64(), pa.int64(), [2**63 - 1]),
        (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1]),
        (pa.decimal256(5, 2), pa.decimal128(5, 2), [Decimal("1.25")]),
        (pa.int32(), pa.float64(), [1, -5]),
        (pa.float32(), pa.float64(), [0.5]),
        (pa.float16(), pa.float32(), [0.5]),
        (pa.decimal128(5, 2), pa.decimal128(20, 4), [Decimal("1.25")]),
        (pa.decimal128(20, 4), pa.decimal128(5, 2), [Decimal("1.25")]),
        (pa.large_string(), pa.string(), ["x", None]),
        (pa.string(), pa.large_string(), ["x"]),
        (pa.string_view(), pa.string(), ["x"]),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), ["x", "y", "x", None]),
        (pa.binary(), pa.string(), ["ä".encode()]),
        (pa.string(), pa.binary(), ["ä"]),
        (pa.binary(16), pa.binary(), [b"x" * 16]),
        (pa.date32(), pa.date32(), [dt.date(2020, 1, 1)]),
        (pa.date32(), pa.timestamp("us"), [dt.date(2020, 1, 1)]),
        (pa.timestamp("ms", tz="UTC"), UTC_MICROS, [NOON.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("ns", tz="Europe/Berlin"), UTC_MICROS, [NOON.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("ns"), pa.timestamp("us"), [NOON]),
        (pa.large_list(pa.int32()), pa.list_(pa.int64()), [[1, None], None, []]),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int64()), [[1, 2], [3, None]]),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("x", 1), ("y", None)], None, []]),
        (pa.null(), pa.string(), [None, None]),
        (pa.bool_(), pa.bool_(), [True, None, False]),
    ],
)
def test_a_type_that_loses_nothing_becomes_the_declared_one(
    written: pa.DataType, declared: pa.DataType, values: list[Any]
) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime) and pa.types.is_timestamp(declared):
            return dt.datetime.combine(value, dt.time())
        if isinstance(value, bytes) and pa.types.is_string(declared):
            return value.decode()
        return value.encode() if isinstance(value, str) and pa.types.is_binary(declared) else value

    assert read_column(column(values, written), declared, PARQUET) == [plain(value) for value in values]


@pytest.mark.parametrize(
    ("written", "declared", "values"),
    [
        (pa.int64(), pa.int32(), [2**31]),
        (pa.uint64(), pa.int64(), [2**63]),
        (pa.int64(), pa.float64(), [2**53 + 1]),
        (pa.float64(), pa.float32(), [0.5]),
        (pa.float64(), pa.int64(), [1.0]),
        (pa.decimal128(5, 2), pa.decimal128(5, 1), [Decimal("1.25")]),
        (pa.decimal128(5, 2), pa.float64(), [Decimal("1.25")]),
        (pa.string(), pa.int64(), ["1"]),
        (pa.int64(), pa.string(), [1]),
        (pa.string(), pa.date32(), ["2020-01-01"]),
        (pa.bool_(), pa.int64(), [True]),
        (pa.int64(), UTC_MICROS, [1]),
        (pa.int32(), pa.date32(), [1]),
        (pa.date32(), UTC_MICROS, [dt.date(2020, 1, 1)]),
        (UTC_MICROS, pa.timestamp("us"), [NOON]),
        (UTC_MICROS, pa.date32(), [NOON]),
        (pa.timestamp("ns"), pa.timestamp("us"), [1]),
        (pa.binary(), pa.string(), [b"\xff"]),
        (pa.time64("us"), pa.timestamp("us"), [dt.time(1)]),
        (pa.list_(pa.int64()), pa.int64(), [[1]]),
        (pa.int64(), pa.list_(pa.int64()), [1]),
        (pa.struct([("x", pa.int64())]), pa.map_(pa.string(), pa.int64()), [{"x": 1}]),
        (pa.list_(pa.struct([("x", pa.string())])), pa.list_(pa.struct([("x", pa.int64())])), [[{"x": "1"}]]),
    ],
)
def test_a_type_that_cannot_become_the_declared_one_is_refused_and_named(
    written: pa.DataType, declared: pa.DataType, values: list[Any]
) -> None:
    error = refused(column(values, written), pa.schema([("a", declared)]), PARQUET)
    assert error.cause == "corrupt-object"
    assert error.detail.startswith("column 'a': ")


def test_a_timestamp_without_a_zone_is_utc_whatever_zone_the_options_have() -> None:
    data = column([NOON], pa.timestamp("us"))
    (utc,) = read_column(data, UTC_MICROS, PARQUET)
    (berlin,) = read_column(data, UTC_MICROS, FormatOptions("parquet", timezone="Europe/Berlin"))
    assert utc == berlin


def test_columns_are_matched_by_name_and_others_are_ignored_or_null() -> None:
    data = parquet(pa.table({"x": [1], "b": ["B"], "a": [2]}))
    schema = pa.schema([("a", pa.int64()), ("missing", pa.list_(pa.int64())), ("b", pa.string())])
    assert read_bytes(data, schema, PARQUET) == [{"a": 2, "missing": None, "b": "B"}]


def test_a_name_that_differs_in_case_matches_when_none_matches_exactly() -> None:
    assert read_column(parquet(pa.table({"A": [1]})), pa.int64(), PARQUET) == [1]
    assert read_column(parquet(pa.table({"A": [1], "a": [2]})), pa.int64(), PARQUET) == [2]
    schema = pa.schema([("ab", pa.int64())])
    assert refused(parquet(pa.table({"Ab": [1], "aB": [2]})), schema, PARQUET).cause == "wrong-columns"


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_a_time_that_nobody_declares_and_python_has_no_form_for_is_rescued_as_its_number(kind: pa.DataType) -> None:
    """An error of its kind would end each start of the query."""
    most, number = (2**31 - 1, pa.int32()) if kind == pa.date32() else (2**63 - 1, pa.int64())
    values = pa.array([0, most], number).cast(kind)
    lists = pa.array([[None], [most]], pa.list_(number)).cast(pa.list_(kind))
    nested = pa.array([[{"m": [("k", 0)]}], None], pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int32()))])))
    written = pa.table({"a": [1, 2], "t": values, "l": lists, "n": nested, "b": pa.array([None, b"x"])})
    schema = pa.schema([("a", pa.int64()), ("_rest", pa.string())])
    rows = read_bytes(parquet(written), schema, replace(PARQUET, rescued_data_column="_rest"))
    first, second = (json.loads(row["_rest"]) for row in rows)
    assert [row["a"] for row in rows] == [1, 2]
    assert (first["t"][:10], first["l"], first["n"]) == ("1970-01-01", [None], [{"m": [["k", 0]]}])
    assert (second["t"], second["l"], second["b"]) == (str(most), [str(most)], "eA==")


@pytest.mark.parametrize("rescued", [None, "_rescued"])
def test_names_in_another_case_are_other_names_where_the_option_says_so(rescued: str | None) -> None:
    options = FormatOptions("parquet", reader_case_sensitive=True, rescued_data_column=rescued)
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), *([(rescued, pa.string())] if rescued else [])])
    written = pa.table({"A": [1], "b": [2]})
    for data, read in ((parquet(written), options), (b"A,b\n1,2\n", replace(options, file_format="csv", header=True))):
        if rescued:
            (row,) = read_bytes(data, schema, read)
            assert (row["a"], row["b"]) == (None, 2)
            assert '"A":' in row["_rescued"].replace('"A": ', '"A":')
            (row,) = read_bytes(
                parquet(pa.table({"A": [1], "a": [3]})), schema, replace(PARQUET, rescued_data_column=rescued)
            )
            assert (row["a"], json.loads(row["_rescued"])["A"]) == (3, 1)  # also where the option does not say so
        else:
            error = refused(data, schema, read)
            assert (error.cause, "'a' is there as 'A'" in error.detail) == ("wrong-columns", True)
    deep = pa.schema([("l", pa.list_(pa.struct([("x", pa.int64())])))])
    error = refused(parquet(pa.table({"l": [[{"X": 1}]]})), deep, FormatOptions("parquet", reader_case_sensitive=True))
    assert "'x' is there as 'X'" in error.detail


def test_a_name_with_a_dot_is_no_path() -> None:
    data = parquet(pa.table({"a.b": [1], "a": [{"b": 2}]}))
    schema = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    assert read_bytes(data, schema, PARQUET) == [{"a.b": 1, "a": {"b": 2}}]


def test_fields_of_structs_are_matched_by_name_too() -> None:
    written = pa.struct([("x", pa.int32()), ("Y", pa.string()), ("z", pa.int64())])
    declared = pa.struct([("y", pa.string()), ("w", pa.date32()), ("x", pa.int64())])
    rows = [{"x": 1, "Y": "q", "z": 3}, None, {"x": None, "Y": None, "z": None}]
    assert read_column(column(rows, written), declared, PARQUET) == [
        {"y": "q", "w": None, "x": 1},
        None,
        {"y": None, "w": None, "x": None},
    ]
    nested = read_column(column([rows, None, []], pa.list_(written)), pa.list_(declared), PARQUET)
    assert [len(row) if row is not None else None for row in nested] == [3, None, 0]
    assert nested[0][0] == {"y": "q", "w": None, "x": 1}


def test_columns_that_may_not_be_null_become_the_declared_ones() -> None:
    written = pa.schema([pa.field("a", pa.struct([pa.field("x", pa.int64(), nullable=False)]), nullable=False)])
    data = parquet(pa.Table.from_pylist([{"a": {"x": 1}}], schema=written))
    assert read_column(data, pa.struct([("x", pa.int64())]), PARQUET) == [{"x": 1}]


def test_an_object_without_any_declared_column_is_refused() -> None:
    assert refused(parquet(pa.table({"x": [1]})), ONE, PARQUET).cause == "wrong-columns"


def test_an_empty_object_and_one_without_rows_have_no_rows() -> None:
    assert read_bytes(b"", ONE, PARQUET) == []
    assert read_bytes(column([], pa.int64()), ONE, PARQUET) == []
    sink = io.BytesIO()
    pq.ParquetWriter(sink, ONE).close()
    assert read_bytes(sink.getvalue(), ONE, PARQUET) == []


def test_what_is_no_parquet_or_cut_off_is_corrupt_wherever_it_was_cut() -> None:
    data = column(list(range(1000)))
    assert refused(b'{"a":1}\n', ONE, PARQUET).cause == "corrupt-object"
    assert refused(b"PAR1", ONE, PARQUET).cause == "corrupt-object"
    for end in (1, 3, 11, len(data) // 2, len(data) - 9, len(data) - 1):
        assert refused(data[:end], ONE, PARQUET).cause == "corrupt-object"


def test_a_damaged_page_is_found_by_its_checksum() -> None:
    values = list(range(1000))
    table = pa.table({"a": values})
    data = parquet(table, write_page_checksum=True, use_dictionary=False, compression="none")
    place = data.index((500).to_bytes(8, "little"))
    damaged = data[:place] + b"\x01" + data[place + 1 :]
    assert refused(damaged, ONE, PARQUET).cause == "corrupt-object"


def test_text_that_is_not_utf8_is_corrupt() -> None:
    data = parquet(pa.table({"a": ["abcdef"]}), use_dictionary=False, compression="none", write_statistics=False)
    damaged = data.replace(b"abcdef", b"ab\xff\xfeef")
    assert damaged != data
    assert refused(damaged, pa.schema([("a", pa.string())]), PARQUET).cause == "corrupt-object"


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("step", [7, 50, 120, 1000, 100_000])
def test_parts_that_tile_an_object_tile_its_row_groups(tmp_path: Path, step: int, use_dictionary: bool) -> None:
    pq.write_table(pa.table({"a": list(range(30))}), tmp_path / "o", row_group_size=4, use_dictionary=use_dictionary)
    size = (tmp_path / "o").stat().st_size
    bounds: list[int | None] = [*range(0, size, step), None]
    parts = []
    with open_object(f"{tmp_path}/o") as file:
        for start, end in itertools.pairwise(bounds):
            tables = read_parquet(file, Part(start or 0, end))
            parts.append([value for table in tables for value in table["a"].to_pylist()])
    assert list(itertools.chain(*parts)) == list(range(30))
    assert all(part == [] or part[0] % 4 == 0 for part in parts)
    assert step > 120 or sum(map(bool, parts)) > 1  # the most of so small an object is its footer


def test_neighbours_of_other_columns_are_read_by_their_own() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    tables = [
        pa.table({"a": [1], "b": ["x"]}),
        pa.table({"b": ["y"], "a": pa.array([2], pa.int32())}),
        pa.table({"c": [0], "a": [3]}),
        pa.table({"a": [4], "b": ["z"]}),
    ]
    options = FormatOptions("parquet")
    found = [read_bytes(parquet(table), schema, options) for table in tables]
    assert found == [[{"a": 1, "b": "x"}], [{"a": 2, "b": "y"}], [{"a": 3, "b": None}], [{"a": 4, "b": "z"}]]
    narrow = pa.schema([("a", pa.int64())])
    assert read_bytes(parquet(tables[3]), narrow, options) == [{"a": 4}]


def test_a_page_is_what_its_type_says_whatever_headers_it_has() -> None:
    data = one_page(gzip.compress(bytes(24)), 24, values=3, physical=2, two_headers=True)
    assert read_column(data, pa.int64(), PARQUET) == [0, 0, 0]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_footer_that_says_other_rows_than_its_columns_have_is_refused(rows: int) -> None:
    """Where it says fewer, pyarrow would leave the others out."""
    data = parquet(pa.table({"a": range(50)}), compression="none", use_dictionary=False)
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    group = footer.rindex(b"\x16\x64", 0, footer.index(b"ARROW:schema"))  # field 3 of the row group: 50
    for there in (b"\x62", b"\x66"):
        damaged = footer[: group + 1] + there + footer[group + 2 :]
        assert "other rows" in refused(data.replace(footer, damaged), ONE, PARQUET).detail
    claimed = one_page(gzip.compress(bytes(24)), 24, values=3, rows=rows, physical=2)
    if rows > 3 or int(pa.__version__.split(".")[0]) < 26:  # before 26 pyarrow brings the rows that are too many
        assert refused(claimed, ONE, PARQUET).cause == "corrupt-object"
    else:
        assert read_column(claimed, pa.int64(), PARQUET) == [0, 0]  # nothing in it says that there are more


@pytest.mark.parametrize("at_once", [1, 300, 1 << 20])
def test_groups_that_are_large_are_read_in_batches(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_reader, "IN_MEMORY", at_once)
    monkeypatch.setattr(typed_tables, "ROWS", 7)
    table = pa.table({"a": list(range(100))})
    data = parquet(table, row_group_size=30, compression="none", use_dictionary=False, write_page_checksum=True)
    assert read_column(data, pa.int64(), PARQUET) == list(range(100))
    place = data.index((95).to_bytes(8, "little"))
    with pytest.raises(BadObject):
        read_column(data[:place] + data[place + 1 :], pa.int64(), PARQUET)


def test_a_store_that_fails_in_the_middle_is_not_a_corrupt_object() -> None:
    class Failing(InMemory):
        reads = 0

        def read_range(self, start: int, end: int) -> bytes:
            Failing.reads += 1
            if Failing.reads > 1:
                raise OSError("AWS Error SLOW_DOWN during GetObject operation")
            return super().read_range(start, end)

    data = column(list(range(200_000)))
    with pytest.raises(ObjectStoreError, match="SLOW_DOWN"):
        list(read_parquet(ObjectFile("s3://b/k", Failing(data))))
    assert Failing.reads > 1


def test_an_object_that_vanishes_in_the_middle_is_missing() -> None:
    class Vanishing(InMemory):
        def read_range(self, start: int, end: int) -> bytes:
            raise FileNotFoundError("gone")

    with pytest.raises(BadObject) as caught:
        list(read_parquet(ObjectFile("s3://b/k", Vanishing(column([1])))))
    assert caught.value.cause == "missing-object"


@pytest.mark.parametrize("year", [1, 1500, 1600, 2020, 9999])
def test_int96_of_any_year_is_read_in_microseconds(year: int) -> None:
    # pyarrow writes INT96 from nanoseconds only, so the value is put where another one is
    moment = dt.datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone.utc)
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    data = parquet(pa.table({"a": pa.array([1], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True, **plain)
    one = (1).to_bytes(8, "little") + (2_440_588).to_bytes(4, "little")
    nanos = (since.seconds * 1_000_000 + since.microseconds) * 1000 + 999
    assert data.count(one) == 1
    data = data.replace(one, nanos.to_bytes(8, "little") + (2_440_588 + since.days).to_bytes(4, "little"))
    assert read_column(data, UTC_MICROS, PARQUET) == [moment]


def test_int96_is_inferred_as_an_instant_at_any_depth_as_by_spark() -> None:
    naive, instant = pa.timestamp("us"), UTC_MICROS

    def columns(time: pa.DataType) -> pa.Schema:
        both = pa.struct([("n", pa.int64()), ("t", time)])
        kinds = {"a": time, "b": pa.list_(pa.list_(time)), "c": both, "d": pa.map_(pa.string(), time), "e": pa.int64()}
        return pa.schema(kinds)

    table = columns(naive).empty_table()
    for is_int96, expected in ((True, instant), (False, naive)):
        plain: dict[str, Any] = {"use_deprecated_int96_timestamps": is_int96, "store_schema": False}
        file = ObjectFile("o", InMemory(data := parquet(table, **plain)))
        inferred = format_of(PARQUET).infer(OpenObject("o", file, len(data)), PARQUET, 0, types=True)
        assert inferred == columns(expected)


def test_int96_in_a_column_that_is_kept_as_one_without_a_zone_is_no_other_column() -> None:
    """A `schemaLocation` of version 0.4.0 has it so: the query neither ends nor begins anew for that."""
    watching = replace(PARQUET, watch_new_columns=True, watch_wider_types=True)
    noon = dt.datetime(2020, 1, 1, 12)
    data = parquet(pa.table({"a": pa.array([noon], pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    assert read_column(data, pa.timestamp("us"), watching) == [noon]


@pytest.mark.parametrize(
    ("written", "declared", "number"),
    [
        (pa.duration("us"), pa.int64(), -1),
        (pa.duration("us"), pa.int8(), 5),
        (pa.time64("us"), pa.int64(), 1),
        (pa.time32("ms"), pa.int64(), 1),
        (pa.time32("ms"), pa.int32(), 1),
    ],
)
def test_durations_and_times_that_are_declared_as_whole_numbers_are_these(
    written: pa.DataType, declared: pa.DataType, number: int
) -> None:
    """Parquet has them so, and Spark reads them so: those of pandas are durations by a mark of Arrow's alone."""
    stored = pa.int32() if written == pa.time32("ms") else pa.int64()
    data = parquet(pa.table({"a": pa.array([number, None], stored).view(written)}))
    assert read_column(data, declared, PARQUET) == [number, None]


def inferred(data: bytes) -> pa.Schema:
    return format_of(PARQUET).infer(OpenObject("o", ObjectFile("o", InMemory(data)), len(data)), PARQUET, 0, types=True)


def test_texts_that_are_marked_as_those_of_an_enum_are_inferred_as_text_as_by_spark() -> None:
    """Avro's and Protobuf's writers of Parquet mark them."""
    data = one_page(gzip.compress(b"\1\0\0\0x"), 5, values=1, physical=6, meaning=4)
    assert inferred(data) == pa.schema([("a", pa.string())])
    assert read_column(data, pa.string(), PARQUET) == ["x"]


def test_an_interval_which_pyarrow_takes_for_null_is_refused() -> None:
    data = one_page(gzip.compress(bytes(12)), 12, values=1, physical=7, meaning=21)
    with pytest.raises(ValueError, match="Spark has no type for"):
        inferred(data)
    assert "'a' is INTERVAL" in refused(data, pa.schema([("a", pa.string())]), PARQUET).detail


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.struct([("x", pa.dictionary(pa.int32(), pa.string()))]),
        pa.map_(pa.string(), pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    ],
)
def test_a_dictionary_within_a_column_may_be_another_in_each_row_group(kind: pa.DataType) -> None:
    """Categories within other columns are written so."""
    values = {"list": ["x", None], "struct": {"x": "y"}, "map": [("k", ["z"])]}[str(kind).partition("<")[0]]
    declared = {"list": pa.list_(pa.string()), "struct": pa.struct([("x", pa.string())])}.get(
        str(kind).partition("<")[0], pa.map_(pa.string(), pa.list_(pa.string()))
    )
    table = pa.table({"a": pa.array([values, None, values], declared).cast(kind)})
    assert read_column(parquet(table, row_group_size=1), declared, PARQUET) == [values, None, values]


def test_dates_of_spark_before_version_3_are_those_of_the_calendar_of_then() -> None:
    days = pa.array([-141_428, -141_427, None], pa.int32()).view(pa.date32())
    kind = pa.struct([("d", pa.date32()), ("t", pa.timestamp("us", tz="UTC"))])
    noon = -141_428 * 86_400_000_000 + 43_200_000_000
    deep = pa.array([{"d": dt.date(2020, 1, 1), "t": noon}] * 3, kind)
    table = pa.table({"a": days, "s": deep})
    schema = pa.schema([("a", pa.date32()), ("s", kind)])
    for said, first, hour in (
        ({"org.apache.spark.version": "2.4.8"}, dt.date(1582, 10, 4), 12),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, dt.date(1582, 10, 4), 12),
        ({"org.apache.spark.version": "3.5.0"}, dt.date(1582, 10, 14), 12),
        ({}, dt.date(1582, 10, 14), 12),
    ):
        data = parquet(table.replace_schema_metadata(said))
        rows = read_bytes(data, schema, PARQUET)
        assert [row["a"] for row in rows] == [first, dt.date(1582, 10, 15), None], said
        assert rows[0]["s"]["t"] == dt.datetime(1582, 10, first.day, hour, tzinfo=dt.timezone.utc), said


def test_local_times_are_those_of_the_calendar_of_today_also_where_spark_marks_the_others() -> None:
    noon = dt.datetime(1582, 10, 4, 12)
    kind = pa.struct([("t", pa.timestamp("us"))])
    table = pa.table({"a": pa.array([noon, None]), "s": pa.array([{"t": noon}, None], kind)})
    said = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    rows = read_bytes(parquet(table.replace_schema_metadata(said)), table.schema, PARQUET)
    assert rows == [{"a": noon, "s": {"t": noon}}, {"a": None, "s": None}]


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_batches_have_fewer_rows_where_texts_may_be_large(
    use_dictionary: bool, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_tables, "AT_ONCE", 1000)
    values: list[Any] = [f"{n % 50}" * (n % 50) for n in range(3000)]
    if nested:
        values = [[{"k": value, "n": None}] * (len(value) % 3) for value in values]
    for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        kwargs: dict[str, Any] = {} if use_dictionary else {"column_encoding": encoding}
        if nested and not use_dictionary:
            kwargs = {"column_encoding": {"a.list.element.k": encoding}}
        data = column_of(values, use_dictionary=use_dictionary, data_page_size=5000, **kwargs)
        kind = pa.list_(pa.struct([("k", pa.string()), ("n", pa.string())])) if nested else pa.string()
        assert read_column(data, kind, PARQUET) == values


def column_of(values: list[Any], **options: Any) -> bytes:
    table = pa.table({"a": values})
    if pa.types.is_list(table["a"].type):
        table = table.cast(pa.schema([("a", pa.list_(pa.struct([("k", pa.string()), ("n", pa.string())])))]))
    return parquet(table, **options)


@pytest.mark.parametrize(
    ("value", "within"),
    [
        (1, lambda kind: kind),
        ([1, None], pa.list_),
        ([("k", 1)], lambda kind: pa.map_(pa.string(), kind)),
        ({"t": [1], "x": 7}, lambda kind: pa.struct([("t", pa.list_(kind)), ("x", pa.int64())])),
    ],
    ids=["alone", "in an array", "in a map", "in a struct with another field behind it"],
)
def test_an_int96_that_is_no_year_is_refused_and_not_another_time(
    value: Any, within: Callable[[pa.DataType], pa.DataType]
) -> None:
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    stamps = pa.table({"a.b": [1], "a": pa.array([value], within(pa.timestamp("ns")))})
    data = parquet(stamps, use_deprecated_int96_timestamps=True, **plain)
    day = (2_440_588).to_bytes(4, "little")
    assert data.count(day) == 1
    data = data.replace(day, (2**32 - 1).to_bytes(4, "little"))
    assert "INT96" in refused(data, pa.schema([("a", within(UTC_MICROS))]), PARQUET).detail


def test_a_group_without_anything_in_it_is_null() -> None:
    packed = gzip.compress((5).to_bytes(8, "little"))
    data = one_page(packed, 8, values=1, physical=2, empty_group=True)
    assert pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names == ["a", "e"]
    schema = pa.schema([("a", pa.int64()), ("e", pa.struct([("x", pa.int64())]))])
    assert read_bytes(data, schema, PARQUET) == [{"a": 5, "e": None}]
    assert refused(data, schema.remove(0), PARQUET).cause == "wrong-columns"


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "none"])
def test_many_lists_are_read_whatever_they_have_together(
    version: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_tables, "AT_ONCE", 5000)
    lists: list[Any] = [[n] * (n % 40) for n in range(3000)] + [None, []] * 500 + [[1] * 200] + [[7]] * 999
    nested = [None if one is None else [one, one[:1]] for one in lists]
    table = pa.table({"a": lists, "b": nested})
    data = parquet(table, compression=codec, data_page_version=version, data_page_size=500, row_group_size=4000)
    assert read_bytes(data, table.schema, PARQUET) == table.to_pylist()


@pytest.mark.parametrize("columns", [["a"], ["a", "b", "c"], ["c"]])
def test_neighbouring_columns_come_with_few_requests(columns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(InMemory):
        reads: ClassVar[list[int]] = []

        def read_range(self, start: int, end: int) -> bytes:
            self.reads.append(end - start)
            return super().read_range(start, end)

    rng = np.random.default_rng(1)
    table = pa.table({name: rng.integers(0, 1 << 60, 100_000) for name in (*"abc", *(f"other{n}" for n in range(20)))})
    data = parquet(table, row_group_size=50_000, compression="none", use_dictionary=False)
    file, schema = Counting(data), pa.schema([(name, pa.int64()) for name in columns])
    source = OpenObject("", ObjectFile("", file), len(data))
    tables = list(format_of(PARQUET).open(source, Part(), schema, PARQUET, BadRecords("FAILFAST")).rows)
    assert pa.concat_tables(tables).equals(table.select(columns))
    if not parquet_reader.IN_MEMORY:
        return
    assert len(file.reads) <= 1 + 2 * min(len(columns), 2)
    assert sum(file.reads) < 4 * len(columns) * 100_000 * 8 + (1 << 20)


def test_long_texts_that_repeat_are_read_in_less_memory_than_they_have() -> None:
    texts = ["x" * (1 << 20), "y"]
    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([0, 1] * 300, pa.int32()), pa.array(texts))})
    options = FormatOptions("parquet", max_decode_memory=128 << 20)
    with tempfile.NamedTemporaryFile() as file:
        file.write(parquet(table))
        file.flush()
        batches = load_object(file.name, pa.schema([("a", pa.string())]), options)
    lengths = [length for batch in batches for length in pc.binary_length(batch["a"]).to_pylist()]
    assert lengths == [1 << 20, 1] * 300
    assert max(batch.nbytes for batch in batches) < 128 << 20


def test_many_small_lists_of_few_bytes_are_no_row_that_is_too_large() -> None:
    offsets, zeros = np.arange(0, 40_000_001, 400, dtype=np.int32), np.zeros(40_000_000, np.int8)
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": pa.ListArray.from_arrays(offsets, zeros)}), sink)
    assert len(sink.getvalue()) < 1 << 20
    schema = pa.schema([("a", pa.list_(pa.int8()))])
    with tempfile.NamedTemporaryFile() as file:
        file.write(sink.getvalue())
        file.flush()
        assert sum(batch.num_rows for batch in load_object(file.name, schema, PARQUET)) == 100_000
