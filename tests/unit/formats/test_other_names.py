"""What the refusals of Spark's options say of the readers is what the readers do."""

from __future__ import annotations

import pyarrow as pa
import pytest

from queue_source.formats.text.csv_grammar import MAX_COLUMNS
from queue_source.options.content import FormatOptions
from queue_source.options.places import CANNOT
from support.reading import read_with_problems

COLUMNS = pa.schema([("a", pa.float64()), ("b", pa.string())])
NEEDS: dict[str, bytes] = {
    "allowComments": b'{"a": 1 /* one */}',
    "allowUnquotedFieldNames": b"{a: 1}",
    "allowSingleQuotes": b"{'a': 1}",
    "allowNumericLeadingZeros": b'{"a": 01}',
    "allowNonNumericNumbers": b'{"a": NaN}',
    "allowBackslashEscapingAnyCharacter": b'{"a": 1, "b": "\\q"}',
    "allowUnquotedControlChars": b'{"a": 1, "b": "\x01"}',
}
"""A record that Spark reads with the option."""


def test_every_option_that_allows_odd_json_has_its_record() -> None:
    assert set(NEEDS) == {name for name in CANNOT if name.startswith("allow")}


@pytest.mark.parametrize(("name", "record"), NEEDS.items())
def test_the_refusal_of_an_option_says_whether_its_records_are_read(name: str, record: bytes) -> None:
    bad = read_with_problems(record + b'\n{"a": 2}\n', COLUMNS, FormatOptions(file_format="json")).problems.count
    assert ("bad record" if bad else "are read") in CANNOT[name]


def test_the_refusal_of_max_columns_names_the_limit_that_csv_has() -> None:
    assert f"up to {MAX_COLUMNS:,} columns" in CANNOT["maxColumns"]
