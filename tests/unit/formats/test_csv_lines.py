from __future__ import annotations

import bz2
import datetime as dt
import gzip
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queue_source.formats.text import blocks, csv
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_bytes, read_column, refused

PLAIN = FormatOptions("csv")
HEADER = FormatOptions("csv", header=True)
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])
UTC = dt.timezone.utc
WIDE = "12345678901234567890.123456789012345678"


def pairs(data: bytes, options: FormatOptions = PLAIN, schema: pa.Schema = TWO) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read_bytes(data, schema, options)]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_last_field_that_is_not_there_is_null_behind_a_quoted_one_with_or_without_a_last_line_end(end: str) -> None:
    options = FormatOptions("csv", null_value="NA")
    assert pairs(b'"x",\n"y",' + end.encode(), options) == [("x", None), ("y", None)]
    assert pairs(b'"x";\n"";' + end.encode(), replace(options, sep=";")) == [("x", None), ("", None)]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "-128", -128),
        (pa.int16(), "32767", 32767),
        (pa.int32(), "-5", -5),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.float32(), "0.5", 0.5),
        (pa.float64(), "1e-3", 0.001),
        (pa.float64(), "Infinity", math.inf),
        (pa.float64(), "-Inf", -math.inf),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(38, 18), WIDE, Decimal(WIDE)),
        (pa.bool_(), "TRUE", True),
        (pa.bool_(), "false", False),
        (pa.string(), " ä\u0000 ", " ä\u0000 "),
        (pa.large_string(), "x", "x"),
        (pa.binary(), "aGk=", b"aGk="),
        (pa.large_binary(), "é", "é".encode()),
        (pa.date32(), "2013-01-31", dt.date(2013, 1, 31)),
        (UTC_MICROS, "2013-01-01T05:00:00Z", dt.datetime(2013, 1, 1, 5, tzinfo=UTC)),
        (UTC_MICROS, "2013-01-01 05:00:00", dt.datetime(2013, 1, 1, 5, tzinfo=UTC)),
        (UTC_MICROS, "2013-01-01", dt.datetime(2013, 1, 1, tzinfo=UTC)),
        (UTC_MICROS, "2013-01-01T05:00:00.25+02:00", dt.datetime(2013, 1, 1, 3, 0, 0, 250000, tzinfo=UTC)),
        (UTC_MICROS, "2013-01-01T05:00:00.123456789Z", dt.datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)),
        (UTC_MICROS, "2013-01-01 05:00:00.123456789", dt.datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)),
        (UTC_MICROS, "0001-01-01T00:00:00Z", dt.datetime(1, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), "2013-01-01 05:00:00.000001", dt.datetime(2013, 1, 1, 5, 0, 0, 1)),
    ],
)  # fmt: skip
def test_each_type_is_read_from_its_text(kind: pa.DataType, text: str, value: Any) -> None:
    data = f"{text}\nNULL\n".encode()
    assert read_column(data, kind, FormatOptions("csv", null_value="NULL", empty_value="NULL")) == [value, None]
    assert read_column(data, kind, FormatOptions("csv", null_value="NULL")) == [value, None]


def test_not_a_number_is_read() -> None:
    (value,) = read_column(b"NaN\n", pa.float64(), PLAIN)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "128"),
        (pa.int32(), "1.0"),
        (pa.int64(), "x"),
        (pa.int64(), "9223372036854775808"),
        (pa.decimal128(4, 2), "123.45"),
        (pa.bool_(), "1"),
        (pa.bool_(), "yes"),
        (pa.float64(), "1,5x"),
        (pa.date32(), "31.01.2013"),
        (UTC_MICROS, "yesterday"),
        (UTC_MICROS, "2013-13-01T00:00:00Z"),
        (pa.timestamp("us"), "2013-01-01T05:00:00Z"),
        (pa.timestamp("us"), "2013-01-01T05:00:00+02:00"),
    ],
)
def test_a_value_that_is_not_of_its_type_makes_the_object_corrupt_and_names_the_column(
    kind: pa.DataType, text: str
) -> None:
    schema = pa.schema([("ok", pa.string()), ("bad column", kind)])
    for options in (PLAIN, FormatOptions("csv", null_value="NA")):
        error = refused(f'x,\nx,"{text}"\n'.encode(), schema, options)
        assert error.cause == "corrupt-object"
        assert "'bad column'" in error.detail


