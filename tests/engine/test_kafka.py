"""Objects announced through Kafka become rows once: with kills of the reader, and with two readers of one group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from queue_source.queues import Depth, open_queue
from support.engine.queries import Query, described, run, run_until_settled
from support.engine.world import World, eventually
from support.servers.kafka import SINGLE, Kafka

pytestmark = pytest.mark.engine

STREAM = {"processingTime": "0 seconds"}
PARTITIONS = 4


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

    def publish(self, payloads: Any) -> None:
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


@pytest.mark.parametrize("place", ["snapshot-written", "before-publish", "published"])
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


def _feed(kafka: KafkaWorld, rows: list[Any]) -> bool:
    """The second reader gets partitions only after a rebalance: give it something then."""
    rows += kafka.feed(1000 + len(rows), 2)
    return False
