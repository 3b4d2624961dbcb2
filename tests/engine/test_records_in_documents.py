"""Documents with records in them, with a real Spark: their records are rows, as rows and by `load`, each once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import cuesqueue
from support.engine.queries import described, run
from support.engine.world import World

pytestmark = pytest.mark.engine

Way = Callable[..., DataFrame]


def by_rows(spark: SparkSession, world: World, schema: str = "", **options: Any) -> DataFrame:
    run(spark, {**described(world, recordsPath="detail.Records", **options), "schema": schema})
    return view(spark, world)


def by_load(spark: SparkSession, world: World, schema: str = "", **options: Any) -> DataFrame:
    query = cuesqueue.load(
        world.queue_url,
        str(world.root / "out"),
        format="json",
        prefixes=f"file://{world.root}/",
        schema=schema or None,
        store=world.store_url,
        spark=spark,
        recordsPath="detail.Records",
        waitTime="1s",
        checkpointLocation=str(world.root / "checkpoint"),
        **options,
    )
    query.awaitTermination()
    return view(spark, world)


def view(spark: SparkSession, world: World) -> DataFrame:
    return spark.read.format("cuesqueue").option("store", world.store_url).load()


def put(world: World, name: str, *documents: str) -> Path:
    file = world.root / "in" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(documents), "utf-8")
    world.publish([file.as_uri()])
    return file


def document(*records: object) -> str:
    return json.dumps({"version": 1, "detail": {"Records": records, "count": len(records)}})


def causes(world: World) -> list[str]:
    return sorted(error["cause"] for error in world.view("errors"))


@pytest.mark.parametrize("way", [by_rows, by_load])
def test_columns_are_inferred_and_hinted_and_what_does_not_fit_is_rescued_or_corrupt(
    spark: SparkSession, world: World, way: Way
) -> None:
    put(world, "1.json", document({"id": 1, "at": {"x": 1.5}}, {"id": 2, "tags": ["a"]}), document())
    put(world, "2.json", document({"id": "three", "at": {"x": 2}}, "no object", {"id": 4, "tags": []}))
    hints = "id BIGINT, _corrupt_record STRING, _metadata STRUCT<file_name: STRING>"
    frame = way(spark, world, schemaLocation=world.root / "schemas", schemaHints=hints)
    rescued = "get_json_object(_rescued_data, '$.id') AS rescued"
    rows = [row.asDict(recursive=True) for row in frame.selectExpr("*", rescued).drop("_rescued_data").collect()]
    empty: dict[str, Any] = {"id": None, "at": None, "tags": None, "rescued": None, "_corrupt_record": None}
    first, second = ({"_metadata": {"file_name": f"{number}.json"}} for number in (1, 2))
    assert sorted(rows, key=str) == sorted(
        [
            {**empty, **first, "id": 1, "at": {"x": 1.5}},
            {**empty, **first, "id": 2, "tags": ["a"]},
            {**empty, **second, "at": {"x": 2.0}, "rescued": "three"},
            {**empty, **second, "_corrupt_record": ' "no object"'},
            {**empty, **second, "id": 4, "tags": []},
        ],
        key=str,
    )
    assert [(error["scope"], error["input"]) for error in world.view("errors")] == [("record", b' "no object"')]


def test_each_record_is_one_variant(spark: SparkSession, world: World) -> None:
    put(world, "1.json", document({"id": 1}, [1, "x"], "text"), document({"id": None}))
    query = described(world, "parquet", recordsPath="detail.Records", singleVariantColumn="v")
    run(spark, {**query, "schema": "", "sink_options": {"path": str(world.root / "out")}})
    rows = spark.read.parquet(str(world.root / "out")).selectExpr("to_json(v) AS v").collect()
    assert sorted(row.v for row in rows) == ['"text"', '[1,"x"]', '{"id":1}', '{"id":null}']


@pytest.mark.parametrize("way", [by_rows, by_load])
def test_rows_of_a_document_that_was_cut_off_are_published_once_after_its_repair(
    spark: SparkSession, world: World, way: Way
) -> None:
    """It is larger than a block, so that rows are read before the fault is met."""
    records = [{"id": number, "name": "x" * 1000} for number in range(9_000)]
    whole = document(*records)
    put(world, "cut.json", whole[: len(whole) * 9 // 10])
    put(world, "other.json", document({"id": -1, "name": "other"}))
    put(world, "without.json", json.dumps({"detail": {"records": []}}))
    schema = "id BIGINT, name STRING"
    assert [row.id for row in way(spark, world, schema).collect()] == [-1]
    assert causes(world) == ["corrupt-object", "wrong-columns"]
    put(world, "cut.json", whole)
    frame = way(spark, world, schema)
    assert sorted(row.id for row in frame.select("id").collect()) == [*range(-1, 9_000)]
    states = {error["cause"]: error["state"] for error in world.view("errors")}
    assert states == {"corrupt-object": "reopened", "wrong-columns": "recorded"}
    assert world.depth().total == 0
