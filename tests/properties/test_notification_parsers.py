"""Whatever the bytes are, a parser announces something well-formed or raises `MalformedNotification`, and no more."""

from __future__ import annotations

import copy
import json
import re
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queue_source.announcements.contents import announced_objects, announcement_of, is_refused, listed_contents
from queue_source.announcements.parser import FORMATS, JsonPaths, parse_notification
from queue_source.errors import MalformedNotification
from queue_source.messages import Announcement, ListedObject, Receipt, Received
from queue_source.options import NotificationOptions
from queue_source.uris import plain_uri
from support.notification_corpus import EVENTS, Event

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**62, 2**70),
    st.floats(),
    st.text(st.characters(exclude_categories=())),  # lone surrogates too
    st.sampled_from(
        [
            "ObjectCreated:Put",
            "s3:TestEvent",
            "Notification",
            "Microsoft.Storage.BlobCreated",
            "Object Created",
            "s3://b/k",
            "%FF",
            "{}",
            "[",
            "\0",
        ]
    ),
)
FIELDS = st.sampled_from(
    [
        "Records", "s3", "bucket", "object", "key", "name", "size", "eTag", "versionId", "eventName", "eventSource",
        "Type", "Message", "Event", "detail", "detail-type", "source", "kind", "generation", "timeDeleted", "uri",
        "files", "path", "eventType", "data", "url", "subject", "specversion", "type", "api",
    ]
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(FIELDS | st.text(), inner)), max_leaves=30
)
FORMAT = st.sampled_from(["auto", *FORMATS])
PATH = st.lists(FIELDS | st.text(max_size=3), min_size=1, max_size=6).map(".".join) | st.text()
PATHS = st.builds(lambda uri: JsonPaths(uri=uri), PATH) | st.builds(
    lambda bucket, key: JsonPaths(bucket=bucket, key=key), PATH, PATH
)
TIMES = st.builds(
    "{:04}-{:02}-{:02}T{:02}:59:59{}{}".format,
    st.sampled_from([0, 1, 1969, 2026, 9999]),
    st.sampled_from([1, 12, 13]),
    st.sampled_from([1, 31]),
    st.sampled_from([0, 23, 24]),
    st.sampled_from(["", ".1", ".999999999"]),
    st.sampled_from(["Z", "-23:59", "+23:59", "+99:99", ""]),
)
SOME_EVENT = st.sampled_from(list(EVENTS.values()))


def storable(text: str) -> None:
    text.encode()
    assert "\0" not in text


def parsed(body: bytes, attributes: dict[str, str], format: str, paths: JsonPaths | None = None) -> Announcement | None:
    """What is announced, well-formed; None for what is malformed, with a reason that can be stored."""
    try:
        found = parse_notification(body, attributes, format, paths or JsonPaths(uri="detail.files.uri"))
    except MalformedNotification as error:
        storable(str(error))
        return None
    assert found.objects or found.ignored > 0
    for notice in found.objects:
        scheme, _, rest = notice.uri.partition("://")
        assert scheme == scheme.lower()
        assert rest
        storable(notice.uri)
        assert notice.size is None or 0 <= notice.size < 2**63
    return found


@given(st.binary(), FORMAT, PATHS)
def test_arbitrary_bytes(body: bytes, format: str, paths: JsonPaths) -> None:
    parsed(body, {}, format, paths)


@given(JSON, FORMAT, PATHS)
def test_arbitrary_json(value: object, format: str, paths: JsonPaths) -> None:
    parsed(json.dumps(value).encode(), {}, format, paths)


@given(
    st.dictionaries(
        st.sampled_from(["eventType", "bucketId", "objectId", "objectGeneration", "payloadFormat"]),
        st.sampled_from(["OBJECT_FINALIZE", "OBJECT_DELETE", "JSON_API_V1", "NONE"]) | st.text(),
    ),
    JSON,
    st.sampled_from(["auto", "gcs"]),
)
def test_arbitrary_attributes(attributes: dict[str, str], value: object, format: str) -> None:
    parsed(json.dumps(value).encode(), attributes, format)


