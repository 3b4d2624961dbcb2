from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject
from queue_source.formats.base import Part
from queue_source.formats.text import blocks
from queue_source.formats.text import json as json_format
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_bytes, read_column, read_with_problems, refused

JSON = FormatOptions("json")
ONE = pa.schema([("a", pa.int64())])
UTC = dt.timezone.utc
WIDE = "12345678901234567890.123456789012345678"
TIMED = pa.struct([("t", UTC_MICROS), ("b", pa.binary())])
THAT_DAY = dt.datetime(2013, 1, 1, tzinfo=UTC)
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "-128", -128),
        (pa.int16(), "32767", 32767),
        (pa.int32(), "-5", -5),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.float32(), "0.5", 0.5),
        (pa.float64(), "1e-3", 0.001),
        (pa.float64(), "3", 3.0),
        (pa.float64(), "-Infinity", -math.inf),
        (pa.float64(), '"Infinity"', math.inf),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(10, 2), '"1.25"', Decimal("1.25")),
        (pa.decimal128(38, 18), WIDE, Decimal(WIDE)),
        (pa.bool_(), "true", True),
        (pa.string(), r'"\u00e9\ud83d\ude00\n\u0000"', "é😀\n\0"),
        (pa.string(), '""', ""),
        (pa.string(), "1.50e3", "1.50e3"),
        (pa.string(), "true", "true"),
        (pa.string(), '{"b": [1.50, "x", null]}', '{"b": [1.50, "x", null]}'),
        (pa.large_string(), '"x"', "x"),
        (pa.binary(), '"aGVsbG8="', b"hello"),
        (pa.large_binary(), '""', b""),
        (pa.date32(), '"2013-01-31"', dt.date(2013, 1, 31)),
        (UTC_MICROS, '"2013-01-01T05:00:00Z"', dt.datetime(2013, 1, 1, 5, tzinfo=UTC)),
        (UTC_MICROS, '"2013-01-01 05:00:00.5"', dt.datetime(2013, 1, 1, 5, 0, 0, 500000, tzinfo=UTC)),
        (UTC_MICROS, '"2013-01-01T05:00:00.123456789+01:00"', dt.datetime(2013, 1, 1, 4, 0, 0, 123456, tzinfo=UTC)),
        (UTC_MICROS, "1", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (pa.timestamp("us"), '"2013-01-01T05:00:00"', dt.datetime(2013, 1, 1, 5)),
        (POINT, '{"x":1,"z":[{}]}', {"x": 1, "y": None}),
        (pa.list_(pa.int32()), "[null,1,null]", [None, 1, None]),
        (pa.list_(pa.list_(POINT)), '[[{"y":"q"},null],null,[]]', [[{"x": None, "y": "q"}, None], None, []]),
        (pa.list_(UTC_MICROS), '["2013-01-01T05:00:00Z",null]', [dt.datetime(2013, 1, 1, 5, tzinfo=UTC), None]),
        (TIMED, '{"t":"2013-01-01","b":"aGk="}', {"t": THAT_DAY, "b": b"hi"}),
        (pa.map_(pa.string(), pa.int64()), '{"x":1,"y":null}', [("x", 1), ("y", None)]),
        (pa.map_(pa.string(), pa.int64()), "{}", []),
        (pa.map_(pa.string(), pa.list_(pa.date32())), '{"k":["2013-01-01"]}', [("k", [dt.date(2013, 1, 1)])]),
        (pa.list_(pa.map_(pa.string(), POINT)), '[{"p":{"x":1}}]', [[("p", {"x": 1, "y": None})]]),
    ],
)  # fmt: skip
def test_each_type_is_read_quickly_and_slowly_alike(
    kind: pa.DataType, text: str, value: Any, slowly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slowly:
        monkeypatch.setattr(json_format.JsonReader, "read_quickly", lambda *_: None)
    data = b'{"a":%b}\n{"a":null}\n{"other":1}\n' % text.encode()
    assert read_column(data, kind, JSON) == [value, None, None]


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.int8(), "128", "column 'a'"),
        (pa.int64(), "9223372036854775808", "column 'a'"),
        (pa.int64(), "1.0", "whole number"),
        (pa.int64(), "1e3", "whole number"),
        (pa.int64(), '"1"', "whole number"),
        (pa.int64(), "true", "whole number"),
        (pa.float64(), '"1.5"', "a number"),
        (pa.decimal128(4, 2), "100.00", "column 'a'"),
        (pa.decimal128(4, 2), '"x"', "a number"),
        (pa.decimal128(4, 2), "NaN", "not a number"),
        (pa.bool_(), '"true"', "true or false"),
        (pa.bool_(), "1", "true or false"),
        (pa.string(), r'"\ud800"', "column 'a'"),
        (pa.binary(), '"!!"', "base64"),
        (pa.binary(), "1", "a string"),
        (pa.date32(), "1", "a string"),
        (pa.date32(), '"01.02.2013"', "column 'a'"),
        (UTC_MICROS, '"soon"', "column 'a'"),
        (UTC_MICROS, "1.5", "whole number"),
        (UTC_MICROS, "99999999999999999", "seconds"),
        (pa.timestamp("us"), '"2013-01-01T05:00:00Z"', "zone"),
        (pa.timestamp("us"), "1", "a string"),
        (POINT, "[]", "an object"),
        (POINT, '{"x":"1"}', "whole number"),
        (pa.list_(pa.int32()), "1", "an array"),
        (pa.list_(pa.int32()), '["1"]', "whole number"),
        (pa.map_(pa.string(), pa.int64()), "[]", "an object"),
        (pa.map_(pa.string(), pa.int64()), '{"x":"y"}', "whole number"),
    ],
)
def test_a_value_that_is_not_of_its_type_makes_the_object_corrupt(kind: pa.DataType, text: str, reason: str) -> None:
    error = refused(b'{"a":null}\n{"a":%b}\n' % text.encode(), pa.schema([("a", kind)]), JSON)
    assert error.cause == "corrupt-object"
    assert reason in error.detail
    assert error.offset == 11
    assert "column 'a" in error.detail


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1',
        b'{"a":',
        b'{"a":1}}',
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":1},{"a":2}',
        b'{"a":1}[{"a":2}]',
        b'{"a":1} x',
        b'{"a":1} null',
        b"hello",
        b"[1]",
        b'[{"a":1},2]',
        b"1",
        b'"text"',
        b'{"a":"x\ty"}',
        b'{"a":1}\0\0\0',
        b"\0\0\0\0",
        b"null",
        b"  null",
        b"nullnull",
        b"\xef\xbb\xbfnull",
        b"\xef\xbb\xbf\xef\xbb\xbfnull",
        b"null1",
        b"\tnull  ",
        b'{"b":' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("where", ["first", "middle", "last", "alone"])
