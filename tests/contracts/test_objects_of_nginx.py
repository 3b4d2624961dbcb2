"""A plain server of files as an endpoint of S3: its ranges, conditions and errors are its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_source.errors import BadObject, ObjectReplaced
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage.fetching import WHOLE, Fetcher, Requested
from support.servers.nginx import nginx

PART = 64 << 10


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "root/b").mkdir(parents=True)
    return tmp_path / "root/b"


@pytest.fixture
def storage(bucket: Path) -> Iterator[StorageOptions]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    for folder in (bucket, *list(bucket.parents)[:-2]):  # its worker is another user
        folder.chmod(folder.stat().st_mode | 0o055)
    with nginx(bucket.parent) as port:
        keys = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test", "s3.region": "us-east-1"}
        given = {"queueUrl": "sim://q", "fileFormat": "csv", "s3.endpointUrl": f"http://127.0.0.1:{port}", **keys}
        yield parse_reader_options({**given, "allowedPrefixes": "s3://"}).content.storage


def put(bucket: Path, name: str, data: bytes) -> None:
    (bucket / "new").write_bytes(data)
    (bucket / "new").replace(bucket / name)


@pytest.mark.parametrize("announced", [True, False])
def test_objects_of_all_sizes_are_read(bucket: Path, storage: StorageOptions, announced: bool) -> None:
    contents = [os.urandom(size) for size in (0, 1, PART - 1, PART, PART + 1, 300_000, WHOLE, WHOLE + 1)] * 3
    for number, data in enumerate(contents):
        put(bucket, f"key {number} ä+&", data)
    requested = [Requested(f"s3://b/key {n} ä+&", len(data) if announced else None) for n, data in enumerate(contents)]
    with Fetcher(requested, storage, requests=16, ahead=4 << 20) as fetcher:
        for number, data in enumerate(contents):
            with fetcher.open(number) as file:
                assert file.version.is_pinned
                assert b"".join(iter(lambda: bytes(file.read(100_000)), b"")) == data
            fetcher.leave([number])


@pytest.mark.parametrize("size", [300_000, 1000])
def test_an_object_that_is_replaced_in_the_middle_is_not_mixed(
    bucket: Path, storage: StorageOptions, size: int
) -> None:
    put(bucket, "k", bytes(300_000))
    with Fetcher([Requested("s3://b/k", 300_000, 0, PART)], storage, requests=4, ahead=1) as fetcher:
        with fetcher.open(0) as file:
            assert file.read(1000) == bytes(1000)
            put(bucket, "k", os.urandom(size))
            os.utime(bucket / "k", (1, 1))  # its ETag is of time and size
            with pytest.raises(ObjectReplaced):
                file.read()


def test_an_object_that_is_shorter_than_announced_is_opened_as_it_is(bucket: Path, storage: StorageOptions) -> None:
    put(bucket, "k", b"abc")
    for start in (0, None):
        with Fetcher([Requested("s3://b/k", 1 << 30, start)], storage, requests=4, ahead=1) as fetcher:
            with fetcher.open(0) as file:
                assert (file.size(), file.read()) == (3, b"abc")


def test_what_is_not_there_is_missing(bucket: Path, storage: StorageOptions) -> None:
    put(bucket, "k", b"abc")
    requested = [Requested(f"s3://b/{name}", 3) for name in ("k", "no", "k")]
    with Fetcher(requested, storage, requests=4, ahead=100) as fetcher:
        with pytest.raises(BadObject, match="missing-object"), fetcher.open(1):
            pass
        with fetcher.open(2) as file:
            assert file.read() == b"abc"
