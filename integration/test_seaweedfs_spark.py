"""A whole pipeline over a bucket and an Iceberg catalog that are somebody else's: SeaweedFS has both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote_plus

import boto3
import pytest
from pyiceberg.catalog import load_catalog

from queue_source.announcements.contents import s3_record
from support.servers import seaweedfs
from support.servers.ministack import REGION, client, ministack_server, new_queue
from support.servers.seaweedfs import Seaweed

pytestmark = pytest.mark.engine

OBJECTS = [f"in/day=0{day}/a b+{number}%41.json" for day in (1, 2) for number in range(5)]
ROWS = 50


@pytest.fixture
def server() -> Iterator[Seaweed]:
    try:
        seaweedfs.install()
    except seaweedfs.NoSeaweed as error:
        pytest.skip(str(error))
    with seaweedfs.seaweed_server() as server:
        yield server


@pytest.mark.timeout(900)
def test_what_sqs_announces_in_its_bucket_is_in_a_table_of_its_catalog_once(server: Seaweed, tmp_path: Path) -> None:
    with closing(client(server.s3, "s3")) as s3, ministack_server() as aws, closing(client(aws, "sqs")) as sqs:
        s3.create_bucket(Bucket="landing")
        queue = new_queue(aws)
        for at, key in enumerate(OBJECTS):
            lines = "".join(json.dumps({"id": at * ROWS + row, "name": key}) + "\n" for row in range(ROWS))
            s3.put_object(Bucket="landing", Key=key, Body=lines.encode())
            facts = s3.head_object(Bucket="landing", Key=key)
            said = {"size": facts["ContentLength"], "eTag": facts["ETag"].strip('"')}
            record = s3_record("landing", quote_plus(key, safe="/"), "2026-01-01T00:00:00.000Z", **said)
            for _ in range(2):  # at least once
                sqs.send_message(QueueUrl=queue, MessageBody=json.dumps({"Records": [record]}))
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": REGION}
        with closing(boto3.client("s3tables", endpoint_url=server.s3, **keys)) as tables:
            tables.create_table_bucket(name="lake")
        properties = {
            "type": "rest",
            "uri": server.catalog,
            "warehouse": "s3://lake",
            "rest.sigv4-enabled": "true",
            "rest.signing-region": REGION,
            "rest.signing-name": "s3tables",
            "s3.endpoint": server.s3,
            "client.access-key-id": "test",
            "client.secret-access-key": "test",
            "client.region": REGION,
        }
        options = {
            "s3.endpointUrl": server.s3,
            "s3.accessKeyId": "test",
            "s3.secretAccessKey": "test",
            "s3.region": REGION,
            "sqs.accessKeyId": "test",
            "sqs.secretAccessKey": "test",
            **{f"catalog.{name}": value for name, value in properties.items()},
        }
        command = [sys.executable, "-m", "cuesqueue", "load", queue, "--format", "json", "--prefix", "s3://landing/in/"]
        command += ["--store", f"sqlite:///{tmp_path}/store.db", "--table", "db.events", "--master", "local[2]"]
        command += [f"--option={name}={value}" for name, value in options.items()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        found = load_catalog("lake", **properties).load_table("db.events").scan().to_arrow()
        assert sorted(found["id"].to_pylist()) == list(range(len(OBJECTS) * ROWS))
