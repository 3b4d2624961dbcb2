"""Types of Spark that Arrow has only as structs: VARIANT, GEOMETRY, GEOGRAPHY."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema
from queue_source.options.content import FormatOptions
from support.reading import read_column, refused

VARIANT = pa.struct(
    [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
)
GEOMETRY = pa.struct([pa.field("srid", pa.int32(), False), pa.field("wkb", pa.binary(), False, {"geometry": "true"})])
PARQUET = FormatOptions("parquet")


@pytest.mark.parametrize(
    ("file_format", "kind"),
    [
        *[(name, VARIANT) for name in ("csv", "orc")],
        *[(name, GEOMETRY) for name in ("json", "parquet", "orc")],
        ("orc", pa.list_(VARIANT)),
        ("parquet", pa.struct([("g", GEOMETRY)])),
    ],
)
def test_they_are_refused_when_the_query_starts_with_what_to_declare(file_format: str, kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match=r"column 'a': \w+ cannot fill \w+; declare the column (STRING|BINARY)"):
        check_schema(pa.schema([("a", kind)]), FormatOptions(file_format))


def test_a_variant_in_parquet_is_read_unless_it_is_shredded() -> None:
    check_schema(pa.schema([("a", VARIANT), ("l", pa.list_(VARIANT))]), PARQUET)
    whole = pa.table({"a": [{"metadata": b"\x01\0\0", "value": b"\x0c\x01"}]})
    assert read_column(parquet(whole), VARIANT, PARQUET) == [{"value": b"\x0c\x01", "metadata": b"\x01\0\0"}]
    shredded = pa.table({"a": [{"metadata": b"\x01\0\0", "value": None, "typed_value": 1}]})
    error = refused(parquet(shredded), pa.schema([("a", VARIANT)]), PARQUET)
    assert error.cause == "wrong-columns"
    assert "spark.sql.variant.writeShredding.enabled" in error.detail
    deep = pa.table({"a": [[{"metadata": b"\x01\0\0", "value": b"x", "typed_value": 1}]]})
    assert refused(parquet(deep), pa.schema([("a", pa.list_(VARIANT))]), PARQUET).cause == "wrong-columns"


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
