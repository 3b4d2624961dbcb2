"""The formats beside csv, json and parquet, and the options by which text is written otherwise."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pytest

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import BadRecords, Part, check_schema
from queue_source.formats.binary_file import COLUMNS as BINARY_FILE
from queue_source.formats.text import blocks
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from support.reading import UTC_MICROS, read_bytes, read_column, read_with_problems, refused

TEXT = pa.schema([("value", pa.string())])
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])
UTC = dt.timezone.utc
DAY = (2013, 1, 31)


def lines(data: bytes, **options: Any) -> list[str]:
    return [row["value"] for row in read_bytes(data, TEXT, FormatOptions("text", **options))]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1 << 20])
def test_text_is_a_line_a_row_whichever_way_lines_end(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    for end in ("\n", "\r\n", "\r"):
        for text in ("a|b", "a||b|", "|", "||", "ä|🦆|x"):
            expected = text.removesuffix("|").split("|")
            assert lines(text.replace("|", end).encode()) == expected


def test_a_byte_order_mark_is_no_text() -> None:
    assert lines(b"\xef\xbb\xbfa\nb") == ["a", "b"]


def test_text_that_is_not_utf8_is_a_bad_record() -> None:
    found = read_with_problems(b"a\n\xff\nb", TEXT, FormatOptions("text"))
    assert [row["value"] for row in found.rows] == ["a", "\ufffd", "b"]
    assert found.offsets == [2]
    dropped = read_with_problems(b"a\n\xff\nb", TEXT, FormatOptions("text", mode="DROPMALFORMED"))
    assert [row["value"] for row in dropped.rows] == ["a", "b"]
    assert refused(b"a\n\xff\nb", TEXT, FormatOptions("text")).offset == 2


def test_a_whole_text_is_one_row() -> None:
    assert lines(b"a\r\nb\n", whole_text=True) == ["a\r\nb\n"]
    assert lines(b"", whole_text=True) == []  # as in Spark
    assert lines(b"") == []


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_line_sep_is_what_ends_a_record_and_nothing_else(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    assert lines(b"a;b\nc;;d", line_sep=";") == ["a", "b\nc", "", "d"]
    assert lines(b"a<>b<>", line_sep="<>") == ["a", "b"]
    assert lines(b"a|||b||||c|", line_sep="||") == ["a", "|b", "", "c|"]
    assert lines(b"a\r\nb\n", line_sep="\n") == ["a\r", "b"]
    ones = pa.schema([("a", pa.int64())])
    assert read_bytes(b'{"a":1};{"a":\n2}', ones, FormatOptions("json", line_sep=";")) == [{"a": 1}, {"a": 2}]
    rows = read_bytes(b"1,x;2,y\nz;", TWO, FormatOptions("csv", line_sep=";"))
    assert [tuple(row.values()) for row in rows] == [("1", "x"), ("2", "y\nz")]
    header = FormatOptions("csv", line_sep=";", header=True)
    assert read_bytes(b"b,a;1,2", TWO, header) == [{"a": "2", "b": "1"}]


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16", "UTF-16LE", "UTF-32BE", "windows-1252"])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_other_character_sets_are_read(encoding: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    assert lines("ä\nß\n".encode(encoding), encoding=encoding) == ["ä", "ß"]
    data = 'a,b\nä,"x\u00e9"\n'.encode(encoding)
    assert read_bytes(data, TWO, FormatOptions("csv", header=True, encoding=encoding)) == [{"a": "ä", "b": "xé"}]


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_without_a_byte_order_mark_the_high_byte_comes_first_as_to_java(encoding: str) -> None:
    assert lines("ä\n🦆\n".encode(f"{encoding}BE"), encoding=encoding) == ["ä", "🦆"]
    assert lines(b"", encoding=encoding) == []
    for data, text, count in (
        (b"\xff", "\ufffd", 1),
        (b"a\n", *(("\u610a", 0) if encoding == "UTF-16" else ("\ufffd", 1))),
    ):
        found = read_with_problems(data, TEXT, FormatOptions("text", encoding=encoding))
        assert ([row["value"] for row in found.rows], found.problems.count) == ([text], count)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("windows-1252", b"x\x81,y"),
        ("US-ASCII", b"x\xe9,y"),
        ("Shift_JIS", b"x\x82,y"),
        ("UTF-16LE", b"x\0\0\xd8,\0y\0"),
    ],
)
def test_what_is_no_text_in_its_character_set_is_a_bad_record_and_not_replaced_in_silence(
    encoding: str, data: bytes
) -> None:
    data += "\nok,z\n".encode(encoding)
    found = read_with_problems(data, TWO, FormatOptions("csv", encoding=encoding))
    assert [row["a"] for row in found.rows] in (["x\ufffd", "ok"], ["x\ufffdy", "ok"])
    assert (found.problems.count, f"not {encoding.upper()}: " in found.reasons) == (1, True)
    assert refused(data, TEXT, FormatOptions("text", encoding=encoding)).offset == 0
    dropped = read_with_problems(data, TEXT, FormatOptions("text", encoding=encoding, mode="DROPMALFORMED"))
    assert [row["value"] for row in dropped.rows] == ["ok,z"]


def test_a_decoder_that_fails_in_spite_of_all_makes_the_object_bad() -> None:
    error = refused(b"xn--\xe4\n", TEXT, FormatOptions("text", encoding="idna"))
    assert (error.cause, "idna" in error.detail) == ("corrupt-object", True)


@pytest.mark.parametrize("block", [4, 17, 1 << 20])
def test_csv_fields_over_several_lines_are_read_with_multi_line(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    options = FormatOptions("csv", multi_line=True)
    data = b'1,"x\ny"\r\n"a\\"\nb",2\n3,"d""q\n"\n\n4,z'
    rows = [tuple(row.values()) for row in read_bytes(data, TWO, options)]
    assert rows == [("1", "x\ny"), ('a"\nb', "2"), ("3", 'd"q\n'), ("4", "z")]
    headed = FormatOptions("csv", multi_line=True, header=True)
    assert read_bytes(b'"a","b"\n1,"x\ny"\n', TWO, headed) == [{"a": "1", "b": "x\ny"}]
    found = read_with_problems(b'1,"x\ny"q",2\n3,z\n', TWO, options)
    assert [tuple(row.values()) for row in found.rows] == [("1", '"x\ny"q"'), ("3", "z")]
    assert found.problems.count == 1
    cut = read_with_problems(b'1,2\n3,"z', TWO, options)
    assert [tuple(row.values()) for row in cut.rows] == [("1", "2"), ("3", "z")]
    assert cut.offsets == [4]


def test_a_json_document_is_read_with_multi_line() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    options = FormatOptions("json", multi_line=True)
    assert read_bytes(b'\xef\xbb\xbf{"a":1,\n"b":"z"}\n', schema, options) == [{"a": 1, "b": "z"}]
    assert read_bytes(b'[{"a":1},\n{"a":2}]', schema, options) == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    assert read_bytes(b" \n", schema, options) == []
    with pytest.raises(BadObject, match="the document cannot be read"):
        read_bytes(b'[{"a":1},{"a":2', schema, options)
    assert read_with_problems(b"[{}", schema, FormatOptions("json", multi_line=True, mode="DROPMALFORMED")).rows == []


def test_comments_and_spaces_around_csv_fields_go_when_asked() -> None:
    def read(data: bytes, **options: Any) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in read_bytes(data, TWO, FormatOptions("csv", **options))]

    assert read(b"#x\n1,2\n#\n3,#4\n", comment="#") == [("1", "2"), ("3", "#4")]
    assert read(b"#x\nb,a\n#\n1,2\n", comment="#", header=True) == [("2", "1")]
    assert read(b" 1 , 2 \n", ignore_leading_white_space=True) == [("1 ", "2 ")]
    assert read(b" 1 , 2 \n\t,x", ignore_trailing_white_space=True) == [(" 1", " 2"), (None, "x")]
    both = {"ignore_leading_white_space": True, "ignore_trailing_white_space": True}
    assert read(b' 1 , "x, y" \n , \t\n3,4', **both) == [("1", "x, y"), (None, None), ("3", "4")]
    assert read(b" 1\t 2 \n3\t4", sep="\t", **both) == [("1", "2"), ("3", "4")]


def test_numbers_that_are_none_have_the_texts_of_the_options() -> None:
    options = FormatOptions("csv", nan_value="-", positive_inf="+oo", negative_inf="-oo")
    values = read_column(b"-\n+oo\n-oo\n1.5\n", pa.float64(), options)
    assert str(values) == "[nan, inf, -inf, 1.5]"
    found = read_with_problems(b"1\n-\n+oo,\n", pa.schema([("a", pa.float64())]), options)
    assert str([row["a"] for row in found.rows]) == "[1.0, nan, inf]"


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("option", "kind", "pattern", "text", "value"),
    [
        ("date_format", pa.date32(), "dd.MM.yyyy", "31.01.2013", dt.date(2013, 1, 31)),
        ("date_format", pa.date32(), "d/M/yyyy", "3/1/2013", dt.date(2013, 1, 3)),
        ("date_format", pa.date32(), "yyyyMM", "201302", dt.date(2013, 2, 1)),
        ("timestamp_format", UTC_MICROS, "dd.MM.yyyy HH:mm", "31.01.2013 05:06", moment(2013, 1, 31, 5, 6)),
        ("timestamp_format", UTC_MICROS, "yyyyMMdd'T'HHmmssXX", "20130131T050607+0100", moment(2013, 1, 31, 4, 6, 7)),
        ("timestamp_format", UTC_MICROS, "yyyy-MM-dd HH:mm[:ss]", "2013-01-31 05:06", moment(2013, 1, 31, 5, 6)),
        ("timestamp_format", UTC_MICROS, "ss.SSS yyyy-MM-dd", "07.250 2013-01-31", moment(*DAY, 0, 0, 7, 250000)),
        ("timestamp_ntz_format", pa.timestamp("us"), "H'h' d.M.yyyy", "5h 1.2.2013", dt.datetime(2013, 2, 1, 5)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_dates_and_times_are_read_in_the_form_of_the_option(
    option: str, kind: pa.DataType, pattern: str, text: str, value: Any, file_format: str
) -> None:
    options = FormatOptions(file_format, **{option: pattern})  # type: ignore[arg-type]
    wrap = (lambda text: f'{{"a":"{text}"}}') if file_format == "json" else str
    assert read_column(f"{wrap(text)}\n{wrap(text)}\n".encode(), kind, options) == [value, value]
    for bad in ("2013-01-31T05:06:07", f"{text}0", "99.99.9999", "x"):
        found = read_with_problems(f"{wrap(text)}\n{wrap(bad)}\n".encode(), pa.schema([("a", kind)]), options)
        assert ([row["a"] for row in found.rows], found.problems.count) == ([value, None], 1), bad


def orc(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pa_orc.write_table(table, sink, **options)
    return sink.getvalue()


def test_orc_is_read_by_name_and_widened() -> None:
    table = pa.table({"A": pa.array([1, None], pa.int32()), "l": [[1], None], "t": [dt.datetime(2020, 1, 1)] * 2})
    schema = pa.schema([("t", pa.timestamp("us")), ("a", pa.int64()), ("l", pa.list_(pa.int64())), ("no", pa.string())])
    assert read_bytes(orc(table), schema, FormatOptions("orc")) == [
        {"t": dt.datetime(2020, 1, 1), "a": 1, "l": [1], "no": None},
        {"t": dt.datetime(2020, 1, 1), "a": None, "l": None, "no": None},
    ]


@pytest.mark.parametrize("step", [100, 1_000, 7_000, 100_000])
def test_parts_that_tile_an_object_tile_its_stripes(tmp_path: Path, step: int) -> None:
    data = orc(pa.table({"a": [number * 7919 % 100_003 for number in range(50_000)]}), stripe_size=1024, batch_size=100)
    (tmp_path / "o").write_bytes(data)
    bounds: list[int | None] = [*range(0, len(data), step), None]
    one = pa.schema([("a", pa.int64())])
    parts = []
    for start, end in itertools.pairwise(bounds):
        part = Part(start or 0, end)
        read = read_object(f"{tmp_path}/o", one, FormatOptions("orc"), BadRecords("PERMISSIVE"), part=part)
        parts.append([value for batch in read for value in batch.column(0).to_pylist()])
    assert list(itertools.chain(*parts)) == [number * 7919 % 100_003 for number in range(50_000)]
    assert step >= len(data) or sum(map(bool, parts)) > 1


def test_bad_orc_is_a_bad_object() -> None:
    data = orc(pa.table({"a": list(range(5000))}), stripe_size=1024)
    one = pa.schema([("a", pa.int64())])
    assert len(read_bytes(data, one, FormatOptions("orc"))) == 5000
    assert refused(data, pa.schema([("x", pa.int64())]), FormatOptions("orc")).cause == "wrong-columns"
    for bad in (b"ORC", b"hello", data[: len(data) // 2], data[:-1], data[100:]):
        assert refused(bad, one, FormatOptions("orc")).cause == "corrupt-object"
    for at in range(0, len(data), len(data) // 50):
        with contextlib.suppress(BadObject):  # any other error fails this test, and a crash all of them
            read_with_problems(data[:at] + b"\xff" + data[at + 1 :], one, FormatOptions("orc"))


def test_a_binary_file_is_one_row() -> None:
    (row,) = read_bytes(b"\0\xff", BINARY_FILE, FormatOptions("binaryFile"), "o.gz")
    assert (row["length"], row["content"]) == (2, b"\0\xff")
    assert row["path"].endswith("/o.gz")
    assert row["modificationTime"].tzinfo is not None
    assert read_bytes(b"", pa.schema([("length", pa.int64())]), FormatOptions("binaryFile")) == []  # as in Spark


def test_schemas_that_text_and_binary_file_cannot_fill_are_refused_on_the_driver() -> None:
    check_schema(TEXT, FormatOptions("text"))
    check_schema(BINARY_FILE, FormatOptions("binaryFile"))
    for schema in (TWO, pa.schema([("a", pa.int64())]), pa.schema([])):
        with pytest.raises(OptionError, match="declare value STRING"):
            check_schema(schema, FormatOptions("text"))
    with pytest.raises(OptionError, match="binaryFile has path"):
        check_schema(TEXT, FormatOptions("binaryFile"))
    with pytest.raises(OptionError, match="'length' is int64"):
        check_schema(pa.schema([("length", pa.string())]), FormatOptions("binaryFile"))
