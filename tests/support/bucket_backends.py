"""The stores that the contract of buckets runs over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from queue_source.options.storage import StorageOptions
from queue_source.storage.buckets import Bucket, Known, open_bucket
from support.servers.ministack import client, new_name
from support.servers.s3 import DENIED, s3_server


class BucketBackend(ABC):
    """A bucket of one kind of store. `root` is its URI, `missing` that of one that is not there."""

    root: str
    missing: str
    storage: StorageOptions
    has_etags = True
    names_may_be_folders = True
    """Whether `in` may be an object beside `in/1`."""
    odd_names: tuple[str, ...] = ()
    """Which only stores of its kind have."""

    def open(self, prefix: str | None = None) -> Bucket:
        return open_bucket(prefix or self.root, self.storage)

    @abstractmethod
    def put(self, uri: str, body: bytes) -> None:
        """Write an object."""

    @abstractmethod
    def get(self, uri: str) -> bytes:
        """Read an object."""

    @abstractmethod
    def remove(self, uri: str) -> None:
        """Remove an object."""

    @abstractmethod
    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        """Move it, and die before the original is removed."""

    @abstractmethod
    def forbidden(self, prefix: str) -> AbstractContextManager[StorageOptions]:
        """Options with which the prefix may neither be listed nor cleaned."""

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.put, objects, objects.values()))


class LocalBackend(BucketBackend):
    has_etags = False
    names_may_be_folders = False
    odd_names = ("new\nline", "tab\t")

    def __init__(self, folder: Path) -> None:
        self.root = f"file://{folder}/"
        self.missing = f"file://{folder}/no-such-folder/"
        self.storage = StorageOptions(local_prefixes=(self.root,))

    def put(self, uri: str, body: bytes) -> None:
        path = self._path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def get(self, uri: str) -> bytes:
        return self._path(uri).read_bytes()

    def remove(self, uri: str) -> None:
        self._path(uri).unlink()

    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        with mock.patch("os.unlink", side_effect=InterruptedError("dead")):
            bucket.move([(known, target)])

    @contextmanager
    def forbidden(self, prefix: str) -> Iterator[StorageOptions]:
        refused = PermissionError(13, "Permission denied")  # root, as which tests may run, has all permissions
        with mock.patch("os.scandir", side_effect=refused), mock.patch("os.open", side_effect=refused):
            yield self.storage

    def _path(self, uri: str) -> Path:
        return Path(uri.removeprefix("file://"))


class S3Backend(BucketBackend):
    odd_names = ("x//y", "x/", "/leading", "z\x01", "new\nline", "cr\rlf")

    def __init__(self, url: str) -> None:
        self._client = client(url, "s3")
        bucket = new_name("bucket")
        self._client.create_bucket(Bucket=bucket)
        self.root = f"s3://{bucket}/"
        self.missing = "s3://no-such-bucket-of-ours/"
        self.storage = StorageOptions(endpoint=url, access_key="test", secret_key="test", region="us-east-1")

    def put(self, uri: str, body: bytes) -> None:
        self._client.put_object(Bucket=self.root[5:-1], Key=uri[len(self.root) :], Body=body)

    def get(self, uri: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self.root[5:-1], Key=uri[len(self.root) :])["Body"].read()
        return body

    def remove(self, uri: str) -> None:
        self._client.delete_object(Bucket=self.root[5:-1], Key=uri[len(self.root) :])

    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        with (
            mock.patch.object(type(bucket), "_delete_one", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            bucket.move([(known, target)])

    @contextmanager
    def forbidden(self, prefix: str) -> Iterator[StorageOptions]:
        with s3_server() as server:
            server.refusals[self.root[5:]] = DENIED
            yield replace(self.storage, endpoint=server.url)

    def close(self) -> None:
        self._client.close()


Maker = Callable[[pytest.FixtureRequest, pytest.TempPathFactory], AbstractContextManager[BucketBackend]]


@contextmanager
def _local(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    yield LocalBackend(folders.mktemp("bucket"))


@contextmanager
def _s3(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    backend = S3Backend(request.getfixturevalue("ministack_url"))
    try:
        yield backend
    finally:
        backend.close()


BACKENDS: dict[str, Maker] = {"local": _local, "s3": _s3}