def test_a_line_that_is_no_object_makes_the_object_corrupt_wherever_it_stands(line: bytes, where: str) -> None:
    good = b'{"a":1}\n' * 3
    data = {
        "first": line + b"\n" + good,
        "middle": good + line + b"\n" + good,
        "last": good + line,
        "alone": line,
    }[where]
    error = refused(data, ONE, JSON)
    assert error.cause == "corrupt-object"
    mark = 3 if line.startswith(b"\xef\xbb\xbf") else 0  # no part of the first record
    assert error.offset == (len(good) if where in ("middle", "last") else mark)


VALUES = [
    b'{"a":1,"b":"}{"}',
    b'{"a":2,"b":"\\"}{\\\\"}',
    b'{"b":null,"a":3,"c":[{"d":[]},{}]}',
    b"{'a':4,'b':'\"}{'}",
    b'{"a":5,"b":"it\'s"}',
]
TEXTS = ["}{", '"}{\\', None, '"}{', "it's"]


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("block", [8, 100, 16 << 20])
@pytest.mark.parametrize("between", [b"", b" ", b"\t ", b"\n", b"\r\n \n"])
@pytest.mark.parametrize("line_sep", [None, "|"])
def test_objects_that_follow_each_other_in_a_line_are_as_many_records(
    line_sep: str | None, between: bytes, block: int, slowly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    if slowly:
        monkeypatch.setattr(json_format.JsonReader, "read_quickly", lambda *_: None)
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    options = replace(JSON, line_sep=line_sep)
    expected = [{"a": at + 1, "b": text} for at, text in enumerate(TEXTS)]
    if line_sep is not None:
        between = between if b"\n" not in between else b"|"
    for times, name in ((1, "o.json"), (30, "o.json"), (30, "o.json.gz")):
        data = between.join(VALUES * times)
        data = gzip.compress(data) if name.endswith("gz") else data
        assert read_bytes(data, schema, options, name) == expected * times


def test_a_bad_object_in_a_line_is_a_record_of_its_own() -> None:
    schema = pa.schema([("a", pa.int64()), ("_corrupt_record", pa.string())])
    good, bad = b'{"a":1}', b'{"a":"x"}'
    for odd, is_whole in ((bad, True), (b'{"a":1,}', True), (b'{"a":1}}', False), (b'{"a":1}]', False)):
        found = read_with_problems(good * 3 + odd + good * 2, schema, JSON)
        rows = [1, 1, 1, None, 1, 1] if is_whole else [1, 1, 1, None]  # where it ends is known, or is not
        assert ([row["a"] for row in found.rows], found.offsets) == (rows, [21])
        assert found.rows[3]["_corrupt_record"] == (odd if is_whole else odd + good * 2).decode()
    assert read_with_problems(good + b" x" + good * 2, schema, JSON).rows == [
        {"a": None, "_corrupt_record": '{"a":1} x{"a":1}'},
        {"a": 1, "_corrupt_record": None},
    ]
    for cut in (good * 3 + b'{"a":"x', good * 3 + b'{"a":{'):
        found = read_with_problems(cut, schema, JSON)
        assert ([row["a"] for row in found.rows], found.offsets) == ([1, 1, 1, None], [21])
    assert read_with_problems(good * 2 + bad + good, schema, replace(JSON, mode="DROPMALFORMED")).offsets == [14]
    assert refused(good * 2 + bad + good, schema, JSON).offset == 14


@pytest.mark.parametrize("size", [1, 7, 20, 64, 1000])
def test_objects_in_a_line_are_of_the_range_in_which_the_line_begins(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 32)
    lines = [b"".join(b'{"a":%d}' % (10 * line + at) for at in range(line)) for line in range(12)]
    data = b"\n".join(lines)
    begins = [len(b"".join(lines[:at])) + at for at in range(12)]
    for start in range(0, len(data), size):
        rows = read_with_problems(data, ONE, JSON, part=Part(start, start + size)).rows
        within = [line for line, begin in enumerate(begins) if start <= begin < start + size]
        assert [row["a"] for row in rows] == [10 * line + at for line in within for at in range(line)]


def test_objects_without_line_ends_are_read_quickly_and_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 10_000)
    monkeypatch.setattr(json_format.JsonReader, "read_slowly", lambda *_: pytest.fail("nothing is unusual about it"))
    data = b"".join(b'{"a":%d,"b":{"c":"}{%d"}}' % (at, at) for at in range(5000))
    schema = pa.schema([("a", pa.int64()), ("_rescued", pa.string())])
    for options in (replace(JSON, max_record_bytes=20_000), replace(JSON, rescued_data_column="_rescued")):
        columns = schema.append(pa.field("b", pa.struct([("c", pa.string())])))
        columns = columns if options.rescued_data_column else columns.remove(1)
        assert [row["a"] for row in read_bytes(data, columns, options)] == list(range(5000))


