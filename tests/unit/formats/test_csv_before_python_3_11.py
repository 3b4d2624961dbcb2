"""CSV where Python's `re` keeps every repetition until the end (before 3.11): the same rows, in bounded memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.formats.text import blocks, csv_grammar
from queue_source.options.content import FormatOptions
from support.reading import read_with_problems

PIECES = ["a", "1", ",", ",", '"', '"', "\n", "\r\n", "\\", " ", '","', '"\n', ',"', '\n"', '""', '\\"']
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])
KEPT = pa.schema([*TWO, ("_corrupt_record", pa.string())])  # with it text of which nothing can be read has rows


@pytest.fixture
def at_most_three_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_grammar, "_POSSESSIVE", False)
    monkeypatch.setattr(csv_grammar, "_MOST_PAIRS", 3)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans(), st.sampled_from(["\\", '"']))
def test_the_same_is_read(text: str, multi_line: bool, escape: str) -> None:
    options = FormatOptions("csv", multi_line=multi_line, escape=escape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_grammar, "_POSSESSIVE", False)
        older = read_with_problems(text.encode(), KEPT, options)
    newer = read_with_problems(text.encode(), KEPT, options)
    assert (older.rows, older.reasons) == (newer.rows, newer.reasons)


@pytest.mark.usefixtures("at_most_three_pairs")
def test_a_field_with_too_many_quotes_is_a_bad_record_that_says_what_helps() -> None:
    lines = b'1,"x""""""y"\n2,"x""""""""y"\n3,"x\\"\\"\\"\\"y"\n4,z\n"5"5,"z"\n'
    found = read_with_problems(lines, TWO, FormatOptions("csv"))
    assert [row["a"] for row in found.rows] == ["1", None, None, "4", '"5"5']
    assert [row["b"] for row in found.rows] == ['x"""y', None, None, "z", "z"]
    assert found.problems.count == 2
    assert "more than 3 quotes and escapes in a field; Python 3.11 or newer reads it" in found.reasons


@pytest.mark.usefixtures("at_most_three_pairs")
@pytest.mark.parametrize("block", [16, 64, blocks.BLOCK_SIZE])
def test_with_multi_line_what_follows_such_a_field_is_never_taken_for_rows(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    text = b'1,"x\n"\n"2"2,"""""""""\n7,y\n8,z\n'
    found = read_with_problems(text, TWO, FormatOptions("csv", multi_line=True))
    assert [row["a"] for row in found.rows] == ["1", None]
    assert found.problems.count == 1
    assert "Python 3.11 or newer" in found.reasons
