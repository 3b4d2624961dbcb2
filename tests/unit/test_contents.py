"""From messages to contents: which URIs may be read, which are left out, and what becomes of their messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from queue_source.announcements.contents import (
    OUTSIDE_PREFIXES,
    Announced,
    announced_messages,
    announced_objects,
    version_headers,
)
from queue_source.messages import Receipt, Received
from queue_source.options import parse_reader_options

LEAST = {
    "queueUrl": "sql+sqlite:///jobs.db?queue=files",
    "fileFormat": "json",
    "allowedPrefixes": "s3://,gs://,abfss://",
}
ASKED: list[str] = []


def received(body: bytes | str, headers: dict[str, str] | None = None) -> Received:
    text = body.encode() if isinstance(body, str) else body
    return Received("files", "m", Receipt("r"), text, receive_count=1, lease_until=0.0, headers=headers or {})


def no_sizes(uris: Sequence[str]) -> list[None]:
    ASKED.extend(uris)
    return [None] * len(uris)


def take(*bodies: bytes | str, **options: str) -> list[Announced]:
    """What the bodies, a message each, come to with the reader's options."""
    ASKED.clear()
    return announced_objects(
        [received(body) for body in bodies], parse_reader_options({**LEAST, **options}).notifications, no_sizes
    )


def uris(announced: list[Announced]) -> list[str]:
    return [content.uri for one in announced for content in one.contents]


def refused(announced: list[Announced]) -> list[int]:
    """Which of the messages are errors."""
    return [place for place, one in enumerate(announced) if one.error is not None]


def refusals(announced: list[Announced]) -> list[str]:
    return [one.error.detail for one in announced if one.error is not None]


@pytest.mark.parametrize("uri", ["s3://b/k", "S3A://b/k", "gs://b/k", "abfss://fs@account.dfs.core.windows.net/k"])
def test_objects_of_the_known_stores_are_allowed_by_default(uri: str) -> None:
    assert len(uris(take(uri))) == 1


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "/etc/passwd", "http://host/k", "hdfs://host/k", "az://c/k"])
def test_all_else_is_refused_by_default_and_never_looked_at(uri: str) -> None:
    announced = take(uri)
    assert uris(announced) == []
    assert "starts with none of the allowed prefixes" in refusals(announced)[0]
    assert ASKED == []


@pytest.mark.parametrize(
    ("prefixes", "uri"),
    [
        ("s3://landing", "s3://landing/k"),
        ("s3://landing/", "S3://landing/k"),
        ("s3a://landing/", "s3n://landing/k"),
        ("S3://landing/", "s3://landing/k"),
        ("gs://x/, s3://landing/in/", "s3://landing/in/k"),
        ("s3://landing/2025-", "s3://landing/2025-03/k"),
        ("/data/in/", "file:///data/in/k"),
        ("file:///data/in/", "/data/in/sub/../k"),
        ("file:///data/my folder/", "file:///data/my%20folder/k"),
    ],
)
def test_a_prefix_allows_what_begins_with_it_however_the_scheme_is_written(prefixes: str, uri: str) -> None:
    assert len(uris(take(uri, allowedPrefixes=prefixes))) == 1


@pytest.mark.parametrize(
    ("prefixes", "uri"),
    [
        ("s3://landing", "s3://landing-evil/k"),
        ("s3://landing", "s3://landing.evil/k"),
        ("s3://landing", "s3://landing@evil/k"),
        ("s3://landing/in/", "s3://landing/in"),
        ("s3://landing/in/", "s3://landing/IN/k"),
        ("s3://landing/", "s3://Landing/k"),
        ("s3://landing/", "gs://landing/k"),
        ("s3://landing/in/", "s3://landing/in%2F/k"),
        ("file:///data/in/", "/data/in/../../etc/passwd"),
        ("file:///data/in/", "file:///data/in/%2e%2e/%2e%2e/etc/passwd"),
        ("file:///data/in/", "file:///data/in/..%2f..%2fetc/passwd"),
        ("file:///data/in/", "file:///data/in-evil/k"),
        ("file:///data/in/", "file:///DATA/in/k"),
    ],
)
def test_what_only_looks_like_an_allowed_prefix_is_refused(prefixes: str, uri: str) -> None:
    announced = take(uri, allowedPrefixes=prefixes)
    assert uris(announced) == []
    assert "'allowedPrefixes'" in refusals(announced)[0]