def test_objects_in_a_line_that_name_no_column_are_refused() -> None:
    assert refused(b'{"x":1}{"y":2}', ONE, JSON).cause == "wrong-columns"
    assert len(read_bytes(b'{"x":1}{"a":2}', ONE, JSON)) == 2


def test_an_object_over_several_lines_is_refused() -> None:
    assert refused(b'{"a":\n1}\n', ONE, JSON).cause == "corrupt-object"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_any_line_end_blank_lines_and_a_byte_order_mark_are_no_data(end: bytes) -> None:
    data = b"\xef\xbb\xbf" + end + b'  {"a":1} ' + end + b" \t " + end + end + b'\t{"a":2}'
    assert read_column(data, pa.int64(), JSON) == [1, 2]


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_an_object_without_a_line_has_no_rows(data: bytes) -> None:
    assert read_column(data, pa.int64(), JSON) == []


@pytest.mark.parametrize("data", [b'{"a":"\xff"}\n', b'{"a":"x","ignored":"\xc3"}\n'])
def test_bytes_that_are_not_utf8_make_the_object_corrupt(data: bytes) -> None:
    error = refused(data, pa.schema([("a", pa.string())]), JSON)
    assert error.cause == "corrupt-object"
    assert "UTF-8" in error.detail


def test_of_a_key_that_is_there_twice_the_last_counts_as_in_spark() -> None:
    assert read_column(b'{"a":1,"a":2}\n', pa.int64(), JSON) == [2]


