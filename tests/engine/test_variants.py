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
from support.reading import read_bytes, refused

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


@pytest.mark.parametrize("shreds", [False, True])
def test_a_variant_that_spark_wrote_to_parquet_is_read_whole_and_refused_shredded(
    spark: SparkSession, tmp_path: Path, shreds: bool
) -> None:
    settings = {
        "spark.sql.variant.writeShredding.enabled": str(shreds).lower(),
        "spark.sql.variant.forceShreddingSchemaForTest": "id bigint, name string" if shreds else "",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = spark.sql("""SELECT parse_json('{"id": 1, "name": "x", "other": [1, null]}') v""")
        frame.coalesce(1).write.parquet((tmp_path / "in").as_uri())
    finally:
        for name in settings:
            spark.conf.unset(name)
    (path,) = (tmp_path / "in").glob("part-*")
    declared, options = pa.schema([("v", VARIANT)]), FormatOptions("parquet")
    if shreds:
        assert "a shredded VARIANT" in refused(path.read_bytes(), declared, options).detail
        return
    ((row),) = read_bytes(path.read_bytes(), declared, options)
    assert VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson() == '{"id":1,"name":"x","other":[1,null]}'