@pytest.mark.parametrize("key", ["in/../secret/k", "in/../../other/k", "in/./k", "in/.."])
def test_a_key_with_dots_that_the_client_would_resolve_is_refused(key: str) -> None:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "landing"}, "object": {"key": key}}}
    announced = take(json.dumps({"Records": [record]}), allowedPrefixes="s3://landing/in/")
    assert uris(announced) == []
    assert "has a segment '.' or '..'" in refusals(announced)[0]
    assert ASKED == []


@pytest.mark.parametrize(
    "bucket", ["l?acl=", "l?", "l#", "l%2F", "l m", "l\tm", "", ".", "..", "b\u202e", "ü", "b" * 600, "a&b", "a;b"]
)
def test_a_bucket_whose_name_would_change_the_request_is_refused(bucket: str) -> None:
    """With addresses `host/bucket/key` the store would be asked for something else than an object."""
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": "k"}}}
    announced = take(json.dumps({"Records": [record]}), json.dumps([f"s3://{bucket}/k"]), allowedPrefixes="s3://")
    assert uris(announced) == []
    assert refused(announced) == [0, 1]


@pytest.mark.parametrize(
    "bucket", ["my-bucket.x", "Old_Bucket", "tenant:bucket", "$web", "c@lake.dfs.core.windows.net"]
)
def test_names_that_buckets_have_are_taken(bucket: str) -> None:
    assert uris(take(f"s3://{bucket}/k")) == [f"s3://{bucket}/k"]


@pytest.mark.parametrize(("prefix", "longest"), [("s3://b/", 1024), ("gs://b/", 1024), ("file:///", 4096)])
def test_a_key_longer_than_any_store_takes_is_refused(prefix: str, longest: int) -> None:
    fits, long = prefix + "k" * longest, prefix + "ü" * (longest // 2) + "k"
    announced = take(fits, long, allowedPrefixes=prefix)
    assert uris(announced) == [fits]
    assert f"has {longest + 1} bytes" in refusals(announced)[0]
    assert len(refusals(announced)[0]) < 300


def test_an_etag_that_no_store_would_make_is_refused() -> None:
    item = {"key": "k", "eTag": "e" * 2_000}
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "landing"}, "object": item}}
    assert "ETag or version" in refusals(take(json.dumps({"Records": [record]})))[0]


def test_a_message_that_announces_more_objects_than_the_option_allows_is_refused_as_a_whole() -> None:
    many, few = (json.dumps([f"s3://b/{number}" for number in range(count)]) for count in (4, 3))
    announced = take(many, few, maxObjectsPerMessage="3")
    assert refused(announced) == [0]
    assert "announces 4 objects" in refusals(announced)[0]
    assert "'maxObjectsPerMessage' allows 3" in refusals(announced)[0]
    assert uris(announced) == ASKED
    assert "10,000" in refusals(take(json.dumps([f"s3://b/{number}" for number in range(10_001)])))[0]


def test_one_forbidden_object_makes_an_error_of_its_message_and_of_no_other() -> None:
    announced = take('["s3://a/1", "s3://b/2"]', "s3://a/3", allowedPrefixes="s3://a/")
    assert uris(announced) == ["s3://a/3"]
    assert refused(announced) == [0]
    assert announced[0].error is not None
    assert announced[0].error.cause == OUTSIDE_PREFIXES
    assert announced[0].error.input == b'["s3://a/1", "s3://b/2"]'


def test_a_url_that_is_refused_shows_no_token() -> None:
    """Its message is kept as it came; the detail goes to the log too."""
    signed = ("https://lake-secondary.blob.core.windows.net/c/k?sv=1&sig=verysecret", "https://h/../k?sig=verysecret")
    details = refusals(take(*signed))
    assert len(details) == 2
    assert not [detail for detail in details if "verysecret" in detail]


def test_json_paths_lead_out_of_no_prefix() -> None:
    options = {"notificationFormat": "json", "bucketPath": "bucket", "keyPath": "key", "allowedPrefixes": "s3://a/"}
    bodies = [{"bucket": "a", "key": "k"}, {"bucket": "gs://a", "key": "k"}, {"bucket": "a", "key": "../b/k"}]
    announced = take(*map(json.dumps, bodies), json.dumps({"bucket": "file://", "key": "a/k"}), **options)
    assert uris(announced) == ["s3://a/k"]
    assert refused(announced) == [1, 2, 3]


