"""Pure parsers: the bytes of a notification -> what it announces. No I/O, and one exception whatever the bytes are.

All of a message or nothing: a message with one bad record is malformed as a whole, since acknowledging it for its good
records would lose the bad one (invariant 8). A message that announces nothing *as its sender meant it* (a test event,
a delete event) has `ignored` > 0. One that lists zero records is malformed: no sender makes such an event, so what it
once announced was lost on the way, and nobody would notice if it were acknowledged.

URIs come out raw, never encoded, whatever the form does with its keys (`queue_source.uris`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from queue_source.errors import MalformedNotification
from queue_source.messages import Announcement, ObjectNotice
from queue_source.options.json_paths import JsonPaths, uris_at
from queue_source.uris import looks_like_uri, plain_uri, unquoted

_DEEPEST_ENVELOPE = 3  # SNS may carry an EventBridge event, a forwarder may wrap it once more
_LARGEST_SIZE = 2**63 - 1
# Changes of an object's metadata, which MinIO sends in the family of ObjectCreated
_METADATA_ONLY = ("PutRetention", "PutLegalHold", "PutTagging", "DeleteTagging")
# What else S3, MinIO and Ceph tell. A family that is not known here may announce objects, and so it is not ignored
_NOT_CREATED = frozenset(
    (
        "BucketCreated", "BucketRemoved", "IntelligentTiering", "LifecycleDelMarkerExpiration", "LifecycleExpiration",
        "LifecycleTransition", "ObjectAccessed", "ObjectAcl", "ObjectAnnotation", "ObjectLifecycle", "ObjectRemoved",
        "ObjectRestore", "ObjectSynced", "ObjectTagging", "ObjectTransition", "ReducedRedundancyLostObject",
        "Replication", "Scanner", "TestEvent"
    )
)  # fmt: skip
_GCS_EVENTS = ("OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE")

Json = Mapping[str, object]


def parse_notification(
    body: bytes,
    attributes: Mapping[str, str] | None = None,
    format: str = "auto",
    paths: JsonPaths | None = None,
) -> Announcement:
    """What a message announces; raises `MalformedNotification` and nothing else, whatever the bytes.

    `attributes` are the message's headers (GCS says all that matters there). `format` is `auto` or one of `FORMATS`:
    a message of another form is then malformed, and nothing is guessed. `json` needs the `paths` of its objects.
    ValueError is the caller's mistake: an unknown `format`, or `json` without `paths`.
    """
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"unknown notification format {format!r}; use auto or one of {', '.join(FORMATS)}")
    if format == "json" and paths is None:
        raise ValueError("format json needs the paths of its objects")
    try:
        if format == "json" and paths is not None:
            found = _uris(uris_at(_json(_text(body)), paths))
        else:
            found = _parse(body, attributes or {}, "s3" if format == "minio" else format)
    except RecursionError:
        raise MalformedNotification("the JSON is nested too deeply") from None
    for notice in found.objects:
        _check_text(notice)
    return found


def _parse(body: bytes, attributes: Mapping[str, str], format: str) -> Announcement:
    event = attributes.get("eventType")
    if event is not None and (
        format == "gcs" or (format == "auto" and ("bucketId" in attributes or event.startswith("OBJECT_")))
    ):
        return _gcs(body, attributes)
    text = _text(body)
    if format == "uri" or (format == "auto" and looks_like_uri(text)):
        return _uris(_json(text)) if text.startswith("[") else _uri(text)
    return _document(_json(text), format, _DEEPEST_ENVELOPE)


def _document(value: object, format: str, envelopes: int) -> Announcement:
    if isinstance(value, str) and format in ("auto", "uri"):
        return _uri(value)
    if isinstance(value, list) and format in ("auto", "uri"):
        return _uris(value)
    if not isinstance(value, dict):
        raise MalformedNotification(f"a notification is a JSON object, not {_kind(value)}")
    if value.get("Type") == "Notification" and "Message" in value and format in ("auto", "sns"):
        if envelopes == 0:
            raise MalformedNotification("too many SNS envelopes, one in another")
        message = _string(value, "Message").strip()
        if looks_like_uri(message):
            return _uri(message)
        return _document(_json(message), "auto", envelopes - 1)
    for name, (recognises, parse) in _DOCUMENTS.items():
        if recognises(value) and format in ("auto", name):
            return parse(value)
    if value.get("Type") in ("SubscriptionConfirmation", "UnsubscribeConfirmation"):
        raise MalformedNotification("SNS asks to confirm the subscription: visit the SubscribeURL in the message")
    wanted = "a known form" if format == "auto" else f"form {format!r}"
    raise MalformedNotification(f"not a notification of {wanted}; it has the fields {_fields(value)}")


# --- S3 (AWS, MinIO, Ceph and kin) -----------------------------------------------------------------------------------


def _s3(event: Json) -> Announcement:
    """Every record, of any event version: `{"Records": [{"eventName", "s3": {"bucket", "object"}}]}`."""
    if _is_test_event(event):
        return Announcement((), ignored=1)
    records = event["Records"]
    if not isinstance(records, list) or not records:
        raise MalformedNotification(f"'Records' has to be a list of at least one record, not {_kind(records)}")
    notices: list[ObjectNotice] = []
    for number, record in enumerate(records):
        try:
            notice = _s3_record(record)
        except MalformedNotification as error:
            raise MalformedNotification(f"record {number + 1} of {len(records)}: {error}") from None
        if notice is not None:
            notices.append(notice)
    return Announcement(tuple(notices), ignored=len(records) - len(notices))


def _s3_record(record: object) -> ObjectNotice | None:
    if not isinstance(record, dict):
        raise MalformedNotification(f"a record is an object, not {_kind(record)}")
    name = _string(record, "eventName").removeprefix("s3:")
    part = _object(record, "s3")
    family, _, how = name.partition(":")
    created = name == "ObjectSynced:Create" or (family == "ObjectCreated" and how not in _METADATA_ONLY)
    if not created and family not in (*_NOT_CREATED, "ObjectCreated"):
        raise MalformedNotification(f"unknown event name {name[:50]!r}")
    if not created:
        return None
    item, sender = _object(part, "object"), record.get("eventSource")
    key = _string(item, "key")
    if sender != "ceph:s3":  # Ceph alone sends keys as they are
        key = unquoted(key, plus=True)
    if sender == "minio:s3":  # it leaves out a size of zero
        item = {"size": 0, **item}
    return _notice("s3", _string(_object(part, "bucket"), "name"), key, item, etag="eTag", version="versionId")


def _is_test_event(event: Json) -> bool:
    return event.get("Event") == "s3:TestEvent" and "Records" not in event


def _eventbridge(event: Json) -> Announcement:
    """One event about one object; unlike in S3's own events the key is not encoded."""
    detail, about = _object(event, "detail"), _string(event, "detail-type")
    if not about.startswith("Object "):
        # CloudTrail's "AWS API Call via CloudTrail" has the source aws.s3 too, and may tell of a new object
        raise MalformedNotification(f"unknown detail-type {about[:50]!r}")
    if about != "Object Created":
        return Announcement((), ignored=1)
    item = _object(detail, "object")
    bucket = _string(_object(detail, "bucket"), "name")
    notice = _notice("s3", bucket, _string(item, "key"), item, etag="etag", version="version-id")
    return Announcement((notice,)) if notice else Announcement((), ignored=1)


