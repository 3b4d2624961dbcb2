"""The partition, the columns and the statistics of a file by its footer alone, without a catalog."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DecimalType, DoubleType, LongType, StringType

from queue_source.common.columns import parse_partitioning
from queue_source.errors import BadObject
from queue_source.sinks.iceberg.files import partition_spec, write_files
from queue_source.sinks.iceberg.footers import Footer, Thrift, _bounds, _statistics_of, read_footer
from queue_source.sinks.iceberg.landed import (
    Candidate,
    TableOfFiles,
    _inferred,
    location_of,
    same_place,
)
from queue_source.sinks.iceberg.schemas import completed
from queue_source.storage.files import open_object
from support.registering import parquet

NOON, LATER = datetime(2026, 3, 29, 12, 30, 15, 123456), datetime(2026, 3, 29, 23, 59, 59)
UTC = pa.timestamp("us", "UTC")
ROWS: dict[str, Any] = {
    "id": [1, 1],
    "name": ["abcd", "abce"],
    "at": pa.array([NOON, LATER], UTC),
    "local": pa.array([NOON, LATER], pa.timestamp("us")),
    "on": pa.array([date(1969, 12, 30), date(1969, 12, 31)]),
    "amount": pa.array([Decimal("-10.25"), Decimal("-10.29")], pa.decimal128(9, 2)),
    "raw": [b"xyz\xff", b"xyz\x00"],
    "small": pa.array([-7, -8], pa.int16()),
    "flag": [True, True],
    "void": pa.nulls(2, pa.string()),
    "some": pa.array(["x", None]),
    "f": [1.5, 1.5],
    "s": pa.array([{"x": "k"}, {"x": "k"}]),
    "holes": pa.array([{"x": "k"}, None]),
}


def footer_of(path: Path) -> Footer:
    with open_object(str(path)) as file:
        return read_footer(file)


def table_for(candidate: Candidate, folder: Path, asked: str) -> TableMetadata:
    """A new table for such files."""
    wanted = parse_partitioning(asked)
    schema = candidate.columns_needed("t", None, wanted)
    spec = partition_spec(schema, wanted) if asked else UNPARTITIONED_PARTITION_SPEC
    properties = {TableProperties.DEFAULT_WRITE_METRICS_MODE: "full"}
    return new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, f"file://{folder}/table", properties)


def registered(path: Path, asked: str = "") -> tuple[DataFile, TableMetadata]:
    candidate = Candidate(str(path), footer_of(path))
    metadata = table_for(candidate, path.parent, asked)
    return candidate.as_data_file(TableOfFiles(metadata)), metadata


@pytest.mark.parametrize(
    "asked",
    [
        "id", "flag", "void", "bucket(8, id)", "bucket(4, void)", "truncate(3, name)", "day(at)", "month(local)",
        "year(at)", "day(local)", "month(on)", "year(on)", "truncate(10, small)", "truncate(10, id)",
        "truncate(2, small)", "truncate(50, amount)", "truncate(3, raw)", "s.x", "truncate(1, s.x)",
        "day(at), bucket(8, id), truncate(2, name)",
    ],
)  # fmt: skip
def test_the_data_file_of_a_footer_is_that_of_its_rows(tmp_path: Path, asked: str) -> None:
    """By the sink that copies, which sees them."""
    rows = pa.table(ROWS)
    found, metadata = registered(parquet(tmp_path / "a.parquet", rows), asked)
    (copied,) = write_files(rows.to_batches(), metadata, load_file_io({}, metadata.location), "x")
    assert found.partition == copied.partition
    for attribute in ("lower_bounds", "upper_bounds", "null_value_counts", "value_counts", "record_count"):
        assert getattr(found, attribute) == getattr(copied, attribute), attribute
    assert found.column_sizes.keys() == copied.column_sizes.keys()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("name", "several partitions"),
        ("bucket(4, name)", "several partitions"),
        ("truncate(4, name)", "several partitions"),
        ("hour(at)", "several partitions"),
        ("day(on)", "several partitions"),
        ("truncate(1, small)", "several partitions"),
        ("some", "1 nulls beside values"),
        ("bucket(4, some)", "1 nulls beside values"),
        ("holes.x", "1 nulls beside values"),
        ("f", "may have NaN"),
    ],
)
def test_an_object_of_several_partitions_is_none(tmp_path: Path, asked: str, told: str) -> None:
    with pytest.raises(BadObject, match=told) as refused:
        registered(parquet(tmp_path / "a.parquet", pa.table(ROWS)), asked)
    assert refused.value.cause == "wrong-partition"


NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("asked", "path", "columns", "is_right"),
    [
        ("name", "name=x", {"name": ["x", "x"]}, True),
        ("name", "name=y", {"name": ["x", "x"]}, False),
        ("name", "name=x", {"name": ["x", "z"]}, False),
        ("name", "name=x", {"name": ["x", None]}, False),
        ("name", f"name={NULL}", {"name": ["x", "x"]}, False),
        ("name", f"name={NULL}", {"name": pa.nulls(2, pa.string())}, True),
        ("name", "name=x", {"name": pa.nulls(2, pa.string())}, False),
        ("bucket(4, id)", "id=1", {}, True),
        ("bucket(4, id)", "id=2", {}, False),
        ("month(on)", "on=2026-01-03", {"on": pa.array([date(2026, 1, 1), date(2026, 1, 31)])}, True),
        ("month(on)", "on=2026-02-03", {"on": pa.array([date(2026, 1, 1), date(2026, 1, 31)])}, False),
        ("truncate(1, name)", "name=xy", {"name": ["xa", "xz"]}, True),
        ("amount", "amount=1.5", {"amount": pa.array([Decimal("1.50")] * 2, pa.decimal128(9, 2))}, True),
        ("amount", "amount=1.505", {"amount": pa.array([Decimal("1.50")] * 2, pa.decimal128(9, 2))}, False),
        ("flag", "flag=true", {"flag": [True, True]}, True),
        ("at", "at=2026-03-29", {"at": pa.array([NOON, NOON], UTC)}, False),  # no way to write it is agreed on
        ("id", "name=other", {"name": ["x", "z"]}, True),  # the table is not partitioned by it
        ("day", "day=2026-01-03", {}, True),
        ("day", "day=2026-02-30", {}, True),  # a text: of a table that has a date, it is refused
    ],
)
def test_a_folder_and_a_footer_agree_or_the_object_is_refused(
    tmp_path: Path, asked: str, path: str, columns: dict[str, Any], is_right: bool
) -> None:
    file = parquet(tmp_path / path / "a.parquet", {"id": [1, 1], **columns})
    if is_right:
        registered(file, asked)
        return
    with pytest.raises(BadObject, match="its path says") as refused:
        registered(file, asked)
    assert refused.value.cause == "wrong-partition"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-01-03", "date"),
        ("2026-02-30", "string"),
        ("07", "long"),
        ("-1", "long"),
        (str(2**63), "string"),
        ("x", "string"),
    ],
)
def test_a_column_that_only_folders_know_gets_a_type_by_its_first_value(text: str, kind: str) -> None:
    assert str(_inferred(text)) == kind


def said_of(path: Path, number: int = 0) -> list[dict[int, Any]]:
    """What the footer says of a column, for each row group."""
    content = path.read_bytes()
    footer = Thrift(content[-8 - int.from_bytes(content[-8:-4], "little") : -8]).struct()
    return [group[1][number][3] for group in footer[4]]


def test_what_one_row_group_does_not_say_is_not_known_of_the_column(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"f": [0.0, 1.0, 2.0, None]}, row_group_size=1)
    column, said = pq.read_metadata(path).schema.column(0), said_of(path)
    facts = _statistics_of(said, column, DoubleType(), True)
    assert (facts.lower, facts.upper, facts.nulls) == (-0.0, 2.0, 1)
    assert struct.pack("<d", facts.lower) == struct.pack("<d", -0.0)
    for bounds in ({3: 0}, {3: 0, 5: struct.pack("<d", float("nan")), 6: b"\0" * 8}, {3: 0, 5: b"", 6: b"\0" * 8}):
        facts = _statistics_of([{**said[0], 12: bounds}, *said[1:]], column, DoubleType(), True)
        assert (facts.lower, facts.upper, facts.nulls) == (None, None, 1)
    silent = {field: value for field, value in said[0][12].items() if field != 3}
    for nulls in ({}, {3: -1}, {3: 2}):
        assert _statistics_of([{**said[0], 12: {**silent, **nulls}}], column, DoubleType(), True).nulls is None


def test_bounds_of_bytes_count_where_the_footer_says_in_which_order_they_are() -> None:
    number, text, long = b"\1" + b"\0" * 7, b"x", LongType()
    for fields, of_text, of_number in (({5, 6}, False, True), ({1, 2}, False, True), ({1, 6}, False, False)):
        assert (_bounds(dict.fromkeys(fields, text), "BYTE_ARRAY", StringType(), False) is not None) is of_text
        assert (_bounds(dict.fromkeys(fields, number), "INT64", long, False) is not None) is of_number
    assert _bounds({5: b"y", 6: b"x"}, "BYTE_ARRAY", StringType(), True) == ("x", "y")
    assert _bounds({5: b"x", 6: b"y"}, "BYTE_ARRAY", StringType(), True) is None, "in no order"
    assert _bounds({5: b"\x7f" * 4, 6: b"\0" * 4}, "INT32", DecimalType(9, 2), True) is None, "too many digits"
    assert _bounds({5: b"\x7f" * 5, 6: b"\0"}, "FIXED_LEN_BYTE_ARRAY", DecimalType(9, 2), True) is None
    assert _bounds({5: b"\xff" * 4, 6: b"\x83" + b"\xff" * 3}, "INT32", DecimalType(9, 2), True) == (
        Decimal("-1.25"),
        Decimal("-0.01"),
    )
    assert _bounds({5: b"\xc3", 6: b"x"}, "BYTE_ARRAY", StringType(), True) is None, "cut within a character"


@pytest.mark.parametrize(
    "uri", ["s3://b/a#b", "s3://b/a?b", "s3://b/a//b", "s3://b/a\x00", "s3://b/a ", "s3://b/a\\b", "az://a/b"]
)
def test_names_that_some_reader_takes_for_others_are_refused(uri: str) -> None:
    with pytest.raises(BadObject, match="another object") as refused:
        location_of(uri)
    assert refused.value.cause == "unsupported-key"


@pytest.mark.parametrize("asked", ["", "year(at)", "hour(at)", "at", "bucket(4, at)"])
@pytest.mark.parametrize("moment", [-(2**63), 2**63 - 1])
def test_bounds_beyond_all_years_are_no_failure_of_the_query(tmp_path: Path, asked: str, moment: int) -> None:
    at = pa.array([moment], pa.int64()).cast(UTC)
    path = parquet(tmp_path / "a.parquet", {"id": [1], "at": at})
    with suppress(BadObject, ValueError, ArithmeticError):  # which the task makes a bad object of
        found, metadata = registered(path, asked)
        id = metadata.schema().find_field("at").field_id
        assert found.lower_bounds[id] == struct.pack("<q", moment)


def test_one_place_has_several_names() -> None:
    assert {same_place(uri) for uri in ("s3://b/k", "s3a://b/k", "S3N://b/k")} == {"s3://b/k"}
    assert same_place("/a/b") == same_place("file:///a/b") == "file:///a/b"
    assert location_of("/a/b") == "file:///a/b"


def test_a_name_mapping_gets_what_it_lacks_and_loses_nothing(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"id": [1], "s": pa.array([{"x": 1, "y": 2}])})
    fields = registered(file)[1].schema().fields
    before = parse_mapping_from_json(
        '[{"field-id": 1, "names": ["key"]}, {"field-id": 99, "names": ["gone"]},'
        '{"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["x"]}]}]'
    )
    found = completed(fields, before)
    assert [(entry.field_id, entry.names) for entry in found] == [(1, ["key", "id"]), (99, ["gone"]), (2, ["s"])]
    assert [(entry.field_id, entry.names) for entry in found[2].fields] == [(3, ["x"]), (4, ["y"])]
    assert completed(fields, NameMapping(found)) == found


VALUES = st.one_of(st.none(), st.integers(-3, 3))
TEXTS = st.one_of(st.none(), st.text("ab\xff\u4e2d\U0010ffff", max_size=4))
FLOATS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf")]))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(VALUES, TEXTS, FLOATS), min_size=1, max_size=12),
    size=st.integers(1, 5),
    silent=st.sets(st.sampled_from(["n", "t", "f"])),
)
def test_bounds_and_counts_are_true_of_every_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], size: int, silent: set[str]
) -> None:
    n, t, f = zip(*rows, strict=True)
    table = pa.table({"n": pa.array(n, pa.int32()), "t": pa.array(t, pa.string()), "f": pa.array(f, pa.float64())})
    path = tmp_path_factory.mktemp("p") / "a.parquet"
    pq.write_table(
        table, path, row_group_size=size, write_statistics=[c for c in table.column_names if c not in silent]
    )
    found, metadata = registered(path)
    assert found.record_count == len(rows)
    assert len(found.split_offsets or []) == -(-len(rows) // size)
    for field in metadata.schema().fields:
        column = table.column(field.name)
        id = field.field_id
        assert found.value_counts[id] == len(rows)
        assert found.null_value_counts.get(id, column.null_count) == column.null_count
        if id not in found.lower_bounds:
            assert field.name in silent or pc.all(pc.is_null(column, nan_is_null=True)).as_py() or field.name == "f"
            continue
        form = {"n": "<i", "f": "<d"}.get(field.name)
        low, high = found.lower_bounds[id], found.upper_bounds[id]
        values = [v for v in column.to_pylist() if v is not None and v == v]
        if form is None:
            assert all(low <= v.encode() <= high for v in values)
        else:
            assert all(struct.unpack(form, low)[0] <= v <= struct.unpack(form, high)[0] for v in values)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_footer_is_a_bad_object_or_describes_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("p") / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "s": pa.array([{"x": "k"}, None, {"x": ""}])}), path, row_group_size=2)
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(len(content) - footer - 8, len(content) - 9))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(BadObject):
        found = footer_of(path)
        assert all(4 <= start < len(content) for start in found.starts)
        assert all(0 <= facts.stored < len(content) for facts in found.statistics.values())
