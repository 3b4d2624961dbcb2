"""S3 through boto3: one client for all that is asked of objects.

Unlike pyarrow it says why an object is refused, reads keys with empty segments, finds keys and endpoints wherever other
tools of AWS find them, and asks for one version of an object only. Most answers are read without boto3, which needs
0.64 ms of processor time for each; the signature is ours then (tests compare it with botocore's), and boto3 gets what
is not the object.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from queue_source.common.clouds import new_session, role_session
from queue_source.errors import ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.options.connections import StorageOptions, with_secrets
from queue_source.storage.open_files import s3_refusal
from shard_store.redaction import redact_text

_NO_KEYS_SECONDS = 60  # a missing key is looked up again after as long: a machine's role may come late
POOL = 1000
"""Connections that are kept: as many as requests may be under way."""
TIME_OUT = (10, 60)
"""Seconds for a connection, and for each read of an answer."""
_PRECONDITION_FAILED = 412


_making = threading.Lock()  # a session of botocore makes one client at a time
os.register_at_fork(after_in_child=lambda: globals().update(_making=threading.Lock()))  # another thread may have had it


def is_installed() -> bool:
    try:
        import boto3  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def answers(uri: str, done: str = "read") -> Iterator[None]:
    """Map botocore's errors in the block to ours. `done`: the participle of the request, for messages."""
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

    try:
        yield
    except ParamValidationError as error:  # no bucket can have this name
        raise FileNotFoundError(redact_text(" ".join(str(error).split()))) from None
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = error.response.get("Error", {})
        code, message = str(said.get("Code", "")), redact_text(str(said.get("Message", "")))
        if status == 404:
            raise FileNotFoundError(f"{code}: {message}") from None
        text = f"S3 answers {status} {code}: {message}"
        if status == _PRECONDITION_FAILED:
            raise ObjectReplaced(f"{uri!r} is another object by now, and cannot be {done}: {text}") from None
        own = s3_refusal(status, code, message)
        if own is None:
            raise ObjectStoreError(f"{uri!r} cannot be {done}: {text}") from None
        raise ObjectRefused(f"{uri!r} is refused: {text}", own=own) from None
    except BotoCoreError as error:
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {redact_text(str(error))}") from None


class Head(NamedTuple):
    """S3's facts about an object; the ETag in quotes."""

    size: int
    etag: str | None
    modified: datetime | None


def head(uri: str, storage: StorageOptions) -> Head:
    """Send one request. Raises FileNotFoundError, ObjectRefused, ObjectStoreError."""
    bucket, key = place(uri)
    with answers(uri):
        answer = client(storage).head_object(Bucket=bucket, Key=key)
    return Head(int(answer["ContentLength"]), answer.get("ETag"), answer.get("LastModified"))


def plain(etag: str | None) -> str | None:
    """Return an ETag without quotes."""
    return None if etag is None else etag.strip('"')


def place(uri: str) -> tuple[str, str]:
    """Return bucket and key."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


class Connection(NamedTuple):
    """A client of boto3, botocore's keys that it signs with (None: it does not), and where its certificates are."""

    client: Any
    keys: Any
    certificates: str | bool


def client(storage: StorageOptions) -> Any:
    """Return boto3's client of these options, as `connection` does."""
    return connection(storage).client


