"""Values of ORC that pyarrow does not give as Spark does."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as pa_orc
import pytest

from queue_source.formats import orc
from queue_source.formats import typed as typed_tables
from queue_source.options.content import FormatOptions
from support.reading import SECOND, UTC_MICROS, moments_around, read_bytes, read_column

ORC = FormatOptions("orc")


@pytest.fixture(params=["in memory", "in pieces"], autouse=True)
def place_of_small_stripes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripes of tests are small: they are also read in the way of large ones."""
    if request.param == "in pieces":
        monkeypatch.setattr(orc, "SMALL", 0)


def written(table: pa.Table, zone: bytes = b"GMT", **options: Any) -> bytes:
    """A file whose writer says that it was in a zone with a name of three letters."""
    sink = io.BytesIO()
    pa_orc.write_table(table, sink, compression="uncompressed", **options)
    data = sink.getvalue()
    assert data.count(b"\x1a\x03GMT") >= 1
    return data.replace(b"\x1a\x03GMT", b"\x1a\x03" + zone)


NOON = dt.datetime(2020, 7, 1, 12)


def test_a_timestamp_is_the_moment_at_the_clock_of_its_writer() -> None:
    data = written(pa.table({"a": pa.array([NOON, None], pa.timestamp("us"))}), b"EST")  # five hours behind
    moment = NOON.replace(tzinfo=dt.timezone.utc) + dt.timedelta(hours=5)
    assert read_column(data, UTC_MICROS, ORC) == [moment, None]
    assert read_column(data, pa.timestamp("us"), ORC) == [NOON, None]


def test_a_timestamp_within_other_types_is_too() -> None:
    kind = pa.struct([("l", pa.list_(pa.timestamp("us"))), ("m", pa.map_(pa.string(), pa.timestamp("us")))])
    data = written(pa.table({"a": pa.array([{"l": [NOON, None], "m": [("k", NOON)]}, None], kind)}), b"EST")
    moment = NOON.replace(tzinfo=dt.timezone.utc) + dt.timedelta(hours=5)
    declared = pa.struct([("m", pa.map_(pa.string(), UTC_MICROS)), ("l", pa.list_(UTC_MICROS))])
    assert read_column(data, declared, ORC) == [{"m": [("k", moment)], "l": [moment, None]}, None]


@pytest.mark.parametrize("stored", [pa.timestamp("us"), pa.int64()], ids=["TIMESTAMP", "as Spark writes it"])
def test_a_timestamp_without_a_zone_within_other_types_is_the_time_at_the_writers_clock(stored: pa.DataType) -> None:
    def kind(inner: pa.DataType) -> pa.DataType:
        parts = [("x", pa.int64()), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))]
        return pa.struct([*parts, ("a", pa.list_(pa.struct([("t", inner)])))])

    value = {"x": 7, "l": [NOON, None], "m": [("k", NOON)], "a": [{"t": NOON}, None]}
    plain = pa.array([value, None], kind(pa.timestamp("us"))).cast(kind(stored))
    data = written(pa.table({"a": plain}), b"EST")
    assert read_column(data, kind(pa.timestamp("us")), ORC) == [value, None]


def test_digits_of_nanoseconds_are_left_out() -> None:
    stamps = pa.array([1_500, -1_500], pa.timestamp("ns"))
    found = read_column(written(pa.table({"a": stamps})), UTC_MICROS, ORC)
    start = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    assert found == [start + dt.timedelta(microseconds=n) for n in (1, -2)]


OF_2015 = {  # 2015-01-01 00:00 at the clock of the writer, in seconds since 1970
    "UTC": 1_420_070_400,
    "America/Los_Angeles": 1_420_070_400 + 8 * 3600,
    "Asia/Kolkata": 1_420_070_400 - 5 * 3600 - 1800,
    "Europe/Berlin": 1_420_070_400 - 3600,
}


def with_timestamps(moments: Iterable[int], zone: str, kind: int = orc.TIMESTAMP) -> bytes:
    """A file of such moments, in microseconds, as the writer for Java in that zone writes it: a column `a`.

    It cuts seconds towards 1970 where there is a whole millisecond of a fraction, and lets a reader find that out.
    """
    seconds, nanos = b"", b""
    for moment in moments:
        second, micros = divmod(moment, SECOND)
        second += (second < 0 and micros >= 1000) - (OF_2015[zone] if kind == orc.TIMESTAMP else OF_2015["UTC"])
        seconds += b"\xff" + _varint(second * 2 if second >= 0 else -second * 2 - 1)
        nanos += b"\xff" + _varint(micros * 1000 << 3)
    streams = [orc.written([(1, stream), (2, 1), (3, len(data))]) for stream, data in ((1, seconds), (5, nanos))]
    of_stripe = orc.written([*((1, one) for one in streams), (2, b""), (2, b""), (3, zone.encode())])
    data, rows = b"ORC" + seconds + nanos, len(list(moments))
    where = orc.written([(1, 3), (2, 0), (3, len(data) - 3), (4, len(of_stripe)), (5, rows)])
    types = [orc.written([(1, 12), (2, 1), (3, b"a")]), orc.written([(1, kind)])]
    footer = orc.written(
        [(1, 3), (2, len(data + of_stripe)), (3, where), *((4, one) for one in types), (6, rows), (8, 0)]
    )
    postscript = orc.written([(1, len(footer)), (2, 0), (4, b"\0\x0c"), (5, 0), (8000, b"ORC")])
    return data + of_stripe + footer + postscript + bytes([len(postscript)])


