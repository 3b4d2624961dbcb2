"""Values at the edges of their types: what every format reads is what Python's decimal and zoneinfo say."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.formats.metadata import path_columns
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv import CsvReader
from queue_source.formats.text.json import JsonReader
from queue_source.formats.types import cast_exactly, instants, local_times
from queue_source.options.content import FormatOptions
from support.reading import read_with_problems

WIDE = Context(prec=200, rounding=ROUND_HALF_UP)
GOOD = "1"  # beside what is tried: what a neighbour makes of it must not change it


@st.composite
def decimal_types(draw: st.DrawFn) -> pa.DataType:
    precision = draw(st.one_of(st.just(38), st.integers(1, 38)))
    return pa.decimal128(precision, draw(st.one_of(st.integers(0, precision), st.just(min(18, precision)))))


numbers = st.one_of(
    st.builds(
        lambda sign, whole, fraction: f"{sign}{whole}{fraction and '.'}{fraction}",
        st.sampled_from(["", "-"]),
        st.one_of(st.integers(0, 39).map(lambda n: "9" * n or "0"), st.integers(0, 10**40).map(str)),
        st.one_of(st.just(""), st.integers(1, 39).map(lambda n: "0" * (n - 1) + "7"), st.integers(0, 10**9).map(str)),
    ),
    st.builds(lambda base, shift: f"{base}e{shift}", st.integers(-(10**20), 10**20), st.one_of(st.integers(-60, 60))),
)


def fitting(text: str, kind: pa.DataType) -> Decimal | None:
    """The number as the type has it, half up; None where it has no place for it."""
    rounded = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=WIDE)
    return rounded if abs(int(rounded.scaleb(kind.scale, WIDE))) < 10**kind.precision else None


@settings(max_examples=300, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=3), decimal_types(), st.sampled_from(["csv", "csv of texts", "json"]))
@example(["400000000000000000000"], pa.decimal128(38, 18), "csv")
@example(["400000000000000000000"], pa.decimal128(38, 18), "csv of texts")
@example(["400000000000000000000"], pa.decimal128(38, 18), "json")
@example(["4e20"], pa.decimal128(38, 18), "json")
@example(["9" * 20, "0." + "9" * 18], pa.decimal128(38, 18), "csv")
@example(["5"], pa.decimal128(38, 38), "csv")
def test_a_decimal_is_the_number_that_is_written_or_a_bad_value(texts: list[str], kind: pa.DataType, form: str) -> None:
    lines = [GOOD, *texts]
    if form == "json":
        options = FormatOptions("json")
        data = "".join(f'{{"a":{text},"b":"x"}}\n' for text in lines)
    else:
        options = FormatOptions("csv", null_value="NULL" if form == "csv of texts" else "")
        data = "".join(f"{text},x\n" for text in lines)
    schema = pa.schema([("a", kind), ("b", pa.string())])
    expected = [fitting(text, kind) for text in lines]
    found = read_with_problems(data.encode(), schema, options)
    assert [row["a"] for row in found.rows] == expected
    assert found.problems.count == expected.count(None)
    reader = (JsonReader if form == "json" else CsvReader)(schema, options, found.problems, "")
    quick = reader.read_quickly(data.encode())
    assert quick is None or quick.column("a").to_pylist() == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=3), decimal_types())
def test_a_decimal_within_an_array_a_struct_or_a_map_of_json_is_right_or_bad(
    texts: list[str], kind: pa.DataType
) -> None:
    expected = [fitting(text, kind) for text in texts]
    fields = [
        ("a", pa.list_(kind)),
        ("s", pa.struct([("x", kind)])),
        ("b", pa.string()),
        ("m", pa.map_(pa.string(), kind)),
    ]
    for declared in (fields[:3], fields):  # a map is read slowly
        data = "".join(f'{{"a":[{text}],"s":{{"x":{text}}},"m":{{"k":{text}}},"b":"x"}}\n' for text in texts)
        found = read_with_problems(data.encode(), pa.schema(declared), FormatOptions("json"))
        assert [row["s"]["x"] for row in found.rows] == expected
        assert [row["a"] and row["a"][0] for row in found.rows] == expected
        assert found.problems.count == expected.count(None)


def written(column: pa.Array, form: str) -> bytes:
    table, sink = pa.table({"a": column}), io.BytesIO()
    if form == "orc":
        orc.write_table(table, sink)
    else:
        pq.write_table(table, sink)
    return sink.getvalue()


def read_typed(data: bytes, kind: pa.DataType, form: str) -> list[Any] | str:
    try:
        return [row["a"] for row in read_with_problems(data, pa.schema([("a", kind)]), FormatOptions(form)).rows]
    except BadObject as error:
        return error.cause


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.integers(0, 38).map(lambda n: 10**n - 1), st.integers(0, 10**38 - 1)),
    decimal_types(),
    decimal_types(),
    st.sampled_from(["parquet", "orc", "list"]),
)
@example(400000000000000000000, pa.decimal128(38, 0), pa.decimal128(38, 18), "parquet")
@example(400000000000000000000, pa.decimal128(38, 0), pa.decimal128(38, 18), "orc")
@example(400000000000000000000, pa.decimal128(38, 0), pa.decimal128(38, 18), "list")
def test_a_decimal_of_another_type_keeps_its_value_or_the_object_is_bad(
    whole: int, kind: pa.DataType, declared: pa.DataType, form: str
) -> None:
    value = Decimal(whole % 10**kind.precision).scaleb(-kind.scale, WIDE)
    column = pa.array([Decimal(0), value, None], kind)
    fits = value.quantize(Decimal(1).scaleb(-declared.scale), context=WIDE) == value and fitting(f"{value}", declared)
    expected: list[Any] | str = "corrupt-object" if fits is None or fits is False else [Decimal(0), value, None]
    if form == "list":
        lists = pa.ListArray.from_arrays([0, 3], column)
        found = read_typed(written(lists, "parquet"), pa.list_(declared), "parquet")
        assert found == (expected if isinstance(expected, str) else [expected])
    else:
        assert read_typed(written(column, form), declared, form) == expected


def test_a_decimal_within_a_struct_is_cast_to_its_value_or_not_at_all() -> None:
    """As where published files are read as the type that was published last."""
    kind, target = pa.decimal128(38, 0), pa.decimal128(38, 18)
    structs, lists = pa.struct([("x", kind)]), pa.struct([("x", pa.list_(kind))])
    for value, source, wanted in (
        ({"x": Decimal(7)}, structs, pa.struct([("x", target)])),
        ({"x": [Decimal(7), None]}, lists, pa.struct([("x", pa.list_(target))])),
    ):
        assert cast_exactly(pa.array([value, None], source), wanted).to_pylist() == [value, None]
    for large, source, wanted in (
        ({"x": Decimal(4 * 10**20)}, structs, pa.struct([("x", target)])),
        ({"x": [Decimal(4 * 10**20)]}, lists, pa.struct([("x", pa.list_(target))])),
    ):
        with pytest.raises(pa.ArrowInvalid):
            cast_exactly(pa.array([large], source), wanted)


@pytest.mark.parametrize("digits", [38, 60, 76])
def test_a_decimal_of_256_bits_in_parquet_keeps_its_value_or_the_object_is_bad(digits: int) -> None:
    data = written(pa.array([Decimal("4" * (digits - 3))], pa.decimal256(digits, 0)), "parquet")
    expected = [Decimal("4" * 35)] if digits == 38 else "corrupt-object"
    assert read_typed(data, pa.decimal128(38, 0), "parquet") == expected
    assert read_typed(data, pa.decimal128(38, 18), "parquet") == "corrupt-object"


ZONES = [
    "UTC", "+05:30", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kolkata",
    "Africa/Casablanca", "Pacific/Apia", "Europe/Dublin", "America/Asuncion", "Africa/Monrovia", "Asia/Tehran",
]  # fmt: skip
EPOCH = datetime(1970, 1, 1)
EDGES = [
    datetime(year, month, day, hour, 30)
    for year in (1, 1582, 1883, 1900, 1969, 2024, 2037, 2038, 2040, 2099, 2400, 9998)
    for month, day in ((1, 2), (7, 1), (12, 31))
    for hour in (0, 12)
]
walls = st.one_of(
    st.sampled_from(EDGES),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.datetimes(datetime(2037, 1, 1), datetime(2060, 1, 1)),
    st.builds(  # days on which clocks change
        lambda year, month, day, minutes: datetime(year, month, day) + timedelta(minutes=minutes),
        st.integers(1970, 2100), st.sampled_from([3, 4, 10, 11]), st.integers(1, 28), st.integers(0, 240),
    ),
    st.builds(
        lambda year, day: datetime(year, 3, 31, 2, 30) - timedelta(days=day), st.integers(1990, 2100), st.integers(0, 6)
    ),
)  # fmt: skip


def clock(zone: str) -> Any:
    return timezone(timedelta(hours=5, minutes=30)) if zone[0] == "+" else ZoneInfo(zone)


def instant_of(wall: datetime, zone: str) -> int:
    """Microseconds since 1970, as Python's zoneinfo and Java have it: in a gap by the offset before it."""
    return (wall.replace(tzinfo=clock(zone)) - EPOCH.replace(tzinfo=timezone.utc)) // timedelta(microseconds=1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), walls), min_size=1, max_size=4), st.sampled_from(ZONES))
