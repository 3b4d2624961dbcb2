"""Messages as the content, and several queues in one reader."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.queues import open_queue
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World, eventually
from support.servers.ministack import KEYS, new_queue

pytestmark = pytest.mark.engine


def frame_of(spark: SparkSession, world: World) -> list[dict[str, object]]:
    view = spark.read.format("cuesqueue").option("store", world.store_url)
    return [row.asDict() for row in view.load().orderBy("key").collect()]


def messages_of(world: World, **source: Any) -> Query:
    """Without a schema: messages have one of their own."""
    return {**described(world, fileFormat=None, allowedPrefixes=None, content="message", **source), "schema": ""}


def test_messages_become_rows_as_they_came(spark: SparkSession, world: World) -> None:
    with open_queue(world.queue_url) as queue:
        ids = queue.publish([b"\xff\x00", "text", b""], tag="orders.eu", headers={"trace": "1", "\u00fc": "\U0001f980"})
    run_until_settled(spark, [(world, messages_of(world))])
    rows = frame_of(spark, world)
    assert {(row["key"], bytes(row["value"])) for row in rows} == set(  # type: ignore[call-overload]
        zip(ids, [b"\xff\x00", b"text", b""], strict=True)
    )
    for row in rows:
        assert row["tag"] == "orders.eu"
        assert row["headers"] == {"trace": "1", "\u00fc": "\U0001f980"}
        assert row["queue"] == world.queue_url
        assert row["receive_count"] == 1
        sent_at = row["sent_at"]
        assert isinstance(sent_at, datetime)
        assert abs(sent_at.astimezone(timezone.utc) - datetime.now(timezone.utc)) < timedelta(minutes=10)


def test_two_queues_of_different_kinds_feed_one_reader(
    spark: SparkSession, world: World, ministack_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs_url = new_queue(ministack_url)
    with open_queue(world.queue_url) as queue, open_queue(sqs_url, **KEYS) as sqs:
        queue.publish([f"sql {number}" for number in range(5)])
        sqs.publish([f"sqs {number}" for number in range(5)])
        query = messages_of(
            world,
            queueUrl=f"{world.queue_url},{sqs_url}",
            source="both",
            pipeline="files",
            **{"aws.accessKeyId": "test", "aws.secretAccessKey": "test", "aws.region": "us-east-1"},
        )
        run_until_settled(spark, [(world, query)])
        rows = frame_of(spark, world)
        assert sorted(bytes(row["value"]).decode() for row in rows) == [  # type: ignore[call-overload]
            f"{kind} {number}" for kind in ("sql", "sqs") for number in range(5)
        ]
        assert {row["queue"] for row in rows} == {world.queue_url, sqs_url}
        assert sqs.depth().total == 0


def test_a_message_of_another_kind_is_kept_whole_and_sent_again_by_its_requeue(
    spark: SparkSession, world: World
) -> None:
    other = json.dumps({"order": 1, "text": "x" * 100_000}).encode()
    with open_queue(world.queue_url) as queue:
        queue.publish([b'{"id": 1}', other, b"no record", b'{"id": 2}'])
        query = described(world, allowedPrefixes=None, content="message", fileFormat="json")
        run_until_settled(spark, [(world, {**query, "schema": "id INT"})])
        view = spark.read.format("cuesqueue").option("store", world.store_url)
        assert sorted(row.id for row in view.load().collect()) == [1, 2], "no row of nulls"
        causes = sorted((error["scope"], error["cause"]) for error in world.view("errors"))
        assert causes == [("object", "corrupt-object"), ("object", "wrong-columns")]
        assert queue.depth().total == 0
        CliRunner().invoke(app, ["errors", "requeue", "--store", world.store_url, "--cause", "wrong-columns"])
        # a reader that ends may have taken the message, and gives it back
        (again,) = eventually("the message", lambda: queue.receive(10, 60, 0))
        assert again.body == other
