"""CSV: what is found out about all quotes at once is what one finds who goes from character to character."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_source.formats.text import csv, csv_grammar
from queue_source.formats.text.csv import CsvReader
from queue_source.formats.text.csv_grammar import are_quotes_regular
from queue_source.options.content import FormatOptions
from support.reading import read_with_problems

PIECES = ["a", "1", ",", ",", '"', '"', "\n", "\n", "\r\n", "\\", " ", '","', '"\n', ',"', '\n"', '""', "a" * 61]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])
KEPT = pa.schema([*TWO, ("_corrupt_record", pa.string())])  # with it text of which nothing can be read has rows


def are_regular(text: str, *, over_lines: bool, open_end: bool) -> bool:
    opened = False
    for place, character in enumerate(text):
        if opened and character in "\r\n" and not over_lines:
            return False
        if character != '"':
            continue
        opened = not opened
        beside = text[place - 1 : place] if opened else text[place + 1 : place + 2]
        if beside not in ("", ",", "\r", "\n", '"'):
            return False
    return open_end or not opened


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans(), st.booleans(), st.sampled_from([8, 64, 1 << 17]))
@example('"' + "a" * 62 + '"', False, False, 8)
@example("a" * 63 + ',"b"', False, False, 8)
@example('a"', False, True, 8)
@example('"' * 130, False, False, 64)
def test_quotes_are_regular_where_each_one_is(text: str, over_lines: bool, open_end: bool, at_once: int) -> None:
    expected = are_regular(text, over_lines=over_lines, open_end=open_end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_grammar, "_MARKED_AT_ONCE", at_once)
        patch.setattr(csv_grammar, "_CHECKED_AT_ONCE", at_once // 8)
        assert are_quotes_regular(text.encode(), b'"', b",", over_lines=over_lines, open_end=open_end) == expected


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.sampled_from([7, 40, 1 << 24]), st.booleans(), st.sampled_from(["\\", '"', ""]))
@example('a,"b\n","c",d\n', 8, False, "\\")
@example('"a\n\nb"\n', 4, False, "\\")
@example('\n"aa","\n"","', 7, False, "\\")
@example('1,"a\\"\n2,b\n', 1 << 24, False, "\\")
@example('a,\r\n,"\r\n"', 7, True, "\\")
def test_what_is_read_quickly_is_what_is_read_slowly(text: str, block: int, multi_line: bool, escape: str) -> None:
    options = FormatOptions("csv", mode="PERMISSIVE", multi_line=multi_line, escape=escape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv, "BLOCK_SIZE", block)
        quick = read_with_problems(text.encode(), KEPT, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvReader, "read_quickly", lambda *_: None)
        slow = read_with_problems(text.encode(), KEPT, options)
    assert (quick.rows, quick.offsets) == (slow.rows, slow.offsets)
