"""With a real Spark: objects of S3 that are announced by their URIs alone are read in one version by a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from support.engine.queries import Query, described, read, run
from support.engine.world import Row, World
from support.servers.s3 import S3Server, s3_server

pytestmark = pytest.mark.engine

FIRST, SECOND = range(40), range(40, 50)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def put(s3: S3Server, numbers: range, text: str = "old") -> list[Row]:
    rows = [(number, text) for number in numbers]
    s3.objects |= {f"b/{i}": json.dumps({"id": i, "name": name}).encode() + b"\n" for i, name in rows}
    return rows


def requests(s3: S3Server, numbers: range) -> tuple[int, int]:
    return tuple(sum(s3.requests[verb, f"b/{i}"] for i in numbers) for verb in ("HEAD", "GET"))  # type: ignore[return-value]


@pytest.fixture
def query(spark: SparkSession, world: World, s3: S3Server) -> Query:
    """One that has read the first objects, and whose others are announced."""
    query = described(world, allowedPrefixes="s3://b/", source="files")
    query["source"] |= s3.options
    put(s3, FIRST)
    world.publish([f"s3://b/{i}" for i in FIRST])
    run(spark, query)
    assert requests(s3, FIRST) == (40, 40)
    put(s3, SECOND)
    world.publish([f"s3://b/{i}" for i in SECOND])
    return query


def test_each_object_costs_one_request(spark: SparkSession, world: World, s3: S3Server, query: Query) -> None:
    run(spark, query)
    assert requests(s3, SECOND) == (0, 10)
    assert world.published() == [*put(s3, FIRST), *put(s3, SECOND)]
    assert all(shard["size"] and shard["etag"] for shard in world.view("shards"))


def batches(spark: SparkSession, world: World, query: Query, take: object) -> None:
    stream = read(spark, query["source"], query).writeStream.trigger(availableNow=True)
    stream.option("checkpointLocation", str(world.root / "other")).foreachBatch(take).start().awaitTermination()  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["collect", "isEmpty", "limit"])
def test_two_actions_of_a_batch_read_no_object_in_two_versions(
    spark: SparkSession, world: World, s3: S3Server, query: Query, first: str
) -> None:
    """Also where the first takes only some rows of its tasks."""
    found: list[list[Row]] = []

    def rows(batch: DataFrame) -> list[Row]:
        return sorted((row["id"], row["name"]) for row in batch.collect())

    def take(batch: DataFrame, number: int) -> None:
        found.append(rows(batch) if first == "collect" else rows(batch.limit(3)) if first == "limit" else [])
        if first == "isEmpty":
            assert not batch.isEmpty()
        put(s3, SECOND, "new")
        found.append(rows(batch))

    batches(spark, world, query, take)
    before, after = found
    assert not {i for i, _ in before} & {i for i, _ in after}
    assert {text for _, text in before} <= {"old"}
    if first == "collect":
        assert len(before) == 10
        assert after == []
        causes = {(error["cause"], error["scope"]) for error in world.view("errors")}
        assert causes == {("object-changed", "part")}


def test_a_batch_that_is_repeated_after_a_failure_reads_the_versions_that_were_met(
    spark: SparkSession, world: World, s3: S3Server, query: Query
) -> None:
    found: list[list[int]] = []

    def take(batch: DataFrame, number: int) -> None:
        found.append(sorted(row["id"] for row in batch.collect()))
        if len(found) == 1:
            raise KeyError("the first attempt")

    with suppress(StreamingQueryException):
        batches(spark, world, query, take)
    put(s3, range(45, 50), "new")
    batches(spark, world, query, take)
    assert found == [list(SECOND), list(range(40, 45))]
