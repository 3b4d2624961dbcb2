"""Where objects live: from a URI to an open file, with the file systems' errors mapped to ours.

A URI is taken **raw**. `s3://bucket/KEY` holds the key as it is (notifications are decoded where they are parsed), and
`file://` is followed by the path as it is: nothing is percent-decoded here, because the URI is the identity of the
object, and `a%20b` and `a b` are two objects. A plain absolute path is a local file.

Used in executor workers, and by the reader process to ask for sizes before planning. File systems are cached per
process; none is used again after a fork.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from queue_source.errors import BadObject, MalformedNotification, ObjectStoreError, OptionError
from queue_source.options.connections import AzureOptions, StorageOptions, with_secrets
from queue_source.storage import pauses, s3_client
from queue_source.storage.open_files import (
    AZURE_SCHEMES,
    S3_SCHEMES,
    ArrowObject,
    LocalObject,
    ObjectFile,
    ObjectVersion,
    file_time,
    is_local,
    mapped,
    scheme_of,
    stat_local,
    version_of,
)
from queue_source.storage.s3_object import S3Object
from queue_source.uris import check_object, climbs

logger = logging.getLogger("cuesqueue")

_STAT_THREADS = 32
_AHEAD = 256 << 10
"""Bytes that the request brings which opens an object: a small one needs no other."""
_LOCAL_AT_ONCE = 32
_LOCAL_SECONDS = 0.01  # for these: then threads are worth it

_PUBLIC = "dfs.core.windows.net"
_CLOUDS = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "fabric.microsoft.com")
_DOMAINS = frozenset(f"{service}.{cloud}" for service in ("dfs", "blob") for cloud in _CLOUDS)
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")

GCS_EMULATOR = "STORAGE_EMULATOR_HOST"
"""Names an emulator of Google Cloud Storage (`http://host:port` or `host:port`), as it does to Google's own clients."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """An object's size in bytes, and when it was last modified (aware, UTC; None where the store does not report it).

    `etag` identifies its version, without quotes; None where the request does not return it.
    """

    size: int
    modified: datetime | None
    etag: str | None = None


def resolve(uri: str, storage: StorageOptions | None = None) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, and the path in it. No request is made.

    Raises BadObject("missing-object") for a URI that can name no object, ObjectStoreError when the file system of a
    known scheme cannot be built (bad credentials, or a pyarrow without it).
    """
    storage = storage or StorageOptions()
    if uri.startswith("/"):
        return _local(os.getpid()), uri
    scheme, separator, location = uri.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise BadObject("missing-object", f"{uri!r} is neither an absolute path nor a URI")
    if scheme == "file":
        if not location.startswith("/"):
            raise BadObject("missing-object", f"{uri!r} needs three slashes and an absolute path")
        return _local(os.getpid()), location
    bucket, key = _bucket_and_key(uri)
    with mapped(uri):
        if scheme in S3_SCHEMES:
            return _s3(*s3_client.for_pyarrow(storage), os.getpid()), location
        if scheme == "gs":
            return _gcs(storage, os.getpid()), location
        if scheme in AZURE_SCHEMES:
            account, domain, container = azure_place(uri, scheme, bucket, storage.azure)
            return _azure(account, domain, with_secrets(storage).azure, os.getpid()), f"{container}/{key}"
    raise BadObject("missing-object", f"the scheme of {uri!r} is not one of file, s3, s3a, s3n, gs, abfs, abfss, az")