@given(JSON, PATHS)
def test_arbitrary_paths_find_text_or_refuse(value: object, paths: JsonPaths) -> None:
    parsed(json.dumps(value).encode(), {}, "json", paths)


@given(st.data())
def test_a_path_that_leads_to_a_uri_finds_it(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text().filter(lambda name: "." not in name), min_size=1, max_size=5))
    value: Any = "s3://b/k"
    for name in reversed(names):
        value = {name: [value] if data.draw(st.booleans()) else value}
    found = parse_notification(json.dumps(value).encode(), None, "json", JsonPaths(uri=".".join(names)))
    assert [notice.uri for notice in found.objects] == ["s3://b/k"]


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


def documents() -> list[tuple[Event, Any]]:
    found = []
    for event in EVENTS.values():
        try:
            value = json.loads(event.body.decode("utf-8-sig"))
        except ValueError:  # those that are no JSON: their bytes are mutated below
            continue
        if places(value):
            found.append((event, value))
    return found


DOCUMENTS = documents()


def mutate(value: Any, data: st.DataObject) -> None:
    """One field dropped, replaced, doubled, renamed, put into a list or turned into text."""
    *parents, last = data.draw(st.sampled_from(places(value)))
    parent: Any = value
    for step in parents:
        parent = parent[step]
    how: str = data.draw(st.sampled_from(["drop", "replace", "double", "rename", "list", "text"]))
    if how == "drop":
        del parent[last]
    elif how == "replace":
        parent[last] = data.draw(JSON)
    elif how == "list":
        parent[last] = [parent[last], parent[last]]
    elif how == "text":
        parent[last] = json.dumps(parent[last])
    elif isinstance(parent, list):
        parent += [copy.deepcopy(parent[int(last)])]
    else:
        parent[data.draw(FIELDS | st.text())] = copy.deepcopy(parent[last])
        if how == "rename":
            parent.pop(last, None)


@given(st.data())
def test_real_events_with_some_parts_mutated(data: st.DataObject) -> None:
    event, value = data.draw(st.sampled_from(DOCUMENTS))
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        if places(value):
            mutate(value, data)
    attributes = dict(event.attributes)
    lost: bool = bool(attributes) and data.draw(st.booleans())
    if lost:
        del attributes[data.draw(st.sampled_from(sorted(attributes)))]
    parsed(json.dumps(value).encode(), attributes, data.draw(FORMAT), event.paths)


@given(SOME_EVENT, TIMES)
def test_real_events_at_times_of_any_kind(event: Event, time: str) -> None:
    body = re.sub(rb"\d{4}-\d\d-\d\dT[\d:.]+Z", time.encode(), event.body)
    attributes = {name: time if name == "eventTime" else value for name, value in event.attributes.items()}
    parsed(body, attributes, event.format, event.paths)


@given(st.data())
def test_fields_that_are_written_twice(data: st.DataObject) -> None:
    event, _ = data.draw(st.sampled_from(DOCUMENTS))
    text = event.body.decode("utf-8-sig")
    at = data.draw(st.sampled_from([place for place, letter in enumerate(text) if letter == "{"] or [0]))
    field = json.dumps(data.draw(FIELDS)) + ": " + json.dumps(data.draw(JSON)) + ", "
    parsed((text[: at + 1] + field + text[at + 1 :]).encode(), event.attributes, data.draw(FORMAT), event.paths)


@given(st.data())
def test_real_events_with_bytes_exchanged_flipped_or_cut_off(data: st.DataObject) -> None:
    event = data.draw(SOME_EVENT)
    body = bytearray(event.body or b" ")
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        flipped: int = body[place] ^ 1 << data.draw(st.integers(0, 7))
        body[place] = data.draw(st.integers(0, 255) | st.just(flipped))
    cut = bytes(body[: data.draw(st.just(len(body)) | st.integers(0, len(body)))])
    parsed(cut, event.attributes, data.draw(FORMAT), event.paths)


LOSSES = [
    (event, name)
    for event in EVENTS.values()
    if event.attributes.get("eventType") in ("OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE")
    for name in event.attributes
    if name != "eventType"
]


