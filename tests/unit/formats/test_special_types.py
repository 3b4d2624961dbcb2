"""Types of Spark that Arrow has only as structs: VARIANT, GEOMETRY, GEOGRAPHY."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


NO_NAMES = b"\x01\0\0"
SHREDDED = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())])


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_shredded_variant_is_refused_by_name(is_listed: bool) -> None:
    rows = [{"metadata": NO_NAMES, "typed_value": 300}, None]
    kind, declared = (pa.list_(SHREDDED), pa.list_(VARIANT)) if is_listed else (SHREDDED, VARIANT)
    data = parquet(pa.table({"a": pa.array([rows] if is_listed else rows, kind)}))
    error = refused(data, pa.schema([("a", declared)]), PARQUET)
    assert error.cause == "corrupt-object"
    assert "column 'a': a shredded VARIANT" in error.detail
    assert "writeShredding.enabled = false" in error.detail


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        (pa.struct([("metadata", pa.binary()), ("value", pa.binary())]), {"value": b"\0"}, "null in its 'metadata'"),
        (pa.struct([("metadata", pa.binary()), ("value", pa.binary())]), {"metadata": NO_NAMES}, "null in its 'value'"),
        (pa.struct([("value", pa.binary())]), {"value": b"\0"}, "null in its 'metadata'"),
    ],
)
def test_a_variant_that_lacks_a_part_makes_its_object_bad(
    kind: pa.DataType, row: dict[str, object], reason: str
) -> None:
    error = refused(parquet(pa.table({"a": pa.array([row], kind)})), pa.schema([("a", VARIANT)]), PARQUET)
    assert (error.cause, reason in error.detail) == ("corrupt-object", True), error.detail


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
