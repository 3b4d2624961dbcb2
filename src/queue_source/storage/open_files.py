"""Open objects: one version of each, by ranges of bytes (`ObjectVersion`), or as a file (`ObjectFile`).

A failure of a store is mapped to our errors: a missing object is the object's fault, a refusal is for good, and every
other failure counts as passing: the task fails, and Spark tries it again.

Of local files only regular ones are opened, whatever a name leads to, and only where their real path may be read. A
message names the path, and any user who can write into an allowed folder makes the links in it. The checked file and
the read one are one open file, so it cannot be exchanged in between.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pyarrow import ArrowInvalid
from pyarrow import fs as pafs

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.storage.memory import room_for_reading
from queue_source.storage.whole import Whole
from shard_store.redaction import redact_text

T = TypeVar("T")

AT_LEAST = 256 << 10
"""Bytes of the smallest request of a file that reads ahead: fewer take as long."""
AT_MOST = 32 << 20
"""Bytes of the largest request for more than was asked for."""
_GAP = 64 << 10  # between two reads that still follow each other
_JOINED = 4 << 20
"""Bytes of the largest answer to which those that are held are joined: that takes its memory twice."""

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
        stored_size: Bytes by which the store counts it, and its announcements: others where it unpacks what it answers
            with.
        tells_size: Whether the store says it; else `stored_size` is the number of bytes that came.
        etag: Without quotes; None where the store has none.
        is_local: Reading takes no memory of a client for requests.
        is_pinned: Each read fails by itself when the object is another one by now, so nothing is asked at the end.
        tells_at_once: `is_same` costs no request: it is asked before each batch, and none is held back.
        modified: Aware, UTC; None where the store does not report it. May be a request.
    """

    is_local = False
    is_pinned = False
    tells_at_once = False
    tells_size = True
    modified: datetime | None = None

    def __init__(self, size: int, etag: str | None = None) -> None:
        self.size = self.stored_size = size
        self.etag = etag
        self._start, self._held = 0, b""
        self._whole: Whole | None = None

    def hold(self, start: int, data: bytes) -> None:
        """Keep these bytes of the object, which came before they were asked for."""
        self._start, self._held = start, data

    def holds(self, start: int, end: int) -> bool:
        """Tell whether all these bytes are held."""
        return self._whole is not None or (self._start <= start and end <= self._start + len(self._held))

    def get(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end` as `read_range` does; those that are held without a request."""
        if self._whole is not None:
            return self._whole.get(start, end)
        held = self._held[start - self._start : end - self._start] if start >= self._start else b""
        if len(held) == end - start:
            return held
        if end - start > _JOINED:
            held = b""
        data = self.read_range(start + len(held), end)
        return held + data if held else data

    @abstractmethod
    def read_range(self, start: int, end: int) -> bytes:
        """Ask for the bytes from `start` to `end`, not beyond the size; fewer if the object has shrunk."""

    def is_same(self) -> bool:
        """Tell whether all reads were of the version that was opened. Raises what reading raises."""
        return True

    def identifies(self) -> str | None:
        """Return the text by which `is_version` knows this version again; None where nothing does."""
        return self.etag

    def is_version(self, etag: str) -> bool:
        """Tell whether it may be the object of this ETag (without quotes): False only where that is certain."""
        return self.etag is None or self.etag == etag

    def close(self) -> None:
        """Give back what is held. It is not read any more."""
        self._held = b""
        if self._whole is not None:
            self._whole.close()


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
        facts = _facts(self._native)
        self._facts = {} if self.is_pinned else facts  # Google's ETags change with the metadata
        super().__init__(self._native.size(), self._facts.get("ETag"))
        if self.is_pinned and facts.get("Content-Encoding", "identity") != "identity":
            # the service unpacks it, unless `no-transform` is stored with it: only what comes tells how much it is
            self._whole = Whole(path, self._native.read)
            self.size = self._whole.size

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
        super().close()
        self._native.close()


def _facts(native: Any) -> dict[str, str]:
    """Return the facts that distinguish a version of an object from others; the ETag without quotes."""
    facts: dict[str, str] = {}
    for key, value in (native.metadata() or {}).items():  # pyarrow returns text, or bytes
        name, text = (part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in (key, value))
        if name in ("ETag", "Last-Modified", "Content-Encoding") and text:
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
        until: Where the part ends that is read; None: it is all of the object.
    """

    def __init__(self, uri: str, version: ObjectVersion, threads: Executor | None = None) -> None:
        """With `threads` the next bytes are asked for while the ones before are parsed."""
        self.uri, self.version, self._threads = uri, version, threads
        self._next: tuple[int, int, Future[bytes]] | None = None
        self.failure: BadObject | ObjectStoreError | None = None
        self.at_least = 0
        self.closed = False
        self.until: int | None = None
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

        def exactly() -> bytes:
            if self.closed:
                raise ValueError("read of a closed file")
            data = self.version.get(start, end)
            if len(data) < end - start:
                ends = f"it ends at byte {start + len(data)}, and had {self.size()} when it was opened"
                raise BadObject("object-changed", ends)
            return data

        return self._guarded(exactly)

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
                self._start, self._ahead = start, self._read_ahead(start, most, min(2 * (most - start), AT_MOST))
            data = memoryview(self._ahead)[start - self._start : end - self._start]
        else:
            if end - self._start >= len(self._ahead):  # what may be a whole block is not held any longer
                self._ahead = b""
            if len(buffered) < end - start:
                data = self._read_ahead(start + len(buffered), end, end - start)
                data = buffered + data if buffered else data
        self._place = self._asked = end
        return data  # type: ignore[no-any-return]

    def _read_ahead(self, start: int, end: int, then: int) -> bytes:
        """Return these bytes, and ask for as many as `then` behind them, where reading goes on from its last place."""
        asked, self._next = self._next, None
        follows = start == 0 or asked is not None or start == self._asked
        if asked is None or not asked[0] <= start < end <= asked[1]:
            data = self.read_range(start, end)
        else:
            data = asked[2].result()[start - asked[0] : end - asked[0]]
        until = min(end + then, self.size(), self.until or self.size())
        if self._threads is not None and follows and until > end and not self.version.holds(end, until):
            self._next = end, until, self._threads.submit(self.read_range, end, until)
        return data

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

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            with nullcontext() if self.version.is_local else room_for_reading():
                return call()
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
            f"{uri!r} cannot be read, and pyarrow hides why: pip install 'cuesqueue[aws]' on driver and executors"
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


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_VERSION = "mtime-"
"""How the versions of files begin, which have no ETag: what a message says of them is not compared."""


class LocalObject(ObjectVersion):
    """A regular file that may be read. Thousands of small ones are opened in a task: with few system calls each.

    A file that is replaced under its name is read to its end as it was; one that is written to shows it by its time.
    """

    is_local = tells_at_once = True

    def __init__(self, uri: str, path: str, prefixes: Sequence[str]) -> None:
        """Open the file; with `prefixes` of URIs, its real path begins with one of them.

        Raises BadObject and OSError.
        """
        stat_local(uri, path)  # before it is opened, since that may do something to a device
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
        try:
            status = os.fstat(self._descriptor)
            _check_regular(uri, status)
            if prefixes:
                _check_place(uri, real_path(self._descriptor, path), prefixes)
        except BaseException:
            os.close(self._descriptor)
            raise
        super().__init__(status.st_size)
        self._opened = status
        if not status.st_size and os.pread(self._descriptor, 1, 0):
            os.close(self._descriptor)
            raise BadObject("object-changed", f"{uri!r} has bytes, although its file system says that it has none")

    @property
    def modified(self) -> datetime:  # type: ignore[override]
        return file_time(self._opened.st_mtime)

    def is_same(self) -> bool:
        return version_of(os.fstat(self._descriptor)) == version_of(self._opened)

    def identifies(self) -> str:
        return version_of(self._opened)

    def is_version(self, etag: str) -> bool:
        return not is_version(etag) or etag == version_of(self._opened)

    def read_range(self, start: int, end: int) -> bytes:
        data = os.pread(self._descriptor, end - start, start)
        if not data or len(data) == end - start:
            return data
        parts = [data]  # a system call reads 2 GB at most
        while parts[-1]:
            start += len(parts[-1])
            parts.append(os.pread(self._descriptor, end - start, start))
        return b"".join(parts)

    def close(self) -> None:
        os.close(self._descriptor)


def stat_local(uri: str, path: str) -> os.stat_result:
    """Return the system's status of a regular file, readable or not. Raises BadObject and OSError."""
    if "\0" in path:
        raise BadObject("missing-object", f"{uri!r} contains a NUL, which no path does")
    status = os.stat(path)  # noqa: PTH116 - costs less
    _check_regular(uri, status)
    return status


def version_of(status: os.stat_result) -> str:
    """Return a text that identifies a file before later writes to it, in place of an ETag."""
    return f"{_VERSION}{status.st_mtime_ns}-{status.st_size}"


def is_version(etag: str) -> bool:
    """Tell whether a text is a result of `version_of` for a file, and no ETag."""
    return etag.startswith(_VERSION)


def file_time(seconds: float) -> datetime:
    """Return a file's time in UTC; the last or the first time of the calendar where the file's is beyond it."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return (datetime.max if seconds > 0 else datetime.min).replace(tzinfo=timezone.utc)


def _check_regular(uri: str, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise BadObject("missing-object", f"{uri!r}: it is a directory")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise BadObject("corrupt-object", f"{uri!r} is {kind}; only regular files are read")


def _check_place(uri: str, real: str, prefixes: Sequence[str]) -> None:
    plain = tuple(prefix.removeprefix("file://") for prefix in prefixes)  # many are read without a look at links
    if not real.startswith(plain) and not real.startswith(allowed_places(prefixes)):
        raise BadObject(
            "forbidden-object",
            f"{uri!r} is a link to {real!r}, which starts with none of the allowed prefixes; name it in option "
            "'allowedPrefixes' if it may be read",
        )


def allowed_places(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the beginnings of the real paths that may be read, by the present links."""
    allowed = tuple(prefix.removeprefix("file://") for prefix in prefixes)
    # a prefix may itself lead over links, as /tmp does on a Mac; its last part need not be a whole name
    parts = (prefix.rpartition("/") for prefix in allowed)
    return allowed + tuple(f"{os.path.realpath(folder or '/').rstrip('/')}/{name}" for folder, _, name in parts)


def real_path(descriptor: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - costs less
    except OSError:  # not on Linux
        return str(Path(path).resolve())