def test_extra_keys_are_ignored_and_missing_ones_are_null() -> None:
    schema = pa.schema([("b", POINT), ("a", pa.int64()), ("t", UTC_MICROS)])
    assert read_bytes(b'{"z":{"a":7},"a":1}\n', schema, JSON) == [{"b": None, "a": 1, "t": None}]


NESTED = pa.schema([("id", pa.int64()), ("at", pa.list_(pa.struct([("Größe", pa.int64()), ("x", pa.string())])))])


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("multi_line", [False, True])
def test_a_name_that_differs_in_case_is_taken_where_no_other_fits(
    multi_line: bool, slowly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slowly:
        monkeypatch.setattr(json_format.JsonReader, "read_quickly", lambda *_: None)
    records = {
        '{"id":1,"at":[{"Größe":2,"x":"ID: \\"ID\\":"}]}': (1, 2, 'ID: "ID":'),
        '{"ID" :1, "AT": [{"GRÖßE":2,"X":"ID"}]}': (1, 2, "ID"),
        '{"Id":1,"aT":[{"grö\\u00dfe":2,"\\u0058":"y"}],"other":{"iD":9}}': (1, 2, "y"),
        '{"ID":5,"id":1,"at":[{"größe":7,"Größe":2,"x":null,"X":"z"}]}': (1, 2, None),
        '{"\u0131d":5,"\u0130D":5,"at":[{"GRÖSSE":7,"x":"ẞ"}]}': (None, None, "ẞ"),
        '{"iD":null,"At":[]}': (None,),
    }
    expected = [{"id": id, "at": [{"Größe": part[0], "x": part[1]}] if part else []} for id, *part in records.values()]
    data = f"[{','.join(records)}]" if multi_line else "\n".join(records)
    options = FormatOptions("json", multi_line=multi_line)
    assert read_bytes(data.encode(), NESTED, options) == expected
    for record, row in zip(records, expected, strict=True):
        many = f"[{','.join([record] * 2000)}]" if multi_line else f"{record}\n" * 2000
        schema = NESTED.append(pa.field("absent", pa.float32()))
        assert read_bytes(many.encode(), schema, options) == [{**row, "absent": None}] * 2000


def test_names_in_another_case_are_read_quickly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format.JsonReader, "read_slowly", lambda *_: pytest.fail("nothing is unusual about it"))
    schema = pa.schema([("orderId", pa.int64()), ("part", pa.struct([("kind", pa.string()), ("k" * 60, pa.int32())]))])
    rows = [{"orderid": n, "PART": {"Kind": "ss", "K" * 60: n, "kelvin": 1}} for n in range(1000)]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    assert read_bytes(data, schema, JSON)[999] == {"orderId": 999, "part": {"kind": "ss", "k" * 60: 999}}
    wide = pa.schema([(f"column_{n:03}_of_many", pa.int64()) for n in range(500)])
    assert read_bytes(b'{"COLUMN_499_OF_MANY":1}\n' * 9, wide, JSON)[8]["column_499_of_many"] == 1


@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize(
    ("record", "sensitive", "reason"),
    [
        ('{"ID":1,"Id":2,"b":"x"}', False, "column 'id': it is there as 'ID' and 'Id', and it is not known which"),
        ('{"ID":1,"b":"x"}', True, "column 'id': it is there as 'ID', and readerCaseSensitive is true"),
    ],
)
def test_a_name_in_another_case_that_is_not_taken_is_rescued_or_its_record_is_bad(
    record: str, sensitive: bool, reason: str, multi_line: bool
) -> None:
    schema = pa.schema([("id", pa.int64()), ("b", pa.string())])
    options = FormatOptions("json", multi_line=multi_line, reader_case_sensitive=sensitive)
    for good in ('{"id":3,"b":"y"}', '{"id":3,"ID":4,"b":"y"}'):
        data = (f"[{good},{record}]" if multi_line else f"{good}\n{record}").encode()
        found = read_with_problems(data, schema, options)
        assert found.rows == [{"id": 3, "b": "y"}, {"id": None, "b": "x"}]
        assert reason in found.reasons
        rescuing = replace(options, rescued_data_column="_rescued")
        rows = read_bytes(data, schema.append(pa.field("_rescued", pa.string())), rescuing)
        assert [row["id"] for row in rows] == [3, None]
        assert '"ID":1' in rows[1]["_rescued"]


