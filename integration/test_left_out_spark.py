"""What `tests/engine` leaves out to stay quick: the same is proven there, or in `tests/unit` without Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from engine import test_stateful
from engine.conftest import spark, world
from engine.test_announced_again import write
from engine.test_forbidden_objects import put, query_of, s3
from support.engine.queries import described, run, run_until_settled
from support.engine.world import World
from support.servers.fixtures import gcs_server
from support.servers.s3 import DENIED, S3Server

__all__ = ["gcs_server", "s3", "spark", "world"]  # the fixtures

pytestmark = pytest.mark.engine


def test_a_forbidden_bucket_fails_the_query_and_loses_nothing(spark: SparkSession, world: World, s3: S3Server) -> None:
    rows = put(s3, *(f"in/{number}" for number in range(4)))
    s3.refusals["b/"] = DENIED
    world.publish([f"s3://b/{name}" for _, name in rows])
    query = query_of(world, s3, maxAttempts=1)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="nothing else of s3://b/ could be read"):
            run(spark, query)
    assert world.view("errors") == []
    s3.refusals.clear()
    run_until_settled(spark, [(world, query)])
    assert world.published() == sorted(rows)
    assert world.view("errors") == []


def test_an_object_that_was_deleted_and_uploaded_again_is_read_once(spark: SparkSession, world: World) -> None:
    file = world.root / "in" / "again.json"
    world.publish([write(file, (1, "first"))])
    file.unlink()
    run(spark, described(world))
    world.publish([write(file, (1, "second"))])
    run(spark, described(world))
    world.publish([file.as_uri()])
    run(spark, described(world))
    assert world.published() == [(1, "second")]


def test_a_batch_without_new_data_that_was_published_and_not_finished_is_completed_at_the_restart(
    spark: SparkSession, world: World
) -> None:
    test_stateful.test_a_batch_without_new_data_that_was_not_finished_is_completed_at_the_restart(
        spark, world, published_before=True
    )
