"""JSON: what pyarrow reads of a block is what is read record by record in Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.text.json import JsonReader
from queue_source.options.content import FormatOptions
from support.reading import read_with_problems

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("c", pa.float64()),
        ("d", pa.bool_()),
        ("e", pa.list_(pa.int32())),
        ("f", pa.struct([("x", pa.int16()), ("y", pa.string())])),
        ("t", pa.timestamp("us", tz="UTC")),
        ("n", pa.decimal128(10, 2)),
        ("g", pa.date32()),
        ("h", pa.binary()),
    ]
)
NAMES = [*SCHEMA.names, "A", "z", "b"]
NUMBERS = [
    "1", "-1", "0", "-0", "1.0", "1e2", "1E400", "1.5", "01", "+1", "12345678901234567890", "0.005", "1.", "0x10",
]  # fmt: skip
TEXTS = [
    '"x"', '"1"', '""', '"2024-01-01"', '"2024-13-01"', '"\\u00e9"', '"\\ud800"', '"a\\nb"', '"\\q"', '"QQ=="',
    "'x'",
]  # fmt: skip
OTHERS = [
    "true", "null", "NaN", "Infinity", '"NaN"', "{}", '{"x":1}', '{"x":70000,"y":"q"}', "[]", "[1,null]", "[1.5]",
    "[1,]",
]  # fmt: skip
NO_OBJECTS = [
    "", " ", "null", "[]", "1", "{", "}", '{"a":1} {"a":2}', '[{"a":1}]', "\x0b", '{"a":1}x', '{"a" 1}', "\ufeff{}",
]  # fmt: skip

values = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(["", " ", "\t"]), values)
objects = st.lists(pairs.map(lambda pair: f'"{pair[0]}":{pair[1]}{pair[2]}'), max_size=4).map(
    lambda pairs: "{" + ",".join(pairs) + "}"
)
lines = st.one_of(objects, objects, objects, st.sampled_from(NO_OBJECTS))
texts = st.builds(
    lambda lines, end: end.join([*lines, ""]), st.lists(lines, max_size=4), st.sampled_from(["\n", "\r\n", "", " "])
)


def read(text: str) -> tuple[str, list[int]] | str:
    """Rows (as text: NaN is not itself) and the places of bad records, or why all is refused."""
    try:
        found = read_with_problems(text.encode(), SCHEMA, FormatOptions("json", mode="PERMISSIVE"))
    except BadObject as error:
        return error.cause
    return repr(found.rows), found.offsets


@settings(max_examples=150, deadline=None)
@given(texts)
@example("\x0b\n")
@example('{"a":1}\n\n{"a":2}{"a":3}\n')
def test_what_is_read_quickly_is_what_is_read_slowly(text: str) -> None:
    quick = read(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonReader, "read_quickly", lambda *_: None)
        assert read(text) == quick
