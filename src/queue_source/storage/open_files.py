"""Open objects: one version of each, by ranges of bytes (`ObjectVersion`), or as a file (`ObjectFile`).

A failure of a store is mapped to our errors: a missing object is the object's fault, a refusal is for good, and every
other failure counts as passing: the task fails, and Spark tries it again.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from pyarrow import ArrowInvalid
from pyarrow import fs as pafs

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.storage.memory import room_for_reading
from shard_store.redaction import redact_text

T = TypeVar("T")

AT_LEAST = 256 << 10
"""Bytes of the smallest request of a file that reads ahead: fewer take as long."""
AT_MOST = 32 << 20
"""Bytes of the largest request for more than was asked for."""
_GAP = 64 << 10  # between two reads that still follow each other

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
AZURE_SCHEMES = frozenset({"abfs", "abfss", "az"})
AZURE_OWN = frozenset({"BlobArchived", "BlobBeingRehydrated"})
"""Codes by which Azure refuses an object for a reason of its own."""
_REFUSED = frozenset({400, 401, 403, 405, 451})
"""Statuses that another request does not change. 400: SSE-C, a key that is too long; expired credentials too."""
_OWN_CODES = frozenset({"InvalidObjectState", "InvalidRequest", "KeyTooLongError", "MethodNotAllowed"})
_PASSING = re.compile(r"Time-?out|Throttl|SlowDown|IncompleteBody", re.IGNORECASE)
_HIDDEN_ANSWER = "Failed to flush response stream"
_S3_STATUS = re.compile(r"AWS Error UNKNOWN \(HTTP status (\d+)\)")
_S3_EXCEPTION = re.compile(r"Unable to parse ExceptionName: (\S+)")
_S3_NAMED = {
    "AWS Error ACCESS_DENIED": "AccessDenied",
    "AWS Error INVALID_ACCESS_KEY_ID": "InvalidAccessKeyId",
    "AWS Error INVALID_CLIENT_TOKEN_ID": "InvalidClientTokenId",
    "AWS Error SIGNATURE_DOES_NOT_MATCH": "SignatureDoesNotMatch",
    "AWS Error UNRECOGNIZED_CLIENT": "UnrecognizedClient",
    "AWS Error INVALID_OBJECT_STATE": "InvalidObjectState",
    "operation is not valid for the object's storage class": "InvalidObjectState",  # pyarrow has no name for the code
    "operation is not valid for the object's access tier": "InvalidObjectState",
}
_GOOGLE = re.compile(r"Status\((PERMISSION_DENIED|UNAUTHENTICATED):")
_AZURE = re.compile(r"Azure Error: \[(\w*)\] (\d{3})")
_NO_SUCH_NAME = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP})


class ObjectVersion(ABC):
    """One version of an object: the one that existed when it was opened. Usable by several threads.

    Attributes:
        size: Bytes.
        etag: Without quotes; None where the store has none.
        is_local: Reading takes no memory of a client for requests.
        is_pinned: Each read fails by itself when the object is another one by now, so nothing is asked at the end.
        tells_at_once: `is_same` costs no request: it is asked before each batch, and none is held back.
        modified: Aware, UTC; None where the store does not report it. May be a request.
    """

    is_local = False
    is_pinned = False
    tells_at_once = False
    modified: datetime | None = None

    def __init__(self, size: int, etag: str | None = None) -> None:
        self.size, self.etag = size, etag

    @abstractmethod
    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, which is not beyond the size; fewer if the object has shrunk."""

    def is_same(self) -> bool:
        """Tell whether all reads were of the version that was opened. Raises what reading raises."""
        return True

    def is_version(self, etag: str) -> bool:
        """Tell whether it may be the object of this ETag (without quotes): False only where that is certain."""
        return self.etag is None or self.etag == etag

    def close(self) -> None:  # noqa: B027 - most versions hold nothing
        """Give back what is held. It is not read any more."""


class InMemory(ObjectVersion):
    """Bytes that are there already, as those of a message's body."""

    is_local = is_pinned = True

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self._data = data

    def read_range(self, start: int, end: int) -> bytes:
        return self._data[start:end]


