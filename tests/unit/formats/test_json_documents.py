"""Documents with records in them (`recordsPath`): rows are those of the same records a line, and memory is bounded."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, OpenObject, Part
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text import blocks, json_documents
from queue_source.formats.text import json as json_format
from queue_source.formats.text.json import JSON as FORMAT
from queue_source.options.content import FormatOptions
from queue_source.storage.files import open_object
from queue_source.storage.open_files import InMemory, ObjectFile
from support.reading import read_bytes, read_column, read_with_problems, refused

RECORDS = FormatOptions("json", records_path="Records")
ONE = pa.schema([("a", pa.int64())])
TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])
CORRUPT = pa.schema([*TWO, ("_corrupt_record", pa.string())])


def document(*records: bytes) -> bytes:
    return b'{"Records":[%b]}' % b",".join(records)


ELEMENTS = [
    b'{"a":1,"b":"]},{["}',
    b'{"b":"\\"]","a":2,"c":[{"d":[]},{}]}',
    b"{'a':3,'b':'\"],'}",
    b'{"a":4,"b":"\\\\"}',
]
ROWS = [{"a": 1, "b": "]},{["}, {"a": 2, "b": '"]'}, {"a": 3, "b": '"],'}, {"a": 4, "b": "\\"}]
FORMS = [
    b'{"Records":[%b]}',
    b'\xef\xbb\xbf {\r\n "Records" : [\r\n  %b\r\n ]\r\n}\r\n',
    b'{"x":{"Records":[{"a":9}],"y":"Records"},"z":[[1,"]"],2],"Records":[%b],"n":null,"t":"[{"}',
    b"{'x':'\"','\\u0052ecords':[%b]}",
]


@pytest.mark.parametrize("block", [1, 7, 40, 16 << 20])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("between", [b",", b" , ", b",\n   "])
def test_each_element_of_the_array_is_a_record(
    between: bytes, form: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "BLOCK_SIZE", block)
    for times in (1, 4):
        data = form % between.join(ELEMENTS * times)
        assert read_bytes(data, TWO, RECORDS) == ROWS * times
        assert read_bytes(gzip.compress(data), TWO, RECORDS, "o.json.gz") == ROWS * times


@pytest.mark.parametrize("block", [1, 30, 16 << 20])
@pytest.mark.parametrize("between", [b"", b"\n", b" \r\n\n"])
def test_an_object_may_hold_several_documents(between: bytes, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_documents, "BLOCK_SIZE", block)
    documents = [form.removeprefix(b"\xef\xbb\xbf") % b",".join(ELEMENTS) for form in FORMS]
    documents[1:1] = [b'{"Records":[]}', b'{"Records": [ \n]}', b'{"Records":[{"a":1}]}']
    found = read_bytes(between.join(documents) + between, TWO, RECORDS)
    assert found == [*ROWS, {"a": 1, "b": None}, *ROWS * 3]


@pytest.mark.parametrize(
    "data", [b"", b" \n", b"\xef\xbb\xbf", b'{"Records":[]}', b'{"Records":[ \t]}\n{"Records":[]}']
)
def test_an_empty_array_is_no_row(data: bytes) -> None:
    assert read_bytes(data, TWO, RECORDS) == []


def test_a_path_leads_into_objects() -> None:
    options = replace(RECORDS, records_path="detail.items")
    data = b'{"items":[{"a":7}],"detail":{"n":{"items":[1]},"items":[{"a":1},{"a":2}],"x":1},"y":{"detail":3}}'
    assert read_column(data * 3, pa.int64(), options) == [1, 2] * 3


@pytest.mark.parametrize("block", [5, 16 << 20])
@pytest.mark.parametrize(
    ("data", "cause", "reason"),
    [
        (b'{"records":[{"a":1}],"x":1}', "wrong-columns", "no array at 'Records'.*records.*x"),
        (b"{}", "wrong-columns", "no array at 'Records'"),
        (b'{"Records":[{"a":1}]}{"x":{"Records":[{"a":2}]}}', "wrong-columns", "byte 21: there is no array"),
        (b'{"Records":null}', "wrong-columns", "no array at 'Records'"),
        (b'{"Records":{"a":1}}', "wrong-columns", "no array at 'Records'"),
        (b'{"Records":"[]"}', "wrong-columns", "no array at 'Records'"),
        (b'{"Records": 1 ,"x":[]}', "wrong-columns", "no array at 'Records'"),
        (b'[{"Records":[]}]', "wrong-columns", "no array at 'Records'"),
        (b'{"Records":[{"a":1}],"Records":[{"a":2}]}', "corrupt-object", "twice"),
        (b'{"Records":[],"x":1,"Records":null}', "corrupt-object", "twice"),
        (b'{"Records":[{"a":1},{"a":2}]', "corrupt-object", "cut off"),
        (b'{"Records":[{"a":1},{"a":', "corrupt-object", "cut off"),
        (b'{"Records":[{"a":1},{"a":"', "corrupt-object", "cut off"),
        (b'{"Records":[', "corrupt-object", "cut off"),
        (b'{"Recor', "corrupt-object", "cut off"),
        (b'{"Records":[{"a":1}]}{"Records":[{"a":1}]', "corrupt-object", "byte 21: it is cut off"),
        (b'{"Records":[{"a":1}]} x', "corrupt-object", "no JSON object"),
        (b'{"Records":[{"a":1}]},{"Records":[]}', "corrupt-object", "no JSON object"),
        (b'{"Records":[{"a":1}]}]', "corrupt-object", "no JSON object"),
        (b'x{"Records":[]}', "corrupt-object", "no JSON object"),
        (b"1", "corrupt-object", "no JSON object"),
        (b'{"Records":[{"a":1},]}', "corrupt-object", "no element"),
        (b'{"Records":[{"a":1},,{"a":1}]}', "corrupt-object", "no element"),
        (b'{"Records":[,{"a":1}]}', "corrupt-object", "no element"),
        (b'{"Records":[{"a":1} , ]}', "corrupt-object", "no element"),
        (b'{"Records":[{"a":1}}}', "corrupt-object", "not JSON"),
        (b'{"Records":[{"a":1}}', "corrupt-object", "cut off"),
        (b'{"Records":[{"a":1}],"x":tru}', "corrupt-object", "not JSON"),
        (b'{"x" 1,"Records":[{"a":1}]}', "corrupt-object", "not JSON"),
        (b'{"Records":[{"a":1}]"x":1}', "corrupt-object", "not JSON"),
        (b'{"x":%b,"Records":[{"a":1}]}' % (b"[" * 1200 + b"]" * 1200), "corrupt-object", "1000 deep"),
        (b'{"Records":[{"a":1}],"x":"\xff"}', "corrupt-object", "UTF-8"),
    ],
)
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_a_fault_of_a_document_makes_the_object_bad_and_none_of_its_rows_are_read(
    mode: str, data: bytes, cause: str, reason: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "BLOCK_SIZE", block)
    with pytest.raises(BadObject, match=reason) as caught:
        read_with_problems(data, ONE, replace(RECORDS, mode=mode))
    assert caught.value.cause == cause


@pytest.mark.parametrize("block", [1, 16 << 20])
@pytest.mark.parametrize(
    "odd",
    [
        b'{"a":"x"}', b"1", b"null", b'"{}"', b'[{"a":1}]', b"[]", b'{"a":1}{"a":2}', b'{"a":1} x', b"x", b'{"a":1,}',
        b'{"a":[1}]', b'{"a":"\n"}', b'{"a":"\xff"}', b'{"c":%b}' % (b"[" * 1200 + b"]" * 1200), b"-1 2", b"'{'",
    ],
)  # fmt: skip
def test_a_fault_of_an_element_is_a_bad_record(odd: bytes, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_documents, "BLOCK_SIZE", block)
    good = b'{"a":1,"b":"x"}'
    data = document(good, odd, good)
    found = read_with_problems(data, CORRUPT, RECORDS)
    assert [row["a"] for row in found.rows] == [1, None, 1]
    assert found.rows[1]["_corrupt_record"] == odd.replace(b"\n", b"\t").decode(errors="replace")
    assert found.offsets == [data.index(odd + b",", 28)]
    assert len(read_with_problems(data, CORRUPT, replace(RECORDS, mode="DROPMALFORMED")).rows) == 2
    assert refused(data, CORRUPT, RECORDS).offset == found.offsets[0]
    alone = read_with_problems(document(odd), CORRUPT, RECORDS)
    assert ([row["a"] for row in alone.rows], alone.offsets) == ([None], [12])


def test_a_long_key_is_looked_at_once_however_many_brackets_follow() -> None:
    data = b'{"' + b"k" * 100_000 + b'"' + b"{}" * 50_000 + b"}"
    began = time.monotonic()
    assert refused(data, ONE, RECORDS).cause == "corrupt-object"
    assert time.monotonic() - began < 20  # in minutes otherwise


def test_an_element_longer_than_allowed_is_skipped_and_a_long_document_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(RECORDS, max_record_bytes=10_000)
    for block in (100, 30_000):
        monkeypatch.setattr(json_documents, "BLOCK_SIZE", block)
        items = [b'{"a":%d,"b":"%b"}' % (at, b"x" * 90) for at in range(1200)]
        assert read_column(document(*items), pa.int64(), options) == list(range(1200))
        items[1:1] = [b'{"a":-1,"b":"%b"}' % (b"]},{" * 9_000)]
        found = read_with_problems(document(*items), ONE, options)
        assert [row["a"] for row in found.rows] == list(range(1200))
        assert "maxRecordBytes" in found.reasons
        long = b'{"x":"%b","Records":[]}' % (b"x" * 40_000)
        assert "maxRecordBytes" in refused(long, ONE, options).detail


def test_other_facts_are_those_of_records_in_lines() -> None:
    data = document(b'{"a":"x","b":"y","c":{"d":1}}', b'{"A":2}', b'{"a":3,"a":4}')
    schema = pa.schema([*TWO, ("_rescued", pa.string())])
    rows = read_bytes(data, schema, replace(RECORDS, rescued_data_column="_rescued"))
    assert [row["a"] for row in rows] == [None, 2, 4]
    rescued = json.loads(rows[0]["_rescued"])
    assert (rescued["a"], rescued["c"]) == ("x", {"d": 1})
    with pytest.raises(NewColumns):
        read_bytes(data, TWO, replace(RECORDS, watch_new_columns=True))
    assert refused(document(b'{"x":1}'), ONE, RECORDS).cause == "wrong-columns"
    text = {"k": [1, {"x": "y"}]}
    pretty = json.dumps({"Records": [{"a": 1, "b": text}]}, indent=1).encode()
    (row,) = read_bytes(pretty, TWO, RECORDS)
    assert json.loads(row["b"]) == text


def test_values_of_any_type_are_records_of_a_variant() -> None:
    options = replace(RECORDS, single_variant_column="v")
    schema = FORMAT.fixed_columns(options)
    assert schema is not None
    values = [b'{"a":[1,\n2]}', b"1", b'"x,]"', b"null", b"[1,2]"]
    together = read_bytes(document(*values), schema, options)
    lines = read_bytes(b"\n".join(values).replace(b",\n2", b",2"), schema, replace(options, records_path=None))
    assert together == lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1"])
def test_documents_in_other_character_sets_are_read(encoding: str) -> None:
    data = '{"Records":[{"a":1,"b":"é"},{"a":2,"b":"{"}]}'.encode(encoding)
    found = read_bytes(data, TWO, replace(RECORDS, encoding=encoding.removesuffix("-be")))
    assert found == [{"a": 1, "b": "é"}, {"a": 2, "b": "{"}]


def test_such_objects_are_neither_cut_nor_joined() -> None:
    assert not FORMAT.splittable(RECORDS)
    assert not FORMAT.combines(RECORDS)
    assert FORMAT.line_reader(ONE, RECORDS) is None
    bad = BadRecords("PERMISSIVE")
    tables = FORMAT.read_body(b'{\n"Records":[{"a":1},\n{"a":2}]}', ONE, RECORDS, bad)
    assert [row["a"] for table in tables for row in table.to_pylist()] == [1, 2]


def infer(data: bytes, options: FormatOptions, limit: int = 1 << 20) -> pa.Schema:
    file = ObjectFile("o", InMemory(data))
    return FORMAT.infer(OpenObject("o", file, len(data)), options, limit, types=True)


def test_columns_are_inferred_from_elements_up_to_a_limit() -> None:
    data = document(b'{"a":1}', b'{"b":"x"}', b"3", *[b'{"c":1}'] * 1000)
    assert infer(data, RECORDS).names == ["a", "b", "c"]
    assert infer(data + b"x", RECORDS, 20).names == ["a"]
    with pytest.raises(BadObject, match="no array"):
        infer(b'{"x":1}', RECORDS)


def test_memory_is_bounded_by_the_largest_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_documents, "BLOCK_SIZE", 1 << 20)
    element = b'{"a":1,"b":"%b"}' % (b"x" * 1000)
    path = tmp_path / "o.json"
    path.write_bytes(document(*[element] * 60_000))
    bad = BadRecords("FAILFAST")
    with open_object(f"file://{path}", None) as file:
        tracemalloc.start()
        tables = FORMAT.open(OpenObject("o", file, file.size()), Part(), ONE, RECORDS, bad)
        assert tables.may_fail_late
        assert sum(table.num_rows for table in tables.rows) == 60_000
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
        tracemalloc.stop()


KEYS = st.sampled_from(["a", "b", "Records", 'q"', "\\", "é", ""])
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("{}[],:\"'\\ \nxé", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3).map(lambda values: {"k": 1, **values})  # an empty one is refused
DOCUMENTS = st.lists(
    st.tuples(OBJECTS, st.lists(OBJECTS, max_size=4), OBJECTS, st.sampled_from([None, 1]), st.booleans()), max_size=4
)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(1, 60), st.sampled_from(["", "\n", " "]), st.booleans())
def test_any_documents_in_blocks_of_any_size_have_the_records_that_json_loads_finds(
    documents: list[Any], block: int, between: str, slowly: bool
) -> None:
    texts, expected = [], []
    for before, records, after, indent, is_ascii in documents:
        before, after = ({k: v for k, v in part.items() if k != "Records"} for part in (before, after))
        whole = {**before, "Records": records, **{k: v for k, v in after.items() if k not in before}}
        texts.append(json.dumps(whole, indent=indent, ensure_ascii=is_ascii))
        records = json.loads(texts[-1])["Records"]  # an undeclared null is not rescued
        expected += [{k: v for k, v in record.items() if v is not None} for record in records]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_documents, "BLOCK_SIZE", block)
        patch.setattr(blocks, "BLOCK_SIZE", block)
        if slowly:
            patch.setattr(json_format.JsonReader, "read_quickly", lambda *_: None)
        schema = pa.schema([("z", pa.int64()), ("_rescued", pa.string())])
        options = replace(RECORDS, rescued_data_column="_rescued")
        rows = read_bytes(between.join(texts).encode(), schema, options)
    rescued = [json.loads(row["_rescued"] or "{}") for row in rows]
    assert [{key: value for key, value in row.items() if key != "_file_path"} for row in rescued] == expected
