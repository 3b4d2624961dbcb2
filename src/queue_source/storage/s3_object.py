"""Objects of S3, by GET requests without boto3's model of the service, which take 0.4 times its processor time.

boto3 sends the first request of a bucket, and each one whose answer is not the object. So it alone finds endpoint,
region and certificates, follows redirects, and says why an object is refused.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from queue_source.errors import ObjectRefused, ObjectReplaced
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client
from queue_source.storage.open_files import ObjectVersion
from queue_source.storage.pauses import back_off, check_task, count_retries, pause
from queue_source.storage.s3_client import Connection, Head, answers, connection, head, place, plain
from queue_source.storage.s3_signature import signed
from queue_source.storage.whole import Whole
from shard_store.redaction import redact_text

_TRIES = 3  # at an answer that is cut off; the last ones are boto3's, which tries other failures itself
_BUCKETS = 1000
_THROTTLED = frozenset({429, 503})
_FAILED = 500
_NO_SUCH_RANGE = 416
_OF_THE_OBJECT = frozenset({404, 412, _NO_SUCH_RANGE})
_WHOLE = 200  # of a service that ignores ranges
_PART = 206
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_FIRST_BYTES = 1024
_SIGNED = re.compile(rb"AWS4-HMAC-SHA256 Credential=[^/]+/\d+/([^/]+)/s3/")


class _Answer(NamedTuple):
    """Bytes of an object, and what its headers say; `size` is the whole object's.

    `whole`: all of it, where the service does not answer with less. `stored`: the size by which the service counts it;
    None where the answer has none.
    """

    data: bytes
    size: int
    etag: str | None
    modified: Any
    whole: Whole | None = None
    stored: int | None = None


class _Place(NamedTuple):
    """Where the objects of a bucket are: the URL before their keys, and the region that signs (None: nothing is)."""

    url: str
    region: str | None


class _PassingError(Exception):
    """An answer that was cut off, or none."""


class S3Object(ObjectVersion):
    """An object of S3 by ranged requests, all of the version that the first one has met."""

    def __init__(self, uri: str, storage: StorageOptions, start: int, end: int) -> None:
        """Send one request, which brings these bytes, as far as there are any.

        Raises FileNotFoundError, ObjectRefused, ObjectStoreError.
        """
        self._uri, self._storage = uri, storage
        with answers(uri):
            answer = _sender(storage).get(uri, start, end)
            # without an answer it is empty, or ends before
            self._opened = head(uri, storage) if answer is None else Head(answer.size, answer.etag, answer.modified)
        super().__init__(self._opened.size, plain(self._opened.etag))
        if answer is not None:
            self.hold(start, answer.data)
            self._whole = answer.whole
            self.tells_size = answer.whole is None or answer.stored is not None
            self.stored_size = self.size if answer.stored is None else answer.stored
        self.modified = self._opened.modified
        self.is_pinned = self._opened.etag is not None or self._whole is not None

    def read_range(self, start: int, end: int) -> bytes:
        with answers(self._uri):
            answer = _sender(self._storage).get(self._uri, start, end, self._opened.etag)  # after a fork another one
        if answer is None or answer.size != self.size:
            raise ObjectReplaced(f"{self._uri!r} is another object by now: it had {self.size} bytes")
        if answer.etag != self._opened.etag:  # from a service that ignores the condition
            raise ObjectReplaced(f"{self._uri!r} is another object by now: its ETag is no longer {self.etag}")
        if answer.whole is None:
            return answer.data
        with closing(answer.whole) as whole:  # a service that ignores ranges now and then
            return whole.get(start, end)

    def is_same(self) -> bool:
        return self.is_pinned or head(self._uri, self._storage) == self._opened


def _sender(storage: StorageOptions) -> _Sender:
    return _sender_of(connection(storage))


@lru_cache(maxsize=8)
def _sender_of(made: Connection) -> _Sender:
    return _Sender(made)


class _Sender:
    """GET requests of one client, from any thread."""

    def __init__(self, made: Connection) -> None:
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self._made = made
        self._places: dict[str, _Place | None] = {}
        self._asking = threading.local()
        self._learning = threading.Lock()
        self._session = URLLib3Session(
            verify=made.certificates,
            proxies=get_environ_proxies(made.client.meta.endpoint_url),  # by this URL boto3 finds them, for all buckets
            timeout=s3_client.TIME_OUT,
            max_pool_connections=s3_client.POOL,
        )
        made.client.meta.events.register("before-send.s3.GetObject", self._note)

    def get(self, uri: str, start: int, end: int, etag: str | None = None) -> _Answer | None:
        """Return what the object has of these bytes; None where the store says that it has no such range.

        Raises botocore's errors, ObjectRefused.
        """
        from botocore.exceptions import ClientError

        bucket, key = place(uri)
        pauses = back_off()
        while True:
            seconds = next(pauses, None)
            try:
                with self._met(bucket) as where:
                    if where is None or seconds is None:
                        return self._by_boto3(uri, bucket, key, start, end, etag)
                    status, answer = self._send(uri, where, key, start, end, etag)
                if answer is not None or status == _NO_SUCH_RANGE:
                    return answer
                if status not in _THROTTLED:
                    count_retries(status == 0 or status >= _FAILED)
                    return self._by_boto3(uri, bucket, key, start, end, etag, tries=_TRIES - 1)
            except ClientError as error:
                if seconds is None or _status(error) not in _THROTTLED:
                    raise
            count_retries(1)
            pause(seconds)

    @contextmanager
    def _met(self, bucket: str) -> Iterator[_Place | None]:
        """Give the place of a bucket, None for boto3. It is met by one request, for whose end the others wait."""
        first = bucket not in self._places and self._learning.acquire(blocking=False)
        try:
            if not first and bucket not in self._places:
                with self._learning:
                    pass
            yield self._places.get(bucket)
        finally:
            if first:
                self._learning.release()

    def _send(
        self, uri: str, where: _Place, key: str, start: int, end: int, etag: str | None
    ) -> tuple[int, _Answer | None]:
        """Return the status (0: there was none), and the answer where it is of the object. Raises ObjectRefused."""
        from botocore.awsrequest import AWSPreparedRequest
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        headers = {"range": f"bytes={start}-{end - 1}"} | ({} if etag is None else {"if-match": etag})
        url = where.url + quote(key, safe="/~")
        if where.region is not None:
            headers = signed(headers, url, where.region, *self._made.keys.get_frozen_credentials()[:3])
        try:
            answer = self._session.send(AWSPreparedRequest("GET", url, headers, None, True))
            with closing(answer.raw) as raw:
                if answer.status_code not in (200, 206):
                    raw.drain_conn()
                    return answer.status_code, None
                return answer.status_code, _answer(uri, answer.status_code, answer.headers, raw.read, start, end)
        except (BotoCoreError, HTTPError, _PassingError) as error:
            _raise_hidden(error)
            return 0, None

    def _by_boto3(
        self, uri: str, bucket: str, key: str, start: int, end: int, etag: str | None, *, tries: int = _TRIES
    ) -> _Answer | None:
        from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError  # of a body botocore maps most of them, and not those of TLS

        condition = {} if etag is None else {"IfMatch": etag}
        for remaining_tries in reversed(range(tries)):
            self._asking.key, self._asking.place = key, None
            try:
                answer = self._made.client.get_object(
                    Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **condition
                )
            except ClientError as error:
                count_retries(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
                if (status := _status(error)) in _OF_THE_OBJECT | _THROTTLED:
                    self._remember(bucket)
                if status == _NO_SUCH_RANGE:
                    return None
                raise
            except HTTPClientError as error:
                _raise_hidden(error)
                raise
            facts = answer["ResponseMetadata"]
            count_retries(facts.get("RetryAttempts", 0))
            try:
                with closing(answer["Body"]) as body:  # as a context it would be urllib3's own stream
                    made = _answer(uri, facts["HTTPStatusCode"], facts["HTTPHeaders"], body.read, start, end)
            except (HTTPClientError, IncompleteReadError, HTTPError, _PassingError) as error:
                if remaining_tries:
                    count_retries(1)
                    continue
                said = redact_text(str(error))
                raise _odd(uri, f"{_TRIES} answers of the service were cut off; the last: {said}") from error
            self._remember(bucket)
            return made
        raise AssertionError("unreachable")

    def _remember(self, bucket: str) -> None:
        if len(self._places) >= _BUCKETS:
            self._places.clear()
        self._places[bucket] = self._asking.place

    def _note(self, request: Any, **_: Any) -> None:
        """Note where boto3 sends a request, and how it signs: of several the last one is the right region's."""
        check_task()  # each request that hangs, again by boto3, would hold a task that ends for another minute
        if not (asked := getattr(self._asking, "key", None)):
            return
        before, key, after = request.url.rpartition(quote(asked, safe="/~"))
        said = request.headers.get("Authorization", b"")
        signed = _SIGNED.match(said if isinstance(said, bytes) else said.encode())
        if not key or after or (signed is None) is not (self._made.keys is None):
            return  # signed in another way, which is boto3's alone
        self._asking.place = _Place(before, None if signed is None else signed[1].decode())


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _raise_hidden(error: Exception) -> None:
    """Raise the MemoryError that botocore hides in an error of its own."""
    inner = getattr(error, "kwargs", {}).get("error")
    if isinstance(inner, MemoryError):
        raise inner from error


