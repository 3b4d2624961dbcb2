"""What each form of notification announces: the corpus of `notification_corpus`, and what no file can show well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queue_source.announcements.parser import FORMATS, JsonPaths, parse_notification
from queue_source.errors import MalformedNotification
from queue_source.messages import Announcement, ObjectNotice
from support.notification_corpus import EVENTS, FOLDER, Event

GOOD = [event for event in EVENTS.values() if isinstance(event.expected, Announcement)]
BAD = [event for event in EVENTS.values() if isinstance(event.expected, str)]
URI = JsonPaths(uri="uri")


def named(event: Event) -> str:
    return event.name


def uris(body: bytes | str, format: str = "auto") -> list[str]:
    found = parse_notification(body.encode() if isinstance(body, str) else body, format=format)
    return [notice.uri for notice in found.objects]


def s3_event(key: str, name: str = "ObjectCreated:Put") -> bytes:
    record = {"eventName": name, "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}
    return json.dumps({"Records": [record]}).encode()


def test_every_file_of_the_corpus_is_expected_to_say_something() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith("/expected.json")} == set(EVENTS)


def test_every_form_has_events_in_the_corpus() -> None:
    assert {event.format for event in GOOD} == {event.format for event in BAD} == set(FORMATS)


@pytest.mark.parametrize("event", GOOD, ids=named)
def test_an_event_announces_what_its_sender_meant(event: Event) -> None:
    assert event.read(event.format) == event.expected


@pytest.mark.parametrize("event", BAD, ids=named)
def test_what_is_not_understood_is_malformed_for_a_reason(event: Event) -> None:
    with pytest.raises(MalformedNotification, match=str(event.expected)):
        event.read(event.format)


@pytest.mark.parametrize("event", [event for event in EVENTS.values() if event.format != "json"], ids=named)
def test_every_form_but_json_is_found_by_looking(event: Event) -> None:
    if isinstance(event.expected, str):
        with pytest.raises(MalformedNotification, match=event.expected):
            event.read("auto")
    else:
        assert event.read("auto") == event.expected


@pytest.mark.parametrize("event", GOOD, ids=named)
def test_a_forced_format_refuses_the_events_of_all_others(event: Event) -> None:
    # MinIO and OBS speak S3, and the paths of `json` may lead through a document that is of another form, too
    of_s3 = {"s3", "minio", "obs"}
    alike = {**dict.fromkeys(of_s3, of_s3), "json": {"cloudtrail", "crowdstrike"}}
    own = {event.format} | alike.get(event.format, set())
    for format in set(FORMATS) - own:
        with pytest.raises(MalformedNotification):
            parse_notification(event.body, event.attributes, format, JsonPaths(uri="no.such.field"))


def test_unknown_formats_and_json_without_paths_are_mistakes_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"'s4'.*use auto or one of s3"):
        parse_notification(b"s3://b/k", format="s4")
    with pytest.raises(ValueError, match="json needs the paths"):
        parse_notification(b"{}", format="json")


HUGE = 20_000


def huge_s3(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "Records": event["Records"] * HUGE}


def huge_envelope(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "Message": json.dumps(huge_s3(json.loads(event["Message"])))}


def huge_detail(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "resources": event["resources"] * HUGE, "padding": "x" * 5_000_000}


def huge_resource(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "metadata": {f"name-{number}": "x" * 200 for number in range(HUGE)}}


def huge_files(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "files": event["files"] * HUGE}


@pytest.mark.parametrize(
    ("name", "grow", "objects"),
    [
        ("s3/normal.json", huge_s3, HUGE),
        ("minio/normal.json", huge_s3, HUGE),
        ("sns/normal.json", huge_envelope, HUGE),
        ("eventbridge/normal.json", huge_detail, 1),
        ("gcs-payload/normal.json", huge_resource, 1),
        ("uri/several.json", lambda several: several[:1] * HUGE, HUGE),
        ("json/normal.json", huge_files, HUGE),
    ],
)
def test_huge_events_are_read_to_the_last_object(name: str, grow: Any, objects: int) -> None:
    event = EVENTS[name]
    assert isinstance(event.expected, Announcement)
    body = json.dumps(grow(json.loads(event.body))).encode()
    assert len(body) > 500_000
    found = parse_notification(body, None, event.format, event.paths)
    assert found.objects == event.expected.objects[:1] * objects


def test_a_huge_event_with_one_bad_record_is_malformed_as_a_whole() -> None:
    records = json.loads(EVENTS["s3/normal.json"].body)["Records"] * HUGE
    with pytest.raises(MalformedNotification, match=f"record {HUGE + 1} of {HUGE + 1}: a record is an object"):
        parse_notification(json.dumps({"Records": [*records, None]}).encode())


def test_the_longest_key_there_is_comes_back_whole() -> None:
    key = "é" * 512  # 1,024 bytes; 3,072 when encoded
    assert uris(s3_event("%C3%A9" * 512)) == [f"s3://b/{key}"]


@pytest.mark.parametrize(
    ("key", "decoded"),
    [("a+b", "a b"), ("a%2Bb", "a+b"), ("a%2Fb", "a/b"), ("%E4%BD%A0", "你"), ("100%", "100%"), ("a%252B", "a%2B")],
)
def test_keys_of_s3_events_are_form_decoded_once(key: str, decoded: str) -> None:
    assert uris(s3_event(key)) == [f"s3://b/{decoded}"]


@pytest.mark.parametrize("name", ["ObjectCreated:*", "s3:ObjectCreated:Put", "ObjectCreated:SomethingNew"])
def test_every_event_of_the_family_of_created_objects_announces_them(name: str) -> None:
    assert uris(s3_event("k", name)) == ["s3://b/k"]


@pytest.mark.parametrize(
    "name", ["ObjectRemoved:Delete", "s3:ObjectRestore:Completed", "ReducedRedundancyLostObject", "IntelligentTiering"]
)
def test_events_that_create_nothing_are_ignored_and_counted(name: str) -> None:
    assert parse_notification(s3_event("k", name)) == Announcement((), ignored=1)


@pytest.mark.parametrize("name", ["aws:ses", "ObjectCreate:Put", "ObjectCreated.Put", "Objects", ""])
def test_event_names_that_are_not_known_are_never_ignored(name: str) -> None:
    with pytest.raises(MalformedNotification, match="unknown event name"):
        parse_notification(s3_event("k", name))


@pytest.mark.parametrize("text", ["s3://b/k", '"s3://b/k"', '["s3://b/k"]', "  s3://b/k \n", ' ["s3://b/k"]\n'])
@pytest.mark.parametrize("format", ["auto", "uri"])
def test_a_uri_may_stand_alone_in_json_text_or_in_a_list(text: str, format: str) -> None:
    assert uris(text, format) == ["s3://b/k"]


HOSTILE = {
    "an empty body": b"",
    "white space": b" \n ",
    "a number": b"123",
    "null": b"null",
    "a list of numbers": b"[1]",
    "a list in a list": b'[["s3://b/k"]]',
    "an unknown object": b'{"foo": 1}',
    "an empty object": b"{}",
    "an empty key": s3_event(""),
    "a key with a lone surrogate": s3_event("\ud800"),
    "a key with a NUL": s3_event("a%00"),
    "an empty bucket": s3_event("k").replace(b'"b"', b'""'),
    "a bucket with a slash": s3_event("k").replace(b'"b"', b'"a/b"'),
    "a negative size": s3_event("k").replace(b'"k"', b'"k", "size": -1'),
    "a size that is true": s3_event("k").replace(b'"k"', b'"k", "size": true'),
    "a size that is NaN": s3_event("k").replace(b'"k"', b'"k", "size": NaN'),
    "a size beyond all numbers": s3_event("k").replace(b'"k"', b'"k", "size": 1e999'),
    "a size of 64 bits": s3_event("k").replace(b'"k"', b'"k", "size": 9223372036854775808'),
    "a size of 10,000 digits": s3_event("k").replace(b'"k"', b'"k", "size": ' + b"9" * 10_000),
    "deep nesting": b"[" * 200_000,
    "deep nesting that is closed": b"[" * 50_000 + b"]" * 50_000,
    "deep nesting of objects": b'{"a":' * 200_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("format", ["auto", *FORMATS])
def test_hostile_bodies_are_malformed_in_every_format(body: bytes, format: str) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification(body, None, format, URI)


def test_a_key_told_twice_is_read_as_json_readers_do() -> None:
    body = s3_event("k").replace(b'"key": "k"', b'"key": "first", "key": "last"')
    assert parse_notification(body) == Announcement((ObjectNotice("s3://b/last"),))
