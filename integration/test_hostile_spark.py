"""The hostile objects that `tests/engine/test_hostile.py` leaves out, so that it stays quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine import test_hostile
from engine.conftest import spark
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "spark"]  # the fixtures

pytestmark = pytest.mark.engine


@pytest.mark.timeout(600)
def test_the_other_hostile_objects_harm_neither_their_neighbours_nor_the_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    found = [some for module in test_hostile.MODULES for some in test_hostile.groups(tmp_path, module)]
    there = test_hostile.largest(found)
    test_hostile.publish_each(spark, tmp_path, [some for some in found if some not in there])


@pytest.mark.timeout(900)
def test_hostile_objects_that_are_loaded_harm_neither_their_neighbours_nor_the_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("fastavro", reason="the extra avro is not installed")
    found = [some for module in test_hostile.MODULES for some in test_hostile.groups(tmp_path, module)]
    test_hostile.publish_each(spark, tmp_path, found, loads=True)
