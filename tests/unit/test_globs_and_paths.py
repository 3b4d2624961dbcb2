"""Globs of names as Hadoop reads them, and paths into notifications of a user's own."""

from __future__ import annotations

import pytest

from queue_source.announcements.parser import parse_notification
from queue_source.errors import MalformedNotification
from queue_source.options.globs import name_matcher
from queue_source.options.json_paths import JsonPaths


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*.csv", ["a.csv", ".csv", "a.b.csv"], ["a.csv.gz", "acsv"]),
        ("part-?.json", ["part-1.json"], ["part-10.json", "part-.json"]),
        ("*.{csv,json}", ["a.csv", "a.json"], ["a.txt", "a.{csv,json}"]),
        ("*.csv{,.gz}", ["a.csv", "a.csv.gz"], ["a.csv.bz2"]),
        ("[a-c]*", ["a", "bx"], ["d", ""]),
        ("[^a-c]*", ["d"], ["a"]),
        ("a\\*b", ["a*b"], ["axb"]),
        ("a+(b).$", ["a+(b).$"], ["aab."]),
        ("{a,{b,c}}x", ["ax", "bx", "cx"], ["x"]),
    ],
)
def test_a_glob_matches_the_whole_name(glob: str, matching: list[str], other: list[str]) -> None:
    matcher = name_matcher(glob)
    assert [name for name in [*matching, *other] if matcher.fullmatch(name)] == matching


def uris(body: bytes, paths: JsonPaths) -> list[str]:
    return [notice.uri for notice in parse_notification(body, None, "json", paths).objects]


def test_a_path_walks_names_and_every_element_of_a_list() -> None:
    body = b'{"detail": {"files": [{"uri": "gs://b/1"}, {"uri": "gs://b/2"}]}}'
    assert uris(body, JsonPaths(uri="detail.files.uri")) == ["gs://b/1", "gs://b/2"]


def test_buckets_go_with_their_keys_and_one_bucket_goes_with_all() -> None:
    paths = JsonPaths(bucket="o.bucket", key="o.key")
    assert uris(b'[{"o": {"bucket": "a", "key": "1"}}, {"o": {"bucket": "b", "key": "x y"}}]', paths) == [
        "s3://a/1",
        "s3://b/x y",
    ]
    assert uris(b'{"b": "gs://a/", "files": ["1", "2"]}', JsonPaths(bucket="b", key="files")) == [
        "gs://a/1",
        "gs://a/2",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"o": []}',
        b'{"o": [{"key": "1", "bucket": "a"}, {"key": "2"}]}',
        b'{"o": [{"key": "1", "bucket": "a"}, {"bucket": "b"}]}',
        b'{"o": {"key": 1, "bucket": "a"}}',
        b'{"o": {"key": "", "bucket": "a"}}',
        b'{"o": "key"}',
        b"not JSON",
        b"\xff",
    ],
)
def test_what_does_not_have_everything_is_malformed_and_never_read_by_halves(body: bytes) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification(body, None, "json", JsonPaths(bucket="o.bucket", key="o.key"))
