"""Objects in S3 and Google Cloud Storage, over HTTP: by the options a user would set."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError, OptionError
from queue_source.formats.base import BadRecords, Part
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.objects import ExpectedObject, read_object
from queue_source.storage import files, pauses, s3_client
from queue_source.storage.files import open_object, resolve, stat_objects
from queue_source.storage.s3_client import for_pyarrow
from support.aws_environment import forget_aws
from support.oracle.wire import Stored, wire
from support.servers.gcs import VARIABLE, GcsServer
from support.servers.ministack import client, new_name
from support.servers.s3 import DENIED, s3_server
from support.sessions import LEAST

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
CSV = FormatOptions("csv")
KEYS = ["plain.csv", "a b+c/ä%20=.csv", "🦆/x&y.csv", "deep/" * 20 + "k.csv"]
META = pa.schema([*SCHEMA, ("_metadata", pa.struct([("file_modification_time", pa.timestamp("us", tz="UTC"))]))])


def storage(**options: str) -> StorageOptions:
    return parse_reader_options({**LEAST, "fileFormat": "csv", **options}).content.storage


def rows(uri: str, options: FormatOptions, store: StorageOptions, schema: pa.Schema = SCHEMA, **more: Any) -> list[Any]:
    problems = BadRecords(options.mode)
    batches = read_object(uri, schema, options, problems, storage=store, **more)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def s3(ministack_url: str) -> Iterator[tuple[Any, str, StorageOptions]]:
    """(a client, a bucket, the options to read it)."""
    bucket = new_name("bucket")
    made = client(ministack_url, "s3")
    made.create_bucket(Bucket=bucket)
    options = {"aws.region": "us-east-1", "aws.accessKeyId": "test", "aws.secretAccessKey": "test"}
    yield made, bucket, storage(**options, **{"s3.endpointUrl": ministack_url})
    made.close()


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
@pytest.mark.parametrize("key", KEYS)
def test_objects_of_s3_are_read(s3: tuple[Any, str, StorageOptions], key: str, scheme: str) -> None:
    made, bucket, store = s3
    etag = made.put_object(Bucket=bucket, Key=key, Body=b"1,x\n2,y\n")["ETag"]
    uri = f"{scheme}://{bucket}/{key}"
    assert rows(uri, CSV, store) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert len(rows(uri, CSV, store, expected=ExpectedObject(8, etag))) == 2
    for wrong in (ExpectedObject(7), ExpectedObject(8, "0" * 32)):
        with pytest.raises(BadObject, match="object-changed"):
            rows(uri, CSV, store, expected=wrong)
    (first, _) = rows(uri, CSV, store, META)
    assert first["_metadata"]["file_modification_time"].tzinfo is not None


def test_parts_and_parquet_of_s3_are_read(s3: tuple[Any, str, StorageOptions]) -> None:
    made, bucket, store = s3
    table = pa.table({"a": list(range(1000)), "b": ["x"] * 1000})
    made.put_object(Bucket=bucket, Key="lines", Body="".join(f"{i},x\n" for i in range(1000)))
    size = made.head_object(Bucket=bucket, Key="lines")["ContentLength"]
    bounds = [0, 1, 777, 3000, size]
    found = [
        row["a"]
        for start, end in itertools.pairwise(bounds)
        for row in rows(f"s3://{bucket}/lines", CSV, store, part=Part(start, end))
    ]
    assert found == list(range(1000))
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100)
    made.put_object(Bucket=bucket, Key="p", Body=sink.getvalue())
    assert rows(f"s3://{bucket}/p", FormatOptions("parquet"), store) == table.to_pylist()


def test_what_is_not_in_s3_is_missing(s3: tuple[Any, str, StorageOptions]) -> None:
    _, bucket, store = s3
    for uri in (f"s3://{bucket}/no such", f"s3://{new_name('none')}/key"):
        with pytest.raises(BadObject, match="missing-object"):
            rows(uri, CSV, store)
    assert stat_objects([f"s3://{bucket}/no", f"s3://{bucket}/such"], store) == [None, None]


@pytest.fixture
def gcs(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> tuple[GcsServer, StorageOptions]:
    monkeypatch.setenv(VARIABLE, gcs_server.url)
    # an endpoint of S3 is none of Google's; and no other test has a file system of these options
    return gcs_server, storage(**{"s3.endpointUrl": "http://127.0.0.1:9", "s3.region": "gcs"})


def test_objects_of_google_cloud_storage_are_read(gcs: tuple[GcsServer, StorageOptions]) -> None:
    server, store = gcs
    bucket = new_name("bucket")
    server.create_bucket(bucket)
    for key in KEYS:
        server.put(bucket, key, b"1,x\n2,y\n")
        uri = f"gs://{bucket}/{key}"
        assert rows(uri, CSV, store) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
        assert [stat and stat.size for stat in stat_objects([uri], store)] == [8]
        with pytest.raises(BadObject, match="object-changed"):
            rows(uri, CSV, store, expected=ExpectedObject(7))
        with pytest.raises(BadObject, match="missing-object"):
            rows(f"{uri}.no", CSV, store)


def test_access_denied_is_not_a_missing_object() -> None:
    with s3_server() as server:
        server.objects["bucket/key"] = b"1,x\n"
        server.refusals["bucket/"] = DENIED
        with pytest.raises(ObjectRefused, match="AccessDenied"):
            rows("s3://bucket/key", CSV, storage(**server.options))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration file of AWS's tools, and nothing else that they would find."""
    config = tmp_path / "config"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    forget_aws()
    yield config
    forget_aws()