# --- Google Cloud Storage --------------------------------------------------------------------------------------------


def _gcs(body: bytes, attributes: Mapping[str, str]) -> Announcement:
    """Everything that matters is in the attributes; size and etag are in the body, when it is there."""
    event = _string(attributes, "eventType")
    if event in _GCS_EVENTS:
        return Announcement((), ignored=1)
    if event != "OBJECT_FINALIZE":
        raise MalformedNotification(f"unknown GCS event type {event[:50]!r}")
    payload: object = {}
    if attributes.get("payloadFormat") == "JSON_API_V1":
        payload = _json(_text(body))
    if not isinstance(payload, dict):
        raise MalformedNotification(f"the payload JSON_API_V1 is a JSON object, not {_kind(payload)}")
    item = {**payload, "generation": attributes.get("objectGeneration", payload.get("generation"))}
    notice = _notice("gs", _string(attributes, "bucketId"), _string(attributes, "objectId"), item, "etag", "generation")
    return Announcement((notice,)) if notice else Announcement((), ignored=1)


def _gcs_payload(payload: Json) -> Announcement:
    """The resource alone, where the attributes were lost on the way; a deleted one says when that was."""
    if "timeDeleted" in payload:
        return Announcement((), ignored=1)
    notice = _notice("gs", _string(payload, "bucket"), _string(payload, "name"), payload, "etag", "generation")
    return Announcement((notice,)) if notice else Announcement((), ignored=1)