def test_timestamps_with_and_without_a_zone_may_be_mixed() -> None:
    options = FormatOptions("csv", timezone="Europe/Berlin")
    data = b"2013-07-01T05:00:00Z\n2013-07-01 05:00:00\n2013-07-01\n2013-07-01T05:00:00-0100\n"
    assert read_column(data, UTC_MICROS, options) == [
        dt.datetime(2013, 7, 1, 5, tzinfo=UTC),
        dt.datetime(2013, 7, 1, 3, tzinfo=UTC),
        dt.datetime(2013, 6, 30, 22, tzinfo=UTC),
        dt.datetime(2013, 7, 1, 6, tzinfo=UTC),
    ]


def test_without_a_header_columns_are_taken_by_position() -> None:
    assert pairs(b"b,a\n1,2\n") == [("b", "a"), ("1", "2")]


def test_with_a_header_columns_are_taken_by_name_and_others_are_ignored_or_null() -> None:
    schema = pa.schema([("b", pa.int64()), ("missing", UTC_MICROS), ("a", pa.string())])
    assert pairs(b"a,x,b\nA,no,1\n", HEADER, schema) == [(1, None, "A")]


def test_a_header_that_differs_in_case_matches_when_nothing_matches_exactly() -> None:
    assert pairs(b"B,A\n1,2\n", HEADER) == [("2", "1")]
    assert pairs(b"A,a,b\n1,2,3\n", HEADER) == [("2", "3")]


@pytest.mark.parametrize("header", [b"a,a,b", b"A,A,b", b"\xc3\xa4,\xc3\xa4"])
def test_a_header_that_names_a_column_twice_is_refused(header: bytes) -> None:
    schema = pa.schema([("ä", pa.string())]) if header.startswith(b"\xc3") else TWO
    error = refused(header + b"\n" + b"1,2,3\n"[: 2 * header.count(b",") + 2] + b"\n", schema, HEADER)
    assert (error.cause, "more than once" in error.detail) == ("wrong-columns", True)


def test_a_header_may_be_quoted_and_looks_like_numbers() -> None:
    schema = pa.schema([("01", pa.string()), ("x,y", pa.string()), ("true", pa.string())])
    assert pairs(b'"x,y",01,true\n1,2,3\n', HEADER, schema) == [("2", "1", "3")]


def test_a_header_without_any_declared_column_is_refused() -> None:
    for data in (b"x,y\n1,2\n", b"x,y\n", b"x,y"):
        assert refused(data, TWO, HEADER).cause == "wrong-columns"


@pytest.mark.parametrize("data", [b"1\n", b"1,2,3\n", b"1;2\n", b"1,2\n3\n", b"1,2\n3,4,5\n"])
def test_a_line_of_another_length_makes_the_object_corrupt(data: bytes) -> None:
    assert refused(data, TWO, PLAIN).cause == "corrupt-object"


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\r\n", b"\xef\xbb\xbf"])
def test_an_object_without_a_line_has_no_rows(data: bytes) -> None:
    assert pairs(data) == []
    assert pairs(data, HEADER) == []


def test_a_header_alone_has_no_rows() -> None:
    assert pairs(b"a,b\n", HEADER) == []
    assert pairs(b"a,b", HEADER) == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_any_line_end_blank_lines_and_a_byte_order_mark_are_no_data(end: bytes) -> None:
    assert pairs(b"\xef\xbb\xbfa,b" + end + end + b"1,2" + end + end + b"3,4", HEADER) == [("1", "2"), ("3", "4")]


def test_nothing_and_quoted_nothing_are_null_by_default_as_in_spark() -> None:
    assert pairs(b'"",1\n,2\n" ",3\n') == [(None, "1"), (None, "2"), (" ", "3")]
    numbers = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert pairs(b'"",1\n,2\n', PLAIN, numbers) == [(None, "1"), (None, "2")]


def test_null_value_and_empty_value_do_what_they_do_in_spark() -> None:
    data = b'NA,1\n"NA",2\n,3\n"",4\n'
    assert pairs(data, FormatOptions("csv", null_value="NA")) == [(None, "1"), (None, "2"), (None, "3"), ("", "4")]
    assert pairs(b'"",1\n,2\n', FormatOptions("csv", empty_value="E")) == [("E", "1"), (None, "2")]
    numbers = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert pairs(b'"NA",1\n7,2\n', FormatOptions("csv", null_value="NA"), numbers) == [(None, "1"), (7, "2")]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (rb"C:\new,x\\y", (r"C:\new", r"x\\y")),
        (rb'"C:\new","x\\y"', (r"C:\new", r"x\y")),
        (rb'"x\"y","x\\"', ('x"y', "x\\")),
        (rb'x\"y,x\\', (r"x\"y", r"x\\")),
        (rb'"a,\"b\",c",d', ('a,"b",c', "d")),
        (rb'"\"","\\\""', ('"', '\\"')),
        (b'"x""y",1', ('x"y', "1")),
        (b'x"y,1', ('x"y', "1")),
        (b' "x",1', (' "x"', "1")),
    ],
)  # fmt: skip
def test_an_escape_means_something_only_before_a_quote_inside_of_quotes(line: bytes, row: tuple[str, str]) -> None:
    assert pairs(line + b"\n") == [row]
    assert pairs(b"first,line\n" + line + b"\nlast,line") == [("first", "line"), row, ("last", "line")]


