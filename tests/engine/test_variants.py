"""VARIANT with real Spark: what it gets as one column of json, and what it wrote to Parquet in columns of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

from queue_source.formats.variants import VARIANT
from queue_source.options.content import FormatOptions
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World
from support.reading import read_bytes

pytestmark = pytest.mark.engine


def test_records_come_as_one_variant_column_as_spark_reads_them(spark: SparkSession, world: World) -> None:
    records: list[Any] = [
        {"id": 1, "total": 1.5, "at": {"x": [None, True, "é"]}},
        [1, 2**40],
        "text",
        {"b": 1, "a": {}},
    ]
    file = world.root / "in.json"
    file.write_text("".join(json.dumps(record) + "\n" for record in records) + "not json\n" + "null\n", "utf-8")
    world.publish([file.as_uri()])
    query: Query = {
        **described(world, sink="parquet", singleVariantColumn="v"),
        "schema": "",
        "sink_options": {"path": str(world.root / "out")},
    }
    run_until_settled(spark, [(world, query)])
    theirs = spark.read.option("singleVariantColumn", "v").json(file.as_uri())
    ours = spark.read.parquet(str(world.root / "out"))
    assert ours.schema == theirs.schema
    written = ["v", "to_json(v) AS text"]
    assert _texts(ours.selectExpr(*written)) == _texts(theirs.selectExpr(*written))
    assert (
        ours.selectExpr("try_variant_get(v, '$.at.x[2]', 'string') AS text")
        .where("text IS NOT NULL")
        .collect()[0]["text"]
        == "é"
    )
    (error,) = world.view("errors")
    assert (error["scope"], error["input"]) == ("record", b"not json")


def _texts(frame: Any) -> list[tuple[str | None, bytes | None]]:
    rows = [(row["text"], row["v"] and bytes(row["v"].value)) for row in frame.collect()]
    return sorted(rows, key=str)


SHREDDED = """id bigint, name string, total decimal(10,2), at timestamp, n timestamp_ntz, d date, f float, g double,
    ok boolean, raw binary, tags array<string>, c struct<city: string, zip: int>, items array<struct<sku: string>>"""
VALUES = (
    '{"id": 1, "name": "x", "total": 1.25, "ok": true, "tags": ["a", "b"], "c": {"city": "Oslo", "zip": 12, "y": 1}}',
    '{"id": "text", "name": 5, "tags": "no", "c": [1], "items": null, "extra": {"z": [1, {"q": 1.5}]}}',
    '{"items": [{"sku": "q", "n": 1}, {"sku": 2}, null, []], "tags": [null, 1, "x"], "total": 1.234567}',
    '[1, {"id": 3}]', "5", "null", "{}",
)  # fmt: skip
TYPES = """named_struct('id', 3L, 'at', TIMESTAMP'2026-01-01 01:02:03.5', 'n', TIMESTAMP_NTZ'2026-01-01 01:02:03.5',
    'd', DATE'2026-02-03', 'f', float(1.5), 'g', double(2.5), 'raw', CAST('ab' AS BINARY), 'total', 2.5BD, 'u', 1.5)"""


@pytest.mark.parametrize("annotated", ["false", "true"])
@pytest.mark.parametrize("shredding", [SHREDDED, "bigint", "array<bigint>"], ids=["object", "number", "array"])
def test_a_variant_that_spark_wrote_in_columns_is_read_as_spark_reads_it(
    spark: SparkSession, tmp_path: Path, shredding: str, annotated: str
) -> None:
    settings = {
        "spark.sql.variant.writeShredding.enabled": "true",
        "spark.sql.variant.allowReadingShredded": "true",  # as by default from Spark 4.1 on
        "spark.sql.variant.forceShreddingSchemaForTest": shredding,
        "spark.sql.parquet.variant.annotateLogicalType.enabled": annotated,
    }
    texts = ", ".join(f"({number}, '{text}')" for number, text in enumerate([*VALUES]))
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = spark.sql(f"SELECT i, parse_json(j) v FROM VALUES {texts}, (90, NULL) AS t(i, j)")
        frame = frame.union(spark.sql(f"SELECT 91, to_variant_object({TYPES})")).selectExpr("i", "v", "array(v) l")
        frame.coalesce(1).write.parquet((tmp_path / "in").as_uri())
        (path,) = (tmp_path / "in").glob("part-*")
        theirs = spark.read.parquet(path.as_uri()).collect()
    finally:
        for name in settings:
            spark.conf.unset(name)
    columns = pa.schema([("i", pa.int32()), ("v", VARIANT), ("l", pa.list_(VARIANT))])
    ours = read_bytes(path.read_bytes(), columns, FormatOptions("parquet"))
    assert [row["i"] for row in ours] == [row["i"] for row in theirs]
    for row, theirs_row in zip(ours, theirs, strict=True):
        for value, their_value in ((row["v"], theirs_row["v"]), (row["l"][0], theirs_row["l"][0])):
            assert str(value and VariantVal(value["value"], value["metadata"])) == str(their_value)