@pytest.mark.parametrize("multi_line", [False, True])
def test_a_name_that_fits_two_columns_in_another_case_is_rescued_or_its_record_is_bad(multi_line: bool) -> None:
    schema = pa.schema([("Id", pa.int64()), ("ID", pa.int64()), ("b", pa.string())])
    options = FormatOptions("json", multi_line=multi_line)
    data = b'[{"id":1,"b":"x"},{"Id":2,"b":"x"}]' if multi_line else b'{"id":1,"b":"x"}\n{"Id":2,"b":"x"}'
    problems = read_with_problems(data, schema, options)
    assert problems.rows == [{"Id": None, "ID": None, "b": "x"}, {"Id": 2, "ID": None, "b": "x"}]
    assert "column 'ID' or 'Id': it is there as 'id', and it is not known which one is meant" in problems.reasons
    rescuing = replace(options, rescued_data_column="_rescued")
    row, _ = read_bytes(data, schema.append(pa.field("_rescued", pa.string())), rescuing)
    assert json.loads(row["_rescued"])["id"] == 1


def test_an_array_of_objects_is_as_many_rows() -> None:
    assert read_column(b'{"a":1}\n[{"a":2},{"a":3}]\n[]\n{"a":4}', pa.int64(), JSON) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"x":1}\n', "x"),
        (b"{}\n", ""),
        (b'{"x":{"a":1}}\n', "x"),
        (b'{"x":["A"],"y":1}\n', "x', 'y"),
        (b'{"Records":[{"a":1,"b":"z"},{"a":2}]}', "Records"),
        (b'{"Records":[{"a":"%b"}]}' % (b"z" * 70_000), "Records"),
        (b'[{"x":1},{"y":"a"}]', "x', 'y"),
        (b"{'x':'a'}", "x"),
    ],
)
@pytest.mark.parametrize("kind", [pa.int64(), pa.map_(pa.string(), pa.string())])
@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
@pytest.mark.parametrize("name", ["o.json", "o.json.gz"])
def test_an_object_without_any_declared_column_is_refused(
    data: bytes, found: str, kind: pa.DataType, multi_line: bool, mode: str, name: str
) -> None:
    schema = pa.schema([("a", kind), ("b", kind), ("_corrupt_record", pa.string())])
    options = FormatOptions("json", multi_line=multi_line, mode=mode)
    with pytest.raises(BadObject, match="none of the declared columns") as caught:
        read_with_problems(gzip.compress(data) if name.endswith("gz") else data, schema, options, name)
    assert caught.value.cause == "wrong-columns"
    assert f"['{found}']".replace("['']", "[]") in caught.value.detail


@pytest.mark.parametrize("start", [0, 50])
def test_each_part_of_an_object_that_is_cut_shows_whether_the_object_has_the_columns(start: int) -> None:
    """A part alone may lack them where the object's beginning has some."""
    part, others, good = Part(start, start + 40), b'{"x":1,"y":2}\n' * 9, b'{"a":1,"y":2}\n'
    for data, message in ((others, "none of the declared columns"), (b"<br>\n" * 30, "none of its records")):
        with pytest.raises(BadObject, match=message):
            read_with_problems(data, ONE, JSON, part=part)
    assert len(read_with_problems(good + others, ONE, JSON, part=part).rows) >= 2


@pytest.mark.parametrize("data", [b'{"x":1,\n"a":null}', b'[{"x":1},\n{"a":1}]', b"[]", b'[{"x":1},{"b":"\\u00e4"}]'])
def test_a_document_of_which_one_record_names_a_column_is_good(data: bytes) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert len(read_bytes(data, schema, FormatOptions("json", multi_line=True))) == data.count(b"{")


@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize(
    ("data", "bad"), [(b'{"Records":[1]}', 0), (b'[{"Records":2},{}]', 0), (b'{"a":1,"b":"x"}', 0), (b"[]", 0)]
)
def test_rescued_data_is_data(data: bytes, bad: int, multi_line: bool) -> None:
    schema = pa.schema([("a", pa.int64()), ("_rescued", pa.string())])
    options = FormatOptions("json", multi_line=multi_line, rescued_data_column="_rescued")
    assert read_with_problems(data, schema, options).problems.count == bad


