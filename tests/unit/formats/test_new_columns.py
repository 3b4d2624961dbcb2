"""Columns that objects have and the schema lacks: noticed, rescued or ignored, in every format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from queue_source.errors import BadObject
from queue_source.formats.new_columns import PASSED_BY, NewColumns
from queue_source.formats.text import json as json_format
from queue_source.formats.text.json_values import KnownNames
from queue_source.options.content import FormatOptions
from support.reading import read_bytes, read_with_problems

INNER = pa.struct([("x", pa.int64())])
SCHEMA = pa.schema([("a", pa.int64()), ("s", INNER), ("l", pa.list_(INNER))])
PLAIN = {"a": 1, "s": {"x": 1}, "l": [{"x": 1}]}
NEWS: dict[str, dict[str, Any]] = {
    "top": PLAIN | {"new": 5},
    "in a struct": PLAIN | {"s": {"x": 1, "new": 5}},
    "in a list": PLAIN | {"l": [{"x": 1, "new": 5}]},
}
NO_NEWS: dict[str, dict[str, Any]] = {
    "the same": PLAIN,
    "less": {"a": 1},
    "another case": {"A": 1, "S": {"X": 1}, "l": [{"X": 1}]},
}


def json_of(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def parquet_of(row: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row]), sink)
    return sink.getvalue()


def orc_of(row: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    orc.write_table(pa.Table.from_pylist([row]), sink)
    return sink.getvalue()


def avro_of(row: dict[str, Any]) -> bytes:
    def kind(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            fields = [{"name": name, "type": kind(inner, path + name)} for name, inner in value.items()]
            return {"type": "record", "name": f"r{path}", "fields": fields}
        if isinstance(value, list):
            return {"type": "array", "items": kind(value[0], path) if value else "long"}
        return "long"

    sink = io.BytesIO()
    fastavro.writer(sink, kind(row, ""), [row])
    return sink.getvalue()


WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "json": json_of, "parquet": parquet_of, "orc": orc_of, "avro": avro_of,
}  # fmt: skip


@pytest.mark.parametrize("file_format", WRITERS)
@pytest.mark.parametrize("where", NEWS)
def test_new_columns_are_noticed_in_any_depth(file_format: str, where: str) -> None:
    watching = FormatOptions(file_format, watch_new_columns=True)
    with pytest.raises(NewColumns) as noticed:
        read_with_problems(WRITERS[file_format](NEWS[where]), SCHEMA, watching)
    found = noticed.value
    assert "new" in str(found.record or found.found)
    assert len(read_bytes(WRITERS[file_format](NEWS[where]), SCHEMA, replace(watching, watch_new_columns=False))) == 1


@pytest.mark.parametrize("file_format", WRITERS)
@pytest.mark.parametrize("where", NO_NEWS)
def test_what_is_not_new_is_read(file_format: str, where: str) -> None:
    watching = FormatOptions(file_format, watch_new_columns=True)
    assert len(read_bytes(WRITERS[file_format](NO_NEWS[where]), SCHEMA, watching)) == 1


@pytest.mark.parametrize("file_format", WRITERS)
@pytest.mark.parametrize(
    ("where", "expected"), list(zip(NEWS, [{"new": 5}, {"s": {"new": 5}}, {"l": [{"new": 5}]}], strict=True))
)
def test_what_is_new_is_rescued(file_format: str, where: str, expected: dict[str, Any]) -> None:
    rescuing = FormatOptions(file_format, rescued_data_column="_rescued_data")
    schema = pa.schema([*SCHEMA, ("_rescued_data", pa.string())])
    (row,) = read_bytes(WRITERS[file_format](NEWS[where]), schema, rescuing)
    assert {name: row[name] for name in SCHEMA.names} == PLAIN
    found = json.loads(row["_rescued_data"] or "{}")
    assert found.pop("_file_path", "file://").startswith("file://")
    assert found == expected
    (row,) = read_bytes(WRITERS[file_format](PLAIN), schema, rescuing)
    assert row["_rescued_data"] is None


def test_what_is_new_in_the_values_of_a_map_is_rescued_from_parquet() -> None:
    written = pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("new", pa.int64())]))
    entries = [("k", {"a": 1, "new": 5}), ("l", {"a": 2, "new": None})]
    sink = io.BytesIO()
    pq.write_table(pa.table({"m": pa.array([entries], written)}), sink)
    declared = pa.map_(pa.string(), pa.struct([("a", pa.int64())]))
    schema = pa.schema([("m", declared), ("_rescued_data", pa.string())])
    options = FormatOptions("parquet", rescued_data_column="_rescued_data")
    (row,) = read_bytes(sink.getvalue(), schema, options)
    assert row["m"] == [("k", {"a": 1}), ("l", {"a": 2})]
    assert json.loads(row["_rescued_data"])["m"] == [["k", {"new": 5}], None]


def test_a_header_tells_of_new_columns_and_further_fields_do_not() -> None:
    watching = FormatOptions("csv", header=True, watch_new_columns=True)
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(NewColumns) as noticed:
        read_with_problems(b"a,b,c\n1,2,3\n", schema, watching)
    assert noticed.value.found is not None
    assert noticed.value.found.names == ["a", "b", "c"]
    assert read_bytes(b"B,A\n1,2\n", schema, watching) == [{"a": 2, "b": 1}]
    found = read_with_problems(b"1,2,3\n4,5\n", schema, replace(watching, header=False))
    assert (len(found.rows), found.problems.count) == (2, 1)


def test_columns_of_the_path_and_of_bad_records_are_not_new() -> None:
    watching = FormatOptions("json", watch_new_columns=True, partition_columns=("day",))
    schema = pa.schema([("a", pa.int64())])
    record = {"a": 1, "day": "x", "_corrupt_record": "y", "_metadata": 1}
    KnownNames(schema, watching).check(record)
    with pytest.raises(NewColumns):
        KnownNames(schema, replace(watching, partition_columns=())).check(record)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_column_with_the_name_of_bad_records_is_data_where_no_record_can_be_bad(file_format: str) -> None:
    """As Spark's reader of json writes it into a table."""
    out = io.BytesIO()
    (pq if file_format == "parquet" else orc).write_table(pa.table({"a": [1], "_corrupt_record": ["x"]}), out)
    schema, options = pa.schema([("a", pa.int64())]), FormatOptions(file_format)
    with pytest.raises(NewColumns):
        read_bytes(out.getvalue(), schema, replace(options, watch_new_columns=True))
    (row,) = read_bytes(
        out.getvalue(), schema.append(pa.field("_r", pa.string())), replace(options, rescued_data_column="_r")
    )
    assert json.loads(row["_r"])["_corrupt_record"] == "x"


