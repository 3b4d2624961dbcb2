"""Blobs that Event Grid announces to a storage queue become rows once, though the driver is killed, over Azurite.

The same runs over the servers of the tests, which are there without npm.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import ContainerClient
from azure.storage.queue import QueueClient
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from queue_source.queues import Depth
from queue_source.queues.azurequeue import AzureQueue
from support.engine.queries import described, run, run_until_settled
from support.engine.world import Row, World
from support.servers import azurite
from support.servers.azure import azure_server
from support.servers.azure_queue import ACCOUNT, KEY, azure_queue_server
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark"]  # the fixtures

CONTAINER = "landing"
PREFIX = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/"
KEYS = ("plain.json", "with space.json", "a+b=c.json", "folder/\u00fc\u4f60.json", "100%25.json")
STREAM = {"processingTime": "0 seconds"}
_names = itertools.count(1)


@dataclass
class Service:
    """A storage account that runs here."""

    blobs: str
    queues: str
    key: str


@dataclass
class AzureWorld(World):
    """Blobs and a storage queue; everything else is as in any world."""

    service: Service = field(kw_only=True)
    name: str = field(kw_only=True)

    @property
    def queue_url(self) -> str:
        return f"azurequeue://{ACCOUNT}/{self.name}"

    def source(self, **options: object) -> dict[str, str]:
        own = {
            "allowedPrefixes": f"https://{ACCOUNT}.blob.core.windows.net/{CONTAINER}/{self.name}/",
            "source": "files",
            "azure.accessKey": self.service.key,
            "azure.endpointUrl": self.service.blobs,
            "azureQueue.endpointUrl": self.service.queues,
            "visibilityTimeout": "10s",
            "commitTimeout": "6s",
        }
        return super().source(**{**own, **options})

    def depth(self) -> Depth:
        with self.open() as queue:
            return queue.depth()

    def open(self) -> AzureQueue:
        return AzureQueue(self.queue_url, endpoint_url=self.service.queues, access_key=self.service.key)

    def put(self, first: int, objects: int) -> list[Row]:
        """Blobs under odd names, each announced twice by Event Grid, as it may; returns their rows."""
        credential = AzureNamedKeyCredential(ACCOUNT, self.service.key)
        rows = []
        with (
            ContainerClient(f"{self.service.blobs}/{ACCOUNT}", CONTAINER, credential) as container,
            QueueClient(f"{self.service.queues}/{ACCOUNT}", self.name, credential) as queue,
        ):
            for number in range(first, first + objects):
                key = f"{self.name}/{number}-{KEYS[number % len(KEYS)]}"
                own = [(number * 10 + i, f"{key} {i}") for i in range(3)]
                body = "".join(json.dumps({"id": i, "name": n}) + "\n" for i, n in own).encode()
                container.upload_blob(key, body, overwrite=True)
                for service in ("blob", "dfs"):
                    begun, closed = (
                        event(key, "CreateFile", 0, service),
                        event(key, "FlushWithClose", len(body), service),
                    )
                    queue.send_message(encoded([begun, closed] if number % 2 else closed))
                rows += own
            queue.send_message(encoded([{"eventType": "Microsoft.EventGrid.SubscriptionValidationEvent", "data": {}}]))
        return rows


def event(key: str, api: str, size: int, service: str) -> dict[str, object]:
    return {
        "subject": f"/blobServices/default/containers/{CONTAINER}/blobs/{key}",
        "eventType": "Microsoft.Storage.BlobCreated",
        "eventTime": "2026-06-26T18:41:00.9584103Z",
        "data": {
            "api": api,
            "url": f"https://{ACCOUNT}.{service}.core.windows.net/{CONTAINER}/{quote(key)}",
            "contentLength": size,
        },
    }


def encoded(value: object) -> str:
    """As Event Grid sends to a storage queue."""
    return base64.b64encode(json.dumps(value).encode()).decode()


@contextmanager
def own_servers() -> Iterator[Service]:
    with azure_server() as blobs, azure_queue_server() as queues:
        yield Service(blobs.url, queues.url, KEY)


@contextmanager
def on_azurite() -> Iterator[Service]:
    try:
        azurite.install()
        with azurite.azurite_server() as server:
            yield Service(server.blobs, server.queues, azurite.KEY)
    except azurite.NoAzurite as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=[own_servers, on_azurite], ids=["own servers", "Azurite"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with request.param() as started:
        credential = AzureNamedKeyCredential(ACCOUNT, started.key)
        with ContainerClient(f"{started.blobs}/{ACCOUNT}", CONTAINER, credential) as container:
            container.create_container()
        yield started


@pytest.fixture
def world(service: Service, tmp_path: Path) -> AzureWorld:
    world = AzureWorld(tmp_path / "world", service=service, name=f"spark-{os.getpid()}-{next(_names)}")
    with world.open() as queue:
        queue.create()
    return world


def test_blobs_announced_by_event_grid_are_published_once(spark: SparkSession, world: AzureWorld) -> None:
    rows = world.put(0, 10)
    run(spark, described(world))
    rows += world.put(10, 5)
    run_until_settled(spark, [(world, described(world))])
    assert world.published() == sorted(rows)
    assert world.depth() == Depth(0, 0)
    assert world.view("errors") == []
    assert {shard["shard_id"].startswith(PREFIX) for shard in world.view("shards")} == {True}


@pytest.mark.parametrize("place", ["split-written", "published", "acknowledged"])
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, world: AzureWorld, new_driver: DriverFactory, place: str
) -> None:
    rows = world.put(0, 10)
    driver = new_driver([described(world, trigger=STREAM, maxFilesPerTrigger=3)], pause_at=place)
    driver.wait_paused(1)
    driver.kill()
    rows += world.put(10, 3)
    run_until_settled(spark, [(world, described(world, trigger=STREAM, maxFilesPerTrigger=3))])
    assert world.published() == sorted(rows)
    assert (world.depth().total, world.open_shards()) == (0, [])
