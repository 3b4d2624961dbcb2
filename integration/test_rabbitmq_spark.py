"""Spark reads from a real RabbitMQ: messages as content, and objects announced there and in a SQL queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from engine.conftest import spark
from queue_source.queues import Depth, open_queue, redact
from support.engine.queries import Query, described, run, start
from support.engine.world import World, eventually
from support.servers.debian import NotInstalled
from support.servers.fixtures import gcs_server
from support.servers.rabbitmq import RabbitServer, rabbitmq_server

__all__ = ["gcs_server", "spark"]  # the fixture: one Spark for all tests here


@dataclass
class RabbitWorld(World):
    """Messages in a pool; everything else is as in any world."""

    pool_url: str = ""

    @property
    def queue_url(self) -> str:
        return self.pool_url


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    try:
        with rabbitmq_server() as started:
            yield started
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(params=["classic", "quorum"])
def world(request: pytest.FixtureRequest, server: RabbitServer, tmp_path: Path) -> RabbitWorld:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    url = f"{server.url}?source={name}&pool={name}&tags=files.#&queue_type={request.param}"
    return RabbitWorld(tmp_path / "world", pool_url=url)


def messages_of(world: World) -> Query:
    described_ = described(
        world, fileFormat=None, allowedPrefixes=None, content="message", source="s", pipeline="files"
    )
    return {**described_, "schema": ""}


def test_messages_of_a_pool_become_rows_once(spark: SparkSession, world: RabbitWorld) -> None:
    with open_queue(world.queue_url) as queue:
        ids = queue.publish([str(number) for number in range(300)], tag="files.new", headers={"trace": "1"})
        run(spark, messages_of(world))
        assert queue.depth() == Depth(0, 0)
        more = queue.publish(["again"], tag="files.old")
        run(spark, messages_of(world))
        assert queue.depth() == Depth(0, 0)
    rows = spark.read.format("cuesqueue").option("store", world.store_url).load().collect()
    assert sorted(row["key"] for row in rows) == sorted([*ids, *more])
    by_id = {row["key"]: row for row in rows}
    assert [bytes(by_id[key]["value"]) for key in ids] == [str(number).encode() for number in range(300)]
    assert (by_id[ids[0]]["tag"], by_id[ids[0]]["headers"]) == ("files.new", {"trace": "1"})
    assert {row["queue"] for row in rows} == {redact(world.queue_url)}


def test_objects_announced_in_queues_of_different_kinds_are_published_once(
    spark: SparkSession, world: RabbitWorld
) -> None:
    in_table = World(world.root)
    uris, rows = world.write(0, 20)
    both = f"{world.queue_url},{in_table.queue_url}"
    with open_queue(world.queue_url) as rabbit, open_queue(in_table.queue_url) as table:
        rabbit.publish([*uris[:15], *uris[:5]], tag="files.new")
        table.publish(uris[10:])
        run(spark, described(world, queueUrl=both, source="files", pipeline="files"))
        assert rabbit.depth().total == table.depth().total == 0
    assert world.published() == sorted(rows)


def test_a_listener_is_read_at_most_once(spark: SparkSession, world: RabbitWorld) -> None:
    """What is sent before the reader listens is lost, as Mercury says; what it hears becomes rows once."""
    source = f"heard-{uuid.uuid4().hex[:8]}"
    exchange = f"{world.queue_url.partition('?')[0]}?source={source}"
    query = messages_of(world)
    query["source"] |= {"queueUrl": f"{exchange}&listener=true", "deliverySemantics": "at-most-once"}
    query["trigger"] = {"processingTime": "0 seconds"}
    stream = start(spark, query)

    def rows() -> list[str]:
        found = spark.read.format("cuesqueue").option("store", world.store_url).load().collect()
        return sorted(bytes(row["value"]).decode() for row in found)

    try:
        with open_queue(f"{exchange}&mandatory=false") as queue:

            def heard() -> bool:
                queue.publish(["is anybody there?"])
                return bool(stream.lastProgress) and len(rows()) > 0

            eventually("a listener that hears", heard)
            queue.publish([str(number) for number in range(100)])
        eventually("all that was said since", lambda: sum(value.isdigit() for value in rows()) == 100)
    finally:
        stream.stop()
    assert [value for value in rows() if value.isdigit()] == sorted(str(number) for number in range(100))
    assert {shard["state"] for shard in world.view("shards")} == {"done"}


def test_a_listener_is_refused_with_what_to_write_instead(spark: SparkSession, world: RabbitWorld) -> None:
    url = world.queue_url.partition("?")[0] + "?source=s&listener=true"
    with pytest.raises(StreamingQueryException, match=r"is a listener.*read a pool"):
        run(spark, described(world, queueUrl=url, source="s", pipeline="files"))
