"""S3 through boto3, for what pyarrow cannot do: say why an object is refused, and read keys with empty segments.

pyarrow asks with HEAD, whose answers have no reason, and takes `a//b` and `a/` for no names of objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

from queue_source.errors import ObjectRefused, ObjectStoreError
from queue_source.options.storage import StorageOptions
from queue_source.storage import refusals
from queue_source.storage.aws_profiles import with_keys
from queue_source.storage.open_files import OpenFile
from shard_store.redaction import redact_text

_DEFAULT_REGION = "us-east-1"


def is_installed() -> bool:
    return _boto3() is not None


def raise_reason(uri: str, storage: StorageOptions) -> None:
    """Ask S3 for the first byte of an object that pyarrow could not read, and raise what it answers.

    Raises ObjectRefused, FileNotFoundError and ObjectStoreError. Returns when S3 gives the byte now.
    """
    bucket, key = place(uri)
    with answers(uri):
        client(storage).get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()


@contextmanager
def answers(uri: str, done: str = "read") -> Iterator[None]:
    """The edge: what botocore raises leaves under our names. `done`: what was to be done."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = error.response.get("Error", {})
        code, message = str(said.get("Code", "")), redact_text(str(said.get("Message", "")))
        if status == 404:
            raise FileNotFoundError(f"{code}: {message}") from None
        text = f"S3 answers {status} {code}: {message}"
        own = refusals.of_s3(status, code, message)
        if own is None:
            raise ObjectStoreError(f"{uri!r} cannot be {done}: {text}") from None
        raise ObjectRefused(f"{uri!r} is refused: {text}", own=own) from None
    except BotoCoreError as error:
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {redact_text(str(error))}") from None


class RangedObject(OpenFile):
    """An object of S3 by ranged requests, all of one version."""

    def __init__(self, uri: str, storage: StorageOptions) -> None:
        """One request. Raises FileNotFoundError, ObjectRefused, ObjectStoreError."""
        self._uri = uri
        self._bucket, self._key = place(uri)
        self._client = client(storage)
        with answers(uri):
            head = self._client.head_object(Bucket=self._bucket, Key=self._key)
        super().__init__(int(head["ContentLength"]), head.get("ETag"))
        self.modified = head.get("LastModified")

    def read_range(self, start: int, end: int) -> bytes:
        version = {} if self._etag is None else {"IfMatch": self._etag}
        with answers(self._uri):
            answer = self._client.get_object(
                Bucket=self._bucket, Key=self._key, Range=f"bytes={start}-{end - 1}", **version
            )
            with answer["Body"] as body:
                data: bytes = body.read()
        return data


def place(uri: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def client(storage: StorageOptions) -> Any:
    """The client of these options, one for a process; usable by all threads. No request is made."""
    return _client(with_keys(storage, os.getpid()), os.getpid())


@lru_cache(maxsize=8)
def _client(storage: StorageOptions, _process: int) -> Any:
    boto3 = _boto3()
    assert boto3 is not None
    from botocore import UNSIGNED, credentials
    from botocore.config import Config

    plain = _plain_session()
    session = boto3.session.Session(
        botocore_session=plain,
        aws_access_key_id=storage.access_key,
        aws_secret_access_key=storage.secret_key,
        aws_session_token=storage.session_token,
        region_name=storage.region,
    )
    region = session.region_name or _DEFAULT_REGION
    if storage.role_arn is not None:
        given = {"RoleSessionName": "cuesqueue", "ExternalId": storage.external_id}
        fetcher = credentials.AssumeRoleCredentialFetcher(
            partial(session.client, region_name=region),
            session.get_credentials(),
            storage.role_arn,
            extra_args={name: value for name, value in given.items() if value is not None},
        )
        plain._credentials = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "cuesqueue-role")
    return session.client(
        "s3",
        region_name=region,
        endpoint_url=_url(storage.endpoint),
        config=Config(
            signature_version=UNSIGNED if storage.anonymous else None,
            s3={"addressing_style": "path" if storage.endpoint else "auto"},  # as pyarrow does
            retries={"mode": "standard", "total_max_attempts": 2},
            connect_timeout=10,
            read_timeout=60,
        ),
    )


def _plain_session() -> Any:
    """With botocore's descriptions of services, which are read once a process."""
    from botocore import session

    made = session.Session()
    made.register_component("data_loader", _descriptions())
    return made


@cache
def _descriptions() -> Any:
    from botocore import session

    return session.Session().get_component("data_loader")


def _url(endpoint: str | None) -> str | None:
    return f"https://{endpoint}" if endpoint is not None and "://" not in endpoint else endpoint


def _boto3() -> ModuleType | None:
    try:
        import boto3
    except ImportError:
        return None
    return boto3  # type: ignore[no-any-return]