def connection(storage: StorageOptions) -> Connection:
    """Return what is used for these options, one for a process; usable by all threads. No request is made.

    Raises ObjectStoreError.
    """
    storage = with_secrets(storage)
    signs = storage.access_key is not None or storage.role_arn is not None or storage.profile is not None
    with _making:  # also one question for keys at a time: a machine of AWS answers few at once
        anonymous = storage.anonymous or not (
            signs or _has_keys(storage.profile, os.getpid(), int(time.monotonic() // _NO_KEYS_SECONDS))
        )
        return _client(replace(storage, anonymous=anonymous), os.getpid())


@lru_cache(maxsize=8)
def _client(storage: StorageOptions, process: int) -> Connection:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    with _profile_errors(storage.profile):
        session = _signing_session(storage, process)
        made = boto3.session.Session(botocore_session=session).client(
            "s3",
            region_name=_region_of(storage),
            endpoint_url=_url(storage.endpoint),
            config=Config(
                signature_version=UNSIGNED if storage.anonymous else None,
                retries={"mode": "standard", "total_max_attempts": 3},
                connect_timeout=TIME_OUT[0],
                read_timeout=TIME_OUT[1],
                max_pool_connections=POOL,
                s3={"addressing_style": "virtual"} if names_buckets_by_host(storage.endpoint) else None,
            ),
        )
        own = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        return Connection(made, None if storage.anonymous else session.get_credentials(), own or True)


class Keys(NamedTuple):
    """Keys of AWS as they are now; `token` where they end by themselves."""

    access_key: str
    secret_key: str
    token: str | None


def keys_of(storage: StorageOptions) -> Keys | None:
    """Return the keys that `client` signs with, for a library that cannot find them; None where it does not sign.

    Raises ObjectStoreError.
    """
    storage = with_secrets(storage)
    with _profile_errors(storage.profile), _making:
        credentials = None if storage.anonymous else _signing_session(storage, os.getpid()).get_credentials()
        return None if credentials is None else Keys(*credentials.get_frozen_credentials()[:3])


def _signing_session(storage: StorageOptions, process: int) -> Any:
    """Return a session of botocore for one client of boto3.

    It has the keys of the options, or of the role, or the process's.
    """
    source = _session_of(storage.profile, process)
    if storage.role_arn is not None:
        return role_session(source, storage.profile, storage.role_arn, storage.external_id, _region_of(storage))
    if storage.access_key is None and not storage.anonymous:
        return new_session(storage.profile, source.get_credentials)
    own = new_session(storage.profile)
    if storage.access_key is not None:
        own.set_credentials(storage.access_key, storage.secret_key, storage.session_token)
    return own


def names_buckets_by_host(endpoint: str | None) -> bool:
    """Tell whether a service knows a bucket by the name of the host alone (`bucket.oss-cn-hangzhou.aliyuncs.com`)."""
    host = urlsplit(_url(endpoint) or "").hostname or ""
    return host.endswith(".aliyuncs.com")


def _url(endpoint: str | None) -> str | None:
    return f"https://{endpoint}" if endpoint is not None and "://" not in endpoint else endpoint


@contextmanager
def _profile_errors(profile: str | None) -> Iterator[None]:
    """Map botocore's errors about a profile, or about the configuration files, to ObjectStoreError."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        if profile is None:
            raise ObjectStoreError(
                f"the configuration of AWS cannot be used: {error}; mend it, or its variable"
            ) from error
        raise ObjectStoreError(f"the AWS profile {profile!r} gives no keys: {error}; check s3.profile") from error


@lru_cache(maxsize=8)
def _session_of(profile: str | None, _process: int) -> Any:
    """Return botocore's session with this profile, else with that of the environment; one for a process.

    Its keys are made anew in time before they end. Raises ObjectStoreError where there is no such profile, or it gives
    no keys.
    """
    made = new_session(profile)
    with _profile_errors(profile):
        if profile is not None and made.get_credentials() is None:
            raise ObjectStoreError(f"the AWS profile {profile!r} holds no credentials; check s3.profile")
        made.get_scoped_config()
    return made


@lru_cache(maxsize=8)
def _has_keys(profile: str | None, process: int, _minute: int) -> bool:
    """Tell whether this process has keys; without any, requests are not signed, which public buckets accept."""
    with _profile_errors(profile):
        return _session_of(profile, process).get_credentials() is not None


def _region_of(storage: StorageOptions) -> str:
    """Return the region: the option's, else botocore's, else that of the variable of all other SDKs of AWS.

    Without one, a machine of AWS is asked where it is: its S3 may be the only one that it reaches.
    """
    session = _session_of(storage.profile, os.getpid())
    region = storage.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
    if not region and _endpoint_of(storage) is None:
        region = _region_of_the_machine(storage.profile, os.getpid())
    return region or "us-east-1"


@lru_cache(maxsize=8)
def _region_of_the_machine(profile: str | None, process: int) -> str | None:
    """Ask the machine for its region.

    Takes a second or two without an answer, unless AWS_EC2_METADATA_DISABLED is set.
    """
    from botocore.utils import IMDSRegionProvider

    region: str | None = IMDSRegionProvider(_session_of(profile, process)).provide()
    return region


def _endpoint_of(storage: StorageOptions) -> str | None:
    """Return the endpoint of the option, else that of botocore; None: that of AWS."""
    import botocore.configprovider as config

    session = _session_of(storage.profile, os.getpid())
    if storage.endpoint is not None or session.get_config_variable("ignore_configured_endpoint_urls"):
        return storage.endpoint
    endpoint: str | None = config.ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    return endpoint


def for_pyarrow(storage: StorageOptions) -> tuple[StorageOptions, str | None]:
    """Return the options with the endpoint, region and keys that boto3 would use now, and the file of its certificates.

    Keys are left to pyarrow's own chain where no profile is named: it knows the other places, and renews what ends.
    Raises ObjectStoreError.
    """
    storage = with_secrets(storage)
    try:
        import botocore.configprovider  # noqa: F401
    except ImportError as error:
        if storage.profile is None:
            endpoint, variables = storage.endpoint, os.environ  # as far as that needs no configuration file
            if endpoint is None and variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
                endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
            return replace(storage, endpoint=endpoint), variables.get("AWS_CA_BUNDLE")
        raise ObjectStoreError(
            f"the AWS profile {storage.profile!r} is read by botocore: pip install 'cuesqueue[aws]' on driver and "
            "executors"
        ) from error
    session = _session_of(storage.profile, os.getpid())
    with _profile_errors(storage.profile):
        storage = replace(storage, endpoint=_endpoint_of(storage), region=_region_of(storage))
        needs_keys = session.profile is not None and storage.access_key is None and storage.role_arn is None
        if needs_keys and (credentials := session.get_credentials()) is not None:
            key, secret, token = credentials.get_frozen_credentials()[:3]
            storage = replace(storage, access_key=key, secret_key=secret, session_token=token)
        return storage, session.get_config_variable("ca_bundle")