class ArrowObject(ObjectVersion):
    """An object that pyarrow reads: of Google's by its generation in each request, of others the present version."""

    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        """Open the object with one request. Raises what pyarrow raises."""
        self._filesystem, self._path = filesystem, path
        self._native: Any = filesystem.open_input_file(path)
        self.is_pinned = filesystem.type_name == "gcs"
        self._facts = {} if self.is_pinned else _facts(self._native)  # Google would be asked once more
        super().__init__(self._native.size(), self._facts.get("ETag"))

    @property
    def modified(self) -> datetime | None:  # type: ignore[override]
        modified: datetime | None = self._filesystem.get_file_info(self._path).mtime
        return modified

    def read_range(self, start: int, end: int) -> bytes:
        try:
            data: bytes = self._native.read_at(end - start, start)
        except FileNotFoundError as error:
            raise ObjectReplaced(f"{self._path!r} is another object by now, or none: {error}") from error
        return data

    def is_same(self) -> bool:
        if self.is_pinned:
            return True
        try:
            with self._filesystem.open_input_file(self._path) as now:
                return now.size() == self.size and _facts(now) == self._facts
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._native.close()


def _facts(native: Any) -> dict[str, str]:
    """Return the facts that distinguish a version of an object from others; the ETag without quotes."""
    facts: dict[str, str] = {}
    for key, value in (native.metadata() or {}).items():  # pyarrow returns text, or bytes
        name, text = (part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in (key, value))
        if name in ("ETag", "Last-Modified") and text:
            facts[name] = text.strip('"')
    return facts


