"""Where objects live: from a URI to an open file, with the file systems' errors mapped to ours.

A URI is taken **raw**. `s3://bucket/KEY` holds the key as it is (notifications are decoded where they are parsed), and
`file://` is followed by the path as it is: nothing is percent-decoded here, because the URI is the identity of the
object, and `a%20b` and `a b` are two objects. A plain absolute path is a local file.

Used in executor workers, and by the reader process to ask for sizes before planning. File systems are cached per
process; none is used again after a fork.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pyarrow import ArrowInvalid
from pyarrow import fs as pafs

from queue_source.errors import BadObject, MalformedNotification, ObjectRefused, ObjectStoreError
from queue_source.options.connections import AzureOptions, StorageOptions, with_secrets
from queue_source.storage import refusals, s3_client
from queue_source.storage.aws_access import for_pyarrow
from queue_source.storage.azure import SCHEMES, azure_arguments, azure_place
from queue_source.storage.local import LocalFile, file_time, stat_local, version_of
from queue_source.storage.memory import room_for_reading
from queue_source.storage.open_files import ArrowFile, OpenFile
from queue_source.storage.refusals import S3_SCHEMES
from queue_source.uris import check_object, climbs
from shard_store.redaction import redact_text

logger = logging.getLogger("cuesqueue")

_NO_SUCH_NAME = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP})
_STAT_THREADS = 32
_LOCAL_AT_ONCE = 32
_LOCAL_SECONDS = 0.01  # for these: then threads are worth it

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
    with _mapped(uri):
        if scheme in S3_SCHEMES:
            return _s3(*for_pyarrow(storage), os.getpid()), location
        if scheme == "gs":
            return _gcs(storage, os.getpid()), location
        if scheme in SCHEMES:
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


def is_local(uri: str) -> bool:
    """Tell whether the URI names a file of this machine, if it names anything."""
    return uri.startswith("/") or uri[:7].lower() == "file://"


def bucket_of(uri: str) -> str:
    """Return the unit that one permission usually covers: a bucket or container; all local files are one."""
    if is_local(uri):
        return "file:///"
    scheme, _, location = uri.partition("://")
    scheme = scheme.lower()
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{location.partition('/')[0]}/"


def stat_object(uri: str, storage: StorageOptions | None = None) -> ObjectStat:
    """Return size, modification time and version, with one request. Raises BadObject and ObjectStoreError."""
    storage = storage or StorageOptions()
    if _is_read_by_boto3(uri):
        _bucket_and_key(uri)
        with _mapped(uri):
            head = s3_client.head(uri, storage)
        return ObjectStat(head.size, head.modified, s3_client.plain(head.etag))
    filesystem, path = resolve(uri, storage)
    if is_local(uri):
        with _mapped(uri):
            local = stat_local(uri, path)
        return ObjectStat(local.st_size, file_time(local.st_mtime), version_of(local))
    _check_key(uri)
    with _mapped(uri):
        info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        problem = "it is a directory" if info.type == pafs.FileType.Directory else "nothing is there"
        raise BadObject("missing-object", f"{uri!r}: {problem}")
    return ObjectStat(info.size, info.mtime)


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
def open_object(uri: str, storage: StorageOptions | None = None, *, size: int | None = None) -> Iterator[ObjectFile]:
    """Open an object for random reads, and close it at the end. The announced `size` spares bytes.

    Raises BadObject (`missing-object`, `unsupported-key`; of local files also `corrupt-object`, `forbidden-object`),
    ObjectRefused, ObjectStoreError.
    """
    storage = storage or StorageOptions()
    native = _open(uri, storage, size)
    try:
        yield ObjectFile(uri, native, storage)
    finally:
        native.close()


def _open(uri: str, storage: StorageOptions, size: int | None) -> OpenFile:
    if _is_read_by_boto3(uri):
        _bucket_and_key(uri)
        with _mapped(uri):
            return s3_client.S3Object(uri, storage, size)
    filesystem, path = resolve(uri, storage)
    if not is_local(uri):
        _check_key(uri)
    with _mapped(uri):
        return LocalFile(uri, path, storage.local_prefixes) if is_local(uri) else ArrowFile(filesystem, path)


def _is_read_by_boto3(uri: str) -> bool:
    return _scheme(uri) in S3_SCHEMES and s3_client.is_installed()


class ObjectFile:
    """An open object whose reads raise our errors, and which remembers a failed read.

    It is a Python file for pyarrow (`pa.PythonFile`). pyarrow reports a failed read and a damaged Parquet file alike as
    OSError; `failure` distinguishes them: an error there is the store's fault, any other is the object's.
    """

    def __init__(self, uri: str, native: Any, storage: StorageOptions | None = None) -> None:
        self.uri = uri
        self._storage = storage
        self.failure: BadObject | ObjectStoreError | None = None
        self._native = native
        self._is_local = is_local(uri)

    def size(self) -> int:
        """Return the bytes that it has now, as the store reports."""
        return int(self._guarded(self._native.size))

    def etag(self) -> str | None:
        """Return the ETag that came with the opening request, without quotes; None where the store has none."""
        etag: str | None = self._native.etag()
        return etag

    def is_version(self, etag: str) -> bool:
        """Tell whether this may be the object that was announced with this ETag; False only where that is certain."""
        return bool(self._native.is_version(etag.strip('"')))

    def modified(self) -> datetime | None:
        """Return when the open version was last modified (aware, UTC), where the store reports that."""
        modified: datetime | None = self._native.modified
        return modified or stat_object(self.uri, self._storage).modified

    @property
    def is_pinned(self) -> bool:
        """Tell whether each read fails by itself when the object is another one by now."""
        return bool(self._native.is_pinned)

    @property
    def tells_at_once(self) -> bool:
        """Tell whether `is_same` costs no request."""
        return bool(self._native.tells_at_once)

    def is_same(self) -> bool:
        """Tell whether all reads were of the version that was opened; call it before the last of the data is used.

        Where reads are not bound to a version, the store is asked again. Raises ObjectStoreError.
        """
        return bool(self._guarded(self._native.is_same))

    def read(self, size: int | None = None) -> bytes:
        data: bytes = self._guarded(lambda: self._native.read(size))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._guarded(lambda: self._native.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._guarded(self._native.tell))

    @property
    def closed(self) -> bool:
        return bool(self._native.closed)

    def close(self) -> None:
        """Do nothing: `open_object` closes the object, however many readers use it."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            if self._is_local:
                return call()
            with room_for_reading():
                return call()
        except (OSError, ValueError, NotImplementedError, BadObject, ObjectStoreError):
            try:
                with _mapped(self.uri):
                    raise
            except (BadObject, ObjectStoreError) as error:
                self.failure = error
                raise


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
    if _scheme(uri) not in S3_SCHEMES:
        raise BadObject("unsupported-key", f"{uri!r} {problem}, and pyarrow reads no such object; rename it")
    raise BadObject(
        "unsupported-key",
        f"{uri!r} {problem}, and such keys are read by boto3: pip install 'cuesqueue[sqs]' on driver and executors",
    )