REWRITES = '{"s3://b/": "file:///mnt/b/", "s3a://b/deep/": "s3://c/", "named/in/": "gs://named/"}'


@pytest.mark.parametrize(
    ("announced", "read"),
    [
        ("s3://b/1.csv", "file:///mnt/b/1.csv"),
        ("s3a://b/1 %2B.csv", "file:///mnt/b/1 %2B.csv"),
        ("s3://b/deep/2.csv", "s3://c/2.csv"),
        ("s3://named/in/3.csv", "gs://named/3.csv"),
        ("s3://bb/4.csv", "s3://bb/4.csv"),
    ],
)
def test_an_object_is_read_where_its_prefix_is_rewritten_to(announced: str, read: str) -> None:
    allowed = "file:///mnt/b/,s3://c/,gs://named/,s3://bb/"
    assert uris(take(announced, pathRewrites=REWRITES, allowedPrefixes=allowed)) == [read]


@pytest.mark.parametrize(
    ("prefix", "target", "read"),
    [
        ("s3://b", "file:///mnt/b", ["file:///mnt/b/in/1", "s3://bb/2"]),
        ("s3://b/in", "s3://b2", ["s3://b2/1", "s3://bb/2"]),
        ("b", "file:///mnt/b", ["file:///mnt/b/in/1", "s3://bb/2"]),
        ("s3://b/i", "file:///mnt/i", ["file:///mnt/in/1", "s3://bb/2"]),
    ],
)
def test_a_rewritten_bucket_ends_where_its_name_does(prefix: str, target: str, read: list[str]) -> None:
    options = {"pathRewrites": json.dumps({prefix: target}), "allowedPrefixes": "file:///mnt/,s3://b2/,s3://bb/"}
    assert uris(take("s3://b/in/1", "s3://bb/2", **options)) == read


def test_a_rewritten_object_must_be_within_the_allowed_prefixes_by_its_new_name() -> None:
    options = {"pathRewrites": '{"s3://b/": "file:///mnt/b/"}', "allowedPrefixes": "s3://b/,file:///mnt/b/in/"}
    announced = take("s3://b/1.csv", "s3://b/in/../../2.csv", "s3://b/in/3.csv", **options)
    assert uris(announced) == ["file:///mnt/b/in/3.csv"]
    assert refused(announced) == [0, 1]


def test_the_etag_of_another_store_tells_versions_apart_and_is_not_compared_with_a_file() -> None:
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}}}
    record["s3"]["object"] = {"key": "1.csv", "size": 3, "eTag": "e1"}  # type: ignore[index]
    event = json.dumps({"Records": [record]})
    options = {"pathRewrites": '{"s3://b/": "file:///mnt/b/"}', "allowedPrefixes": "file:///mnt/b/"}
    (announced,) = take(event, **options, allowOverwrites="true")
    assert [(content.shard_id, content.etag) for content in announced.contents] == [("file:///mnt/b/1.csv#e1", None)]


def test_objects_that_the_glob_leaves_out_are_counted_as_ignored() -> None:
    announced = take('["s3://b/1.csv", "s3://b/_SUCCESS", "s3://b/1.csv.crc"]', pathGlobFilter="*.csv")
    assert uris(announced) == ["s3://b/1.csv"]
    assert announced[0].ignored == 2


def test_a_message_of_which_the_glob_leaves_nothing_is_ignored_as_a_whole() -> None:
    announced = take("s3://b/_SUCCESS", "s3://b/1.csv", pathGlobFilter="*.csv")
    assert [one.ignored for one in announced] == [1, 0]
    assert [len(one.contents) for one in announced] == [0, 1]


def test_the_glob_looks_at_the_last_part_of_the_path_alone() -> None:
    assert uris(take("s3://b/x.csv/part", "s3://b/a/b/part.csv", pathGlobFilter="*.csv")) == ["s3://b/a/b/part.csv"]


def test_what_the_glob_leaves_out_need_not_be_allowed() -> None:
    announced = take("s3://elsewhere/_SUCCESS", pathGlobFilter="*.csv", allowedPrefixes="s3://b/")
    assert [one.ignored for one in announced] == [1]
    assert refused(announced) == []


