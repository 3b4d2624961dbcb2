"""What each form of notification announces; the corpus of real-looking events is in `tests/data/notifications/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_source.errors import MalformedNotification
from queue_source.messages import Announcement, ObjectNotice
from queue_source.notifications import FORMATS, parse_notification

CORPUS = Path(__file__).parents[1] / "data" / "notifications"
PUT = ObjectNotice(
    "s3://example-bucket/orders/2024/05/02/part 1+2=3 ü.json",
    1024,
    "d41d8cd98f00b204e9800998ecf8427e",
    "096fKKXTRTtl3on89fVO.nfljtsv6qko",
)
BRIDGED = ObjectNotice(
    "s3://example-bucket/in/100%+plus %20.json",
    5,
    "b57f9512698f4b09e608f4f2a65852e5",
    "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e",
)
FINALIZED = ObjectNotice("gs://example-bucket/in/a b+c%20.json", 352, "CIHV9uOAAA=", "1714645000000001")
NOTHING = Announcement((), ignored=1)
EXPECTED = {
    "s3-put": Announcement((PUT,)),
    "s3-several-records-v3": Announcement(
        (
            ObjectNotice("s3://example-bucket/a/1.parquet", 5368709120, "9b2cf535f27731c974343645a3985328-512"),
            ObjectNotice("s3://example-bucket/a/2.parquet", 0, "d41d8cd98f00b204e9800998ecf8427e"),
        ),
        ignored=2,
    ),
    "s3-removed": NOTHING,
    "s3-test-event": NOTHING,
    "minio-put": Announcement(
        (ObjectNotice("s3://example-bucket/in/a b.csv", 11, "5eb63bbbe01eeed093cb22bb8f5acdc3"),)
    ),
    "sns-s3-put": Announcement((PUT,)),
    "sns-s3-test-event": NOTHING,
    "sns-eventbridge-created": Announcement((BRIDGED,)),
    "eventbridge-created": Announcement((BRIDGED,)),
    "eventbridge-deleted": NOTHING,
    "gcs-finalize-payload": Announcement((FINALIZED,)),
}
GCS = {
    "eventType": "OBJECT_FINALIZE",
    "bucketId": "example-bucket",
    "objectId": "in/a b+c%20.json",
    "objectGeneration": "1714645000000001",
    "payloadFormat": "JSON_API_V1",
}


def corpus(name: str) -> bytes:
    return (CORPUS / f"{name}.json").read_bytes()


def record(**changes: object) -> dict[str, object]:
    made: dict[str, object] = json.loads(corpus("s3-put"))["Records"][0]
    return {**made, **changes}


def s3(*records: object) -> bytes:
    return json.dumps({"Records": list(records)}).encode()


def uris(body: bytes | str) -> list[str]:
    found = parse_notification(body.encode() if isinstance(body, str) else body)
    return [notice.uri for notice in found.objects]


def test_every_file_of_the_corpus_is_expected_to_say_something() -> None:
    assert {path.stem for path in CORPUS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_events_announce_what_their_senders_meant(name: str) -> None:
    assert parse_notification(corpus(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_forced_format_reads_its_own_events_and_refuses_all_others(name: str) -> None:
    own = name.partition("-")[0]
    for format in FORMATS:
        if format == own or {format, own} == {"s3", "minio"}:
            assert parse_notification(corpus(name), format=format) == EXPECTED[name]
        else:
            with pytest.raises(MalformedNotification):
                parse_notification(corpus(name), format=format)


def test_an_unknown_format_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"'s4'.*use auto or one of s3"):
        parse_notification(b"s3://b/k", format="s4")


def test_gcs_tells_the_object_by_attributes_and_its_size_in_the_body() -> None:
    assert parse_notification(corpus("gcs-finalize-payload"), GCS) == Announcement((FINALIZED,))
    assert parse_notification(corpus("gcs-finalize-payload"), GCS, format="gcs") == Announcement((FINALIZED,))


def test_gcs_without_a_payload_announces_the_object_without_its_size() -> None:
    attributes = {**GCS, "payloadFormat": "NONE"}
    notice = ObjectNotice(FINALIZED.uri, None, None, FINALIZED.version)
    assert parse_notification(b"", attributes) == Announcement((notice,))


@pytest.mark.parametrize("event", ["OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"])
def test_gcs_events_that_create_nothing_are_ignored(event: str) -> None:
    assert parse_notification(corpus("gcs-finalize-payload"), {**GCS, "eventType": event}) == NOTHING


@pytest.mark.parametrize(
    "attributes",
    [{**GCS, "eventType": "OBJECT_NEW"}, {**GCS, "objectId": ""}, {k: v for k, v in GCS.items() if k != "objectId"}],
)
def test_gcs_attributes_that_are_not_understood_are_malformed(attributes: dict[str, str]) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification(corpus("gcs-finalize-payload"), attributes)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://b/k", "s3://b/k"),
        ("  s3://b/a%20b+c?d#e \n", "s3://b/a%20b+c?d#e"),
        ('"s3://b/\\u00fc"', "s3://b/ü"),
        ("S3A://b/k", "s3://b/k"),
        ("gs://b/dir/", "gs://b/dir/"),
        ("abfss://fs@account.dfs.core.windows.net/k", "abfss://fs@account.dfs.core.windows.net/k"),
        ("/data/a%20b.json", "file:///data/a%20b.json"),
        ("file:///data/a%20b.json", "file:///data/a b.json"),
        ("file:/data/x", "file:///data/x"),
        ("file://localhost/data/x", "file:///data/x"),
        ("/allowed/../etc/passwd", "file:///etc/passwd"),
        ("file:///allowed/%2e%2e/etc/passwd", "file:///etc/passwd"),
        ("\ufeffs3://b/k", "s3://b/k"),
    ],
)
def test_a_plain_uri_or_path_announces_itself(text: str, uri: str) -> None:
    assert uris(text) == [uri]


@pytest.mark.parametrize("format", ["auto", "uri"])
def test_a_json_list_of_uris_announces_each_of_them(format: str) -> None:
    body = b' ["s3://b/1", "/data/a%20b", "s3://b/1"]\n'
    found = parse_notification(body, format=format)
    assert [notice.uri for notice in found.objects] == ["s3://b/1", "file:///data/a%20b", "s3://b/1"]


def test_the_error_names_the_bad_uri_of_a_list() -> None:
    with pytest.raises(MalformedNotification, match="URI 2 of 2: a URI is text, not a number"):
        parse_notification(b'["s3://b/1", 2]')


def test_a_list_of_uris_is_no_other_form() -> None:
    with pytest.raises(MalformedNotification, match="a notification is a JSON object, not a list"):
        parse_notification(b'["s3://b/1"]', format="s3")


@pytest.mark.parametrize(
    ("key", "decoded"),
    [("a+b", "a b"), ("a%2Bb", "a+b"), ("a%2Fb", "a/b"), ("%E4%BD%A0", "你"), ("100%", "100%"), ("a%252B", "a%2B")],
)
def test_keys_of_s3_events_are_form_decoded_once(key: str, decoded: str) -> None:
    assert uris(s3(record(s3={"bucket": {"name": "b"}, "object": {"key": key}}))) == [f"s3://b/{decoded}"]


@pytest.mark.parametrize(
    "name",
    ["ObjectRemoved:Delete", "s3:ObjectRestore:Completed", "ReducedRedundancyLostObject", "ObjectCreated:PutTagging"],
)
def test_events_that_create_nothing_are_ignored_and_counted(name: str) -> None:
    assert parse_notification(s3(record(eventName=name), record())) == Announcement((PUT,), ignored=1)


BAD = {
    "an empty body": b"",
    "white space": b" \n ",
    "no JSON": b"hello world",
    "half a JSON": b'{"Records": [',
    "not UTF-8": b"\xff\xfe{}",
    "a number": b"123",
    "null": b"null",
    "an empty list": b"[]",
    "a list of numbers": b"[1]",
    "a list in a list": b'[["s3://b/k"]]',
    "a good and a bad URI": b'["s3://b/k", "s3://b"]',
    "a list that ends too soon": b'["s3://b/k"',
    "an unknown object": b'{"foo": 1}',
    "an empty object": b"{}",
    "no records": b'{"Records": []}',
    "records that are no list": b'{"Records": {"a": 1}}',
    "a record that is no object": b'{"Records": [1]}',
    "a good and a bad record": s3(record(), record(s3=None)),
    "no key": s3(record(s3={"bucket": {"name": "b"}, "object": {}})),
    "an empty key": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": ""}})),
    "a key that is a number": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": 1}})),
    "a key that is not UTF-8": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": "%FF"}})),
    "a key with a lone surrogate": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": "\ud800"}})),
    "a key with a NUL": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": "a%00"}})),
    "an empty bucket": s3(record(s3={"bucket": {"name": ""}, "object": {"key": "k"}})),
    "a bucket with a slash": s3(record(s3={"bucket": {"name": "a/b"}, "object": {"key": "k"}})),
    "a negative size": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": "k", "size": -1}})),
    "a size that is true": s3(record(s3={"bucket": {"name": "b"}, "object": {"key": "k", "size": True}})),
    "a size that is NaN": b'{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"size": NaN}}]}',
    "an event of another kind": s3(record(eventName="aws:ses")),
    "an event without a name": s3(record(eventName=None)),
    "a CloudTrail call": b'{"detail-type": "AWS API Call via CloudTrail", "source": "aws.s3", "detail": {}}',
    "a subscription": b'{"Type": "SubscriptionConfirmation", "Message": "confirm", "SubscribeURL": "https://x"}',
    "an envelope of nothing": b'{"Type": "Notification", "Message": "hello"}',
    "a message that is no text": b'{"Type": "Notification", "Message": {"Records": []}}',
    "deep nesting": b"[" * 200_000,
    "deep nesting of objects": b'{"a":' * 200_000,
    "a number of 10,000 digits": b'{"Records": ' + b"9" * 10_000 + b"}",
    "a bucket alone": b"s3://bucket",
    "a bucket and a slash": b"s3://bucket/",
    "two URIs": b"s3://b/1\ns3://b/2",
    "a file of another machine": b"file://elsewhere/x",
    "the root": b"/",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_what_is_not_understood_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedNotification):
        parse_notification(body)


def test_envelopes_in_envelopes_end_somewhere() -> None:
    message = "s3://b/k"
    for _ in range(3):
        message = json.dumps({"Type": "Notification", "Message": message})
    assert uris(message) == ["s3://b/k"]
    for _ in range(10):
        message = json.dumps({"Type": "Notification", "Message": message})
    with pytest.raises(MalformedNotification, match="too many"):
        parse_notification(message.encode())


def test_the_error_names_the_bad_record() -> None:
    with pytest.raises(MalformedNotification, match="record 2 of 2: 's3' has to be an object, not null"):
        parse_notification(s3(record(), record(s3=None)))
