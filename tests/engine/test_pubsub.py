"""Objects in Google Cloud Storage, announced by the bucket to Pub/Sub, become rows: over HTTP and gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from queue_source.queues import Depth
from queue_source.queues.pubsub import PubSubQueue
from support.engine.queries import described, run, run_until_settled
from support.engine.versions import TELLS_START
from support.engine.world import Row, World
from support.servers.gcs import GcsServer
from support.servers.pubsub import PubSubServer
from support.servers.pubsub import pubsub_server as started_pubsub

pytestmark = pytest.mark.engine

BUCKET = "landing"
KEYS = ("plain.json", "with space.json", "a+b=c.json", "folder/\u00fc\U0001f980.json", "100%25.json")


@dataclass
class GoogleWorld(World):
    """Objects in GCS and messages in Pub/Sub; everything else is as in any world."""

    pubsub: PubSubServer = field(kw_only=True)
    gcs: GcsServer = field(kw_only=True)
    subscription: str = field(kw_only=True)

    @property
    def queue_url(self) -> str:
        return self.subscription

    def source(self, **options: object) -> dict[str, str]:
        own = {
            "allowedPrefixes": f"gs://{BUCKET}/",
            "source": "files",
            "gcp.endpoint": f"http://{self.pubsub.host}",
            # nothing is killed here: a busy machine is not to lose leases
            "visibilityTimeout": "60s",
            "commitTimeout": "40s",
        }
        return super().source(**{**own, **options})

    def depth(self) -> Depth:
        """As the server tells us: Pub/Sub itself tells nobody."""
        return Depth(*self.pubsub.depth(self.subscription))

    def put(self, payload_format: str) -> list[Row]:
        """Objects under odd names, each announced twice, as Pub/Sub may; returns their rows."""
        rows = []
        with PubSubQueue(self.subscription, endpoint=f"http://{self.pubsub.host}") as queue:
            for number, name in enumerate(KEYS):
                key = f"{payload_format}/{name}"
                own = [(number * 10 + i, f"{key} {i}") for i in range(3)]
                body = "".join(json.dumps({"id": i, "name": n}) + "\n" for i, n in own)
                resource = self.gcs.put(BUCKET, key, body.encode())
                headers = attributes(resource, "OBJECT_FINALIZE", payload_format)
                queue.publish([resource if payload_format == "JSON_API_V1" else b""] * 2, headers=headers)
                rows += own
            queue.publish([b""], headers=attributes(resource, "OBJECT_METADATA_UPDATE", "NONE"))
        return rows


def attributes(resource: dict[str, str], event: str, payload_format: str) -> dict[str, str]:
    """As Cloud Storage documents those of its notifications."""
    return {
        "notificationConfig": f"projects/_/buckets/{BUCKET}/notificationConfigs/1",
        "eventType": event,
        "payloadFormat": payload_format,
        "bucketId": BUCKET,
        "objectId": resource["name"],
        "objectGeneration": resource["generation"],
        "eventTime": resource["updated"],
    }


@pytest.fixture(scope="module")
def pubsub_server() -> Iterator[PubSubServer]:
    """One of its own: the contract tests move the clock of theirs, and AvailableNow leaves what was sent later."""
    with started_pubsub() as server:
        yield server


@pytest.fixture
def google(world: World, pubsub_server: PubSubServer, gcs_server: GcsServer) -> GoogleWorld:
    topic = pubsub_server.create_topic("engine", world.queue)
    url = pubsub_server.create_subscription("engine", world.queue, topic, enable_exactly_once_delivery=True)
    gcs_server.create_bucket(BUCKET)
    return GoogleWorld(world.root, pubsub=pubsub_server, gcs=gcs_server, subscription=url)


def test_objects_announced_by_cloud_storage_are_published_once(spark: SparkSession, google: GoogleWorld) -> None:
    rows = google.put("JSON_API_V1")
    run(spark, described(google))
    if TELLS_START:
        assert google.settled(), "AvailableNow left something to do or to acknowledge"
    rows += google.put("NONE")
    run_until_settled(spark, [(google, described(google))])
    assert google.published() == sorted(rows)
    assert google.depth() == Depth(0, 0)
    assert google.view("errors") == []