HIDDEN = [
    "_temporary/0/part-0.csv", "_delta_log/0.json", "_committed_1", "_SUCCESS", ".part-0.crc", "a/.hidden/b.csv",
    "a/_b/c/d.csv", "_metadata", "_common_metadata", "a/_metadata", "x.csv._COPYING_", "x._COPYING_/y.csv", ".a=1/b",
    "_spark_metadata/0",
]  # fmt: skip
SHOWN = ["a_b/c.csv", "_year=2026/a.csv", "a/_b=c", "_metadata_of_folders/a.csv", "x_", "a.b/c", "~/a", "-/_x=1/y"]


@pytest.mark.parametrize("prefix", ["s3://", "s3://b/", "s3://b/in/", "s3://b/in/,s3://b/"])
def test_hidden_names_below_a_prefix_are_left_out_and_counted(prefix: str) -> None:
    bodies = [f"s3://b/in/{name}" for name in (*HIDDEN, *SHOWN)]
    announced = take(json.dumps(bodies), *bodies, allowedPrefixes=prefix)
    assert uris(announced) == bodies[len(HIDDEN) :] * 2
    assert [one.ignored for one in announced] == [len(HIDDEN), *[1] * len(HIDDEN), *[0] * len(SHOWN)]
    assert refused(announced) == []
    assert uris(take(*bodies, allowedPrefixes=prefix, readHiddenFiles="true")) == bodies


@pytest.mark.parametrize(
    "prefix", ["s3://b/in/_staging/", "s3://b/in/_", "s3://b/,s3://b/in/_staging/", "s3://b/in/_staging"]
)
def test_what_a_prefix_names_itself_is_not_hidden(prefix: str) -> None:
    assert uris(take("s3://b/in/_staging/a.csv", allowedPrefixes=prefix)) == ["s3://b/in/_staging/a.csv"]
    assert uris(take("s3://b/in/_staging/_a.csv", allowedPrefixes=prefix)) == []


def test_a_hidden_name_that_no_prefix_allows_is_refused_like_any_other() -> None:
    assert refused(take("s3://other/_x", allowedPrefixes="s3://b/")) == [0]


def test_the_glob_of_the_whole_path_leaves_out_folders() -> None:
    found = ["s3://b/in/2026-01/a.csv", "s3://b/in/x/y/2026-02/b.csv"]
    others = ["s3://b/in/2025-01/a.csv", "s3://b/2026-01/a.csv", "s3://b/in/2026-01/x/a.csv", "s3://c/in/2026-01/a.csv"]
    announced = take(json.dumps([*found, *others]), fullPathGlobFilter="s3a://b/in/**/2026-*/*.csv")
    assert uris(announced) == found
    assert announced[0].ignored == len(others)
    both = {"fullPathGlobFilter": "**/in/**", "pathGlobFilter": "b*"}
    assert uris(take(json.dumps([*found, *others]), **both)) == found[1:]


def test_events_that_create_nothing_are_ignored_and_what_is_not_understood_is_an_error() -> None:
    announced = take('{"Event": "s3:TestEvent"}', "hello", b"\xff")
    assert announced[0].ignored == 1
    assert refused(announced) == [1, 2]
    assert refusals(announced) == ["the body is neither JSON nor a URI", "the body is not UTF-8"]


def test_gcs_attributes_are_the_headers_of_the_message() -> None:
    headers = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k", "payloadFormat": "NONE"}
    options = parse_reader_options(LEAST).notifications
    assert uris(announced_objects([received(b"", headers)], options, no_sizes)) == ["gs://b/k"]


def test_sizes_are_asked_for_once_and_only_where_they_are_not_told() -> None:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "told", "size": 3}}}
    take(json.dumps({"Records": [record]}), "s3://b/1", '["s3://b/1", "s3://b/2"]')
    assert ASKED == ["s3://b/1", "s3://b/2"]


def test_a_version_is_part_of_the_identity_only_when_overwrites_are_read() -> None:
    item = {"key": "k", "size": 3, "eTag": "e", "versionId": "v"}
    event = json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": item}}]}
    )
    identities = [take(event, allowOverwrites=flag)[0].contents[0].shard_id for flag in ("false", "true")]
    assert identities == ["s3://b/k", "s3://b/k#v"]