UNREADABLE = [
    b"<html><body>503</body></html>",
    bytes(range(128, 256)) * 3,
    b'{"a":1',
    b'{"a":1]\n[{"a":2}\n',
    b'[{"a":1},{"a":2',
    b'{"Records":[1]',
    b'"a"',
]


@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize("rescued", [None, "_rescued"])
@pytest.mark.parametrize("data", UNREADABLE)
def test_an_object_of_which_no_record_can_be_read_is_bad_and_no_row_of_nulls(
    data: bytes, rescued: str | None, multi_line: bool
) -> None:
    schema = pa.schema([("a", pa.int64()), *([(rescued, pa.string())] if rescued else [])])
    options = FormatOptions("json", multi_line=multi_line, rescued_data_column=rescued)
    with pytest.raises(BadObject, match=r"corrupt-object: .* be read; "):
        read_bytes(data, schema, options)
    assert read_with_problems(data, schema, replace(options, mode="DROPMALFORMED")).rows == []
    kept = read_with_problems(data, pa.schema([*schema, ("_corrupt_record", pa.string())]), options)
    assert kept.problems.count == len(kept.rows) > 0, "who asks for the text of bad records has it"
    assert all(row["_corrupt_record"] for row in kept.rows)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize("data", [data for data in UNREADABLE if data != b'"a"'])
def test_it_is_bad_too_where_no_column_is_there_since_none_could_be_inferred(
    data: bytes, multi_line: bool, mode: str
) -> None:
    options = FormatOptions("json", multi_line=multi_line, mode=mode)
    with pytest.raises(BadObject, match="corrupt-object"):
        read_with_problems(data, pa.schema([]), options)


def test_an_object_without_any_column_is_good_where_a_record_can_be_read() -> None:
    options = FormatOptions("json", mode="DROPMALFORMED")
    assert read_with_problems(b"x\n{}\n", pa.schema([]), options).problems.count == 1


def test_the_error_of_a_document_of_several_lines_names_the_option() -> None:
    with pytest.raises(BadObject, match="multiLine=true"):
        read_bytes(b'{\n"a": 1\n}\n', ONE, JSON)


def test_a_bad_record_is_one_where_another_can_be_read_wherever_that_is() -> None:
    found = read_with_problems(b"x\n" * 50_000 + b'{"a":1}\n', ONE, JSON)
    assert (found.problems.count, len(found.rows), found.rows[-1]) == (50_000, 50_001, {"a": 1})
    late = b"x\n" * 10 + b'{"b":1}\n'
    with pytest.raises(BadObject, match="wrong-columns"):
        read_bytes(late, ONE, JSON)


def test_an_object_of_nulls_alone_is_good() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert read_bytes(b'{"c":1}\n{"a":null}\n', schema, JSON) == [{"a": None, "b": None}] * 2


def test_compressed_lines_are_read_and_refused_when_cut_off() -> None:
    packed = gzip.compress(b'{"a":1}\n' * 1000)
    assert len(read_bytes(packed, ONE, JSON, "o.json.gz")) == 1000
    assert refused(packed[:-3], ONE, JSON, "o.json.gz").cause == "corrupt-object"


@pytest.mark.parametrize("ours", [3, 1000, 1 << 20])
def test_a_line_longer_than_a_block_and_rows_over_many_blocks_are_read(
    ours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", ours)
    lines = [b'{"a":%d}' % i for i in range(300)]
    assert read_column(b"\n".join(lines), pa.int64(), JSON) == list(range(300))
    lines[150] = b'{"a":150,"b":"%b"}' % (b"x" * 5000)
    assert read_column(b"\n".join(lines), pa.int64(), JSON) == list(range(300))


def test_a_line_of_null_at_the_beginning_of_a_later_block_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 64)
    for indent in (b"", b" ", b"\t"):
        for number in range(20):
            data = b'{"a":1}\n' * number + indent + b"null\n" + b'{"a":1}\n' * 20
            assert refused(data, ONE, JSON).offset == 8 * number


DOCUMENT = FormatOptions("json", multi_line=True)