class ObjectFile:
    """An open object as a file, also for pyarrow (`pa.PythonFile`). Its reads raise our errors.

    Attributes:
        version: What is read.
        failure: The last error of a read. pyarrow reports a failed read and a damaged Parquet file alike as OSError:
            where there is a failure it is the store's fault, without one the object's.
        at_least: Bytes of the smallest request. Where it is not 0, each request brings more and more, as long as what
            is asked for follows what was asked for before.
        closed: Whether the object was closed by its opener.
    """

    def __init__(self, uri: str, version: ObjectVersion) -> None:
        self.uri, self.version = uri, version
        self.failure: BadObject | ObjectStoreError | None = None
        self.at_least = 0
        self.closed = False
        self._place = self._asked = 0
        self._start, self._ahead = 0, b""  # the bytes that were read ahead, and where they begin

    def size(self) -> int:
        return self.version.size

    def modified(self) -> datetime | None:
        """Return when the open version was last modified (aware, UTC), where the store reports that."""
        return self._guarded(lambda: self.version.modified)

    def is_same(self) -> bool:
        """Tell whether all reads were of the version that was opened; call it before the last of the data is used.

        Where reads are not bound to a version, the store is asked again. Raises ObjectStoreError.
        """
        return self._guarded(self.version.is_same)

    def read_range(self, start: int, end: int) -> bytes:
        """Return these bytes, by one request; it may be called by several threads, and does not move the place.

        Raises BadObject("object-changed") where the object ends before, also ObjectReplaced and ObjectStoreError.
        """
        return self._guarded(self._exactly, start, end)

    def read(self, size: int | None = None) -> bytes:
        """Return the bytes from the place on, and move it; fewer than `size` only at the end of the object."""
        start, whole = self._place, self.size()
        end = whole if size is None or size < 0 else min(start + size, whole)
        if end <= start:
            return b""
        buffered = self._ahead[start - self._start : end - self._start] if start >= self._start else b""
        data: Any = buffered
        if self.at_least:  # as views, which are not copied
            if len(buffered) < end - start:
                follows = self._asked <= start <= self._asked + _GAP
                ahead = min(2 * len(self._ahead), AT_MOST) if follows else 0
                buffered = self._ahead = b""  # before more is read
                most = min(start + max(end - start, ahead, self.at_least), whole)
                self._start, self._ahead = start, self.read_range(start, most)
            data = memoryview(self._ahead)[start - self._start : end - self._start]
        else:
            if end - self._start >= len(self._ahead):  # what may be a whole block is not held any longer
                self._ahead = b""
            if len(buffered) < end - start:
                data = self.read_range(start + len(buffered), end)
                data = buffered + data if buffered else data
        self._place = self._asked = end
        return data  # type: ignore[no-any-return]

    def peek(self, size: int) -> bytes:
        """Return the bytes from the place on, which `read` returns again without asking for them again."""
        start = self._place
        self._ahead = bytes(self.read(size))
        self._place = self._start = start
        return self._ahead

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size()}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        """Do nothing: the opener closes the object, however many readers use it."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def _exactly(self, start: int, end: int) -> bytes:
        if self.closed:
            raise ValueError("read of a closed file")
        data = self.version.read_range(start, end)
        if len(data) < end - start:
            ends = f"it ends at byte {start + len(data)}, and had {self.size()} when it was opened"
            raise BadObject("object-changed", ends)
        return data

    def _guarded(self, call: Callable[..., T], *arguments: int) -> T:
        try:
            if self.version.is_local:
                return call(*arguments)
            with room_for_reading():
                return call(*arguments)
        except (OSError, ValueError, NotImplementedError, BadObject, ObjectStoreError):
            try:
                with mapped(self.uri):
                    raise
            except (BadObject, ObjectStoreError) as error:
                self.failure = error
                raise


def is_local(uri: str) -> bool:
    """Tell whether the URI names a file of this machine, if it names anything."""
    return uri.startswith("/") or uri[:7].lower() == "file://"


def scheme_of(uri: str) -> str:
    return uri.partition("://")[0].lower()


@contextmanager
def mapped(uri: str) -> Iterator[None]:
    """Map the errors of file systems in the block to BadObject and ObjectStoreError."""
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:  # ArrowInvalid and UnicodeError are ValueErrors
        raise_mapped(uri, error)


def raise_mapped(uri: str, error: Exception) -> NoReturn:
    """Raise our error for one of a file system: a missing object is the object's fault, all else is the store's."""
    said, scheme = str(error), scheme_of(uri)
    text = redact_text(said)
    cause = error if text == said else None  # a chain of causes would show the token that Azure has in its URLs
    if isinstance(error, (ArrowInvalid, UnicodeError)):
        # a NUL or a lone surrogate, which pyarrow refuses as a path: no try will ever succeed
        raise BadObject("missing-object", f"pyarrow cannot address {uri!r}: {text}") from cause
    if (
        isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        or (isinstance(error, OSError) and error.errno in _NO_SUCH_NAME)
        or "is a directory" in text  # this and the next come without an errno
        or text.startswith("Not a regular file")
    ):
        raise BadObject("missing-object", f"{uri!r}: {text}") from cause
    own = False if isinstance(error, PermissionError) and is_local(uri) else _refusal_in(text, scheme)
    if own is None and scheme in S3_SCHEMES and _HIDDEN_ANSWER in text:  # for a small object it is cut off
        raise ObjectStoreError(
            f"{uri!r} cannot be read, and pyarrow hides why: pip install 'cuesqueue[sqs]' on driver and executors"
        ) from cause
    if own is not None:
        raise ObjectRefused(f"{uri!r} is refused: {text}", own=own) from cause
    raise ObjectStoreError(f"{uri!r} cannot be read: {text}") from cause


def s3_refusal(status: int, code: str, message: str) -> bool | None:
    """Tell whether S3's answer refuses the object for a reason of its own; None when it is no refusal."""
    if status not in _REFUSED or _PASSING.search(code):
        return None
    return code in _OWN_CODES or code.startswith("KMS.") or "kms:" in message.lower()


def _refusal_in(text: str, scheme: str) -> bool | None:
    """Tell the same for an error text of pyarrow, which has less than the store's answer."""
    if scheme in S3_SCHEMES:
        named = next((code for words, code in _S3_NAMED.items() if words in text), None)
        if named is not None:
            return s3_refusal(403, named, text)
        status, exception = _S3_STATUS.search(text), _S3_EXCEPTION.search(text)
        return None if status is None else s3_refusal(int(status[1]), exception[1] if exception else "", text)
    if scheme == "gs":
        return None if _GOOGLE.search(text) is None else "kms" in text.lower()
    if scheme in AZURE_SCHEMES and (match := _AZURE.search(text)) is not None:
        if match[1] in AZURE_OWN:
            return True
        return False if int(match[2]) in (401, 403) else None
    return None
