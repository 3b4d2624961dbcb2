"""Types of Spark that Arrow has only as structs: VARIANT, GEOMETRY, GEOGRAPHY."""

from __future__ import annotations

import io
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import VariantVal

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema
from queue_source.formats.variants import VARIANT
from queue_source.options.content import FormatOptions
from support.reading import read_column, refused

GEOMETRY = pa.struct([pa.field("srid", pa.int32(), False), pa.field("wkb", pa.binary(), False, {"geometry": "true"})])
PARQUET = FormatOptions("parquet")


@pytest.mark.parametrize(
    ("file_format", "kind"),
    [
        *[(name, VARIANT) for name in ("avro", "orc")],
        *[(name, GEOMETRY) for name in ("json", "parquet", "orc")],
        ("orc", pa.list_(VARIANT)),
        ("parquet", pa.struct([("g", GEOMETRY)])),
    ],
)
def test_they_are_refused_when_the_query_starts_with_what_to_declare(file_format: str, kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match=r"column 'a': \w+ cannot fill \w+; declare the column (STRING|BINARY)"):
        check_schema(pa.schema([("a", kind)]), FormatOptions(file_format))


def test_a_variant_in_parquet_is_read_as_it_is() -> None:
    check_schema(pa.schema([("a", VARIANT), ("l", pa.list_(VARIANT))]), PARQUET)
    whole = pa.table({"a": [{"metadata": b"\x01\0\0", "value": b"\x0c\x01"}]})
    assert read_column(parquet(whole), VARIANT, PARQUET) == [{"value": b"\x0c\x01", "metadata": b"\x01\0\0"}]


NO_NAMES, NAMES = b"\x01\0\0", b"\x01\2\0\1\2ab"
GROUP = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())])
FIELD = pa.struct([("value", pa.binary()), ("typed_value", pa.int32())])
OBJECT = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.struct([("a", FIELD)]))])
REST = b"\x02\x01\x01\x00\x02\x0c\x07"  # {"b": 7}


def shredded(kind: pa.DataType, *rows: dict[str, object] | None) -> bytes:
    return parquet(pa.table({"a": pa.array(rows, kind)}))


def test_a_shredded_variant_is_put_together_from_its_columns() -> None:
    numbers = shredded(
        GROUP,
        {"metadata": NO_NAMES, "typed_value": 300},
        {"metadata": NO_NAMES, "value": b"\x05x"},
        {"metadata": NO_NAMES},
        None,
    )
    written = [row and row["value"] for row in read_column(numbers, VARIANT, PARQUET)]
    assert written == [b"\x10\x2c\x01", b"\x05x", b"\0", None]
    objects = shredded(
        OBJECT,
        {"metadata": NAMES, "value": REST, "typed_value": {"a": {"typed_value": 5}}},
        {"metadata": NAMES, "value": REST, "typed_value": {"a": {}}},
        {"metadata": NAMES, "value": REST},
        {"metadata": NAMES, "typed_value": {"a": {"value": b"\0"}}},
    )
    rows = read_column(objects, VARIANT, PARQUET)
    texts = [VariantVal(row["value"], row["metadata"]).toJson() for row in rows]
    assert texts == ['{"a":5,"b":7}', '{"b":7}', '{"b":7}', '{"a":null}']


def test_a_list_of_shredded_variants_is_put_together_too() -> None:
    items = [{"metadata": NO_NAMES, "typed_value": 1}, None, {"metadata": NO_NAMES, "value": b"\x04"}]
    data = shredded(pa.list_(GROUP), [], items, None)  # type: ignore[arg-type]
    rows = read_column(data, pa.list_(VARIANT), PARQUET)
    assert [row and [item and item["value"] for item in row] for row in rows] == [
        [],
        [b"\x0c\x01", None, b"\x04"],
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        (GROUP, {"metadata": NO_NAMES, "value": b"\0", "typed_value": 1}, "two values in one row"),
        (OBJECT, {"metadata": NAMES, "value": b"\x0c\1", "typed_value": {}}, "an object and another value"),
        (OBJECT, {"metadata": NO_NAMES, "typed_value": {"a": {"typed_value": 1}}}, "lacks the field 'a'"),
        (OBJECT, {"metadata": NAMES[:-1], "value": REST, "typed_value": {}}, "cut off"),
        (OBJECT, {"metadata": b"\x02\0\0", "typed_value": {}}, "another version than 1"),
        (OBJECT, {"metadata": NAMES, "value": REST[:-1], "typed_value": {}}, "cut off"),
        (OBJECT, {"metadata": NAMES, "value": b"\x02\x01\x05\0\2\x0c\7", "typed_value": {}}, "2 names, not 6"),
        (OBJECT, {"metadata": NAMES, "value": b"\x02\1\0\0\2\x0c\7", "typed_value": {"a": {"typed_value": 1}}},
         "the field 'a' twice"),
        (OBJECT, {"metadata": NAMES, "value": b"\x02\1\1\0\1\xfc", "typed_value": {}}, "unknown type 63"),
        (pa.struct([("metadata", pa.binary()), ("typed_value", pa.time64("us"))]),
         {"metadata": NO_NAMES, "typed_value": 1}, r"time64\[us\], which Spark's has not"),
        (pa.struct([("metadata", pa.binary()), ("typed_value", pa.timestamp("ns"))]),
         {"metadata": NO_NAMES, "typed_value": 1}, r"timestamp\[ns\], which Spark's has not"),
        (pa.struct([("value", pa.binary()), ("typed_value", pa.int64())]), {"typed_value": 1}, "without metadata"),
    ],
)  # fmt: skip
def test_a_shredded_variant_that_contradicts_itself_makes_its_object_bad(
    kind: pa.DataType, row: dict[str, object], reason: str
) -> None:
    error = refused(shredded(kind, row), pa.schema([("a", VARIANT)]), PARQUET)
    assert error.cause == "corrupt-object"
    assert re.search(reason, error.detail), error.detail


def test_the_columns_of_a_shredded_variant_are_no_new_columns() -> None:
    watched = FormatOptions("parquet", watch_new_columns=True)
    data = shredded(GROUP, {"metadata": NO_NAMES, "typed_value": 1})
    assert [row["value"] for row in read_column(data, VARIANT, watched)] == [b"\x0c\x01"]


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