def _varint(value: int) -> bytes:
    return orc.written([(0, value)])[1:]


@pytest.mark.parametrize("zone", OF_2015)
@pytest.mark.parametrize("kind", [orc.TIMESTAMP, 18], ids=["timestamp", "with local time zone"])
def test_a_fraction_near_1970_belongs_to_the_second_that_spark_reads(zone: str, kind: int) -> None:
    ahead = OF_2015["UTC"] - OF_2015[zone]
    moments = moments_around(0, ahead, -ahead, ahead // 2, -ahead // 2, OF_2015[zone], OF_2015["UTC"])
    found = read_column(with_timestamps(moments, zone, kind), UTC_MICROS, ORC)
    start = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    read = [(moment - start) // dt.timedelta(microseconds=1) for moment in found]
    # what is written of -0.5 s is what is written of 0.5 s; Spark reads the latter
    expected = [moment + SECOND if -SECOND + 999 < moment < 0 else moment for moment in moments]
    assert [pair for pair in zip(moments, read, expected, strict=True) if pair[1] != pair[2]] == []


def test_a_fraction_that_pyarrow_wrote_is_read_where_spark_fails() -> None:
    """It writes negative nanoseconds: ORC for Java has no such thing, pyarrow adds them to the second."""
    moments = moments_around(0)
    for kind in (pa.timestamp("us"), UTC_MICROS):
        data = written(pa.table({"a": pa.array(moments, kind)}))
        assert read_column(data, UTC_MICROS, ORC) == pa.array(moments, UTC_MICROS).to_pylist()


def test_days_before_1582_are_those_of_the_calendar_of_then() -> None:
    days = pa.array([-141_428, -141_427, None, -719_164], pa.int32()).view(pa.date32())
    expected = [dt.date(1582, 10, 4), dt.date(1582, 10, 15), None, dt.date(1, 1, 1)]
    assert read_column(written(pa.table({"a": days})), pa.date32(), ORC) == expected


def test_columns_of_hive_without_names_are_those_of_the_schema_in_their_order() -> None:
    data = written(pa.table({"_col0": [1], "_col1": ["x"], "_col2": [0.5]}))
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert read_bytes(data, schema, ORC) == [{"id": 1, "name": "x"}]


@pytest.mark.parametrize("names", [["a.x", "a"], ["a", "a.x"], ["a.x", "b"]])
@pytest.mark.parametrize("part", [{"x": 2}, [{"x": 2}]], ids=["a struct", "an array"])
def test_a_column_with_a_dot_in_its_name_is_no_part_of_another(names: list[str], part: Any) -> None:
    values = {"a.x": pa.array([1], pa.int32()), "a": pa.array([part]), "b": pa.array([part])}
    table = pa.table({name: values[name] for name in names})
    assert read_bytes(written(table), table.schema, ORC) == table.to_pylist()
    (alone,) = read_bytes(written(table), pa.schema([table.schema.field("a.x")]), ORC)
    assert alone == {"a.x": 1}


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_stripes_are_read_in_batches_of_any_size(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    count = 100_000
    table = pa.table(
        {
            "a": np.arange(count),
            "s": pa.array(rng.integers(0, 300, count).astype(str)),
            "l": pa.array([list(range(n % 7)) if n % 5 else None for n in range(count)]),
        }
    )
    sink = io.BytesIO()
    pa_orc.write_table(table, sink, compression=compression, stripe_size=30_000)
    monkeypatch.setattr(typed_tables, "AT_ONCE", 400_000)
    assert read_bytes(sink.getvalue(), table.schema, ORC) == table.to_pylist()


def test_long_lists_and_long_texts_of_different_rows_are_no_row_that_is_too_large() -> None:
    rows = [["x"] * 5000, ["y" * 50_000], *([str(n)] for n in range(100))]
    table = pa.table({"a": pa.array(rows, pa.list_(pa.string()))})
    assert read_column(written(table), pa.list_(pa.string()), ORC) == rows
