"""Spark's own reader beside ours: what is drawn from a fixed seed, and each difference that is meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

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
    _search(53, 400)


def _search(seed: int, examples: int) -> None:
    result = run(seed, examples=examples, relations=[as_spark.NAME])
    assert not result.broken, str(result)
    assert result.tried[as_spark.NAME] > examples // 2


@pytest.mark.parametrize("example", [example for row in TABLE for example in row.examples], ids=lambda one: one.name)
def test_what_is_meant_to_differ_differs_as_its_example_shows(example: Example) -> None:
    assert as_spark.shown(example.case) == (example.spark, example.here)
