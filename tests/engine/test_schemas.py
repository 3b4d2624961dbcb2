"""Schemas that nobody declared, with real Spark: inferred, kept, and widened by a failure that loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from support.engine.queries import Query, described, run, run_until_settled, start
from support.engine.world import World
from support.snippets import ROOT, blocks

pytestmark = pytest.mark.engine


def inferred(world: World, **source: Any) -> Query:
    return {**described(world, schemaLocation=world.root / "schemas", **source), "schema": ""}


def put(world: World, name: str, *records: dict[str, Any]) -> None:
    folder = world.root / "in"
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    world.publish([file.as_uri()])


def rows_of(spark: SparkSession, world: World) -> Counter[str]:
    view = spark.read.format("cuesqueue").option("store", world.store_url).load()
    return Counter(json.dumps(row.asDict(recursive=True), sort_keys=True) for row in view.collect())


def test_new_columns_and_wider_types_end_the_query_and_a_restart_goes_on_with_them(
    spark: SparkSession, world: World
) -> None:
    for number in range(3):
        put(world, f"{number}.json", {"id": number, "name": f"n{number}", "n": number})
    query = inferred(world, schemaHints="n INT", schemaEvolutionMode="addNewColumnsWithTypeWidening")
    run_until_settled(spark, [(world, query)])
    wide: list[dict[str, Any]] = [
        {"id": 10, "name": "x", "n": 1 << 40, "price": 1.5, "tags": {"eu": True}},
        {"id": 11, "name": None, "n": None, "price": 2.5},
    ]
    put(world, "10.json", *wide)
    put(world, "11.json", {"id": 12, "name": "y"})
    with pytest.raises(Exception, match="n BIGINT, price DOUBLE, tags STRUCT<`eu`: BOOLEAN>; version 1 in"):
        run(spark, query)
    assert sum(split["rows"] for split in world.view("splits")) == 3
    put(world, "12.json", {"id": 13, "name": "z", "more": True})
    page = next(block for block in blocks(ROOT / "docs" / "how-to" / "schema.md") if "SchemaChanged" in block.text)
    names: dict[str, Any] = {}
    exec(page.text, names)
    starts = list[StreamingQuery]()

    def load_and_start() -> StreamingQuery:
        starts.append(start(spark, query))
        return starts[-1]

    names["run"](load_and_start)
    assert [query.exception() is None for query in starts] == [False, True]
    run_until_settled(spark, [(world, query)])  # what a failed run had received is leased to it for a while
    nothing: dict[str, Any] = {"price": None, "tags": None, "more": None, "_rescued_data": None}
    expected = [
        *({**nothing, "id": number, "name": f"n{number}", "n": number} for number in range(3)),
        *({**nothing, **row} for row in wide),
        {**nothing, "id": 12, "name": "y", "n": None},
        {**nothing, "id": 13, "name": "z", "n": None, "more": True},
    ]
    assert rows_of(spark, world) == Counter(json.dumps(row, sort_keys=True) for row in expected)
    assert not world.view("errors")


def test_messages_are_read_by_their_format_and_bad_ones_are_told(spark: SparkSession, world: World) -> None:
    world.publish([{"id": 1, "at": {"lat": 1.5}}, '{"id": 2}', "no JSON", '{\n "id": 3\n}'])
    query = inferred(
        world,
        content="message",
        allowedPrefixes=None,
        mode="DROPMALFORMED",
        schemaHints="_metadata STRUCT<queue: STRING, receive_count: INT>",
    )
    run_until_settled(spark, [(world, query)])
    view = spark.read.format("cuesqueue").option("store", world.store_url).load()
    assert sorted((row["id"], row["at"] and row["at"]["lat"]) for row in view.collect()) == [
        (1, 1.5),
        (2, None),
        (3, None),
    ]
    assert {tuple(row["_metadata"]) for row in view.collect()} == {(world.queue_url, 1)}
    (error,) = world.view("errors")
    assert (error["scope"], error["input"], bool(error["message_id"])) == ("record", b"no JSON", True)


def test_a_declared_schema_and_schema_location_contradict_each_other(spark: SparkSession, world: World) -> None:
    with pytest.raises(Exception, match=r"schemaLocation.*is for schemas that are inferred"):
        run(spark, {**inferred(world), "schema": "id BIGINT"})