def test_a_profile_gives_its_keys_and_new_ones_before_they_end(
    s3: tuple[Any, str, StorageOptions], profiles: Path, ministack_url: str
) -> None:
    made, bucket, _ = s3
    made.put_object(Bucket=bucket, Key="profile.csv", Body=b"1,x\n")
    count = profiles.with_name("count")
    count.write_text("0", "utf-8")
    script = profiles.with_name("keys.py")
    script.write_text(
        "import datetime, json, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "number = int(count.read_text()) + 1\n"
        "count.write_text(str(number))\n"
        "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'key{number}', 'SecretAccessKey': 'secret',\n"
        "    'SessionToken': 'token', 'Expiration': end.isoformat()}))\n",
        "utf-8",
    )
    profiles.write_text(
        f"[profile reader]\nregion = us-east-1\ncredential_process = {sys.executable} {script}\n", "utf-8"
    )
    store = storage(**{"aws.profile": "reader", "s3.endpointUrl": ministack_url})
    assert rows(f"s3://{bucket}/profile.csv", CSV, store) == [{"a": 1, "b": "x"}]
    before = int(count.read_text())
    assert rows(f"s3://{bucket}/profile.csv", CSV, store) == [{"a": 1, "b": "x"}]
    assert int(count.read_text()) > before  # they end within the quarter of an hour that botocore renews ahead
    keys, _ = for_pyarrow(store)
    assert (keys.access_key, keys.region) == (f"key{count.read_text()}", "us-east-1")
    assert "secret" not in repr(keys)


def test_a_profile_that_gives_nothing_is_named(profiles: Path) -> None:
    profiles.write_text("[profile empty]\nregion = us-east-1\n", "utf-8")
    for name in ("nobody", "empty"):
        with pytest.raises(ObjectStoreError, match=f"AWS profile '{name}'"):
            rows("s3://b/k", CSV, storage(**{"s3.profile": name}))


@pytest.mark.parametrize(
    ("options", "profile"),
    [
        ({"aws.profile": "a"}, "a"),
        ({"aws.profile": "a", "s3.profile": "b"}, "b"),
        ({"aws.profile": "a", "s3.accessKeyId": "k", "s3.secretAccessKey": "s"}, None),
        ({"s3.profile": "a", "aws.accessKeyId": "k", "aws.secretAccessKey": "s"}, OptionError),
        ({"aws.profile": "a", "aws.roleArn": "arn:aws:iam::1:role/r"}, OptionError),
    ],
)
def test_the_narrower_of_profile_and_keys_wins(options: dict[str, str], profile: Any) -> None:
    if profile is OptionError:
        with pytest.raises(OptionError, match="contradict each other"):
            storage(**options)
    else:
        assert storage(**options).profile == profile


def test_objects_of_several_stores_do_not_share_an_endpoint(
    s3: tuple[Any, str, StorageOptions], gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, bucket, store = s3
    monkeypatch.setenv(VARIABLE, gcs_server.url)
    name = new_name("bucket")
    gcs_server.create_bucket(name)
    gcs_server.put(name, "k.csv", b"2,g\n")
    made.put_object(Bucket=bucket, Key="k.csv", Body=b"1,s\n")
    assert [rows(uri, CSV, store)[0]["a"] for uri in (f"s3://{bucket}/k.csv", f"gs://{name}/k.csv")] == [1, 2]


@pytest.mark.parametrize("uri", ["s3://b/a/../../other/k", "s3://b/./k", "abfss://c@a.dfs.core.windows.net/x/../k"])
def test_a_uri_that_climbs_names_no_object(uri: str) -> None:
    with pytest.raises(BadObject, match="another object would be read"):
        resolve(uri)
    assert resolve("gs://b/a/../k")[1] == "b/a/../k"  # Google's keys are words: nothing climbs in them


@pytest.mark.parametrize(
    ("endpoint", "host", "path"),
    [
        ("https://oss-cn-hangzhou.aliyuncs.com", "landing.oss-cn-hangzhou.aliyuncs.com", "/in/1.csv"),
        ("oss-eu-central-1.aliyuncs.com", "landing.oss-eu-central-1.aliyuncs.com", "/in/1.csv"),
        ("https://obs.eu-west-101.myhuaweicloud.com", "obs.eu-west-101.myhuaweicloud.com", "/landing/in/1.csv"),
        ("http://aliyuncs.com.example.com:9000", "aliyuncs.com.example.com", "/landing/in/1.csv"),
    ],
)
def test_a_service_that_knows_buckets_by_host_is_asked_so(endpoint: str, host: str, path: str) -> None:
    """Alibaba's OSS refuses a bucket in the path; nothing is sent here."""
    keys = {"aws.region": "r", "aws.accessKeyId": "k", "aws.secretAccessKey": "s"}
    options = storage(**{"s3.endpointUrl": endpoint, **keys})
    where = {"Bucket": "landing", "Key": "in/1.csv"}
    url = urlsplit(s3_client.client(options).generate_presigned_url("get_object", Params=where))
    assert (url.hostname, url.path) == (host, path)
    _, (of_arrow,) = resolve("s3://landing/in/1.csv", options)[0].__reduce__()
    assert of_arrow["force_virtual_addressing"] is (host.startswith("landing."))


def test_cloud_storage_that_throttles_is_waited_for_no_longer_than_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "PATIENCE", 0.5)
    with wire() as stores:
        stores.hold(Stored("gs/b/k", b"x", fault="busy", at=0))
        monkeypatch.setenv(VARIABLE, stores.url)
        files._gcs.cache_clear()
        try:
            started = time.monotonic()
            with pytest.raises(ObjectStoreError), open_object("gs://b/k") as file:  # pyarrow's own limit is 15 minutes
                file.read()
            assert time.monotonic() - started < 60
        finally:
            files._gcs.cache_clear()