def test_null_is_no_reason_to_stop_nor_to_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    options = FormatOptions("json", watch_new_columns=True, rescued_data_column="_rescued_data")
    schema = pa.schema([("a", pa.int64()), ("_rescued_data", pa.string())])
    monkeypatch.setattr(json_format.JsonReader, "read_slowly", None)
    lines = b'{"a": 1, "later": null}\n{"a": 2}\n'  # fields that hold nothing else are rescued, the slow way
    assert [row["a"] for row in read_bytes(lines, schema, options)] == [1, 2]


def test_a_new_column_that_spark_has_no_type_for_makes_its_object_bad() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1], "t": pa.array([1], pa.time64("us"))}), sink)
    with pytest.raises(BadObject, match="'t' is time64"):
        read_with_problems(sink.getvalue(), SCHEMA, FormatOptions("parquet", watch_new_columns=True))


_NONE = ", as schemaEvolutionMode is none"


@pytest.mark.parametrize("options", [{"watch_new_columns": True}, {"tells_new_columns": True}])
@pytest.mark.parametrize("file_format", ["parquet", "orc", "csv"])
def test_a_name_that_differs_in_case_from_one_that_is_read_is_counted_where_it_is_not_rescued(
    file_format: str, options: dict[str, bool]
) -> None:
    PASSED_BY.clear()
    sink, table = io.BytesIO(), pa.table({"a": [1], "A": [2]})
    if file_format == "csv":
        sink.write(b"a,A\n1,2\n")
    else:
        (pq if file_format == "parquet" else orc).write_table(table, sink)
    given = FormatOptions(file_format, header=True, **options)  # type: ignore[arg-type]
    assert read_bytes(sink.getvalue(), pa.schema([("a", pa.int64())]), given) == [{"a": 1}]
    assert [path.partition(",")[0] for path in PASSED_BY] == ["A"]


@pytest.mark.parametrize("file_format", WRITERS)
@pytest.mark.parametrize(("where", "path"), list(zip(NEWS, ["new", "s.new", "l.new"], strict=True)))
def test_what_is_new_is_passed_by_and_counted_once_an_object_where_that_is_asked_for(
    file_format: str, where: str, path: str
) -> None:
    telling = FormatOptions(file_format, tells_new_columns=True)
    PASSED_BY.clear()
    for _ in range(2):
        assert len(read_bytes(WRITERS[file_format](NEWS[where]), SCHEMA, telling)) == 1
    for row in NO_NEWS.values():
        read_bytes(WRITERS[file_format](row), SCHEMA, telling)
    assert dict(PASSED_BY) == {f"{path}{_NONE}": 2}


def test_columns_of_which_types_differ_or_are_not_sparks_and_those_of_a_header_are_passed_by_too() -> None:
    PASSED_BY.clear()
    lines = [json.dumps({**PLAIN, "new": value}) for value in (1, "a", [2], {"b": 1})] * 3
    telling = FormatOptions("json", tells_new_columns=True)
    assert len(read_bytes("\n".join([*lines, json.dumps({"more": 1})]).encode(), SCHEMA, telling)) == 13
    assert dict(PASSED_BY) == {f"new{_NONE}": 1, f"more{_NONE}": 1}
    PASSED_BY.clear()
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1], "time": pa.array([1], pa.duration("s"))}), sink)
    telling = FormatOptions("parquet", tells_new_columns=True)
    assert len(read_bytes(sink.getvalue(), pa.schema([("a", pa.int64())]), telling)) == 1, "Spark has no such type"
    assert dict(PASSED_BY) == {f"time{_NONE}": 1}
    PASSED_BY.clear()
    telling = FormatOptions("csv", header=True, tells_new_columns=True)
    assert len(read_bytes(b"id,x,y\n1,2,3\n", pa.schema([("id", pa.int64())]), telling)) == 1
    assert dict(PASSED_BY) == {f"x{_NONE}": 1, f"y{_NONE}": 1}