@contextmanager
def _mapped(uri: str) -> Iterator[None]:
    """Map the errors of file systems in the block to BadObject and ObjectStoreError."""
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:  # ArrowInvalid and UnicodeError are ValueErrors
        raise_mapped(uri, error)


def raise_mapped(uri: str, error: Exception) -> NoReturn:
    """Raise our error for one of a file system: a missing object is the object's fault, all else is the store's."""
    said = str(error)
    text = redact_text(said)
    cause = error if text == said else None  # a chain of causes would show the token that Azure has in its URLs
    if isinstance(error, (ArrowInvalid, UnicodeError)):
        # a NUL or a lone surrogate, which pyarrow refuses as a path: no try will ever succeed
        raise BadObject("missing-object", f"pyarrow cannot address {uri!r}: {text}") from cause
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or (
        isinstance(error, OSError) and error.errno in _NO_SUCH_NAME
    ):
        raise BadObject("missing-object", f"{uri!r}: {text}") from cause
    if "is a directory" in text or text.startswith("Not a regular file"):  # these two come without an errno
        raise BadObject("missing-object", f"{uri!r}: {text}") from cause
    if _scheme(uri) in S3_SCHEMES and refusals.hides_the_reason(text):
        raise ObjectStoreError(
            f"{uri!r} cannot be read, and pyarrow hides why: pip install 'cuesqueue[sqs]' on driver and executors"
        ) from cause
    own = False if isinstance(error, PermissionError) and is_local(uri) else refusals.of_text(_scheme(uri), text)
    if own is not None:
        raise ObjectRefused(f"{uri!r} is refused: {text}", own=own) from cause
    raise ObjectStoreError(f"{uri!r} cannot be read: {text}") from cause


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].lower()


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
