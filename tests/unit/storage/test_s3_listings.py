"""Listings of S3 by servers that answer oddly: with no listing at all, with half of one, with pages of nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from queue_source.errors import ObjectStoreError
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import Bucket, open_bucket

Answer = Callable[[dict[str, str]], str]
"""From the query of a request to the body of its answer."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        body = self.server.answer(query).encode()  # type: ignore[attr-defined]
        self.send_response_only(200)
        if (date := self.server.date) is not None:  # type: ignore[attr-defined]
            self.send_header("Date", date)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""


@contextmanager
def served(answer: Answer, date: str = "Sun, 22 Nov 2026 04:00:00 GMT") -> Iterator[Bucket]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.answer, server.date = answer, date  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    bucket = open_bucket(
        "s3://b/", StorageOptions(endpoint=url, access_key="test", secret_key="test", region="us-east-1")
    )
    try:
        yield bucket
    finally:
        bucket.close()
        server.shutdown()
        thread.join()
        server.server_close()


def listing(*parts: str, root: str = "ListBucketResult") -> str:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<{root} xmlns="{space}"><EncodingType>url</EncodingType>{"".join(parts)}</{root}>'


def entry(key: str, time: str = "2026-01-01T00:00:00.000Z") -> str:
    return f'<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>"e"</ETag><Size>1</Size></Contents>'


def more(token: str = "") -> str:
    return "<IsTruncated>true</IsTruncated>" + (f"<NextContinuationToken>{token}</NextContinuationToken>" * bool(token))


def uris(bucket: Bucket, *, versions: bool = False) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = bucket.page("s3://b/", cursor, versions=versions)
        found += [one.uri for one in page.objects]
        if (cursor := page.cursor) is None:
            return found


ODD = {
    "empty": "",
    "cut": listing(entry("a"))[:-30],
    "a page to sign in": "<html>sign in</html>",
    "another answer": "<ListAllMyBucketsResult/>",
    "an entry without a name": listing("<Contents><Size>1</Size></Contents>"),
    "an entry without a size": listing(entry("a").replace("<Size>1</Size>", "")),
    "a size that is no number": listing(entry("a").replace("<Size>1<", "<Size>one<")),
    "no time": listing(entry("a", "")),
    "a time that is none": listing(entry("a", "yesterday")),
}


@pytest.mark.parametrize("versions", [False, True], ids=["objects", "versions"])
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_an_answer_that_is_no_listing_is_never_an_empty_bucket(body: str, versions: bool) -> None:
    with served(lambda query: body) as bucket, pytest.raises(ObjectStoreError, match="'s3://b/' cannot be listed"):
        bucket.page("s3://b/", versions=versions)


def test_a_date_that_is_none_is_no_clock() -> None:
    with served(lambda query: listing(), date="soon") as bucket, pytest.raises(ObjectStoreError, match="soon"):
        bucket.page("s3://b/")


def test_times_without_a_zone_are_those_of_the_world() -> None:
    answer = listing(entry("a", "2026-01-01T00:00:00"))
    with served(lambda query: answer, date="Sun, 22 Nov 2026 04:00:00 -0000") as bucket:
        page = bucket.page("s3://b/")
    assert page.objects[0].modified.isoformat() == "2026-01-01T00:00:00+00:00"
    assert page.now.isoformat() == "2026-11-22T04:00:00+00:00"


def test_a_listing_goes_on_behind_pages_of_nothing() -> None:
    pages = {None: listing(more("1")), "1": listing(more("2")), "2": listing(entry("a"), more("3"))}

    def answer(query: dict[str, str]) -> str:
        if query.get("start-after") == "a":
            return listing(entry("b"))
        return pages[query.get("continuation-token")]

    with served(answer) as bucket:
        assert uris(bucket) == ["s3://b/a", "s3://b/b"]


def test_a_listing_of_versions_goes_on_behind_pages_of_nothing() -> None:
    def answer(query: dict[str, str]) -> str:
        if (query.get("key-marker"), query.get("version-id-marker")) == ("k", "v"):
            return listing(entry("z").replace("Contents>", "Version>"), root="ListVersionsResult")
        markers = "<NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>v</NextVersionIdMarker>"
        return listing(more(), markers, root="ListVersionsResult")

    with served(answer) as bucket:
        assert uris(bucket, versions=True) == ["s3://b/z"]


def test_names_in_another_order_are_listed_where_they_are_all_and_else_an_error() -> None:
    """A directory bucket lists in no order: behind the last name of a page there may be some that come before it."""
    with served(lambda query: listing(entry("b"), entry("a"))) as bucket:
        assert uris(bucket) == ["s3://b/b", "s3://b/a"]
    with (
        served(lambda query: listing(entry("b"), entry("a"), more("t"))) as bucket,
        pytest.raises(ObjectStoreError, match="another order"),
    ):
        uris(bucket)


def test_names_that_are_no_text_end_no_listing() -> None:
    def answer(query: dict[str, str]) -> str:
        if query.get("continuation-token") == "t":
            return listing(entry("z"))
        return listing(entry("%FF"), entry("%FF%FE"), more("t"))

    with served(answer) as bucket:
        assert uris(bucket) == ["s3://b/z"]


@pytest.mark.parametrize(
    "body",
    [listing(more()), listing(more("t")), listing(entry("a"), more("t"))],
    ids=["nothing to go on with", "the same token", "the same page"],
)
def test_a_listing_that_never_goes_on_is_an_error(body: str) -> None:
    with served(lambda query: body) as bucket, pytest.raises(ObjectStoreError, match="does not go on"):
        uris(bucket)
