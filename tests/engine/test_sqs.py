"""Objects in S3, announced by the bucket to SQS, become rows: over HTTP, with the store on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queue_source.queues import Depth, open_queue
from support.engine.queries import described, run_until_settled
from support.engine.world import Row, World
from support.servers.ministack import ACCOUNT, KEYS, REGION, client, new_name, new_queue
from support.servers.postgres import new_database

pytestmark = pytest.mark.engine

KEYS_OF_OBJECTS = ("plain.json", "with space.json", "a+b=c.json", "folder/\u00fc\U0001f980.json", "100%.json")


@dataclass
class CloudWorld(World):
    """Objects in S3 and messages in SQS; everything else is as in any world."""

    server: str = ""
    postgres: str = ""
    sqs_url: str = ""

    @property
    def queue_url(self) -> str:
        return self.sqs_url

    @property
    def store_url(self) -> str:
        return self.postgres

    def source(self, **options: object) -> dict[str, str]:
        own = {
            "allowedPrefixes": "s3://",
            "aws.region": REGION,
            "aws.endpointUrl": self.server,
            "aws.accessKeyId": "test",
            "aws.secretAccessKey": "test",
            "source": "files",
        }
        return super().source(**{**own, **options})

    def depth(self) -> Depth:
        with open_queue(self.sqs_url, **KEYS) as queue:
            return queue.depth()

    def put(self, s3: Any, bucket: str, first: int) -> list[Row]:
        """Objects under keys that need encoding, each with rows of its own; returns all rows."""
        written = []
        for number, key in enumerate(KEYS_OF_OBJECTS, first):
            rows = [(number * 10 + i, f"{bucket} {key} {i}") for i in range(3)]
            body = "".join(json.dumps({"id": i, "name": name}) + "\n" for i, name in rows)
            s3.put_object(Bucket=bucket, Key=key, Body=body.encode())
            written += rows
        return written


@pytest.fixture
def cloud(world: World, ministack_url: str, postgres_url: str) -> CloudWorld:
    url = new_queue(ministack_url)
    return CloudWorld(world.root, server=ministack_url, postgres=new_database(postgres_url), sqs_url=url)


@contextmanager
def clients(world: CloudWorld, *services: str) -> Iterator[list[Any]]:
    made = [client(world.server, service) for service in services]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def bucket(world: CloudWorld, s3: Any, notification: dict[str, Any]) -> str:
    name = new_name("bucket")
    s3.create_bucket(Bucket=name)
    s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=notification)
    return name


def directly(world: CloudWorld, s3: Any) -> str:
    target = {"QueueArn": arn(world), "Events": ["s3:ObjectCreated:*"]}
    return bucket(world, s3, {"QueueConfigurations": [target]})


def through_sns(world: CloudWorld, s3: Any) -> str:
    with closing(client(world.server, "sns")) as sns:
        topic = sns.create_topic(Name=new_name("topic"))["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn(world))
    return bucket(world, s3, {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]})


def through_eventbridge(world: CloudWorld, s3: Any) -> str:
    made = bucket(world, s3, {"EventBridgeConfiguration": {}})
    with closing(client(world.server, "events")) as events:
        rule = new_name("rule")
        pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [made]}}}
        events.put_rule(Name=rule, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=rule, Targets=[{"Id": "queue", "Arn": arn(world)}])
    return made


def arn(world: CloudWorld) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{world.sqs_url.rpartition('/')[2]}"


def test_objects_announced_by_s3_by_sns_and_by_eventbridge_are_published_once(
    spark: SparkSession, cloud: CloudWorld
) -> None:
    rows: list[Row] = []
    with closing(client(cloud.server, "s3")) as s3:
        for place, announced in enumerate((directly, through_sns, through_eventbridge)):
            rows += cloud.put(s3, announced(cloud, s3), 100 * place)
    assert cloud.depth().total >= len(rows) / 3
    with open_queue(cloud.queue_url, **KEYS) as queue:  # every announcement again, as SQS may
        again = [message.body for _ in range(2) for message in queue.receive(10, 1, 0)]
        queue.publish(again)
    run_until_settled(spark, [(cloud, described(cloud))])
    assert cloud.published() == sorted(rows)
    assert cloud.depth() == Depth(0, 0, 0)
    assert cloud.view("errors") == []
