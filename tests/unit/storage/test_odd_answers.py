"""Whatever a bucket answers: it is the object, of one version and to its end, or an error that says why not.

Each answer comes to the first request of a bucket, which boto3 sends, and to later ones, which go without it.
"""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client, s3_object
from queue_source.storage.fetching import Fetcher, Requested
from support.servers.s3 import Asked, Change, Reply, S3Server, fails, s3_server

DATA = os.urandom(300_000)
OTHER = bytes(300_000)
PART = 64 << 10  # so the first request brings twice as much, and others the rest
MIDDLE = 2
"""The number of the first request for what is in the middle."""


@pytest.fixture(params=["by boto3", "without it"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # by botocore
    monkeypatch.setattr(s3_object, "pause", lambda seconds: None)
    with s3_server(keeps=True) as server:
        server.objects |= {"b/k": DATA, "b/met": b"x"}
        yield server


@pytest.fixture
def met(s3: S3Server, way: str) -> S3Server:
    """The server, after the bucket was met, where the test is of later requests."""
    if way == "without it":
        assert read(s3, "b/met", 1) == b"x"
        assert not by_boto3(s3, "b/met")[1:]
    return s3


def storage(s3: S3Server, **options: str) -> StorageOptions:
    given = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": "s3://", **s3.options, **options}
    return parse_reader_options(given).content.storage


def read(s3: S3Server, name: str, size: int | None = len(DATA), start: int | None = 0, *, at_once: int = PART) -> bytes:
    """Read as a task does; from its end, where `start` is None, as formats with a footer do."""
    with Fetcher([Requested(f"s3://{name}", size, start, at_once)], storage(s3), requests=4, ahead=1 << 20) as fetcher:
        with fetcher.open(0) as file:
            if start is None:
                return file.read_range(file.size() - 1000, file.size()) + file.read_range(0, file.size() - 1000)
            return b"".join(iter(lambda: bytes(file.read(100_000)), b""))


def whole(s3: S3Server, name: str = "b/k", size: int | None = len(DATA)) -> bytes:
    return read(s3, name, size, at_once=1 << 20)


def by_boto3(s3: S3Server, name: str) -> list[Asked]:
    """Return what boto3 itself has asked for of an object."""
    return [asked for asked in s3.asked if asked.path == f"/{name}" and "amz-sdk-invocation-id" in asked.headers]


def at(first: int, change: Callable[[Asked, Reply], Reply | None], times: int = 1 << 30) -> Change:
    """Change GETs from this one on, so many of them."""

    def changed(asked: Asked, reply: Reply) -> Reply | None:
        return change(asked, reply) if asked.method == "GET" and first <= asked.number < first + times else None

    return changed


def shifted(asked: Asked, reply: Reply) -> Reply:
    """Answer with other bytes than those that were asked for, and say so."""
    begin, end = map(int, reply.headers["Content-Range"][6:].partition("/")[0].split("-"))
    begin, end = (begin + 1, end + 1) if end + 1 < len(DATA) else (begin - 1, end - 1)
    headers = {**reply.headers, "Content-Range": f"bytes {begin}-{end}/{len(DATA)}"}
    return replace(reply, headers=headers, body=DATA[begin : end + 1])


def shorter(asked: Asked, reply: Reply) -> Reply:
    """Answer with the first half of the range, and say so."""
    begin = int(reply.headers["Content-Range"][6:].partition("-")[0])
    body = reply.body[: len(reply.body) // 2]
    said = f"bytes {begin}-{begin + len(body) - 1}/{len(DATA)}"
    return replace(reply, headers={**reply.headers, "Content-Range": said}, body=body)


def ranged(said: str) -> Callable[[Asked, Reply], Reply]:
    """Say this of the range; nothing, where it is empty."""
    return lambda asked, reply: replace(reply, headers={**reply.headers, "Content-Range": said})


PASSING: dict[str, Callable[[Asked, Reply], Reply]] = {
    "cut off": lambda asked, reply: replace(reply, sent=len(reply.body) // 2),
    "cut off before the first byte": lambda asked, reply: replace(reply, sent=0),
    "reset before headers": lambda asked, reply: replace(reply, says_nothing=True, resets=True),
    "reset after headers": lambda asked, reply: replace(reply, sent=0, resets=True),
    "closed without an answer": lambda asked, reply: replace(reply, says_nothing=True),
    "chunks that end early": lambda asked, reply: replace(reply, is_chunked=True, sent=len(reply.body) // 2),
    "an empty answer": lambda asked, reply: replace(reply, body=b""),
    "fewer bytes than it says": lambda asked, reply: replace(reply, body=reply.body[:-1]),
    "more bytes than it says": lambda asked, reply: replace(reply, body=reply.body + b"x"),
    "half of the range": shorter,
    "500": lambda asked, reply: fails(500, "InternalError"),
    "503": lambda asked, reply: fails(503, "SlowDown"),
    "429": lambda asked, reply: fails(429, "TooManyRequests"),
    "an error with the status 200": lambda asked, reply: replace(fails(500, "InternalError"), status=200),
}


@pytest.mark.parametrize("first", [1, MIDDLE])
@pytest.mark.parametrize("change", PASSING.values(), ids=PASSING)
def test_what_passes_is_tried_again(met: S3Server, change: Callable[[Asked, Reply], Reply], first: int) -> None:
    met.changes["b/k"] = at(first, change, times=1)
    assert read(met, "b/k") == DATA
    assert met.requests["GET", "b/k"] == 4


OF_THE_SERVICE = ("reset before headers", "closed without an answer", "500", "503", "429")


@pytest.mark.parametrize("first", [1, MIDDLE])
@pytest.mark.parametrize("change", PASSING.values(), ids=PASSING)
def test_what_does_not_pass_ends_as_an_error_of_the_store(
    met: S3Server, change: Callable[[Asked, Reply], Reply], first: int
) -> None:
    met.changes["b/k"] = at(first, change)
    with pytest.raises(ObjectStoreError, match="'s3://b/k' cannot be read") as error:
        read(met, "b/k")
    if change in [PASSING[name] for name in OF_THE_SERVICE]:
        assert type(error.value) is ObjectStoreError
    else:  # perhaps it is this object's alone
        assert isinstance(error.value, ObjectRefused)
        assert (error.value.own, error.value.cause) == (False, "corrupt-object")


WRONG: dict[str, Callable[[Asked, Reply], Reply]] = {
    "another range": shifted,
    "no range is said": ranged(""),
    "a range of unknown size": lambda asked, reply: ranged(f"{reply.headers['Content-Range'].partition('/')[0]}/*")(
        asked, reply
    ),
    "a range in other units": ranged("lines 1-2/3"),
}
ALL: dict[str, Callable[[Asked, Reply], Reply]] = {
    "all of it, although it is larger": lambda asked, reply: Reply(200, {"ETag": reply.headers["ETag"]}, DATA),
    "all of it, in chunks": lambda asked, reply: Reply(200, {"ETag": reply.headers["ETag"]}, DATA, is_chunked=True),
}


@pytest.mark.parametrize("first", [1, MIDDLE])
@pytest.mark.parametrize("change", ALL.values(), ids=ALL)
def test_a_service_that_answers_with_all_of_it_is_read(
    met: S3Server, change: Callable[[Asked, Reply], Reply], first: int
) -> None:
    met.changes["b/k"] = at(first, change)
    assert read(met, "b/k") == DATA
    assert read(met, "b/k", start=None) == DATA[-1000:] + DATA[:-1000]


@pytest.mark.parametrize("first", [1, MIDDLE])
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_answer_that_is_not_of_the_range_is_refused(
    met: S3Server, change: Callable[[Asked, Reply], Reply], first: int
) -> None:
    met.changes["b/k"] = at(first, change)
    with pytest.raises(ObjectRefused, match=r"'s3://b/k' cannot be read.*the service") as error:
        read(met, "b/k")
    assert (error.value.own, error.value.cause) == (False, "corrupt-object")


def test_of_a_service_that_ignores_ranges_small_objects_are_read(met: S3Server) -> None:
    for is_chunked in (False, True):
        met.changes["b/k"] = lambda asked, reply, chunks=is_chunked: (  # type: ignore[misc]
            None if reply.status > 206 else Reply(200, {"ETag": reply.headers["ETag"]}, DATA, is_chunked=chunks)
        )
        for size in (len(DATA), None):
            assert whole(met, size=size) == DATA


def test_all_of_an_object_is_not_taken_for_the_end_of_a_larger_one(met: S3Server) -> None:
    """It was announced with another size, and the service ignores ranges."""
    met.objects["b/k"] = DATA[:1500]
    met.changes["b/k"] = lambda asked, reply: Reply(200, {"ETag": '"1"'}, DATA[:1500])
    assert read(met, "b/k", start=None) == DATA[500:1500] + DATA[:500]


def test_an_answer_whose_end_nobody_tells_is_refused(met: S3Server) -> None:
    """Where neither length nor chunks are said, a cut one looks like a whole one."""
    unsaid = {"Content-Length": "", "ETag": '"1"'}
    met.changes["b/k"] = lambda asked, reply: Reply(200, unsaid, DATA, sent=len(DATA) // 2)
    with pytest.raises(ObjectStoreError, match="does not say"):
        whole(met)


def test_of_an_answer_without_an_end_no_more_is_read_than_shows_it() -> None:
    assert len(s3_object._bounded(bytes, 100)) == 101


def test_chunks_are_joined(met: S3Server) -> None:
    met.changes["b/k"] = lambda asked, reply: replace(reply, is_chunked=True)
    assert read(met, "b/k") == whole(met) == DATA


@pytest.mark.parametrize("size", [1, 1 << 40])
def test_an_object_of_another_size_than_announced_is_opened_as_it_is(met: S3Server, size: int) -> None:
    assert read(met, "b/k", size) == DATA
    assert read(met, "b/k", size, start=None) == DATA[-1000:] + DATA[:-1000]


def test_what_is_stored_compressed_comes_as_it_is_stored(met: S3Server) -> None:
    met.objects["b/k"] = stored = gzip.compress(b"1,x\n" * 100_000)
    met.changes["b/k"] = lambda asked, reply: replace(reply, headers={**reply.headers, "Content-Encoding": "gzip"})
    assert whole(met, size=len(stored)) == stored


@pytest.mark.parametrize(
    "said", ["2026-11-22T04:00:00Z", "Sun, 22 Nov 2026 04:00:00 -0000", "Sun, 22 Nov 2026 04:00:00 GMT"]
)
def test_times_are_aware_as_boto3_reads_them(met: S3Server, said: str) -> None:
    met.changes["b/k"] = lambda asked, reply: replace(reply, headers={**reply.headers, "Last-Modified": said})
    with Fetcher([Requested("s3://b/k", 1)], storage(met), requests=1, ahead=1) as fetcher, fetcher.open(0) as file:
        modified = file.modified()
    assert modified is not None
    assert modified.isoformat() == "2026-11-22T04:00:00+00:00"


ANSWERS = {
    "ExpiredToken": (fails(400, "ExpiredToken"), ObjectRefused),
    "RequestTimeTooSkewed": (fails(403, "RequestTimeTooSkewed"), ObjectRefused),
    "AccessDenied": (fails(403, "AccessDenied"), ObjectRefused),
    "NoSuchKey": (fails(404, "NoSuchKey"), BadObject),
    "NoSuchBucket": (fails(404, "NoSuchBucket"), BadObject),
    "PreconditionFailed": (fails(412, "PreconditionFailed"), ObjectReplaced),
    "NotImplemented": (fails(501, "NotImplemented"), ObjectStoreError),
    "no content": (Reply(204, {}, b""), ObjectRefused),
    "a redirect that leads nowhere": (fails(307, "TemporaryRedirect"), ObjectStoreError),
}


@pytest.mark.parametrize("first", [1, MIDDLE])
@pytest.mark.parametrize(("reply", "kind"), ANSWERS.values(), ids=ANSWERS)
def test_a_refusal_is_said_as_boto3_says_it(met: S3Server, reply: Reply, kind: type[Exception], first: int) -> None:
    met.changes["b/k"] = at(first, lambda asked, before: reply)
    with pytest.raises(kind) as error:
        read(met, "b/k")
    assert type(error.value) is kind
    assert "s3://b/k" in str(error.value)
    if reply.status > 300:
        assert reply.body.split(b"Code>")[1].removesuffix(b"</").decode() in str(error.value)
    assert read(met, "b/met", 1) == b"x"


def test_no_such_range_in_the_middle_is_another_object(met: S3Server) -> None:
    """Of a service that does not look at the condition first."""
    met.changes["b/k"] = at(MIDDLE, lambda asked, reply: fails(416, "InvalidRange"))
    with pytest.raises(ObjectReplaced):
        read(met, "b/k")


@pytest.mark.parametrize("tags", [True, False])
def test_an_object_that_is_replaced_between_two_requests_is_never_mixed(met: S3Server, tags: bool) -> None:
    """By a service that ignores conditions, with ETags and without."""

    def replaced(asked: Asked, reply: Reply) -> Reply:
        data = DATA if asked.number == 1 else OTHER
        begin, end = map(int, asked.headers["Range"][6:].split("-"))
        end = min(end + 1, len(data))
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}", "ETag": f'"{data is DATA}"' if tags else ""}
        return Reply(206, headers, data[begin:end])

    met.changes["b/k"] = at(1, replaced)
    if tags:
        with pytest.raises(ObjectReplaced):
            read(met, "b/k")
        return
    with Fetcher([Requested("s3://b/k", len(DATA), 0, PART)], storage(met), requests=4, ahead=1) as fetcher:
        with fetcher.open(0) as file:
            assert not file.version.is_pinned
            file.read()
            met.changes["b/k"] = lambda asked, reply: replace(
                reply, headers={"Last-Modified": "Mon, 23 Nov 2026 04:00:00 GMT"}
            )
            assert not file.is_same()


def test_time_outs_are_tried_again(met: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slept, wait = [], threading.Event()
    monkeypatch.setattr(s3_client, "TIME_OUT", (0.2, 0.2))
    monkeypatch.setattr(s3_object, "TIME_OUT", (0.2, 0.2), raising=False)

    def late(asked: Asked, reply: Reply) -> None:
        slept.append(asked.number)
        wait.wait(0.5)

    met.objects["b2/met"] = b"x"
    met.objects["b2/k"] = DATA
    s3_client._client.cache_clear()
    assert read(met, "b2/met", 1) == b"x"
    met.changes["b2/k"] = at(1, late, times=1)
    assert read(met, "b2/k") == DATA
    met.changes["b2/k"] = at(1, late)
    with pytest.raises(ObjectStoreError, match="timeout"):
        read(met, "b2/k")
    assert len(slept) <= 1 + 4
