"""URIs and the prefixes that they are compared with: one form for both, so that comparing texts is enough."""

from __future__ import annotations

import pytest

from queue_source.errors import MalformedNotification
from queue_source.uris import climbs, plain_prefix, plain_uri


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://b/k", "s3://b/k"),
        ("s3://b/a%20b+c?d#e", "s3://b/a%20b+c?d#e"),
        ("s3://b//k", "s3://b//k"),
        ("S3A://b/k", "s3://b/k"),
        ("s3n://b/k", "s3://b/k"),
        ("GS://b/dir/", "gs://b/dir/"),
        ("s3://Bucket/Key", "s3://Bucket/Key"),
        ("abfss://fs@account.dfs.core.windows.net/k", "abfss://fs@account.dfs.core.windows.net/k"),
        ("/data/a%20b.json", "file:///data/a%20b.json"),
        ("//data///x", "file:///data/x"),
        ("file:///data/a%20b.json", "file:///data/a b.json"),
        ("file:/data/x", "file:///data/x"),
        ("FILE://localhost/data/x", "file:///data/x"),
        ("/allowed/../etc/passwd", "file:///etc/passwd"),
        ("file:///allowed/%2e%2e/etc/passwd", "file:///etc/passwd"),
        ("file:///allowed%2f..%2f..%2fetc/passwd", "file:///etc/passwd"),
        ("file:////../../etc/passwd", "file:///etc/passwd"),
    ],
)
def test_a_uri_or_path_has_one_form(text: str, uri: str) -> None:
    assert plain_uri(text) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "s3://",
        "s3://b",
        "s3://b/",
        "s3:///k",
        "s3:/b/k",
        "file://nas/x",
        "file://..",
        "/",
        "/..",
        "s3://b/k\n",
    ],
)
def test_what_names_no_object_is_malformed(text: str) -> None:
    with pytest.raises(MalformedNotification):
        plain_uri(text)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("s3://", "s3://"),
        ("s3://landing", "s3://landing/"),
        ("s3://landing/", "s3://landing/"),
        ("s3://landing/2025-", "s3://landing/2025-"),
        ("S3A://landing", "s3://landing/"),
        ("s3n://", "s3://"),
        ("abfss://fs@account.dfs.core.windows.net", "abfss://fs@account.dfs.core.windows.net/"),
        ("file://", "file://"),
        ("file:///data/in", "file:///data/in"),
        ("/data/in/", "file:///data/in/"),
        ("//data//in/./", "file:///data/in/"),
        ("file:////data/.//in//2025-", "file:///data/in/2025-"),
        ("/data/.in/..b/", "file:///data/.in/..b/"),
        ("s3://landing//in/./", "s3://landing//in/./"),
    ],
)
def test_a_prefix_has_the_form_of_the_uris_and_ends_a_bucket(text: str, prefix: str) -> None:
    assert plain_prefix(text) == prefix


@pytest.mark.parametrize("text", ["landing/", "*", "s3:", "s3:/landing/", "file://nas/share/", "file:/data/"])
def test_a_prefix_that_no_uri_begins_with_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no URI begins with"):
        plain_prefix(text)


@pytest.mark.parametrize(
    ("uri", "is_other"),
    [
        ("s3://b/in/../secret/k", True),
        ("s3://b/../other/k", True),
        ("s3://b/in/./k", True),
        ("s3://b/in/..", True),
        ("abfss://fs@account.dfs.core.windows.net/in/../k", True),
        ("s3://b/in/..k", False),
        ("s3://b/in/k..", False),
        ("s3://b/in/%2e%2e/k", False),
        ("s3://b/in//k", False),
        ("gs://b/in/../k", False),
    ],
)
def test_dots_that_http_resolves_name_another_object(uri: str, is_other: bool) -> None:
    assert climbs(uri) is is_other
