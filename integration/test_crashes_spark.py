"""The steps at which `tests/engine/test_crashes.py` kills no driver, so that those tests stay quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine import test_crashes
from engine.conftest import DriverFactory, new_driver, spark
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark"]  # the fixtures


@pytest.mark.parametrize("place", test_crashes.OTHERS)
def test_a_driver_killed_at_the_other_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    test_crashes.test_a_driver_killed_at_any_step_loses_and_doubles_nothing(spark, tmp_path, new_driver, place)