@pytest.mark.parametrize(("event", "name"), LOSSES, ids=lambda value: getattr(value, "name", value))
def test_no_lost_attribute_makes_a_new_object_of_a_deleted_one(event: Event, name: str) -> None:
    attributes = {key: value for key, value in event.attributes.items() if key != name}
    found = parsed(event.body, attributes, "auto")
    assert found is None or not found.objects


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
PLAIN_KEYS = st.lists(KEYS.filter(lambda key: not key.endswith("/")), min_size=1, max_size=20)


@given(PLAIN_KEYS, st.sampled_from(["/", ""]), st.sampled_from(["aws:s3", "minio:s3", "ceph:s3"]))
def test_every_key_of_every_record_comes_back_whatever_it_holds(keys: list[str], safe: str, sender: str) -> None:
    written = keys if sender == "ceph:s3" else [quote_plus(key, safe=safe) for key in keys]
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "eventSource": sender,
            "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 1}},
        }
        for key in written
    ]
    found = parse_notification(json.dumps({"Records": records}).encode())
    assert [notice.uri for notice in found.objects] == [f"s3://b/{key}" for key in keys]


@given(PLAIN_KEYS)
def test_eventbridge_and_gcs_keys_come_back_as_they_are(keys: list[str]) -> None:
    for key in keys:
        detail = {"bucket": {"name": "b"}, "object": {"key": key, "size": 1}}
        event = json.dumps({"detail-type": "Object Created", "source": "aws.s3", "detail": detail}).encode()
        assert [notice.uri for notice in parse_notification(event).objects] == [f"s3://b/{key}"]
        attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": key, "payloadFormat": "NONE"}
        assert [notice.uri for notice in parse_notification(b"", attributes).objects] == [f"gs://b/{key}"]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1))
def test_what_a_uri_comes_to_is_a_uri_that_comes_to_itself(texts: list[str]) -> None:
    for text in texts:
        for written in (text, f"s3://{text}", f"S3A://b/{text}"):
            try:
                uri = plain_uri(written)
            except MalformedNotification:
                continue
            assert uri.startswith("file:///") or plain_uri(uri) == uri


@given(st.integers(100, 5_000), st.sampled_from(["[", '{"a":', '{"Type":"Notification","Message":']), FORMAT)
def test_deep_nesting_never_ends_in_a_recursion_error(depth: int, opening: str, format: str) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification((opening * depth).encode(), None, format, JsonPaths(uri="a"))


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_deep_documents_and_long_paths_never_end_in_a_recursion_error(depth: int, length: int) -> None:
    body = '{"a":' * depth + '"s3://b/k"' + "}" * depth
    found = parsed(body.encode(), {}, "json", JsonPaths(uri=".".join("a" * length)))
    assert found is None or depth == length


SEGMENTS = st.sampled_from(["a", "_a", ".a", ".", "..", "", "%2e", "a=1", "_a=1", "\n", "a b+"])


@given(st.lists(SEGMENTS, min_size=1, max_size=5), st.integers(0, 1), st.booleans(), st.sampled_from(["s3", "gs"]))
@example(segments=[".", ""], size=0, hidden=False, scheme="s3")
def test_what_a_certificate_leaves_out_is_left_out_of_what_is_announced(
    segments: list[str], size: int, hidden: bool, scheme: str
) -> None:
    listed = ListedObject(f"{scheme}://b/in/{'/'.join(segments)}", size, "e", datetime(2026, 1, 1, tzinfo=timezone.utc))
    options = NotificationOptions(allowed_prefixes=(f"{scheme}://b/in/",), read_hidden_files=hidden)
    message = announcement_of(listed)
    assert message is not None
    received = Received("q", "m", Receipt("m"), message.body, 1, 0.0, headers=message.headers)
    (announced,) = announced_objects([received], options, lambda uris: [None] * len(uris))
    (content,) = listed_contents([listed], options)
    assert (announced.error is not None) == is_refused(listed, options)
    assert [each.shard_id for each in announced.contents] == ([] if content is None else [content.shard_id])
