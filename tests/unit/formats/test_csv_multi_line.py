"""CSV with `multiLine`: the grammar says where a record ends, whatever quotes and comments do. Rows are Spark's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.formats.text import blocks, csv_grammar
from queue_source.formats.text.csv_grammar import CsvRecords
from queue_source.options.content import FormatOptions
from support.reading import read_with_problems

ONE = pa.schema([("a", pa.string())])
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])
KEPT = pa.schema([*TWO, ("_corrupt_record", pa.string())])  # with it text of which nothing can be read has rows
PIECES = ["a", "1", ",", ",", '"', '"', "\n", "\n", "\r\n", "\\", "#", " ", '","', '"\n', ',"', '\n"']


def rows(data: str, schema: pa.Schema = TWO, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of an object in which no record is bad."""
    found = read_with_problems(data.encode(), schema, FormatOptions("csv", multi_line=True, **options))
    assert found.problems.count == 0, found.reasons
    return [tuple(row.values()) for row in found.rows]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_quote_in_a_comment_is_no_quote(end: str) -> None:
    data = end.join(['# sizes 5" pipes', "1,x", "2,y", '#"', "3,z", ""])
    assert rows(data, comment="#") == [("1", "x"), ("2", "y"), ("3", "z")]
    assert rows(f"a,b{end}{data}", comment="#", header=True) == [("1", "x"), ("2", "y"), ("3", "z")]
    assert rows(f"#{end}a,b{end}{data}", comment="#", header=True) == [("1", "x"), ("2", "y"), ("3", "z")]


def test_a_comment_character_within_a_quoted_field_begins_no_comment() -> None:
    assert rows('1,"x\n#y"\n#"\n2,z', comment="#") == [("1", "x\n#y"), ("2", "z")]


def test_a_quote_within_an_unquoted_field_is_data() -> None:
    assert rows('1,5" pipe\n2,y\n3,z\n') == [("1", '5" pipe'), ("2", "y"), ("3", "z")]
    assert rows('x\n5" pipe\ny\nz\n', ONE) == [("x",), ('5" pipe',), ("y",), ("z",)]
    assert rows('1,5" pipe\n"x\ny",z\n') == [("1", '5" pipe'), ("x\ny", "z")]


def test_an_escape_outside_of_quotes_is_data() -> None:
    assert rows("1,C:\\\n2,y\n") == [("1", "C:\\"), ("2", "y")]


def test_a_field_with_a_stray_quote_ends_with_its_line() -> None:
    assert rows('1,"a"b\n2,c\n') == [("1", '"a"b'), ("2", "c")]
    assert rows('a,"b"c"\n1,"x\ny"\n') == [("a", '"b"c"'), ("1", "x\ny")]


def test_a_quoted_field_may_have_spaces_around_it() -> None:
    spaces = {"ignore_leading_white_space": True, "ignore_trailing_white_space": True}
    assert rows(' "a\nb" , 1\n  2 ,"c" \n', **spaces) == [("a\nb", "1"), ("2", "c")]


def test_a_quote_that_nothing_closes_goes_on_to_the_end() -> None:
    found = read_with_problems(b'1,x\n2,"y\n3,z\n', TWO, FormatOptions("csv", multi_line=True))
    assert [tuple(row.values()) for row in found.rows] == [("1", "x"), ("2", "y\n3,z")]
    assert found.offsets == [4]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), st.sampled_from(["", "#"]), st.booleans())
def test_the_quick_way_to_the_ends_of_records_finds_what_the_grammar_says(
    text: str, comment: str, spaces: bool
) -> None:
    records = CsvRecords(FormatOptions("csv", multi_line=True, comment=comment, ignore_leading_white_space=spaces))
    data = text.encode()
    quick = [end for end in records.find_ends(data).tolist() if end < len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_grammar, "are_quotes_regular", lambda *_args, **_options: False)
        assert [end for end in records.find_ends(data).tolist() if end < len(data)] == quick


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), st.integers(1, 9))
def test_the_size_of_blocks_changes_no_record(text: str, size: int) -> None:
    options = FormatOptions("csv", multi_line=True, comment="#")
    whole = read_with_problems(text.encode(), KEPT, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_SIZE", size)
        found = read_with_problems(text.encode(), KEPT, options)
    assert (found.rows, found.offsets) == (whole.rows, whole.offsets)
