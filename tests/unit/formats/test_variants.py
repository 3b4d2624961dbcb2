"""VARIANT of JSON: what is written is what Spark's own reader writes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import BadRecords, check_schema
from queue_source.formats.text.json import JSON
from queue_source.formats.variants import LARGEST, VARIANT
from queue_source.options.content import FormatOptions
from support.reading import read_bytes, read_with_problems

COLUMNS = pa.schema([("v", VARIANT), ("_corrupt_record", pa.string())])
WHOLE = FormatOptions("json", single_variant_column="v")

OF_SPARK = {
    '{"a": 1}': ("02010000020c01", "0101000161"),
    "[1, 2]": ("03020002040c010c02", "010000"),
    "null": ("00", "010000"),
    "3": ("0c03", "010000"),
    '"x"': ("0578", "010000"),
    "true": ("04", "010000"),
    '{"a": null}': ("020100000100", "0101000161"),
    '{"a": NaN}': ("02010000091c000000000000f87f", "0101000161"),
    '{"a": +Infinity}': ("02010000091c000000000000f07f", "0101000161"),
    "{'a': 'q'}": ("02010000020571", "0101000161"),
    '{"a": 1.10}': ("020100000620026e000000", "0101000161"),
    '{"a": 1e3}': ("02010000091c0000000000408f40", "0101000161"),
    '{"a": -0.0}': ("0201000006200100000000", "0101000161"),
    '{"a": 123456789012345678901234567890}': ("02010000122800d20a3f4eeee073c3f60fe98e01000000", "0101000161"),
    '{"a": 1234567890123456789012345678901234567890}': ("02010000091ce006ae0349060d48", "0101000161"),
    '{"a": 0.00000000000000000000000000000000000001234}': ("02010000091c43a772c8dccb1038", "0101000161"),
    "{}": ("020000", "010000"),
    "[]": ("030000", "010000"),
    '{"b": 1, "a": {"z": [], "b": {}}}': ("0202010002000f0c0102020002030006030000020000", "01030001020362617a"),
    '{"a": "\\ud83d\\ude00 \\u00e9"}': ("02010000081df09f988020c3a9", "0101000161"),
}
"""Records of one line, and the value and metadata that Spark 4.3 makes of them with `singleVariantColumn`."""


def test_a_record_becomes_the_bytes_that_spark_makes_of_it() -> None:
    rows = read_bytes("\n".join(OF_SPARK).encode(), COLUMNS, WHOLE)
    found = [(row["v"]["value"].hex(), row["v"]["metadata"].hex()) for row in rows]
    assert dict(zip(OF_SPARK, found, strict=True)) == OF_SPARK


def test_fields_are_in_the_order_of_java_by_which_spark_searches_for_them() -> None:
    names = ["\U0001f600", "\uffe6", "z", "\ue000"]
    (row,) = read_bytes(json.dumps(dict.fromkeys(names)).encode(), COLUMNS, WHOLE)
    ids = row["v"]["value"][2 : 2 + len(names)]
    assert [names[place] for place in ids] == ["z", "\U0001f600", "\ue000", "\uffe6"]


def test_a_bad_record_is_null_and_reported_and_so_is_one_with_a_key_twice() -> None:
    records = ['{"a": 1}', '{"a": 1', '{"a": 1, "b": {"c": 1, "c": 2}}', '{"a": "\\ud800"}', '{"b": 2}']
    found = read_with_problems("\n".join(records).encode(), COLUMNS, WHOLE)
    assert [row["_corrupt_record"] for row in found.rows] == [None, *records[1:4], None]
    assert [row["v"] is None for row in found.rows] == [False, True, True, True, False]
    assert "not JSON" in found.reasons
    assert "the key 'c' is there twice" in found.reasons


@pytest.mark.parametrize(
    "body",
    [b"hello", b'{"a": 5', b"x\ny\n", b'[{"a": 1}, {"a": ]', gzip.compress(b"hello", mtime=0)],  # one name everywhere
)
@pytest.mark.parametrize("multi_line", [False, True])
def test_what_holds_no_value_at_all_is_bad_and_no_row_of_null(body: bytes, multi_line: bool) -> None:
    schema, options = pa.schema([("v", VARIANT)]), replace(WHOLE, multi_line=multi_line)
    with pytest.raises(BadObject, match="corrupt-object"):
        read_with_problems(body, schema, options)
    with pytest.raises(BadObject, match="corrupt-object"):
        list(JSON.read_body(body, schema, options, BadRecords("PERMISSIVE")))
    assert read_bytes(b"null", schema, options), "which is a value"
    assert read_with_problems(body, COLUMNS, options).rows, "who asks for the text of bad records has it"


@pytest.mark.parametrize(
    "value",
    [
        {f"key {number}": number for number in range(300)},
        [*range(-5, 300), 2**15, -(2**15) - 1, 2**31, -(2**31) - 1, 2**63 - 1],
        ["x" * 63, "y" * 64, "é" * 40, "z" * 70_000],
        {"large": ["x" * 1000] * 100, "k" * 300: 1},
        [{"a": {"b": [number]}} for number in range(1000)],
        json.loads('{"a": [' * 400 + "1" + "]}" * 400),
    ],
    ids=["many keys", "whole numbers", "texts", "three bytes of offsets", "many objects", "deep"],
)
def test_what_is_large_is_read_back_by_spark_as_it_was(value: object) -> None:
    (row,) = read_bytes(json.dumps(value).encode(), pa.schema([("v", VARIANT)]), WHOLE)
    if isinstance(value, dict) and "a" in value:  # Spark's Python reader calls itself
        assert len(row["v"]["value"]) > 2000
        return
    assert json.loads(VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson()) == value


def test_what_is_too_large_for_spark_is_a_bad_record() -> None:
    found = read_with_problems(json.dumps(["x" * LARGEST]).encode(), COLUMNS, WHOLE)
    assert "as VARIANT, which may have 16777216" in found.reasons


@pytest.mark.parametrize("block", [1 << 20, 1000], ids=["in a block", "of many blocks"])
def test_a_document_is_one_value_also_if_it_is_an_array(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.formats.text.json.BLOCK_SIZE", block)
    options = FormatOptions("json", single_variant_column="v", multi_line=True)
    body = json.dumps([{"n": number} for number in range(20_000)], indent=1)
    (row,) = read_bytes(body.encode(), pa.schema([("v", VARIANT)]), options)
    assert json.loads(VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson()) == json.loads(body)


def test_a_declared_column_takes_any_value_beside_others() -> None:
    kind = pa.schema([("id", pa.int64()), ("v", VARIANT), ("l", pa.list_(VARIANT)), ("s", pa.struct([("v", VARIANT)]))])
    records = [
        '{"id": 1, "v": {"x": 1.5}, "l": [1, null, "t"], "s": {"v": []}}',
        '{"id": 2, "v": null, "s": {"v": null}}',
        '{"id": 3}',
    ]
    rows = read_bytes("\n".join(records).encode(), kind, FormatOptions("json"))

    def written(value: dict[str, bytes] | None) -> str | None:
        return None if value is None else VariantVal(value["value"], value["metadata"]).toJson()

    assert [written(row["v"]) for row in rows] == ['{"x":1.5}', "null", None]
    assert [written(item) for item in rows[0]["l"]] == ["1", "null", '"t"']
    assert [row["s"] and written(row["s"]["v"]) for row in rows] == ["[]", "null", None]


@pytest.mark.parametrize("columns", ["v STRING", "w VARIANT", "v VARIANT, id BIGINT"])
def test_other_declared_columns_than_the_one_are_refused(columns: str) -> None:
    kinds = {"STRING": pa.string(), "VARIANT": VARIANT, "BIGINT": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in columns.split(", "))])
    with pytest.raises(OptionError, match=r"singleVariantColumn.*declare v VARIANT"):
        check_schema(schema, WHOLE)


def test_the_one_column_may_stand_beside_what_is_not_of_the_record() -> None:
    day, metadata = ("day", pa.string()), ("_metadata", pa.struct([("file_path", pa.string())]))
    check_schema(
        pa.schema([*COLUMNS, day, metadata]),
        FormatOptions("json", single_variant_column="v", partition_columns=("day",)),
    )


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 1}', '{"a":1}'),
        (b'{\n "a": 1\n}', '{"a":1}'),
        (b'[1,\n {"a": "x"}]', '[1,{"a":"x"}]'),
        (b" 7 ", "7"),
    ],
)
def test_the_body_of_a_message_is_one_value(body: bytes, value: str) -> None:
    columns, bad = pa.schema([("v", VARIANT)]), BadRecords("PERMISSIVE")
    (row,) = [row for table in JSON.read_body(body, columns, WHOLE, bad) for row in table.to_pylist()]
    assert (VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson(), bad.count) == (value, 0)