@example([datetime(2040, 7, 1, 12)], "Europe/Berlin")
@example([datetime(2024, 3, 31, 2, 30)], "Europe/Berlin")
@example([datetime(2099, 3, 29, 2, 30)], "Europe/Berlin")
def test_a_time_without_a_zone_is_the_moment_of_its_zone_and_back(times: list[datetime | None], zone: str) -> None:
    expected = [None if time is None else instant_of(time, zone) for time in times]
    moments = instants(pa.array(times, pa.timestamp("us")), zone)
    assert moments.cast(pa.int64()).to_pylist() == expected
    at_clock = [
        None
        if micros is None
        else (EPOCH.replace(tzinfo=timezone.utc) + timedelta(microseconds=micros))
        .astimezone(clock(zone))
        .replace(tzinfo=None)
        for micros in expected
    ]
    assert local_times(moments.cast(pa.timestamp("us", tz=zone))).to_pylist() == at_clock


def both_ways(data: bytes, schema: pa.Schema, options: FormatOptions) -> tuple[pa.Table, pa.Table]:
    """What the quick and the slow way read; neither finds anything bad."""
    make = CsvReader if options.file_format == "csv" else JsonReader
    reader = make(schema, options, BadRecords("FAILFAST"), "")
    quick = reader.read_quickly(data)
    assert quick is not None
    return quick, pa.concat_tables(reader.read_slowly(Block(0, data)))


