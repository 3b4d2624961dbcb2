"""The stores that the contract of buckets runs over."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import ContainerClient
from google.cloud.storage import Client

from queue_source.options.connections import AzureOptions, StorageOptions
from queue_source.storage.buckets import Bucket, Known, open_bucket
from support.servers import azure, azurite
from support.servers.azure import azure_server
from support.servers.azurite import NoAzurite, azurite_server
from support.servers.gcs import VARIABLE, GcsServer
from support.servers.gcs_model import GcsModel, gcs_model
from support.servers.ministack import client, new_name
from support.servers.s3 import DENIED, s3_server
from support.servers.seaweedfs import NoSeaweed, seaweed_server


class BucketBackend(ABC):
    """A bucket of one kind of store. `root` is its URI, `missing` that of one that is not there."""

    root: str
    missing: str
    storage: StorageOptions
    has_etags = True
    names_may_be_folders = True
    """Whether `in` may be an object beside `in/1`."""
    keeps_order = True
    """Whether names are listed in the order of their bytes."""
    knows_pages = True
    can_forbid = True
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
    odd_names = ("new\nline", "tab\t", "back\\slash")

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
    odd_names: tuple[str, ...] = ("x//y", "x/", "/leading", "z\x01", "new\nline", "cr\rlf", "back\\slash")

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
            mock.patch.object(type(bucket), "_remove", side_effect=KeyboardInterrupt),
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


class SeaweedBackend(S3Backend):
    """Its keys are paths of files: no empty part, no backslash, and the order is that of folders."""

    names_may_be_folders = keeps_order = False
    odd_names = ("z\x01", "new\nline", "cr\rlf")


class GcsBackend(BucketBackend):
    """`model`: our own, since the emulator knows no pages and no conditions."""

    odd_names = ("x//y", "x/", "/leading", "tab\t", "..", "a/./b", "back\\slash")

    def __init__(self, model: GcsModel) -> None:
        self._model = model
        self._bucket = new_name("bucket")
        model.buckets.add(self._bucket)
        self.root = f"gs://{self._bucket}/"
        self.missing = "gs://no-such-bucket-of-ours/"
        self.storage = StorageOptions()

    def put(self, uri: str, body: bytes) -> None:
        self._model.put(self._bucket, uri[len(self.root) :], body)

    def get(self, uri: str) -> bytes:
        return self._model.blobs[self._bucket, uri[len(self.root) :]].body

    def describe(self, uri: str) -> None:
        self._model.describe(self._bucket, uri[len(self.root) :])

    def remove(self, uri: str) -> None:
        del self._model.blobs[self._bucket, uri[len(self.root) :]]

    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        with mock.patch.object(type(bucket), "_remove", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                bucket.move([(known, target)])

    @contextmanager
    def forbidden(self, prefix: str) -> Iterator[StorageOptions]:
        self._model.denied.add(self._bucket)
        yield self.storage
        self._model.denied.remove(self._bucket)


class GcsEmulatorBackend(BucketBackend):
    """A second opinion, that of an emulator which knows no pages and no conditions."""

    knows_pages = False
    can_forbid = False

    def __init__(self, server: GcsServer) -> None:
        self._server = server
        self._client = Client()
        self._bucket = self._client.create_bucket(new_name("bucket"))
        self.root = f"gs://{self._bucket.name}/"
        self.missing = "gs://no-such-bucket-of-ours/"
        self.storage = StorageOptions()

    def put(self, uri: str, body: bytes) -> None:
        self._server.put(self._bucket.name, uri[len(self.root) :], body)

    def get(self, uri: str) -> bytes:
        body: bytes = self._bucket.blob(uri[len(self.root) :]).download_as_bytes()
        return body

    def remove(self, uri: str) -> None:
        self._bucket.blob(uri[len(self.root) :]).delete()

    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        with mock.patch.object(type(bucket), "_remove", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                bucket.move([(known, target)])

    def forbidden(self, prefix: str) -> AbstractContextManager[StorageOptions]:
        raise NotImplementedError("it forbids nothing")

    def close(self) -> None:
        self._client.close()


class AzureBackend(BucketBackend):
    """A container, written and read through Azure's own library, which makes slashes of backslashes."""

    odd_names = ("x//y", "tab\t")

    def __init__(self, url: str, account: str, key: str) -> None:
        name = new_name("container")
        self._container = ContainerClient(f"{url}/{account}", name, AzureNamedKeyCredential(account, key))
        self._container.create_container()
        self.root = f"abfss://{name}@{account}.dfs.core.windows.net/"
        self.missing = f"abfss://no-such-container@{account}.dfs.core.windows.net/"
        options = AzureOptions(account_name=account, account_key=key, endpoint=url)
        self.storage = StorageOptions(azure=options)

    def put(self, uri: str, body: bytes) -> None:
        self._container.upload_blob(uri[len(self.root) :], body, overwrite=True)

    def get(self, uri: str) -> bytes:
        body: bytes = self._container.download_blob(uri[len(self.root) :]).readall()
        return body

    def remove(self, uri: str) -> None:
        self._container.delete_blob(uri[len(self.root) :])

    def copy_only(self, bucket: Bucket, known: Known, target: str) -> None:
        with mock.patch.object(type(bucket), "_remove", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                bucket.move([(known, target)])

    @contextmanager
    def forbidden(self, prefix: str) -> Iterator[StorageOptions]:
        wrong = replace(self.storage.azure, account_key=None, sas_token="sv=2024-01-01&sig=wrong")
        yield replace(self.storage, azure=wrong)

    def close(self) -> None:
        self._container.close()


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


@contextmanager
def _gcs(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    with gcs_model() as model, mock.patch.dict(os.environ, {VARIABLE: model.url}):
        yield GcsBackend(model)


@contextmanager
def _gcs_emulator(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    server = request.getfixturevalue("gcs_server")
    with mock.patch.dict(os.environ, {VARIABLE: server.url}):
        backend = GcsEmulatorBackend(server)
        try:
            yield backend
        finally:
            backend.close()


@contextmanager
def _azure(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    with azure_server() as server:
        backend = AzureBackend(server.url, "lake", azure.KEY)
        try:
            yield backend
        finally:
            backend.close()


@contextmanager
def _azurite(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    try:
        with azurite_server() as server:
            backend = AzureBackend(server.blobs, azurite.ACCOUNT, azurite.KEY)
            try:
                yield backend
            finally:
                backend.close()
    except NoAzurite as error:
        pytest.skip(str(error))


@contextmanager
def _seaweedfs(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    try:
        with seaweed_server() as server, closing(SeaweedBackend(server.s3)) as backend:
            yield backend
    except NoSeaweed as error:
        pytest.skip(str(error))


BACKENDS: dict[str, Maker] = {
    "local": _local,
    "s3": _s3,
    "gcs": _gcs,
    "gcs-emulator": _gcs_emulator,
    "azure": _azure,
    "azurite": _azurite,
    "seaweedfs": _seaweedfs,
}