def test_a_message_without_an_id_is_content_only_where_the_user_says_what_makes_it_one() -> None:
    """Two equal messages may be two events: to take them for one silently would lose data that cannot be re-sent."""
    messages = [received("tick"), replace(received("tick"), message_id="content-1", has_id=False)]
    options = {"queueUrl": LEAST["queueUrl"], "content": "message"}
    first, second = announced_messages(messages, parse_reader_options(options).notifications)
    assert (len(first.contents), first.error) == (1, None)
    assert second.contents == ()
    assert second.error is not None
    assert (second.error.cause, second.error.input) == ("no-message-id", b"tick")
    options["messageIdentity"] = "content"
    lenient = announced_messages(messages, parse_reader_options(options).notifications)
    assert [(len(one.contents), one.error) for one in lenient] == [(1, None), (1, None)]


def test_a_content_is_as_old_as_its_message_or_else_as_the_event_that_it_reports() -> None:
    event = {"eventName": "ObjectCreated:Put", "eventTime": "1970-01-01T00:00:02Z", "eventSource": "aws:s3"}
    where = {"s3": {"bucket": {"name": "bucket"}, "object": {"key": "a", "size": 1}}}
    body = json.dumps({"Records": [{**event, **where}]}).encode()
    options = parse_reader_options(
        {"queueUrl": "sim://files", "fileFormat": "json", "allowedPrefixes": "s3://"}
    ).notifications
    timed, untimed = replace(received(body), sent_at=5.5), replace(received(body), sent_at=None)
    bare = replace(received(b"s3://bucket/b"), sent_at=None)
    found = announced_objects([timed, untimed, bare], options, no_sizes)
    assert [one.contents[0].sent_at for one in found] == [5_500_000, 2_000_000, None]
    [message] = announced_messages([replace(timed, has_id=True)], options)
    assert message.contents[0].sent_at == 5_500_000


ANNOUNCED = {"size": 1024, "eTag": "spelt otherwise"}


@pytest.mark.parametrize(
    ("trust", "size", "etag"), [("all", 1024, "spelt otherwise"), ("size", 1024, None), ("none", None, None)]
)
def test_what_is_not_trusted_of_a_notification_is_as_if_it_were_not_said(
    trust: str, size: int | None, etag: str | None
) -> None:
    facts = {"key": "k", **ANNOUNCED}
    record = {"eventName": "ObjectCreated:Put", "eventTime": "2026-11-28T00:00:00Z",
              "s3": {"bucket": {"name": "b"}, "object": facts}}  # fmt: skip
    (one,) = take(json.dumps({"Records": [record]}), trustNotification=trust)
    (content,) = one.contents
    assert (content.uri, content.size, content.etag) == ("s3://b/k", size, etag)
    assert ["s3://b/k"] * (size is None) == ASKED
    (one,) = take(json.dumps({"Records": [record]}), trustNotification=trust, allowOverwrites="true")
    assert one.contents[0].shard_id == "s3://b/k#spelt otherwise", "versions are told apart as they are announced"
    take(json.dumps({"Records": [record]}), trustNotification=trust, modifiedAfter="2026-01-01T00:00:00Z")
    assert ["s3://b/k"] * (size is None) == ASKED, "the time of an untrusted size is that of the store"


@pytest.mark.parametrize("trust", ["all", "size", "none"])
def test_a_version_that_is_announced_anew_has_the_facts_of_its_message_whatever_is_there_by_now(trust: str) -> None:
    options = parse_reader_options({**LEAST, "allowOverwrites": "true", "trustNotification": trust})
    headers = version_headers("v1", 7, "the first")
    ASKED.clear()
    [one] = announced_objects([received("s3://b/k", headers)], options.notifications, no_sizes)
    [content] = one.contents
    assert (content.shard_id, content.size, content.etag) == ("s3://b/k#v1", 7, "the first")
    assert ASKED == [], "the store has the facts of another version, perhaps"


@pytest.mark.parametrize("size", ["", "-1", "1.5", "\u0661", "much", "9" * 19, "9" * 5000])
def test_a_version_of_a_size_that_is_none_is_a_bad_message(size: str) -> None:
    options = parse_reader_options({**LEAST, "allowOverwrites": "true"}).notifications
    headers = {**version_headers("v1"), "Object-Size": size}
    [one] = announced_objects([received("s3://b/k", headers)], options, no_sizes)
    assert one.error is not None
    assert one.error.cause == "malformed-message"
    assert "Object-Size" in one.error.detail