@settings(max_examples=200, deadline=None)
@given(st.lists(walls, min_size=1, max_size=3), st.sampled_from(ZONES), st.sampled_from(["csv", "json"]))
@example([datetime(2040, 7, 1, 12)], "Europe/Berlin", "csv")
@example([datetime(2040, 7, 1, 12)], "Europe/Berlin", "json")
def test_text_without_a_zone_is_read_quickly_slowly_and_in_folders_as_the_same_moment(
    times: list[datetime], zone: str, form: str
) -> None:
    texts = [time.isoformat(sep=" ") for time in times]
    schema = pa.schema([("a", pa.timestamp("us", tz="UTC")), ("b", pa.string())])
    options = FormatOptions(form, timezone=zone)
    expected = [instant_of(time, zone) for time in times]
    data = "".join(f"{text},x\n" if form == "csv" else f'{{"a":"{text}","b":"x"}}\n' for text in texts).encode()
    quick, slow = both_ways(data, schema, options)
    assert quick.column("a").cast(pa.int64()).to_pylist() == expected
    assert slow.equals(quick)
    folders = FormatOptions(form, timezone=zone, partition_columns=("a",))
    for text, value in zip(texts, expected, strict=True):
        found = path_columns(f"file:///t/a={text.replace(':', '%3A')}/x", schema, folders)
        assert found["a"].cast(pa.int64()).as_py() == value


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
@pytest.mark.parametrize("text", ["0000-01-01", "0000-02-29", "0000-12-31", "0001-01-01", "9999-12-31", "1582-10-10"])
def test_the_first_and_the_last_day_are_the_same_by_the_quick_and_by_the_slow_way(
    form: str, kind: pa.DataType, text: str
) -> None:
    schema = pa.schema([("a", kind), ("b", pa.string())])
    data = (f"{text},x\n" if form == "csv" else f'{{"a":"{text}","b":"x"}}\n').encode()
    for zone in ("UTC", "Europe/Berlin"):
        options = FormatOptions(form, timezone=zone)
        quick, slow = both_ways(data, schema, options)
        assert quick.equals(slow)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["-0", "-0.0", "0", "-0e1", "-1", "null", "1.5"]), min_size=1, max_size=4))
@example(["-0", "1.5"])
def test_a_whole_number_of_json_has_no_negative_zero_and_another_has(texts: list[str]) -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.float32())), ("c", pa.string())])
    data = "".join(f'{{"a":{text},"b":[{text}],"c":"2024-01-01"}}\n' for text in texts)
    expected = [None if text == "null" else 0.0 if text == "-0" else float(text) for text in texts]
    found = read_with_problems(data.encode(), schema, FormatOptions("json")).rows
    assert repr([row["a"] for row in found]) == repr(expected)
    assert repr([row["b"][0] for row in found]) == repr(expected)