def _answer(
    uri: str, status: int, headers: Mapping[str, str], read: Callable[..., bytes], start: int, end: int
) -> _Answer:
    """Return what an answer brings. Raises ObjectRefused where it is not of this range, _PassingError if cut off."""
    length, said = int(headers.get("content-length", -1)), headers.get("content-range", "")
    etag, modified = headers.get("etag"), headers.get("last-modified")
    time = None if modified is None else _time(modified)
    size = length
    if status == _WHOLE:
        if length < 0 and "chunked" not in headers.get("transfer-encoding", "").lower():
            raise _odd(uri, "the service does not say how large the object is")
        if start or not 0 <= length <= end - start:  # it ignores ranges, or has unpacked what it stores
            return _all(uri, headers, read, etag, time)
        expected = length
    else:
        if (part := _RANGE.fullmatch(said)) is None or int(part[1]) != start or int(part[2]) >= end:
            said = f"the range {said!r}" if status == _PART else f"the status {status}"
            raise _odd(uri, f"the service answers with {said}")
        if part[3] == "*":
            raise _odd(uri, "the service does not say how large the object is")
        size = int(part[3])
        expected = min(end, size) - start
        if length > end - start:
            raise _PassingError(f"{length} bytes of {expected}")
    data = read() if length >= 0 else _bounded(read, end - start)
    if status == _WHOLE and etag is None:
        _check_error(data)
    if len(data) != expected:
        raise _PassingError(f"{len(data)} bytes of {expected}")
    return _Answer(data, size, etag, time)


