"""Headers of csv whose names have white space or quotes around them: each fills the column that is meant."""

from __future__ import annotations

import gzip
import io
import tarfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import Part
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.csv import CSV
from queue_source.options.content import FormatOptions
from support.reading import read_bytes, read_with_problems

SCHEMA = pa.schema([("Id", pa.int64()), ("Name", pa.string()), ("Value", pa.float64())])
OPTIONS = FormatOptions("csv", header=True)
ROW = [{"Id": 1, "Name": "a", "Value": 2.5}]

around = st.text(" \t", max_size=2)


@st.composite
def headers(draw: st.DrawFn) -> str:
    """The names of the schema, in any case, with anything around them that people and programs put there."""
    names = []
    for name in SCHEMA.names:
        name = draw(st.sampled_from([name, name.lower(), name.upper()]))
        quoted = draw(st.sampled_from([name, f'"{name}"', f'"{draw(around)}{name}{draw(around)}"']))
        names.append(draw(around) + quoted + draw(around))
    return draw(st.sampled_from(["", "\ufeff"])) + ",".join(names)


@settings(max_examples=200, deadline=None)
@given(headers(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_white_space_and_quotes_around_the_names_of_a_header_leave_no_column_null(
    header: str, end: str, multi_line: bool
) -> None:
    data = f"{header}{end}1,a,2.5{end}".encode()
    assert read_bytes(data, SCHEMA, FormatOptions("csv", header=True, multi_line=multi_line)) == ROW
    together = CSV.combine([data, data], SCHEMA, OPTIONS)
    assert together is None or together.to_pylist() == ROW * 2


def test_parts_and_packed_objects_and_members_of_archives_have_such_headers_too() -> None:
    data = b"Id, Name, Value\n" + b"1,a,2.5\n" * 9
    assert read_bytes(gzip.compress(data), SCHEMA, OPTIONS) == ROW * 9
    parts = [read_with_problems(data, SCHEMA, OPTIONS, part=Part(start, end)) for start, end in [(0, 40), (40, None)]]
    assert [row for part in parts for row in part.rows] == ROW * 9
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in {"a.csv": data, "b.csv": b"\xef\xbb\xbf" + data}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert read_bytes(archive.getvalue(), SCHEMA, OPTIONS, "x.tar") == ROW * 18


def test_a_column_that_has_its_own_name_is_not_taken_from_another() -> None:
    assert read_bytes(b"Id,Name, Name,Value\n1,a,b,2.5\n", SCHEMA, OPTIONS) == ROW
    both = pa.schema([("Name", pa.string()), (" Name", pa.string())])
    assert read_bytes(b"Name, Name\na,b\n", both, OPTIONS) == [{"Name": "a", " Name": "b"}]


def test_several_columns_that_fit_alike_are_refused() -> None:
    with pytest.raises(BadObject, match="there more than once"):
        read_bytes(b"Id, Name,Name ,Value\n1,a,b,2.5\n", SCHEMA, OPTIONS)


def test_a_column_that_was_inferred_with_a_space_is_filled_from_one_without() -> None:
    schema = pa.schema([("Id", pa.int64()), (" Name", pa.string())])
    assert read_bytes(b"Id,Name\n1,a\n", schema, OPTIONS) == [{"Id": 1, " Name": "a"}]


def test_where_case_counts_a_name_is_trimmed_and_keeps_its_case() -> None:
    options = FormatOptions("csv", header=True, reader_case_sensitive=True)
    assert read_bytes(b"Id, Name, Value\n1,a,2.5\n", SCHEMA, options) == ROW
    with pytest.raises(BadObject, match="readerCaseSensitive"):
        read_bytes(b"Id, name, Value\n1,a,2.5\n", SCHEMA, options)


def test_such_a_name_is_no_new_column_and_is_not_rescued() -> None:
    data = b"Id, Name, Value\n1,a,2.5\n"
    assert read_bytes(data, SCHEMA, FormatOptions("csv", header=True, watch_new_columns=True)) == ROW
    with pytest.raises(NewColumns):
        read_bytes(
            b"Id, Name, Value, More\n1,a,2.5,x\n", SCHEMA, FormatOptions("csv", header=True, watch_new_columns=True)
        )
    rescuing = SCHEMA.append(pa.field("_rescued_data", pa.string()))
    options = FormatOptions("csv", header=True, rescued_data_column="_rescued_data")
    assert read_bytes(data, rescuing, options) == [{**ROW[0], "_rescued_data": None}]


def test_a_header_with_none_of_the_columns_is_refused() -> None:
    for header in (b"a, b, c", b"Id;Name;Value", b'"Id,Name,Value"', b" , , "):
        with pytest.raises(BadObject, match="none of the declared columns"):
            read_bytes(header + b"\n1,a,2.5\n", SCHEMA, OPTIONS)
