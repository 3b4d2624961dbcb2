"""The steps at which `tests/engine/test_crashes.py` kills no driver, so that it stays quick; and Spark's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from engine import test_crashes
from engine.conftest import DriverFactory, new_driver, spark, world
from queue_source.spark.process import pyspark_version
from support.engine.queries import described, run
from support.engine.world import World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark", "world"]  # the fixtures


def test_a_first_offset_that_was_cut_off_is_got_over_as_the_page_says(spark: SparkSession, world: World) -> None:
    rows, query = world.feed(0, 2), described(world)
    cut_off = Path(query["checkpoint"]) / "offsets" / ".0.cut-off.tmp"
    cut_off.parent.mkdir(parents=True)
    cut_off.touch()
    setting = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    recommended = spark.conf.get(setting, "false")
    if pyspark_version >= (4, 3):
        spark.conf.set(setting, "true")
        with pytest.raises(StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
            run(spark, query)
        assert world.published() == []
        spark.conf.set(setting, str(recommended))
    run(spark, query)
    assert world.published() == sorted(rows)
    assert world.open_shards() == []


@pytest.mark.parametrize("place", test_crashes.OTHERS)
def test_a_driver_killed_at_the_other_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, place: str
) -> None:
    test_crashes.test_a_driver_killed_at_any_step_loses_and_doubles_nothing(spark, tmp_path, new_driver, place)
