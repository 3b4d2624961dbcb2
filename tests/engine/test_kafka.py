"""Objects announced through Kafka become rows once, also when the reader is killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from queue_source.queues import Depth, open_queue
from queue_source.queues.base import Payload
from support.engine.queries import described, run, run_until_settled
from support.engine.world import World
from support.servers.kafka import SINGLE, Kafka

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}
PARTITIONS = 4
PLACES = ("before-publish",)
OTHERS = ("snapshot-written", "published", "acknowledged")
"""These are in integration/test_kafka_spark.py, with two readers of one group."""


@dataclass
class KafkaWorld(World):
    """Messages in a topic; everything else is as in any world."""

    topic_url: str = field(kw_only=True)

    @property
    def queue_url(self) -> str:
        return self.topic_url

    def source(self, **options: object) -> dict[str, str]:
        settings = {f"kafka.{name}": value for name, value in SINGLE.items()}
        return super().source(**{"source": "files", "pipeline": "files", **settings, **options})

    def publish(self, payloads: Sequence[Payload]) -> None:
        with open_queue(self.queue_url, settings=dict(SINGLE)) as queue:
            queue.send(payloads)


@pytest.fixture
def kafka(world: World, kafka_broker: Kafka) -> KafkaWorld:
    topic = kafka_broker.new_topic(PARTITIONS)
    return KafkaWorld(world.root, topic_url=kafka_broker.url(topic, "spark"))


def test_announced_objects_are_published_once_and_their_offsets_committed(
    spark: SparkSession, kafka: KafkaWorld
) -> None:
    uris, rows = kafka.write(0, 30)
    kafka.publish([*uris, *uris[:10]])
    run(spark, described(kafka))
    uris, more = kafka.write(30, 10)
    kafka.publish(uris)
    run_until_settled(spark, [(kafka, described(kafka))])
    assert kafka.published() == sorted(rows + more)
    assert kafka.depth() == Depth(0, 0)
    assert kafka.view("errors") == []


def test_messages_become_rows_once(spark: SparkSession, kafka: KafkaWorld) -> None:
    with open_queue(kafka.queue_url, settings=dict(SINGLE)) as queue:
        ids = queue.send([str(number) for number in range(100)], tag="a.b", headers={"Kafka-Key": "k"})
    query = described(kafka, fileFormat=None, allowedPrefixes=None, content="message")
    run_until_settled(spark, [(kafka, {**query, "schema": ""})])
    found = spark.read.format("cuesqueue").option("store", kafka.store_url).load().collect()
    assert {row["key"]: int(row["value"]) for row in found} == {key: number for number, key in enumerate(ids)}
    assert {(row["tag"], row["headers"]["Kafka-Key"]) for row in found} == {("a.b", "k")}
    assert len(found) == 100


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, kafka: KafkaWorld, new_driver: DriverFactory, place: str
) -> None:
    rows = kafka.feed(0, 12)
    query = described(kafka, trigger=STREAM, maxFilesPerTrigger=5)
    driver = new_driver([query], pause_at=place)
    driver.wait_paused(1)
    driver.kill()
    rows += kafka.feed(12, 3)
    run_until_settled(spark, [(kafka, query)])
    assert kafka.published() == sorted(rows)
    assert (kafka.depth().total, kafka.open_shards()) == (0, [])
