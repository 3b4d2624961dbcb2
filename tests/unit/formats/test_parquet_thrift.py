"""What is read of a Parquet footer and of headers of pages is what pyarrow reads of them, usual or not."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.formats.typed import parquet_thrift
from queue_source.formats.typed.parquet_thrift import DICTIONARY, V1, V2, Page, page_header, read_footer
from queue_source.options.file_format import FormatOptions
from support.reading import refused

CODECS = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD"]
DEEP_TYPE = pa.struct([("x", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.struct([("y", pa.float64())])))])
DEEP = pa.table({"s": pa.array([{"x": [n, None], "m": [("key", {"y": float(n)})]} for n in range(100)], DEEP_TYPE)})
FLAT = pa.table({
    "a": range(1000), "long": [f"{n}" * 50 for n in range(1000)], "none": pa.nulls(1000),
    "at": pa.array(range(1000), pa.timestamp("us", tz="UTC")), "d": pa.array(range(1000), pa.decimal128(20, 2)),
})  # fmt: skip
WAYS: list[dict[str, Any]] = [
    {},
    {"compression": {"a": "gzip", "long": "zstd", "d": "none"}},
    {"compression": "brotli", "row_group_size": 30, "use_dictionary": False},
    {"write_statistics": False, "data_page_version": "2.0"},
    {"write_page_index": True, "store_decimal_as_integer": True, "sorting_columns": [pq.SortingColumn(0)]},
]  # fmt: skip
NEVER = re.compile(rb"(?!)")


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize("table", [FLAT, DEEP])
@pytest.mark.parametrize("options", WAYS)
def test_a_footer_says_what_pyarrow_says(
    options: dict[str, Any], table: pa.Table, usual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not usual:
        walked = parquet_thrift._Forms(NEVER, NEVER, NEVER)
        monkeypatch.setattr(parquet_thrift, "_forms", lambda: walked)
    data = written(table, **options)
    metadata = pq.read_metadata(pa.BufferReader(data))
    found = read_footer(footer_of(data))
    assert [group.rows for group in found.groups] == [
        metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)
    ]
    for number, group in enumerate(found.groups):
        there = metadata.row_group(number)
        assert len(group) == there.num_columns
        for place in range(len(group)):
            column, said = group.column(place), there.column(place)
            assert CODECS[column.codec] == said.compression
            assert (column.decoded, column.stored) == (said.total_uncompressed_size, said.total_compressed_size)
            assert (column.data_page, column.dictionary_page) == (
                said.data_page_offset,
                said.dictionary_page_offset or 0,
            )


def test_columns_are_known_by_the_usual_form_and_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(parquet_thrift, "_column", walked)
    for options in WAYS:
        for table in (FLAT.drop_columns(["long"]), DEEP):
            read_footer(footer_of(written(table, **options)))


def test_a_footer_with_the_ends_of_the_last_one_has_its_own_groups() -> None:
    tables = [pa.table({"a": range(n)}) for n in (1, 5, 3000)]
    footers = [read_footer(footer_of(written(table))) for table in tables]
    assert [footer.groups[0].rows for footer in footers] == [1, 5, 3000]
    assert footers[0].schema == footers[1].schema != read_footer(footer_of(written(DEEP))).schema


@pytest.mark.parametrize(
    ("header", "page"),
    [
        ("1500 159001 157c 1c 1564 1510 1506 1506 1c 180161 180161 00 0000", None),
        ("1500 159001 157c 2c 1564 1510 1506 1506 0000", Page(V1, 72, 62, 50, 8, 3)),
        ("1500 159001 157c 1502 1c 1564 1510 1506 1506 0000", Page(V1, 72, 62, 50, 8, 3)),
        ("1504 15a006 15ba03 4c 1564 1504 12 0000", Page(DICTIONARY, 400, 221, 50, 2)),
        ("1506 159001 157c 5c 1564 1500 1564 1510 1504 1506 11 0000", Page(V2, 72, 62, 50, 8, 3)),
    ],
)
def test_a_header_of_a_page_is_read_whether_it_is_usual_or_not(
    header: str, page: Page | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes.fromhex(header)
    found = page_header(data + b"more")
    assert found == (page or found[0], len(data))
    for size in range(len(data)):
        with pytest.raises(IndexError):
            page_header(data[:size])
    walked = parquet_thrift._Forms(NEVER, NEVER, NEVER)
    monkeypatch.setattr(parquet_thrift, "_forms", lambda: walked)
    assert page_header(data + b"more") == found


def test_a_group_that_says_fewer_rows_than_its_columns_have_is_refused() -> None:
    data = written(pa.table({"a": range(50)}), compression="none", use_dictionary=False)
    footer = footer_of(data)
    group = footer.rindex(b"\x16\x64", 0, footer.index(b"ARROW:schema"))  # field 3 of the row group: 50
    damaged = data[:-8].replace(footer, footer[: group + 1] + b"\x62" + footer[group + 2 :]) + data[-8:]
    assert "50 values for 49 rows" in refused(damaged, pa.schema([("a", pa.int64())]), FormatOptions("parquet")).detail
