"""CSV where Spark's meaning is not the obvious one: separators that are white space, headers, marks, zones, width."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queue_source.formats.base import BadRecords, Part
from queue_source.formats.text import csv
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv_grammar import MAX_COLUMNS
from queue_source.formats.text.records import read_block
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_bytes, read_with_problems

HEADER = FormatOptions("csv", header=True)
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])


def pairs(data: bytes, options: FormatOptions, schema: pa.Schema = TWO) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read_bytes(data, schema, options)]


def test_a_tab_behind_a_quoted_field_is_the_separator() -> None:
    tabs = FormatOptions("csv", sep="\t")
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.string())])
    found = read_with_problems(b'"x"\t\ty\n"x" \t\ty\nbad\n', schema, tabs)
    assert [tuple(row.values()) for row in found.rows] == [("x", None, "y"), ("x", None, "y"), ("bad", None, None)]
    spaces = FormatOptions("csv", sep=" ")
    assert [tuple(row.values()) for row in read_with_problems(b'"x"  y\nbad\n', schema, spaces).rows] == [
        ("x", None, "y"), ("bad", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [b"", b"bad\n"])
def test_a_line_of_tabs_is_blank_whether_or_not_a_bad_record_is_near(bad: bytes) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    found = read_with_problems(b"1\t2\n\t\n3\t4\n" + bad, schema, FormatOptions("csv", sep="\t"))
    assert [row["a"] for row in found.rows] == ["1", "3", *(["bad"] if bad else [])]


@pytest.mark.parametrize("blank", [1, 3, 12, 40])
def test_a_header_behind_blank_lines_is_no_row_in_any_piece(blank: int) -> None:
    data = b"\n" * blank + b"a,b\n" + b"".join(b"%d,x\n" % at for at in range(20))
    for step in (1, 4, 7, 13):
        parts = [Part(at, min(at + step, len(data))) for at in range(0, len(data), step)]
        rows = [row["a"] for part in parts for row in read_with_problems(data, TWO, HEADER, part=part).rows]
        assert rows == [str(at) for at in range(20)]


def test_a_name_that_is_twice_in_the_header_has_its_place_behind_it_as_in_spark() -> None:
    schema = pa.schema([("a2", pa.string()), ("b", pa.string()), ("a0", pa.string())])
    assert pairs(b"a,b,a\n1,2,3\n", HEADER, schema) == [("3", "2", "1")]


def test_a_byte_order_mark_at_a_later_line_is_data() -> None:
    lines = b"x,1\n\xef\xbb\xbfy,2\n"
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    reader = csv.CsvReader(schema, FormatOptions("csv"), BadRecords("PERMISSIVE"), "")
    blocks = [Block(0, lines[:4]), Block(4, lines[4:])]
    rows = [row["a"] for block in blocks for table in read_block(reader, block) for row in table.to_pylist()]
    assert rows == ["x", "\ufeffy"]


def test_a_record_has_at_most_as_many_fields_as_in_spark() -> None:
    fields = b",".join([b"x"] * MAX_COLUMNS)
    found = read_with_problems(fields + b"\n" + fields + b",x\ny,z\n", TWO, FormatOptions("csv"))
    assert [row["a"] for row in found.rows] == ["x", None, "y"]
    assert f"more than {MAX_COLUMNS} fields" in found.reasons


def test_thousands_may_be_set_apart_in_a_decimal() -> None:
    schema = pa.schema([("a", pa.decimal128(10, 2))])
    assert [row["a"] for row in read_bytes(b'"1,234.50"\n7\n', schema, FormatOptions("csv"))] == [
        Decimal("1234.50"), Decimal("7.00"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "hours"), [("PST", -7), ("IST", 5.5), ("JST", 9), ("BST", 6), ("+5:3", 5.05), ("EST", -5), ("-18:00", -18)]
)
def test_zones_have_javas_short_names(zone: str, hours: float) -> None:
    schema = pa.schema([("t", UTC_MICROS)])
    (row,) = read_bytes(f"2020-07-01T00:00:00{zone}\n".encode(), schema, FormatOptions("csv"))
    offset = dt.datetime(2020, 7, 1, tzinfo=dt.timezone.utc) - row["t"]
    assert offset == dt.timedelta(hours=hours)
