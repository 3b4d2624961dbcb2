"""Kafka with Spark at the steps at which `tests/engine/test_kafka.py` kills no driver, and a group of two readers."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from engine import test_kafka
from engine.conftest import DriverFactory, new_driver, spark, world
from engine.test_kafka import STREAM, KafkaWorld, kafka
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import Row, eventually
from support.servers.fixtures import gcs_server, kafka_broker

__all__ = ["gcs_server", "kafka", "kafka_broker", "new_driver", "spark", "world"]  # the fixtures


@pytest.mark.parametrize("place", test_kafka.OTHERS)
def test_a_driver_killed_at_the_other_steps_loses_and_doubles_nothing(
    spark: SparkSession, kafka: KafkaWorld, new_driver: DriverFactory, place: str
) -> None:
    test_kafka.test_a_killed_driver_loses_and_doubles_nothing(spark, kafka, new_driver, place)


def test_two_readers_of_one_group_survive_a_kill_and_its_rebalance(
    spark: SparkSession, kafka: KafkaWorld, new_driver: DriverFactory
) -> None:
    rows = kafka.feed(0, 40)
    first = described(kafka, trigger=STREAM, maxFilesPerTrigger=3)
    second: Query = {
        **described(kafka, trigger=STREAM, maxFilesPerTrigger=3, pipeline="files-2", checkpoint="checkpoint-2"),
        "sink_options": kafka.sink(pipeline="files-2"),
    }
    drivers = [new_driver([first]), new_driver([second])]

    def published_by(pipeline: str) -> bool:
        return any(split["pipeline"] == pipeline for split in kafka.view("splits"))

    eventually("the first reader's rows", lambda: published_by("files"))
    for number in range(40, 100, 5):
        rows += kafka.feed(number, 5)
    eventually("rows of both", lambda: published_by("files-2") or _feed(kafka, rows))
    drivers[0].kill()  # its partitions pass to the other one after the session's time-out
    rows += kafka.feed(100, 10)
    eventually("all rows", lambda: len(kafka.published()) >= len(rows) and kafka.depth().total == 0)
    drivers[1].kill()
    run_until_settled(spark, [(kafka, first), (kafka, second)])
    assert kafka.published() == sorted(rows)
    assert kafka.depth().total == 0


def _feed(kafka: KafkaWorld, rows: list[Row]) -> bool:
    """The second reader gets partitions only after a rebalance: give it something then."""
    rows += kafka.feed(1000 + len(rows), 2)
    return False
