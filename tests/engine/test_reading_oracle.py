"""Spark's own reader beside ours: what is drawn from a fixed seed, and each difference that is meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.oracle import headers, inferred
from support.oracle import spark as as_spark
from support.oracle.differences import TABLE, Example
from support.oracle.run import run

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("asked")]


@pytest.fixture
def asked(spark: SparkSession) -> Iterator[None]:
    """The oracle asks the session of the tests."""
    as_spark.use(spark)
    yield
    as_spark.end()


def test_what_is_drawn_is_read_as_spark_reads_it() -> None:
    _search(53, as_spark.NAME, 400)


def test_what_is_inferred_is_what_spark_infers() -> None:
    _search(53, inferred.NAME, 400)


def test_headers_of_avro_are_read_as_spark_reads_them() -> None:
    _search(53, headers.NAME, 24)


@pytest.mark.parametrize("relation", [as_spark.NAME, inferred.NAME])
def test_more_that_is_drawn_is_as_it_is_for_spark(relation: str) -> None:
    _search(54, relation, 1200)


def _search(seed: int, relation: str, examples: int) -> None:
    result = run(seed, examples=examples, relations=[relation])
    assert not result.broken, str(result)
    assert result.tried[relation] > examples // 8  # of typed formats, fewer objects are a group


@pytest.mark.parametrize("example", [example for row in TABLE for example in row.examples], ids=lambda one: one.name)
def test_what_is_meant_to_differ_differs_as_its_example_shows(example: Example) -> None:
    assert as_spark.shown(example.case) == (example.spark, example.here)
