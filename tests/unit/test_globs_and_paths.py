"""Globs of names as Hadoop reads them, and paths into notifications of a user's own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_source.announcements.parser import JsonPaths, parse_notification
from queue_source.common.globs import _parse, name_matcher, path_glob
from queue_source.errors import MalformedNotification


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
        ("{a,ab}*b", ["ab", "abb", "axb"], ["a", "xb"]),
        ("*a*{b,bc}*c", ["abc", "abcc", "xaxbxc"], ["ab", "abx"]),
        ("**.c?v", [".csv", "a.csv"], ["a.cv"]),
        ("*ab*", ["ab", "aab", "abab"], ["ba"]),
        ("x*", ["x", "xx"], ["ax"]),
        ("a}b,c", ["a}b,c"], ["a"]),
    ],
)
def test_a_glob_matches_the_whole_name(glob: str, matching: list[str], other: list[str]) -> None:
    matcher = name_matcher(glob)
    assert [name for name in [*matching, *other] if matcher.fullmatch(name)] == matching


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("s3://b/*.csv", ["s3://b/a.csv"], ["s3://b/a/a.csv", "s3://c/a.csv", "s3://b/a.csv/x"]),
        ("S3N://b/**", ["s3://b/", "s3://b/a", "s3://b/a/b//c"], ["s3://bb/a", "gs://b/a"]),
        ("s3://*/in/?.csv", ["s3://b/in/a.csv", "s3://c/in/b.csv"], ["s3://b/c/in/a.csv", "s3://b/in/ab.csv"]),
        ("/data/**/x", ["file:///data/x", "file:///data/a/b/x"], ["file:///data/a/xx", "file:///x"]),
        ("abfs://*/in/*.csv", ["abfss://c@l.dfs.core.windows.net/in/a.csv", "abfs://c/in/a.csv"], ["s3://b/in/a.csv"]),
        (
            "wasbs://**/?.csv",
            ["abfss://c@l.dfs.core.windows.net/in/a.csv"],
            ["abfss://c@l.dfs.core.windows.net/ab.csv"],
        ),
        (
            "https://lake.blob.core.windows.net/c/a%20b-?.csv#*",
            ["abfss://c@lake.dfs.core.windows.net/a b-1.csv#2"],
            ["abfss://c@lake.dfs.core.windows.net/a b-", "abfss://c@lake.dfs.core.windows.net/a b-12.csv#"],
        ),
        ("**/a/**/b", ["s3://a/b", "gs://x/a/a/y/b/b"], ["s3://x/b", "s3://x/a"]),
        ("**/{a,b}/[0-9]*", ["s3://x/a/1", "s3://b/9x"], ["s3://x/c/1", "s3://x/a/x", "s3://x/a/d/1"]),
    ],
)
def test_a_glob_of_a_whole_path_keeps_to_its_folders(glob: str, matching: list[str], other: list[str]) -> None:
    matcher = path_glob(glob)
    assert [uri for uri in [*matching, *other] if matcher.matches(uri)] == matching


@pytest.mark.parametrize("glob", ["*.csv", "in/*.csv", "://x", "s3://b/[a", "**"])
def test_a_glob_of_a_whole_path_that_can_match_no_uri_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match=r"begins|not closed"):
        path_glob(glob)


def test_a_path_of_many_parts_is_compared_at_once() -> None:
    matcher = path_glob("**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/b")
    assert not matcher.matches("s3://" + "a/" * 500)


@given(st.text("ab*?{},[c]\\", max_size=10), st.text("abc", max_size=8))
def test_a_glob_matches_what_the_plain_expression_for_it_matches(glob: str, name: str) -> None:
    """The plain one tries all ways to split the name, which takes long; on short names both say the same."""
    try:
        matcher = name_matcher(glob)
    except ValueError:
        return
    meanings = ("".join(".*" if part == "*" else part for part in parts) for parts in _parse(glob, 0, 0).meanings)
    plain = re.compile("|".join(f"(?:{meaning})" for meaning in meanings), re.DOTALL)
    assert bool(matcher.fullmatch(name)) == bool(plain.fullmatch(name))


def test_a_name_that_nearly_matches_takes_no_longer_than_its_length() -> None:
    """If every way to split the name was tried, this would not end."""
    assert not name_matcher("*-*-*-*-*-*-*-*.csv").fullmatch("-" * 100_000)
    assert not name_matcher("*{a,aa}*{a,aa}*{a,aa}*b").fullmatch("a" * 20_000)
    assert name_matcher("*-*-*-*.csv").fullmatch("-" * 100_000 + ".csv")


def test_a_glob_with_very_many_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1000"):
        name_matcher("{a,b}" * 30)


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
