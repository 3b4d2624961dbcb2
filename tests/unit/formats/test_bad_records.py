"""One bad record harms only itself: what stays of it, what is told of it, and that its neighbours are read quickly."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import Part, check_schema
from queue_source.formats.text import blocks, records
from queue_source.formats.text.csv import CsvReader
from queue_source.formats.text.json import JsonReader
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_with_problems, refused

CORRUPT = "_corrupt_record"
ROW = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.float64()), (CORRUPT, pa.string())])


def rows(data: bytes, file_format: str, schema: pa.Schema = ROW, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read_with_problems(data, schema, FormatOptions(file_format, **options)).rows]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("1,x", (1, "x", None)),
        ("1,x,1.5,z", (1, "x", 1.5)),
        ("q,x,1", (None, "x", 1.0)),
        ("99999999999,x,2", (None, "x", 2.0)),
        ("1.0,x,1e3", (None, "x", 1000.0)),
        ("0x10,x,1", (None, "x", 1.0)),
        ('1,"x,2', (1, "x,2", None)),
        ('1,"a', (1, "a", None)),
        ("only", (None, None, None)),
    ],
)
def test_a_bad_csv_record_stays_with_what_is_good_of_it_as_in_spark(line: str, row: tuple[Any, ...]) -> None:
    data = f"7,before,0.5\n{line}\n8,after,0.5\n".encode()
    before, after = (7, "before", 0.5, None), (8, "after", 0.5, None)
    assert rows(data, "csv") == [before, (*row, line), after]
    assert rows(data, "csv", mode="DROPMALFORMED") == [before, after]
    found = read_with_problems(data, ROW, FormatOptions("csv"))
    assert (found.problems.count, found.offsets, found.problems.reported[0].record) == (1, [13], line.encode())
    assert refused(data, ROW, FormatOptions("csv")).offset == 13


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("+5,x,+2", (5, "x", 2.0)),
        ('1,"x"y,2', (1, '"x"y', 2.0)),
        ('1, "x" ,2', (1, ' "x" ', 2.0)),
        ('1,"x" ,2', (1, "x", 2.0)),
        ('1,"a"b"c",2', (1, '"a"b"c"', 2.0)),
        ('1,"a,"b",2', (1, '"a,"b"', 2.0)),
        ('1,""a"",2', (1, '""a""', 2.0)),
        ('1,\\"a,2', (1, '\\"a', 2.0)),
        (",,", (None, None, None)),
        ("1,x,Infinity", (1, "x", float("inf"))),
    ],
)
def test_unusual_csv_is_read_as_spark_reads_it(line: str, row: tuple[Any, ...]) -> None:
    found = read_with_problems(f"7,before,0.5\n{line}\n".encode(), ROW, FormatOptions("csv"))
    assert tuple(found.rows[1].values()) == (*row, None)
    assert found.problems.count == 0


NUMBERS = pa.schema([("a", pa.int32()), ("b", pa.float64())])


@pytest.mark.parametrize(
    "data",
    [
        b"<html><body>503, try again</body></html>\n",
        b"order,price\n",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xd8",
        b"x,y\n" * 50_000,
    ],
)
def test_csv_without_a_header_of_which_no_value_can_be_read_is_a_bad_object_and_no_row_of_nulls(data: bytes) -> None:
    options = FormatOptions("csv")
    with pytest.raises(BadObject, match="corrupt-object: no value of its records can be read; "):
        read_with_problems(data, NUMBERS, options)
    assert read_with_problems(data, NUMBERS, replace(options, mode="DROPMALFORMED")).rows == []
    kept = read_with_problems(data, pa.schema([*NUMBERS, (CORRUPT, pa.string())]), options)
    assert kept.problems.count == len(kept.rows) > 0
    assert all(row[CORRUPT] for row in kept.rows), "who asks for the text of bad records has it"
    with_header = read_with_problems(b"a,b\n" + data, NUMBERS, replace(options, header=True))
    assert with_header.problems.count == len(with_header.rows), "a header shows that it is of these columns"


@pytest.mark.parametrize(
    ("data", "bad"), [(b"x,y\n" * 50_000 + b"1,x\n", 50_001), (b",\n,\n", 0), (b"\n", 0), (b",y\n,\n1,2", 1)]
)
def test_csv_without_a_header_has_bad_records_where_a_value_can_be_read_wherever_that_is(data: bytes, bad: int) -> None:
    found = read_with_problems(data, NUMBERS, FormatOptions("csv"))
    assert (found.problems.count, len(found.rows)) == (bad, data.strip(b"\n").count(b"\n") + (len(data) > 1))


@pytest.mark.parametrize("start", [0, 40])
def test_each_part_of_csv_without_a_header_shows_whether_its_values_can_be_read(start: int) -> None:
    part, others = Part(start, start + 40), b"x,y\n" * 30
    with pytest.raises(BadObject, match="no value of its records"):
        read_with_problems(others, NUMBERS, FormatOptions("csv"), part=part)
    found = read_with_problems(b"1,2\n" + others, NUMBERS, FormatOptions("csv"), part=part)
    assert (len(found.rows), found.problems.count) == (10, 10 if start else 9)


def test_text_that_is_not_utf8_is_replaced_and_told() -> None:
    found = read_with_problems(b"1,\xff,2\n", ROW, FormatOptions("csv"))
    assert tuple(found.rows[0].values()) == (1, "\ufffd", 2.0, "1,\ufffd,2")
    assert "UTF-8" in found.reasons


NESTED = pa.schema(
    [
        ("s", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ("l", pa.list_(pa.int32())),
        ("o", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.int32())),
        (CORRUPT, pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ('{"a":"q","b":"x"}', (None, "x", None)),
        ('{"a":1', (None, None, None)),
        ("null", (None, None, None)),
        ('"t"', (None, None, None)),
        ('{"a":1.0,"b":1}', (None, "1", None)),
        ('{"a":1,}', (None, None, None)),
        ('{"a":1},{"a":2}', (None, None, None)),
        ('{"a":2147483648,"c":1}', (None, None, 1.0)),
        ('{"c":"1.5"}', (None, None, None)),
    ],
)
def test_a_bad_json_record_stays_with_what_is_good_of_it_as_in_spark(line: str, row: tuple[Any, ...]) -> None:
    data = b'{"a":7}\n' + line.encode() + b'\n{"a":8}\n'
    assert rows(data, "json") == [(7, None, None, None), (*row, line), (8, None, None, None)]
    assert [row[0] for row in rows(data, "json", mode="DROPMALFORMED")] == [7, 8]
    found = read_with_problems(data, ROW, FormatOptions("json"))
    assert (found.problems.count, found.offsets) == (1, [8])
    assert refused(data, ROW, FormatOptions("json")).offset == 8


@pytest.mark.parametrize(
    ("value", "row"),
    [
        ({"s": {"x": "q", "y": 1}}, ({"x": None, "y": 1}, None, None, None)),
        ({"s": 1, "l": [1]}, (None, [1], None, None)),
        ({"l": [1, "q", 2]}, (None, None, None, None)),
        ({"o": [{"x": "q", "y": 1}, {"x": 2}]}, (None, None, [{"x": None, "y": 1}, {"x": 2, "y": None}], None)),
        ({"o": [None, 1]}, (None, None, None, None)),
        ({"m": {"k": "q", "n": 1}}, (None, None, None, None)),
    ],
)
def test_what_is_good_of_nested_json_stays_as_in_spark(value: Any, row: tuple[Any, ...]) -> None:
    line = json.dumps(value)
    assert rows(line.encode() + b"\n", "json", NESTED) == [(*row, line)]


def test_a_bad_value_in_a_struct_is_told_by_its_path() -> None:
    found = read_with_problems(b'{"s":{"x":"q"}}', NESTED, FormatOptions("json"))
    assert "'s.x'" in found.reasons


def test_decimals_are_rounded_as_in_spark_and_refused_when_they_do_not_fit() -> None:
    schema = pa.schema([("d", pa.decimal128(5, 2)), (CORRUPT, pa.string())])
    good = {"1.256": "1.26", "-1.255": "-1.26", "1e2": "100.00", ".5": "0.50", "5.": "5.00", "999.99": "999.99"}
    for text, value in good.items():
        assert rows(text.encode(), "csv", schema) == [(Decimal(value), None)]
        assert rows(json.dumps({"d": text}).encode(), "json", schema) == [(Decimal(value), None)]
    for text in ("1000", "999.995", "NaN", "1_0", "x"):
        assert rows(text.encode(), "csv", schema) == [(None, text)]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2013", (2013, 1, 1)),
        ("2013-2", (2013, 2, 1)),
        ("2013-1-2", (2013, 1, 2)),
        ("2013-01-01T5:0:0+1", (2013, 1, 1, 4)),
        ("2013-01-01 05:00:00 Europe/Berlin", (2013, 1, 1, 4)),
        ("2013-01-01 05:00:00 UTC", (2013, 1, 1, 5)),
        (" 2013-01-01 ", (2013, 1, 1)),
        ("epoch", None),
        ("2013-02-30", None),
        ("2013-01-01x", None),
        ("2013-01-01 05:00:00 Mars/Olympus", None),
        ("2013-01-01T25:00:00", None),
    ],
)
def test_times_are_taken_in_all_forms_that_spark_casts(text: str, moment: tuple[int, ...] | None) -> None:
    schema = pa.schema([("t", UTC_MICROS), (CORRUPT, pa.string())])
    value = None if moment is None else dt.datetime(*moment, tzinfo=dt.timezone.utc)  # type: ignore[misc,arg-type]
    line = json.dumps({"t": text})
    assert rows(line.encode(), "json", schema) == [(value, None if value else line)]
    assert rows(text.encode(), "csv", schema) == [(value, None if value else text)]


@pytest.mark.parametrize(
    ("text", "day"),
    [("2013", (2013, 1, 1)), ("2013-1-2 x", (2013, 1, 2)), ("2013-01-02T05:00", (2013, 1, 2)), ("20130101", None)],
)
def test_dates_are_taken_in_all_forms_that_spark_casts(text: str, day: tuple[int, int, int] | None) -> None:
    schema = pa.schema([("d", pa.date32()), (CORRUPT, pa.string())])
    assert rows(text.encode(), "csv", schema)[0][0] == (None if day is None else dt.date(*day))


def test_one_bad_record_in_a_large_block_is_found_and_its_block_still_read_quickly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "SMALLEST_PIECE", 1000)
    slow: list[int] = []
    for reader in (CsvReader, JsonReader):
        original = reader.read_slowly

        def slowly(self: Any, block: blocks.Block, original: Any = original) -> Iterator[pa.Table]:
            slow.append(len(block.data))
            yield from original(self, block)

        monkeypatch.setattr(reader, "read_slowly", slowly)
    for file_format, line in (("csv", b"%d,x,0.5"), ("json", b'{"a":%d,"b":"x"}')):
        slow.clear()
        lines = [line % i for i in range(10_000)]
        lines[7_777] = b"bad"
        found = read_with_problems(b"\n".join(lines), ROW, FormatOptions(file_format))
        assert [row["a"] for row in found.rows] == [None if i == 7_777 else i for i in range(10_000)]
        assert found.offsets == [sum(len(line) + 1 for line in lines[:7_777])]
        assert len(slow) == 1
        assert slow[0] < 3000


def test_a_record_that_is_too_long_is_passed_over_and_its_neighbours_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_NEXT_PIECE", 700)
    for size in (64, 5000):
        monkeypatch.setattr(blocks, "BLOCK_SIZE", size)
        data = b"1,x,1\n2," + b"x" * 50_000 + b",1\n3,x,1\n"
        found = read_with_problems(data, ROW, FormatOptions("csv", mode="DROPMALFORMED", max_record_bytes=2000))
        assert [row["a"] for row in found.rows] == [1, 3]
        assert found.offsets == [6]
        assert "2000 bytes" in found.reasons
        endless = read_with_problems(data[:-7], ROW, FormatOptions("csv", max_record_bytes=2000))
        assert [row["a"] for row in endless.rows] == [1]
        assert endless.problems.count == 1


_X = pa.struct([("x", pa.int32())])
RESCUED = pa.schema([("a", pa.int32()), ("s", _X), ("l", pa.list_(_X)), ("_rescued", pa.string())])
MAP_RESCUED = pa.schema([("m", pa.map_(pa.string(), _X)), ("_rescued", pa.string())])


@pytest.mark.parametrize(
    ("value", "rescued"),
    [
        ({"a": 1}, None),
        ({"a": 1, "z": [1.50]}, {"z": [1.5]}),
        ({"a": "q"}, {"a": "q"}),
        ({"A": 1}, None),
        ({"s": {"x": 1, "y": 2}}, {"s": {"y": 2}}),
        ({"s": {"x": "q"}}, {"s": {"x": "q"}}),
        ({"l": [{"x": 1, "y": 2}, {"x": 1}, None, {"y": 3}]}, {"l": [{"y": 2}, {}, None, {"y": 3}]}),
        ({"l": [{"x": "q"}, {"y": 3}]}, {"l": [{"x": "q"}, {"y": 3}]}),
        ({"l": [{"x": 1}]}, None),
    ],
)
def test_what_the_schema_has_no_place_for_is_rescued_from_json(value: Any, rescued: Any) -> None:
    data = b'{"a":7}\n' + json.dumps(value).encode()
    options = FormatOptions("json", rescued_data_column="_rescued", mode="FAILFAST")
    found = read_with_problems(data, RESCUED, options)
    text = found.rows[1]["_rescued"]
    if rescued is None:
        assert text is None
    else:
        told = json.loads(text)
        assert told.pop("_file_path").startswith("file:///")
        assert told == rescued
    assert found.rows[0]["_rescued"] is None


def test_what_every_value_of_a_map_has_beside_is_rescued() -> None:
    options = FormatOptions("json", rescued_data_column="_rescued")
    data = b'{"m":{"k":{"x":1,"y":2},"l":{"x":1},"n":{"y":3}}}'
    (row,) = read_with_problems(data, MAP_RESCUED, options).rows
    assert row["m"] == [("k", {"x": 1}), ("l", {"x": 1}), ("n", {"x": None})]
    assert json.loads(row["_rescued"])["m"] == {"k": {"y": 2}, "n": {"y": 3}}


def test_what_the_schema_has_no_place_for_is_rescued_from_csv() -> None:
    schema = pa.schema([("b", pa.int32()), ("_rescued", pa.string())])
    options = FormatOptions("csv", header=True, rescued_data_column="_rescued")
    found = read_with_problems(b"a,b\nx,1\n,q\n,3\n", schema, options)
    told = [row["_rescued"] and json.loads(row["_rescued"]) for row in found.rows]
    assert [row["b"] for row in found.rows] == [1, None, 3]
    assert [t and {k: v for k, v in t.items() if k != "_file_path"} for t in told] == [{"a": "x"}, {"b": "q"}, None]
    plain = FormatOptions("csv", rescued_data_column="_rescued", mode="DROPMALFORMED")
    found = read_with_problems(b"1\nq\n1,z\n", schema, plain)
    assert [row["b"] for row in found.rows] == [1, None]
    assert found.problems.count == 1


def test_columns_that_tell_of_records_are_checked_on_the_driver() -> None:
    with pytest.raises(OptionError, match="add _r STRING"):
        check_schema(ROW, FormatOptions("json", rescued_data_column="_r"))
    for option in ("column_name_of_corrupt_record", "rescued_data_column"):
        with pytest.raises(OptionError, match="declare it STRING"):
            check_schema(ROW, FormatOptions("json", **{option: "a"}))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="also the column"):
        check_schema(ROW, FormatOptions("json", rescued_data_column=CORRUPT))


def test_a_header_without_any_declared_column_is_a_bad_object_in_every_mode() -> None:
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        with pytest.raises(BadObject, match="wrong-columns"):
            read_with_problems(b"x,y\n1,2\n", ROW, FormatOptions("csv", header=True, mode=mode))
