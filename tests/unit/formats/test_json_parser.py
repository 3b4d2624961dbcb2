"""JSON in Python: the same as Python's own decoder where that may be used, and Spark's meaning of all the rest."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_source.formats.text import json as json_format
from queue_source.formats.text.json_grammar import (
    MAX_DEPTH,
    Object,
    decode_objects,
    dump_value,
    has_long_number,
    parse_objects,
)
from queue_source.formats.text.json_structure import cut_items, measure_depth
from queue_source.options.content import FormatOptions
from support.reading import read_bytes, read_column, read_with_problems

JSON = FormatOptions("json")
CORRUPT = "_corrupt_record"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_what_python_writes_is_parsed_as_pythons_decoder_does(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert parse_objects(text) == decode_objects(text)
    assert json.loads(dump_value(parse_objects(text)[0])) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', "{,}", '{"a" 1}', '{"a":1 "b":2}', '{"a":01}', '{"a":1.}',
        '{"a":.5}', '{"a":+1}', '{"a":Inf}', '{"a":-NaN}', '{"a":truex}', '{"a":tru}', '{"a":"\t"}', '{"a":"\\x"}',
        '{"a":"\\u12"}', "{a:1}", "[{}", "[{}]]", "[{},]", "{]", "[}", "null", "1", "[1]", "[[]]", '{"a":1} x',
        '{"a":1}{}',
        '{"a":"x}', "{'a':1", '{"a":/**/1}', "\x0c{}", "\ufeff{}",
    ],
)  # fmt: skip
def test_what_is_no_record_of_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_objects(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a':'x\"y\\'z'}", {"a": "x\"y'z"}),
        ('{"a":NaN,"b":-INF,"c":+INF,"d":+Infinity}', {"a": "NaN", "b": "-INF", "c": "+INF", "d": "+Infinity"}),
        ('{"a":"\\ud83e\\udd86\\n\\/"}', {"a": "🦆\n/"}),
        ('{"a":{},"b":[],"a":[{}]}', {"a": [{}], "b": []}),
    ],
)
def test_what_spark_takes_for_json_is_parsed(text: str, value: dict[str, Any]) -> None:
    assert decode_objects(text) == [value]


def test_an_object_knows_its_text_and_its_repeated_keys() -> None:
    (found,) = parse_objects('{"a": {"x": [1.50 ] }, "b": 1, "a":2}')
    assert isinstance(found, Object)
    assert (found["a"], found.repeated) == ("2", {"a": [{"x": ["1.50"]}, "2"]})
    assert found.pairs[0][1].text == '{"x": [1.50 ] }'
    assert found.text == '{"a": {"x": [1.50 ] }, "b": 1, "a":2}'


@pytest.mark.parametrize(("start", "end"), [('{"a":', "}"), ("[", "]"), ('{"a":[', "]}")])
def test_depth_has_a_limit_and_needs_no_stack(start: str, end: str) -> None:
    steps = 2 if len(end) == 2 else 1
    within = (MAX_DEPTH - 2) // steps
    inner = f'{{"k":{start * within}1{end * within}}}'
    (found,) = decode_objects(inner)
    assert dump_value(found) == inner
    for depth in (MAX_DEPTH, 1_000_000):
        with pytest.raises(ValueError, match="more than 1000 deep"):
            decode_objects(f'{{"k":{start * depth}1{end * depth}}}')
    with pytest.raises(ValueError, match="more than 1000 deep"):
        decode_objects(f'{{"k":{start * 100_000}')


def test_brackets_in_texts_are_no_depth() -> None:
    assert measure_depth(b'{"a":"[[[{","b":[1],"c\\"{":[[]]}') == 3
    assert decode_objects('{"a":"%s"}' % ("[" * 5000)) == [{"a": "[" * 5000}]


def test_a_number_has_at_most_a_thousand_digits_and_a_record_so_many_values() -> None:
    assert decode_objects('{"a":%s}' % ("1" * 1000)) == [{"a": "1" * 1000}]
    with pytest.raises(ValueError, match="more than 1000 characters"):
        decode_objects('{"a":%s}' % ("1" * 1001))
    assert len(decode_objects('{"a":",,,,,,,,,,","b":[1,2]}', 4)[0]) == 2
    with pytest.raises(ValueError, match="maxRecordBytes"):
        decode_objects('{"a":[1,2,3,4]}', 3)


DEEP = [("objects", b'{"a":%b}', b'{"a":', b"}"), ("arrays", b'{"a":%b}', b"[", b"]")]


@pytest.mark.parametrize(("form", "start", "end"), [case[1:] for case in DEEP], ids=[case[0] for case in DEEP])
@pytest.mark.parametrize("depth", [480, 998, 1_001, 40_000])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pa.string(), JSON),
        (pa.map_(pa.string(), pa.string()), JSON),
        (pa.int32(), FormatOptions("json", rescued_data_column="_rest")),
        (pa.int32(), FormatOptions("json", watch_new_columns=True)),
        (pa.string(), FormatOptions("json", multi_line=True)),
    ],
    ids=["text", "map", "rescued", "watched", "document"],
)
def test_a_deep_record_is_bad_from_sparks_limit_on_and_its_neighbour_is_read(
    kind: pa.DataType, options: FormatOptions, depth: int, form: bytes, start: bytes, end: bytes
) -> None:
    schema = pa.schema([("a", kind), ("b", pa.int32()), (CORRUPT, pa.string())])
    if options.rescued_data_column is not None:
        schema = schema.append(pa.field("_rest", pa.string()))
    value = start * depth + b"1" + end * depth
    record = form % value
    line = b"[%b,\n%b]" if options.multi_line else b"%b\n%b\n"
    found = read_with_problems(line % (b'{"b":7}', record), schema, options)
    too_deep = depth > 998
    if options.multi_line and too_deep:
        assert [row["b"] for row in found.rows] == [None]
    else:
        assert found.rows[0]["b"] == 7
    reads = pa.types.is_string(kind) or options.rescued_data_column is not None
    if too_deep:
        assert "more than 1000 deep" in found.reasons
    elif reads:
        assert (found.problems.count, len(found.rows)) == (0, 2)
        if pa.types.is_string(kind):
            assert found.rows[1]["a"] == value.decode()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), '{"b": [1.50, "x", null] }', '{"b": [1.50, "x", null] }'),
        (pa.string(), '[ {"k" : 1,"k":2} ]', '[ {"k" : 1,"k":2} ]'),
        (pa.map_(pa.string(), pa.int32()), '{"k":1,"k":2}', [("k", 1), ("k", 2)]),
        (pa.decimal128(10, 2), '"1,234.50"', 1234.5),
        (pa.float64(), "-INF", -math.inf),
        (pa.float64(), "+Infinity", math.inf),
        (pa.binary(), '"aGk=\\n"', b"hi"),
        (pa.binary(), '"aGlo\\r\\naGk="', b"hihhi"),
    ],
)
def test_odd_values_are_read_as_spark_reads_them(kind: pa.DataType, text: str, value: Any) -> None:
    data = f'{{"a":{text}}}\n{{"a":null}}\n'
    assert read_column(data.encode(), kind, JSON) == [value, None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.float64(), "Inf"),
        (pa.float64(), "-Inf"),
        (pa.float64(), "-NaN"),
        (pa.decimal128(10, 2), '" 12"'),
        (pa.decimal128(10, 2), '","'),
        (pa.decimal128(10, 2), "NaN"),
        (pa.binary(), '"aG k="'),
        (pa.binary(), '"aGk"'),
        (pa.timestamp("us", tz="UTC"), '"2020-01-01T00:00:00+18:30"'),
        (pa.timestamp("us", tz="UTC"), '"2020-01-01T00:00:00+19:00"'),
        (pa.timestamp("us", tz="UTC"), '"2020-01-01T00:00:00z"'),
    ],
)
def test_odd_values_that_spark_refuses_are_bad(kind: pa.DataType, text: str) -> None:
    found = read_with_problems(f'{{"a":{text}}}\n{{"a":null}}\n'.encode(), pa.schema([("a", kind)]), JSON)
    assert ([row["a"] for row in found.rows], found.offsets) == ([None, None], [0])


def test_a_repeated_key_keeps_its_last_good_value_and_a_bad_one_makes_the_record_bad() -> None:
    schema = pa.schema([("a", pa.int32()), (CORRUPT, pa.string())])
    lines = ['{"a":1,"a":2}', '{"a":1,"a":"x"}', '{"a":"x","a":1}', '{"a":1,"a":null}']
    found = read_with_problems("\n".join(lines).encode(), schema, JSON)
    assert [tuple(row.values()) for row in found.rows] == [(2, None), (1, lines[1]), (1, lines[2]), (None, None)]


def test_one_bad_object_of_an_array_makes_all_rows_of_its_record_bad() -> None:
    schema = pa.schema([("a", pa.int32()), (CORRUPT, pa.string())])
    line = '[{"a":1},{"a":"x"},{"a":2}]'
    found = read_with_problems(line.encode(), schema, JSON)
    assert [tuple(row.values()) for row in found.rows] == [(1, line), (None, line), (2, line)]
    assert found.problems.count == 1
    dropped = read_with_problems(line.encode(), schema, FormatOptions("json", mode="DROPMALFORMED"))
    assert dropped.rows == []


def test_a_byte_order_mark_at_any_line_is_no_data() -> None:
    assert read_column(b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"a":2}\n{"a":3}\n', pa.int32(), JSON) == [1, 2, 3]


def test_many_tiny_records_of_many_columns_come_in_tables_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.formats.text.records.MAX_CELLS", 10_000)
    schema = pa.schema([(f"c{at}", pa.int64()) for at in range(99)])
    for kind in (schema, schema.append(pa.field("m", pa.map_(pa.string(), pa.string())))):
        reader = json_format.JsonReader(kind, JSON, read_with_problems(b"", kind, JSON).problems, "")
        from queue_source.formats.text.blocks import Block
        from queue_source.formats.text.records import read_block

        tables = list(read_block(reader, Block(0, b'{"c0":1}\n' * 20_000)))
        assert sum(table.num_rows for table in tables) == 20_000
        assert max(table.num_rows for table in tables) < 4_000


def test_base64_is_what_python_decodes() -> None:
    text = base64.b64encode(bytes(range(256))).decode()
    assert read_bytes(b'{"a":"%b"}' % text.encode(), pa.schema([("a", pa.binary())]), JSON) == [
        {"a": bytes(range(256))}
    ]


def test_a_number_of_a_thousand_digits_is_seen_wherever_it_is() -> None:
    for before in range(60):
        assert has_long_number(b"x" * before + b"1" * 1000 + b"x")
        assert not has_long_number(b"1" * before + b"x" + b"1" * 999 + b"x" + b"1" * 999)


def test_items_of_a_document_are_lines_only_where_brackets_and_quotes_say_so() -> None:
    array = b'[ {"a":"],\\\\\\",[","b":[1,{}]},\r\n {"a":2} ] \n'
    assert cut_items(array) == b'  {"a":"],\\\\\\",[","b":[1,{}]}\n\t\t {"a":2}   \t'
    assert cut_items(b'{"a":[1,\n2]}') == b'{"a":[1,\t2]}'
    assert cut_items(b"[{'a':',\",','b':1},{}]") == b" {'a':',\",','b':1}\n{} "
    assert cut_items(b'[{"a":"\n"}]') == b' {"a":"\t"} ', "which is no JSON either"
    for odd in (b"[{}],[{}]", b"[{}", b"{}{}", b"[{}}", b"1", b"", b'["]'):
        assert cut_items(odd) is None