def _all(
    uri: str, headers: Mapping[str, str], read: Callable[..., bytes], etag: str | None, time: datetime | None
) -> _Answer:
    """Return all of an object."""
    length, stored = int(headers.get("content-length", -1)), None
    if headers.get("x-goog-stored-content-encoding", "identity") != "identity":  # Cloud Storage, which speaks S3, too
        stored = int(headers.get("x-goog-stored-content-length", -1))
    whole = Whole(uri, read)
    try:
        if etag is None:
            _check_error(whole.get(0, _FIRST_BYTES))
        if length not in (-1, whole.size):
            raise _PassingError(f"{whole.size} bytes of {length}")
    except _PassingError:
        whole.close()
        raise
    said = length if stored in (None, -1) else stored
    return _Answer(b"", whole.size, etag, time, whole, None if said == -1 else said)


def _check_error(data: bytes) -> None:
    if b"<Error>" in data[:_FIRST_BYTES]:
        raise _PassingError("an error, although its status is 200")


def _odd(uri: str, problem: str) -> ObjectRefused:
    """Return the error of an object that cannot be read, as long as the service answers so."""
    return ObjectRefused(f"{uri!r} cannot be read: {problem}", own=False, cause="corrupt-object")


def _bounded(read: Callable[[int], bytes], most: int) -> bytes:
    """Read an answer without a length, which may have no end, as far as more than `most` bytes."""
    data = b""
    while len(data) <= most and (more := read(most + 1 - len(data))):
        data += more
    return data


def _time(said: str) -> datetime:
    """Read a time as botocore does, which takes other forms too, but longer."""
    from botocore.utils import parse_timestamp

    try:
        moment = parsedate_to_datetime(said)
    except ValueError:
        moment = parse_timestamp(said)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