def _bucket_and_key(uri: str) -> tuple[str, str]:
    """Split a URI. Raises BadObject("missing-object") where it names no object in a bucket."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    if not bucket or not key:
        raise BadObject("missing-object", f"{uri!r} names no object in a bucket")
    if climbs(uri):
        raise BadObject("missing-object", f"{uri!r} has a segment '.' or '..', by which another object would be read")
    try:
        check_object(uri)  # messages are checked before; samples of schemas and paths of the sink come from elsewhere
    except MalformedNotification as error:
        raise BadObject("missing-object", f"{uri[:300]!r}: {error}") from None
    return bucket, key


def bucket_of(uri: str) -> str:
    """Return the unit that one permission usually covers: a bucket or container; all local files are one."""
    if is_local(uri):
        return "file:///"
    scheme, _, location = uri.partition("://")
    scheme = scheme.lower()
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{location.partition('/')[0]}/"


def check_place(option: str, folder: str, storage: StorageOptions) -> None:
    """Raise OptionError where surely no file can be written under this folder; it may still have to be made.

    A bucket that refuses an answer, or is away, may well be written to.
    """
    if is_local(folder):
        path = Path(folder.removeprefix("file://"))
        above = next(parent for parent in (path, *path.parents) if parent.exists())
        if not above.is_dir():
            raise OptionError(option, f"{folder!r} cannot be written: {above} is a file; name a folder")
        try:
            with tempfile.TemporaryFile(dir=above):
                return
        except OSError as error:
            problem = f"{folder!r} cannot be written: {above} takes no files ({error.strerror}); name another folder"
            raise OptionError(option, problem) from None
    filesystem, inner = resolve(f"{folder}/any", storage)
    with suppress(OSError):
        if filesystem.get_file_info(inner.partition("/")[0]).type is pafs.FileType.NotFound:
            problem = f"{folder!r} cannot be written: {bucket_of(folder)} does not exist; create it, or mend {option}"
            raise OptionError(option, problem)


def stat_object(uri: str, storage: StorageOptions | None = None) -> ObjectStat:
    """Return size, modification time and version, with one request. Raises BadObject and ObjectStoreError."""
    storage = storage or StorageOptions()
    if _is_read_by_boto3(uri):
        _bucket_and_key(uri)
        with mapped(uri):
            head = s3_client.head(uri, storage)
        return ObjectStat(head.size, head.modified, s3_client.plain(head.etag))
    filesystem, path = resolve(uri, storage)
    if is_local(uri):
        with mapped(uri):
            local = stat_local(uri, path)
        return ObjectStat(local.st_size, file_time(local.st_mtime), version_of(local))
    _check_key(uri)
    with mapped(uri):
        info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        problem = "it is a directory" if info.type == pafs.FileType.Directory else "nothing is there"
        raise BadObject("missing-object", f"{uri!r}: {problem}")
    return ObjectStat(info.size, info.mtime)


def answers_with_facts(uri: str) -> bool:
    """Tell whether the request that reads an object also brings its size and version."""
    return _is_read_by_boto3(uri)


def stat_objects(uris: Iterable[str], storage: StorageOptions | None = None) -> list[ObjectStat | None]:
    """Stat many objects as `stat_object`, in their order; None where it fails: reading the object reports why."""
    requested = list(uris)
    results: list[ObjectStat | BadObject | ObjectStoreError] = []
    if all(map(is_local, requested)):  # a file takes less time than handing it to a thread, unless its disk is far away
        quick = True
        while quick and len(results) < len(requested):
            began = time.monotonic()
            some = requested[len(results) : len(results) + _LOCAL_AT_ONCE]
            results += [_stat_or_error(uri, storage) for uri in some]
            quick = time.monotonic() - began < _LOCAL_SECONDS
    if remaining := requested[len(results) :]:
        with ThreadPoolExecutor(min(_STAT_THREADS, len(remaining)), thread_name_prefix="cuesqueue-stat") as threads:
            results += threads.map(lambda uri: _stat_or_error(uri, storage), remaining)
    if failed := [error for error in results if isinstance(error, ObjectStoreError)]:
        logger.warning("the size of %d object(s) is not known; the first: %s", len(failed), failed[0])
    return [stat if isinstance(stat, ObjectStat) else None for stat in results]


@contextmanager
def open_object(
    uri: str, storage: StorageOptions | None = None, *, size: int | None = None, first: tuple[int, int] | None = None
) -> Iterator[ObjectFile]:
    """Open an object for random reads, and close it at the end.

    The request that opens it brings the bytes `first`, or those that the announced `size` makes worth it. Raises as
    `open_version`.
    """
    start, end = first or (0, 1 if size is not None and size > _AHEAD else _AHEAD)
    file = ObjectFile(uri, open_version(uri, storage or StorageOptions(), start, end))
    try:
        yield file
    finally:
        file.closed = True
        file.version.close()


def open_version(uri: str, storage: StorageOptions, start: int, end: int) -> ObjectVersion:
    """Open the present version of an object, with these bytes where the store has them in the same answer.

    Raises BadObject (`missing-object`, `unsupported-key`; of local files also `corrupt-object`, `forbidden-object`),
    ObjectRefused, ObjectStoreError.
    """
    if _is_read_by_boto3(uri):
        _bucket_and_key(uri)
        with mapped(uri):
            return S3Object(uri, storage, start, end)
    filesystem, path = resolve(uri, storage)
    if not is_local(uri):
        _check_key(uri)
    with mapped(uri):
        return LocalObject(uri, path, storage.local_prefixes) if is_local(uri) else ArrowObject(filesystem, path)


def _is_read_by_boto3(uri: str) -> bool:
    return scheme_of(uri) in S3_SCHEMES and s3_client.is_installed()


def _stat_or_error(uri: str, storage: StorageOptions | None) -> ObjectStat | BadObject | ObjectStoreError:
    try:
        return stat_object(uri, storage)
    except (BadObject, ObjectStoreError) as error:
        return error


def _check_key(uri: str) -> None:
    """Raise BadObject("unsupported-key") for a key that pyarrow takes for no name."""
    location = uri.partition("://")[2]
    if not ("//" in location or location.endswith("/")):
        return
    problem = "ends with a slash" if location.endswith("/") else "has an empty segment ('//')"
    if scheme_of(uri) not in S3_SCHEMES:
        raise BadObject("unsupported-key", f"{uri!r} {problem}, and pyarrow reads no such object; rename it")
    raise BadObject(
        "unsupported-key",
        f"{uri!r} {problem}, and such keys are read by boto3: pip install 'cuesqueue[aws]' on driver and executors",
    )


@lru_cache(maxsize=4)
def _local(_process: int) -> pafs.FileSystem:
    return pafs.LocalFileSystem()


@lru_cache(maxsize=32)
def _s3(storage: StorageOptions, certificates: str | None, _process: int) -> pafs.FileSystem:
    scheme, host = _endpoint(storage.endpoint)
    options_by_name = {
        "access_key": storage.access_key,
        "secret_key": storage.secret_key,
        "session_token": storage.session_token,
        "role_arn": storage.role_arn,
        "external_id": storage.external_id,
        "region": storage.region,
        "endpoint_override": host,
        "scheme": scheme,
        "tls_ca_file_path": certificates,
        "force_virtual_addressing": s3_client.names_buckets_by_host(storage.endpoint) or None,
    }
    options = {name: value for name, value in options_by_name.items() if value is not None}
    return pafs.S3FileSystem(anonymous=storage.anonymous, **options)


@lru_cache(maxsize=32)
def _gcs(storage: StorageOptions, _process: int) -> pafs.FileSystem:
    emulator = os.environ.get(GCS_EMULATOR, "")  # the options' endpoint is one of S3
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    scheme, host = _endpoint(emulator or None)
    options: dict[str, Any] = {} if host is None else {"endpoint_override": host, "scheme": scheme}
    options["retry_time_limit"] = timedelta(seconds=pauses.PATIENCE)  # its own is 15 minutes
    return _optional("GcsFileSystem")(anonymous=storage.anonymous or bool(emulator), **options)


@lru_cache(maxsize=32)
def _azure(account: str, domain: str, options: AzureOptions, _process: int) -> pafs.FileSystem:
    return _optional("AzureFileSystem")(**azure_arguments(account, domain, options))


def _optional(name: str) -> Callable[..., pafs.FileSystem]:
    try:
        built: Callable[..., pafs.FileSystem] = getattr(pafs, name)
    except (AttributeError, ImportError) as error:
        raise ObjectStoreError(f"this pyarrow was built without {name}: install the wheel from PyPI") from error
    return built


def _endpoint(endpoint: str | None) -> tuple[str | None, str | None]:
    """Return scheme and `host:port` of an endpoint."""
    if endpoint is None:
        return None, None
    if "://" not in endpoint:
        return "https", endpoint
    parts = urlsplit(endpoint)
    return parts.scheme, parts.netloc


def azure_place(uri: str, scheme: str, bucket: str, options: AzureOptions) -> tuple[str, str, str]:
    """Return (account, the rest of the host's name, container) of a URI's first part.

    Raises BadObject for a URI without them, whose host is not one of Azure's, or of another account than the
    credentials; ObjectStoreError when an option is missing.
    """
    if scheme == "az":
        if options.account_name is None:
            raise ObjectStoreError(f"{uri!r} names no account; set azure.accountName")
        return options.account_name, _PUBLIC, bucket
    container, at, host = bucket.partition("@")
    account, _, domain = host.partition(".")
    if not at or not container or not _ACCOUNT.fullmatch(account):
        raise BadObject("missing-object", f"{uri!r} is not abfss://container@account.dfs.core.windows.net/path")
    if options.account_name not in (None, account):
        raise BadObject(
            "missing-object",
            f"{uri!r} is of the account {account!r}, and azure.accountName is {options.account_name!r}",
        )
    # URIs have come in their one form since 0.3, whichever service's domain the option names
    own = {*options.domains, *(domain.replace("blob.", "dfs.", 1) for domain in options.domains)}
    if domain and domain not in _DOMAINS and domain not in own:
        raise BadObject(
            "missing-object",
            f"{uri!r} is at {domain!r}, which is no domain of Azure, so no credentials are sent there; if it is yours, "
            f"add it to the option azure.domains",
        )
    return account, domain or _PUBLIC, container


def azure_arguments(account: str, domain: str, options: AzureOptions) -> dict[str, Any]:
    """Return the keywords of `pyarrow.fs.AzureFileSystem`."""
    arguments: dict[str, Any] = {
        "account_name": account,
        "account_key": options.account_key,
        "sas_token": None if options.sas_token is None else f"?{options.sas_token.lstrip('?')}",  # put behind a URL
        "tenant_id": options.tenant_id,
        "client_id": options.client_id,
        "client_secret": options.client_secret,
    }
    if options.endpoint is not None:
        parts = urlsplit(options.endpoint if "://" in options.endpoint else f"https://{options.endpoint}")
        arguments |= dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), parts.netloc)
        arguments |= dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), parts.scheme)
    elif domain != _PUBLIC:  # a cloud of its own, such as China's
        arguments["dfs_storage_authority"] = f".{domain}"
        arguments["blob_storage_authority"] = f".{domain.replace('dfs.', 'blob.', 1)}"
    return {name: value for name, value in arguments.items() if value is not None}


def blob_service(account: str, domain: str, options: AzureOptions) -> str:
    """Return the URL of the account's Blob service; the host's name may be that of its other service."""
    if options.endpoint is not None:
        url = options.endpoint if "://" in options.endpoint else f"https://{options.endpoint}"
        return f"{url.rstrip('/')}/{account}"
    return f"https://{account}.{domain.replace('dfs.', 'blob.', 1)}"
