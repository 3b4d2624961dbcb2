"""What orders the announcements of one object, in each form of notification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone

import pytest

from queue_source.announcements.parser import parse_notification


def s3(**fields: object) -> bytes:
    time = fields.pop("eventTime", None)
    item = {"key": "k", "size": 1, **fields}
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": item}}
    return json.dumps({"Records": [record | ({} if time is None else {"eventTime": time})]}).encode()


def sequence(body: bytes, attributes: Mapping[str, str] | None = None) -> str | None:
    (notice,) = parse_notification(body, attributes).objects
    return notice.sequence


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0055AED6DCD90281E5", "0055AED6DCD90281E6"),
        ("0055aed6dcd9", "0055AED6DCDA"),
        ("09", "1"),  # the shorter one is padded with zeros at its right end
        ("1", "1001"),
    ],
)
def test_of_two_sequencers_of_s3_the_greater_text_is_the_later_event(older: str, newer: str) -> None:
    first, second = sequence(s3(sequencer=older)), sequence(s3(sequencer=newer))
    assert first is not None
    assert second is not None
    assert first < second


def test_sequencers_that_differ_in_zeros_at_their_end_are_equal() -> None:
    assert sequence(s3(sequencer="00A1")) == sequence(s3(sequencer="00a100"))


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+00:01", "9999-12-31T24:00:00Z"])
def test_a_time_beyond_the_years_that_there_are_is_none(time: str) -> None:
    (notice,) = parse_notification(s3(eventTime=time)).objects
    assert (notice.sequence, notice.modified, notice.event_time) == (None, None, None)


def test_without_a_sequencer_the_time_of_the_event_counts() -> None:
    times = ["2026-11-22T04:15:00.123Z", "2026-11-22T04:15:00.124Z", "2026-11-22T05:15:00.125+01:00"]
    found = [sequence(s3(eventTime=time)) for time in times]
    assert found == ["t00001795320900123000", "t00001795320900124000", "t00001795320900125000"]


@pytest.mark.parametrize("sequencer", [None, 5, "", "not hexadecimal", "A" * 61])
@pytest.mark.parametrize("time", [None, 5, "yesterday", "2026-13-40T99:99:99Z"])
def test_what_cannot_be_read_orders_nothing_and_the_object_is_announced(sequencer: object, time: object) -> None:
    assert sequence(s3(sequencer=sequencer, eventTime=time)) is None


def test_eventbridge_has_the_same_sequencer() -> None:
    detail = {"bucket": {"name": "b"}, "object": {"key": "k", "size": 1, "sequencer": "0A1"}}
    document = {"source": "aws.s3", "detail-type": "Object Created", "time": "2026-11-22T04:15:00Z", "detail": detail}
    assert sequence(json.dumps(document).encode()) == "s0A1"
    del detail["object"]["sequencer"]  # type: ignore[attr-defined]
    assert sequence(json.dumps(document).encode()) == "t00001795320900000000"


def test_generations_of_cloud_storage_are_numbers() -> None:
    def of(generation: str) -> str | None:
        attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k", "objectGeneration": generation}
        return sequence(b"", attributes)

    assert of("9") == "g00000000000000000009"
    assert (of("9") or "") < (of("10") or "")
    document = {"kind": "storage#object", "bucket": "b", "name": "k", "size": "1", "generation": "10"}
    assert sequence(json.dumps(document).encode()) == of("10")


def test_a_plain_uri_has_none() -> None:
    assert sequence(b"s3://b/k") is None


WHEN = datetime(2026, 11, 22, 4, 15, 0, 123000, tzinfo=timezone.utc)
TIME = "2026-11-22T04:15:00.123Z"
CREATED = {"kind": "storage#object", "bucket": "b", "name": "k", "size": "1", "updated": TIME}
EVENT = {
    "source": "aws.s3",
    "detail-type": "Object Created",
    "time": "2026-11-22T05:15:00.123+01:00",
    "detail": {"bucket": {"name": "b"}, "object": {"key": "k", "size": 1, "sequencer": "0A1"}},
}
ATTRIBUTES = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k", "payloadFormat": "JSON_API_V1"}


def from_sender(source: str) -> bytes:
    event = json.loads(s3(eventTime=TIME, sequencer="0A1"))
    event["Records"][0]["eventSource"] = source
    return json.dumps(event).encode()


def modified(body: bytes, attributes: Mapping[str, str] | None = None) -> datetime | None:
    (notice,) = parse_notification(body, attributes).objects
    return notice.modified


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        (from_sender("aws:s3"), None),
        (from_sender("minio:s3"), None),
        (from_sender("ceph:s3"), None),
        (json.dumps({"Type": "Notification", "Message": from_sender("aws:s3").decode()}).encode(), None),
        (json.dumps(EVENT).encode(), None),
        (json.dumps({"Type": "Notification", "Message": json.dumps(EVENT)}).encode(), None),
        (json.dumps(CREATED).encode(), None),
        (json.dumps(CREATED).encode(), ATTRIBUTES),
        (json.dumps(CREATED).encode(), {**ATTRIBUTES, "eventTime": "2026-11-22T09:00:00Z"}),
        (json.dumps({**CREATED, "updated": None}).encode(), {**ATTRIBUTES, "eventTime": TIME}),
        (json.dumps({"size": 1}).encode(), {**ATTRIBUTES, "eventTime": TIME}),
    ],
    ids=["S3", "MinIO", "Ceph", "SNS", "EventBridge", "EventBridge in SNS", "GCS body", "GCS", "GCS: the object's own",
         "GCS, null", "GCS, event"],
)  # fmt: skip
def test_a_notification_of_the_store_says_when_the_object_was_modified(
    body: bytes, attributes: Mapping[str, str] | None
) -> None:
    assert modified(body, attributes) == WHEN


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        (b"s3://b/k", None),
        (b'["s3://b/k"]', None),
        (s3(), None),
        (s3(eventTime=5), None),
        (s3(eventTime="yesterday"), None),
        (s3(eventTime="1970-01-01T00:00:00.000Z"), None),
        (s3(eventTime=TIME, size=None), None),
        (b"", {**ATTRIBUTES, "payloadFormat": "NONE", "eventTime": TIME}),
    ],
    ids=["URI", "URIs", "none", "number", "word", "1970", "no size", "GCS without a body"],
)
def test_what_does_not_say_it_or_not_as_the_store_does_leaves_it_open(
    body: bytes, attributes: Mapping[str, str] | None
) -> None:
    assert modified(body, attributes) is None
