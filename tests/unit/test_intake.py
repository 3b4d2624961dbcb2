"""From messages to contents: which URIs may be read, which are left out, and what becomes of their messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from queue_source.announcements.intake import Intake, take_in, take_messages
from queue_source.messages import Receipt, Received
from queue_source.options import parse_reader_options

LEAST = {"queueUrl": "sql+sqlite:///jobs.db?queue=files", "fileFormat": "json"}
ASKED: list[str] = []


def received(body: bytes | str, headers: dict[str, str] | None = None) -> Received:
    text = body.encode() if isinstance(body, str) else body
    return Received("files", "m", Receipt("r"), text, receive_count=1, lease_until=0.0, headers=headers or {})


def no_sizes(uris: Sequence[str]) -> list[int | None]:
    ASKED.extend(uris)
    return [None] * len(uris)


def take(*bodies: bytes | str, **options: str) -> Intake:
    """What the bodies, a message each, come to with the reader's options."""
    ASKED.clear()
    return take_in(
        [received(body) for body in bodies], parse_reader_options({**LEAST, **options}).notifications, no_sizes
    )


def uris(intake: Intake) -> list[str]:
    return [content.uri for contents in intake.contents.values() for content in contents]


def refusals(intake: Intake) -> list[str]:
    return [error.detail for error in intake.errors.values()]


@pytest.mark.parametrize("uri", ["s3://b/k", "S3A://b/k", "gs://b/k", "abfss://fs@account.dfs.core.windows.net/k"])
def test_objects_of_the_known_stores_are_allowed_by_default(uri: str) -> None:
    assert len(uris(take(uri))) == 1


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "/etc/passwd", "http://host/k", "hdfs://host/k", "abfs://c@a/k"])
def test_all_else_is_refused_by_default_and_never_looked_at(uri: str) -> None:
    intake = take(uri)
    assert not intake.contents
    assert "starts with none of the allowed prefixes" in refusals(intake)[0]
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
    intake = take(uri, allowedPrefixes=prefixes)
    assert not intake.contents
    assert "'allowedPrefixes'" in refusals(intake)[0]


@pytest.mark.parametrize("key", ["in/../secret/k", "in/../../other/k", "in/./k", "in/.."])
def test_a_key_with_dots_that_the_client_would_resolve_is_refused(key: str) -> None:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "landing"}, "object": {"key": key}}}
    intake = take(json.dumps({"Records": [record]}), allowedPrefixes="s3://landing/in/")
    assert not intake.contents
    assert "has a segment '.' or '..'" in refusals(intake)[0]
    assert ASKED == []


def test_one_forbidden_object_makes_an_error_of_its_message_and_of_no_other() -> None:
    intake = take('["s3://a/1", "s3://b/2"]', "s3://a/3", allowedPrefixes="s3://a/")
    assert uris(intake) == ["s3://a/3"]
    assert list(intake.errors) == [0]
    assert intake.errors[0].cause == "malformed-message"
    assert intake.errors[0].input == b'["s3://a/1", "s3://b/2"]'


def test_json_paths_lead_out_of_no_prefix() -> None:
    options = {"notificationFormat": "json", "bucketPath": "bucket", "keyPath": "key", "allowedPrefixes": "s3://a/"}
    bodies = [{"bucket": "a", "key": "k"}, {"bucket": "gs://a", "key": "k"}, {"bucket": "a", "key": "../b/k"}]
    intake = take(*map(json.dumps, bodies), json.dumps({"bucket": "file://", "key": "a/k"}), **options)
    assert uris(intake) == ["s3://a/k"]
    assert list(intake.errors) == [1, 2, 3]


def test_objects_that_the_glob_leaves_out_are_counted_as_ignored() -> None:
    intake = take('["s3://b/1.csv", "s3://b/_SUCCESS", "s3://b/1.csv.crc"]', pathGlobFilter="*.csv")
    assert uris(intake) == ["s3://b/1.csv"]
    assert intake.ignored == []
    assert intake.ignored_records == 2


def test_a_message_of_which_the_glob_leaves_nothing_is_ignored_as_a_whole() -> None:
    intake = take("s3://b/_SUCCESS", "s3://b/1.csv", pathGlobFilter="*.csv")
    assert intake.ignored == [0]
    assert list(intake.contents) == [1]
    assert intake.ignored_records == 1


def test_the_glob_looks_at_the_last_part_of_the_path_alone() -> None:
    assert uris(take("s3://b/x.csv/part", "s3://b/a/b/part.csv", pathGlobFilter="*.csv")) == ["s3://b/a/b/part.csv"]


def test_what_the_glob_leaves_out_need_not_be_allowed() -> None:
    intake = take("s3://elsewhere/_SUCCESS", pathGlobFilter="*.csv", allowedPrefixes="s3://b/")
    assert intake.ignored == [0]
    assert not intake.errors


def test_events_that_create_nothing_are_ignored_and_what_is_not_understood_is_an_error() -> None:
    intake = take('{"Event": "s3:TestEvent"}', "hello", b"\xff")
    assert intake.ignored == [0]
    assert refusals(intake) == ["the body is neither JSON nor a URI", "the body is not UTF-8"]


def test_gcs_attributes_are_the_headers_of_the_message() -> None:
    headers = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k", "payloadFormat": "NONE"}
    options = parse_reader_options(LEAST).notifications
    assert uris(take_in([received(b"", headers)], options, no_sizes)) == ["gs://b/k"]


def test_sizes_are_asked_for_once_and_only_where_they_are_not_told() -> None:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "told", "size": 3}}}
    take(json.dumps({"Records": [record]}), "s3://b/1", '["s3://b/1", "s3://b/2"]')
    assert ASKED == ["s3://b/1", "s3://b/2"]


def test_a_version_is_part_of_the_identity_only_when_overwrites_are_read() -> None:
    item = {"key": "k", "size": 3, "eTag": "e", "versionId": "v"}
    event = json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": item}}]}
    )
    identities = [take(event, allowOverwrites=flag).contents[0][0].shard_id for flag in ("false", "true")]
    assert identities == ["s3://b/k", "s3://b/k#v"]


def test_a_message_without_an_id_is_content_only_where_the_user_says_what_makes_it_one() -> None:
    """Two equal messages may be two events: to take them for one silently would lose data that cannot be re-sent."""
    messages = [received("tick"), replace(received("tick"), message_id="content-1", has_id=False)]
    options = {"queueUrl": LEAST["queueUrl"], "content": "message"}
    strict = take_messages(messages, parse_reader_options(options).notifications)
    assert list(strict.contents) == [0]
    assert strict.errors[1].cause == "no-message-id"
    assert strict.errors[1].input == b"tick"
    lenient = take_messages(messages, parse_reader_options({**options, "messageIdentity": "content"}).notifications)
    assert (list(lenient.contents), lenient.errors) == ([0, 1], {})