def test_other_separators_quotes_and_escapes_are_obeyed() -> None:
    options = FormatOptions("csv", sep="|", quote="'", escape="^")
    assert pairs(b"'a|^'b'|\"c,\\\n", options) == [("a|'b", '"c,\\')]
    assert pairs(b'"a"\t"\n', FormatOptions("csv", sep="\t", quote="", escape="")) == [('"a"', '"')]
    assert pairs(b'"a""b",\\\n', FormatOptions("csv", escape='"')) == [('a"b', "\\")]


@pytest.mark.parametrize(
    "data",
    [
        b'1,"two\nlines"\n3,4\n',
        b'"two\nlines",2\n',
        b'a,"x\r\ny"\n',
        b'1,"2\n3,4"\n',
    ],
)
def test_a_quoted_field_over_several_lines_is_refused_and_never_misread(data: bytes) -> None:
    assert refused(data, TWO, PLAIN).cause == "corrupt-object"


@pytest.mark.parametrize("data", [b'1,2\n3,"4', b'1,2\n3,"4\n', b'1,2\n"3'])
def test_an_object_that_ends_inside_of_quotes_is_cut_off(data: bytes) -> None:
    assert refused(data, TWO, PLAIN).cause == "corrupt-object"


def test_a_single_quote_character_in_a_plain_last_field_is_data() -> None:
    assert pairs(b'1,2\n3,4"') == [("1", "2"), ("3", '4"')]


@pytest.mark.parametrize("data", [b"a,\xff\n", b"a,b\n1,\xc3", b"\xfe\xff\x00a"])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_bytes_that_are_not_utf8_make_the_object_corrupt(data: bytes, kind: pa.DataType) -> None:
    error = refused(data, pa.schema([("a", pa.string()), ("b", kind)]), PLAIN)
    assert error.cause == "corrupt-object"
    assert "UTF-8" in error.detail


def test_the_offset_of_a_bad_record_is_told() -> None:
    error = refused(b"a,b\r\n1,\xff\n", TWO, PLAIN)
    assert (error.offset, "byte 2 of the record" in error.detail) == (5, True)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".GZ"])
def test_compressed_objects_are_known_by_their_suffix_and_refused_when_cut_off(suffix: str) -> None:
    content = b"".join(b"%d,%d\n" % (i, i * 7919 % 1000) for i in range(1000))
    packers: dict[str, Callable[[bytes], bytes]] = {
        ".gz": lambda data: gzip.compress(data),
        ".bz2": lambda data: bz2.compress(data),
        ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    }
    packed = packers[suffix.lower()](content)
    assert len(read_bytes(packed, TWO, PLAIN, f"o.csv{suffix}")) == 1000
    assert len(read_bytes(packed + packed, TWO, PLAIN, f"o.csv{suffix}")) == 2000
    assert read_bytes(b"", TWO, PLAIN, f"o.csv{suffix}") == []
    for cut in (packed[:-1], packed[: len(packed) // 2], packed[:5]):
        assert refused(cut, TWO, PLAIN, f"o.csv{suffix}").cause == "corrupt-object"


@pytest.mark.parametrize("ours", [3, 1000])
@pytest.mark.parametrize("pyarrows", [1000, 1 << 20])
def test_a_line_longer_than_a_block_is_read_and_rows_keep_their_order(
    ours: int, pyarrows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", ours)
    monkeypatch.setattr(csv, "BLOCK_SIZE", pyarrows)
    lines = [b"%d,x" % i for i in range(200)] + [b"200," + b"x" * 5000] + [b"%d,x" % i for i in range(201, 300)]
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    for end in (b"\n", b"\r\n", b"\r"):
        rows = read_bytes(end.join(lines), schema, PLAIN)
        assert [row["a"] for row in rows] == list(range(300))
        assert len(rows[200]["b"]) == 5000
