"""What is announced badly is published all the same: 5,000 objects of S3, with kills while they are listed and read.

A tenth is there before the first start, a tenth is never announced, a tenth is announced twice. Over the protocols of
S3 and SQS, with the store on PostgreSQL and a real Spark; at the end a certificate says that it is complete, and
another run of the same command agrees.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.queues import open_queue
from shard_store.sql.schema import listings, splits
from shard_store.store import ShardStore, open_store
from support.engine.harness import Driver
from support.engine.queries import Query
from support.engine.world import eventually
from support.servers.ministack import KEYS, REGION, client, ministack_server, new_name, new_queue
from support.servers.postgres import new_database, postgres

OBJECTS = 5_000
KILLS = 5
_MEMORY = "--driver-memory 1g pyspark-shell"
ACCESS = {"aws.region": REGION, "aws.accessKeyId": "test", "aws.secretAccessKey": "test"}

pytestmark = pytest.mark.engine


@pytest.fixture
def server() -> Iterator[str]:
    with ministack_server() as url:
        yield url


@pytest.fixture
def store_url() -> Iterator[str]:
    with postgres() as server:
        yield new_database(server.url)


def query(folder: Path, server: str, queue: str, prefix: str, store_url: str) -> Query:
    access = {**ACCESS, "aws.endpointUrl": server}
    own = {"store": store_url, "source": "files", "fileFormat": "json", "queueUrl": queue, "allowedPrefixes": prefix}
    times = {"visibilityTimeout": "20s", "commitTimeout": "5s", "waitTime": "1s", "maxFilesPerTrigger": "200"}
    listing = {"backfillPrefixes": prefix, "backfillInterval": "15s", "backfillGrace": "5s"}
    return {
        "source": {**own, **times, **listing, **access, "minPartitions": "2"},
        "schema": "id STRING",
        "sink": "cuesqueue",
        "sink_options": {"store": store_url, "pipeline": "files", "path": str(folder / "out")},
        "checkpoint": str(folder / "checkpoint"),
        "trigger": {"processingTime": "1 second"},
    }


def put(s3: Any, bucket: str, numbers: range) -> None:
    for number in numbers:
        s3.put_object(Bucket=bucket, Key=f"in/{number:05}.json", Body=json.dumps({"id": f"{number}"}).encode())


def published(store: ShardStore, seen: dict[str, list[str]]) -> Counter[str]:
    """The ids of all rows that are visible."""
    with store.database.begin() as connection:
        for path in connection.execute(sa.select(splits.c.path)).scalars():
            if path not in seen:
                seen[path] = pq.read_table(unquote(urlsplit(path).path), columns=["id"]).column("id").to_pylist()
    return Counter(found for ids in seen.values() for found in ids)


def listed(store: ShardStore) -> tuple[int, bool]:
    """How many objects the present listing has seen, and whether it is under way."""
    with store.database.begin() as connection:
        row = connection.execute(sa.select(listings.c.objects, listings.c.ended_at)).one_or_none()
    return (0, False) if row is None else (int(row.objects), row.ended_at is None)


@pytest.mark.timeout(1800)
def test_objects_that_are_announced_late_twice_or_never_are_published_once_and_certified(
    tmp_path: Path, server: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", _MEMORY)
    bucket, queue_url = new_name("bucket"), new_queue(server)
    prefix, tenth, chance = f"s3://{bucket}/in/", OBJECTS // 10, random.Random(1)
    kills: list[str] = []
    drivers: list[Driver] = []
    seen: dict[str, list[str]] = {}

    def start() -> None:
        described = [query(tmp_path, server, queue_url, prefix, store_url)]
        drivers.append(Driver(tmp_path / f"driver-{len(drivers)}", described, restarts=True))

    def kill(while_: str) -> None:
        kills.append(while_)
        drivers[-1].kill()
        start()

    try:
        with (
            closing(client(server, "s3")) as s3,
            open_queue(queue_url, **KEYS) as queue,
            open_store(store_url) as store,
        ):
            s3.create_bucket(Bucket=bucket)
            put(s3, bucket, range(tenth))  # there before the first start, and never announced
            start()
            eventually("a listing", lambda: listed(store)[0] > 0, 120)
            kill("the first listing")
            for first in range(tenth, OBJECTS, tenth):
                put(s3, bucket, range(first, first + tenth))
                if first == 5 * tenth:  # a tenth is never announced
                    continue
                uris = [f"{prefix}{number:05}.json" for number in range(first, first + tenth)]
                queue.send([*uris, *(uris if first == 7 * tenth else [])])  # and a tenth twice
                if len(kills) < KILLS and first % (2 * tenth) == 0:
                    before = published(store, seen).total()
                    eventually("rows", lambda n=before: published(store, seen).total() > n, 240)  # type: ignore[misc]
                    time.sleep(chance.uniform(0, 3))
                    kill("a listing" if listed(store)[1] else "reading")
            eventually("all rows", lambda: published(store, seen).total() >= OBJECTS, 600)
            eventually("an empty queue", lambda: not queue.depth().total, 120)
            assert published(store, seen) == Counter(str(number) for number in range(OBJECTS))
            first_run = reconcile(prefix, server, store_url)
            second_run = reconcile(prefix, server, store_url, "--certificate", str(first_run["certificate"]))
    finally:
        for driver in drivers:
            driver.close()
    print(f"{OBJECTS:,} objects, {len(kills)} kills during {Counter(kills)}: {first_run['says']}")
    assert len(kills) == KILLS
    assert (first_run["verdict"], first_run["objects"], first_run["published"]) == ("complete", OBJECTS, OBJECTS)
    assert second_run["compared_with"]["same"] is True
    assert second_run["digest"] == first_run["digest"]


def reconcile(prefix: str, server: str, store_url: str, *more: str) -> dict[str, Any]:
    options = {**ACCESS, "aws.endpointUrl": server}
    access = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    what = more or (prefix, "--certify", "--grace", "1s")
    arguments = ["reconcile", *what, "--store", store_url, "--json", *access]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["prefixes"]
    return dict(found)