@pytest.mark.parametrize("block", [16 << 20, 10_000])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.map_(pa.string(), pa.int64())])
def test_a_document_of_many_ordinary_items_is_read_by_either_parser(
    kind: pa.DataType, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "BLOCK_SIZE", block)
    value = {"a": 1, "b": 2} if pa.types.is_map(kind) else {"k": [1]} if pa.types.is_string(kind) else 7
    text = json.dumps([{"a": value, "n": number} for number in range(10_000)], indent=1)
    options = replace(DOCUMENT, max_record_bytes=len(text) + 1)  # the values are more than it has room for at once
    found = read_bytes(text.encode(), pa.schema([("a", kind), ("n", pa.int64())]), options)
    assert [row["n"] for row in found] == list(range(10_000))
    expected = json.dumps(value, indent=1).replace("\n", "") if pa.types.is_string(kind) else value
    assert {re.sub(r"\s+", "", str(row["a"])) for row in found} == {
        re.sub(r"\s+", "", str(list(expected.items()) if isinstance(expected, dict) else expected))
    }


@pytest.mark.parametrize("block", [16 << 20, 10_000])
def test_one_bad_item_of_a_large_document_makes_all_of_it_one_bad_record(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "BLOCK_SIZE", block)
    schema = pa.schema([("a", pa.int64()), ("_corrupt_record", pa.string())])
    items = [b'{"a":%d,"b":[%s]}' % (number, b"0," * 20 + b"0") for number in range(5000)]
    items[4000] = b'{"a":"x"}'
    data = b"[" + b",".join(items) + b"]"
    options = replace(DOCUMENT, max_record_bytes=len(data) + 9)
    found = read_with_problems(data, schema, options)
    assert [row["a"] for row in found.rows[3999:4002]] == [3999, None, 4001]
    assert found.rows[0]["_corrupt_record"] == data.decode()
    assert found.problems.count == 1
    assert read_with_problems(data, schema, replace(options, mode="DROPMALFORMED")).rows == []
    for odd in (b"1", b"[{}]", b"", b'{"a":1}{"a":2}'):
        items[4000] = odd
        found = read_with_problems(b"[" + b",".join(items) + b"]", schema, options)
        assert (len(found.rows), found.problems.count) == (1, 1)
        assert found.rows[0]["a"] is None


@pytest.mark.parametrize("block", [16 << 20, 10_000])
def test_a_document_may_be_longer_than_a_record_but_none_of_its_items(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "BLOCK_SIZE", block)
    options = replace(DOCUMENT, max_record_bytes=100_000)
    items = [b'{"a":%d,"b":"%b"}' % (number, b"x" * 90) for number in range(1200)]
    assert read_column(b"[" + b",".join(items) + b"]", pa.int64(), options) == list(range(1200))
    long = b'{"a":1,"b":"%b"}' % (b"x" * 110_000)
    for document in (b"[{}," + long + b",{}]", long, b"[" + b",".join(items * 2) + b"]", b"['" + long + b"']"):
        found = read_with_problems(document, ONE, options)
        assert (found.rows, found.problems.count) == ([], 1)
        assert "maxRecordBytes" in found.problems.reported[0].reason


def test_a_document_of_one_large_object_is_read() -> None:
    points = [[number * 0.5, number] for number in range(60_000)]
    text = json.dumps({"a": points, "b": "x"}, indent=1).encode()
    options = replace(DOCUMENT, max_record_bytes=len(text))
    assert read_bytes(text, pa.schema([("a", pa.list_(pa.list_(pa.float64())))]), options)[0]["a"] == points


def test_a_record_of_very_many_keys_is_rescued_without_a_column_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = json_format.JsonReader._parse_lines

    def seen(reader: json_format.JsonReader, lines: bytes) -> pa.Table:
        parsed.append(lines)
        return parse(reader, lines)

    monkeypatch.setattr(json_format.JsonReader, "_parse_lines", seen)
    others = {f"key{number}": number for number in range(20_000)}
    records = [{"a": 1}, {"a": 2, **others}, {"a": 3}]
    schema = pa.schema([("a", pa.int64()), ("rest", pa.string())])
    options = FormatOptions("json", rescued_data_column="rest")
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    rows = read_bytes(data, schema, options)
    assert [row["a"] for row in rows] == [1, 2, 3]
    rescued = json.loads(rows[1]["rest"])
    rescued.pop("_file_path")
    assert rescued == others
    assert not any(b"key1" in lines for lines in parsed)