# --- plain URIs ------------------------------------------------------------------------------------------------------


def _uri(text: str) -> Announcement:
    """A URI, or the absolute path of a local file; text or a JSON string (a JSON list of several: `_uris`)."""
    if text.startswith('"'):
        value = _json(text)
        text = value if isinstance(value, str) else ""
    return Announcement((ObjectNotice(plain_uri(text)),))


def _uris(value: object) -> Announcement:
    """Several URIs in one message: a JSON list of them."""
    if not isinstance(value, list) or not value:
        raise MalformedNotification(f"a list of URIs holds at least one, not {_kind(value)}")
    found: list[ObjectNotice] = []
    for number, item in enumerate(value):
        try:
            if not isinstance(item, str):
                raise MalformedNotification(f"a URI is text, not {_kind(item)}")
            found.append(ObjectNotice(plain_uri(item)))
        except MalformedNotification as error:
            raise MalformedNotification(f"URI {number + 1} of {len(value)}: {error}") from None
    return Announcement(tuple(found))


# --- the small parts -------------------------------------------------------------------------------------------------


def _notice(scheme: str, bucket: str, key: str, item: Json, etag: str, version: str) -> ObjectNotice | None:
    """None for the empty objects that stand for folders: there is nothing to read."""
    if not bucket or "/" in bucket or bucket != bucket.strip():
        raise MalformedNotification(f"{bucket[:100]!r} is no bucket name")
    if not key:
        raise MalformedNotification("the key is empty")
    size = _size(item.get("size"))
    if key.endswith("/") and size == 0:
        return None
    return ObjectNotice(f"{scheme}://{bucket}/{key}", size, _optional(item, etag), _optional(item, version))


def _size(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # JSON of Google writes 64-bit numbers as text
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_SIZE:
        raise MalformedNotification(f"a size is a whole number of bytes, not {value!r:.40}")
    return value


def _optional(item: Json, name: str) -> str | None:
    value = item.get(name)
    if value is None:
        return None
    text = _string(item, name).strip('"')
    return None if text in ("", "null") else text  # S3 writes "null" for objects older than the bucket's versioning


def _string(parent: Mapping[str, object], name: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str):
        raise MalformedNotification(f"{name!r} has to be text, not {_kind(value, missing=name not in parent)}")
    return value


def _object(parent: Json, name: str) -> Json:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise MalformedNotification(f"{name!r} has to be an object, not {_kind(value, missing=name not in parent)}")
    return value


def _text(body: bytes) -> str:
    try:
        text = body.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise MalformedNotification("the body is not UTF-8") from None
    if not text:
        raise MalformedNotification("the body is empty")
    return text


def _json(text: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:  # also numbers of too many digits
        raise MalformedNotification("the body is neither JSON nor a URI") from None
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _check_text(notice: ObjectNotice) -> None:
    for text in (notice.uri, notice.etag or "", notice.version or ""):
        if "\0" in text:
            raise MalformedNotification("a name holds a NUL character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise MalformedNotification("a name holds half a character (a lone surrogate)") from None


def _kind(value: object, missing: bool = False) -> str:
    if missing:
        return "missing"
    if isinstance(value, list | dict | str) and not value:
        return {"list": "an empty list", "dict": "an empty object"}.get(type(value).__name__, "empty text")
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _fields(value: Json) -> str:
    shown = ", ".join(repr(name[:40]) for name in list(value)[:8])
    return shown or "(none)"


_DOCUMENTS: Mapping[str, tuple[Callable[[Json], bool], Callable[[Json], Announcement]]] = {
    "s3": (lambda value: "Records" in value or _is_test_event(value), _s3),
    "eventbridge": (
        lambda value: (
            "detail-type" in value and (value.get("source") == "aws.s3" or value["detail-type"] == "Object Created")
        ),
        _eventbridge,
    ),
    "gcs": (lambda value: value.get("kind") == "storage#object", _gcs_payload),
}
FORMATS = ("s3", "sns", "eventbridge", "gcs", "minio", "uri", "json")
"""The forms that may be forced; `sns` is an SNS envelope with any form in it, `minio` is S3's own form."""
