"""Parses the bytes of a notification, of a user's own form too. Pure: no I/O, one exception whatever the bytes are.

A path is names separated by dots: `detail.file.key`. A list on the way means each of its elements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from queue_source.announcements.dialects import DIALECTS, GCS_ATTRIBUTES, Dialect, Json
from queue_source.errors import MalformedNotification
from queue_source.messages import Announcement, ObjectNotice, refuse_constant
from queue_source.uris import check_object, looks_like_uri, plain_uri
from shard_store import model


@dataclass(frozen=True, slots=True)
class JsonPaths:
    """Either `uri`, or `key` with `bucket`; a bucket without a scheme is one of S3. Else ValueError."""

    bucket: str | None = None
    key: str | None = None
    uri: str | None = None

    def __post_init__(self) -> None:
        if (self.bucket is None) != (self.key is None) or (self.uri is None) == (self.key is None):
            raise ValueError("either the path of the URI, or those of bucket and key")


def uris_at(value: object, paths: JsonPaths) -> list[str]:
    """Return the URIs of all objects that the document announces; raises MalformedNotification when there are none."""
    if paths.uri is not None:
        return _texts(value, paths.uri)
    assert paths.key is not None
    assert paths.bucket is not None
    keys, buckets = _texts(value, paths.key), _texts(value, paths.bucket)
    if len(buckets) == 1:
        buckets *= len(keys)
    if len(buckets) != len(keys):
        raise MalformedNotification(
            f"{len(keys)} values at keyPath {paths.key!r}, but {len(buckets)} at bucketPath {paths.bucket!r}"
        )
    return [
        f"{bucket.rstrip('/') if '://' in bucket else f's3://{bucket}'}/{key}"
        for bucket, key in zip(buckets, keys, strict=True)
    ]


def _texts(value: object, path: str) -> list[str]:
    values = list(_walk(value, path.split(".")))
    if not values:
        raise MalformedNotification(f"nothing stands at {path!r}")
    texts = [item for item in values if isinstance(item, str) and item]
    if len(texts) < len(values):
        raise MalformedNotification(f"what stands at {path!r} has to be text")
    return texts


def _walk(value: object, names: list[str]) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, names)
    elif not names:
        yield value
    elif isinstance(value, dict) and names[0] in value:
        yield from _walk(value[names[0]], names[1:])
    else:  # an element of several without it must be noticed
        raise MalformedNotification(f"{names[0]!r} is missing")


FORMATS = (
    "s3",
    "sns",
    "eventbridge",
    "securitylake",
    "r2",
    "b2",
    "oss",
    "oci",
    "awsconfig",
    "cloudtrail",
    "crowdstrike",
    "cloudevents",
    "eventgrid",
    "gcs",
    "minio",
    "obs",
    "uri",
    "json",
)
"""The forms that may be forced; `sns` is an SNS envelope with any form in it, `minio` and `obs` are S3's own form."""

_AS_S3 = ("minio", "obs")

_DEEPEST_ENVELOPE = 3  # SNS may carry an EventBridge event, a forwarder may wrap it once more
_LARGEST_SIZE = 2**63 - 1
_OF_CLOUDTRAIL = "CloudTrail validation message."
"""What CloudTrail sends through SNS to test a topic."""
_LONGEST_VERSION = 1024


def parse_notification(
    body: bytes,
    attributes: Mapping[str, str] | None = None,
    format: str = "auto",
    paths: JsonPaths | None = None,
) -> Announcement:
    """Parse a message; raise `MalformedNotification` and nothing else, whatever the bytes.

    `attributes` are the message's headers (GCS has the important fields there). `format` is `auto` or one of `FORMATS`:
    a message of another form is then malformed, and nothing is guessed. `json` needs the `paths` of its objects.
    ValueError is the caller's mistake: an unknown `format`, or `json` without `paths`.
    """
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"unknown notification format {format!r}; use auto or one of {', '.join(FORMATS)}")
    if format == "json" and paths is None:
        raise ValueError("format json needs the paths of its objects")
    format, attributes = "s3" if format in _AS_S3 else format, attributes or {}
    event = attributes.get("eventType")
    seems_gcs = event is not None and ("bucketId" in attributes or event.startswith("OBJECT_"))
    try:
        if format == "json" and paths is not None:
            announcement = _uris(uris_at(_json(_text(body)), paths))
        elif event is not None and (format == "gcs" or (format == "auto" and seems_gcs)):
            announcement = _gcs(body, attributes)
        else:
            text = _text(body)
            if format == "uri" or (format == "auto" and looks_like_uri(text)):
                announcement = _uris(_json(text)) if text.startswith("[") else _uri(text)
            else:
                announcement = _document(_json(text), format, _DEEPEST_ENVELOPE)
    except RecursionError:
        raise MalformedNotification("the JSON is nested too deeply") from None
    for notice in announcement.objects:
        for text in (notice.uri, notice.etag or "", notice.version or ""):
            if "\0" in text:
                raise MalformedNotification("a name holds a NUL character")
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise MalformedNotification("a name holds half a character (a lone surrogate)") from None
            if text != notice.uri and size > _LONGEST_VERSION:
                raise MalformedNotification(f"the ETag or version {text[:60]!r}... has {size} bytes; no store has such")
        check_object(notice.uri)
    return announcement


def _document(value: object, format: str, envelopes: int) -> Announcement:
    if isinstance(value, list) and value and isinstance(value[0], dict) and format != "uri":
        return _listed(value, format)
    if isinstance(value, str | list) and format in ("auto", "uri"):
        return _uri(value) if isinstance(value, str) else _uris(value)
    if not isinstance(value, dict):
        raise MalformedNotification(f"a notification is a JSON object, not {_kind(value)}")
    if value.get("Type") == "Notification" and "Message" in value and format in ("auto", "sns"):
        if envelopes == 0:
            raise MalformedNotification("too many SNS envelopes, one in another")
        message = _string(value, "Message").strip()
        if looks_like_uri(message):
            return _uri(message)
        if message == _OF_CLOUDTRAIL:
            return Announcement((), ignored=1)
        return _document(_json(message), "auto", envelopes - 1)
    for name, dialect in DIALECTS.items():
        if dialect.recognises(value) and format in ("auto", name):
            return _announced(dialect, value)
    if value.get("Type") in ("SubscriptionConfirmation", "UnsubscribeConfirmation"):
        raise MalformedNotification("SNS asks to confirm the subscription: visit the SubscribeURL in the message")
    expected = "a known form" if format == "auto" else f"form {format!r}"
    nearly = _nearest(value, format)
    fields = ", ".join(repr(name[:40]) for name in list(value)[:8]) or "(none)"
    raise MalformedNotification(f"not a notification of {expected}{nearly}; it has the fields {fields}")


def _nearest(document: Json, format: str) -> str:
    """Return what a document lacks to be of the form of which it has most fields; "" for one that has none."""
    best: tuple[int, str] = (0, "")
    for name, dialect in DIALECTS.items():
        lacking = [field for field in dialect.near if field not in document]
        present = len(dialect.near) - len(lacking)
        if lacking and present > best[0] and format in ("auto", name):
            best = present, f": it is nearly of form {name!r}, without {', '.join(map(repr, lacking))}"
    return best[1]


def _listed(documents: list[object], format: str) -> Announcement:
    """Parse several events in one message."""
    announcements = []
    for number, document in enumerate(documents):
        try:
            dialect = next(
                (
                    dialect
                    for name, dialect in DIALECTS.items()
                    if dialect.in_lists
                    and format in ("auto", name)
                    and isinstance(document, dict)
                    and dialect.recognises(document)
                ),
                None,
            )
            if dialect is None:
                raise MalformedNotification("not an event of a known form that comes in lists")
            announcements.append(_announced(dialect, document))  # type: ignore[arg-type]
        except MalformedNotification as error:
            raise MalformedNotification(f"event {number + 1} of {len(documents)}: {error}") from None
    objects = tuple(notice for announcement in announcements for notice in announcement.objects)
    return Announcement(objects, sum(announcement.ignored for announcement in announcements))


# --- what a dialect describes ----------------------------------------------------------------------------------------


def _announced(dialect: Dialect, document: Json) -> Announcement:
    """Parse the records of a document."""
    if dialect.is_test(document):
        return Announcement((), ignored=1)
    if dialect.records is None:
        notice = _notice(dialect, document)
        return Announcement((notice,)) if notice else Announcement((), ignored=1)
    records = document[dialect.records]
    if not isinstance(records, list) or not records:
        raise MalformedNotification(
            f"{dialect.records!r} has to be a list of at least one record, not {_kind(records)}"
        )
    notices = []
    shared = {name: document[name] for name in dialect.shared}  # what the document has for all of its records
    for number, record in enumerate(records):
        try:
            if shared and isinstance(record, str):
                record = {dialect.key: record}
            if not isinstance(record, dict):
                raise MalformedNotification(f"a record is an object, not {_kind(record)}")
            of_sender = dialect.senders.get(dialect.sender_of(record), dialect)
            notices.append(_notice(of_sender, {**record, **shared} if shared else record))
        except MalformedNotification as error:
            raise MalformedNotification(f"record {number + 1} of {len(records)}: {error}") from None
    objects = tuple(notice for notice in notices if notice is not None)
    return Announcement(objects, ignored=len(records) - len(objects))


def _notice(dialect: Dialect, record: Json) -> ObjectNotice | None:
    """Parse one record; None for an event that announces no object, and for empty objects that represent folders."""
    event = None if dialect.event is None else _string(record, dialect.event).removeprefix("s3:")
    _object_at(record, dialect.about)
    announces = dialect.deleted not in record if event is None else dialect.announces(event)
    if announces is None:
        raise MalformedNotification(f"unknown {dialect.event_label} {str(event)[:50]!r}")
    if not announces:
        return None
    dialect = dialect.moved.get(event or "", dialect)
    item = _object_at(record, dialect.item)
    if dialect.begun(item):
        return None
    uri = _uri_of(dialect, record, item)
    size: object = item.get(dialect.size, dialect.missing_size)
    if isinstance(size, str) and size.isascii() and size.isdigit() and len(size) < 20:
        size = int(size)  # JSON of Google writes 64-bit numbers as text
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST_SIZE):
        raise MalformedNotification(f"a size is a whole number of bytes, not {size!r:.40}")
    if uri.endswith("/") and size == 0:
        return None
    if size == 0 and dialect.is_sizeless(item):
        size = None
    etag, version = _optional(item, dialect.etag), _optional(item, dialect.version)
    # a sender without the size is not the store, and has the time of its own event
    modified = None if size is None else time_of(record, dialect.time)
    event_time = time_of(record, dialect.event_time)
    return ObjectNotice(uri, size, etag, version, sequence_of(dialect, record, item), modified, event_time)


def _uri_of(dialect: Dialect, record: Json, item: Json) -> str:
    if dialect.uri_of is not None:
        return dialect.uri_of(record, item)
    key = dialect.decode_key(_string(item, dialect.key))
    holder, _, name = dialect.bucket.rpartition(".")
    bucket = _string(_object_at(record, holder), name)
    if "/" in bucket:  # the parts after it would be taken for parts of the key
        raise MalformedNotification(f"{bucket[:100]!r} is not a bucket name")
    if not key:
        raise MalformedNotification("the key is empty")
    return f"{dialect.scheme}://{bucket}/{key}"


def _gcs(body: bytes, attributes: Mapping[str, str]) -> Announcement:
    """Parse a message of GCS: the attributes have event and object; the body, if present, has size and ETag."""
    payload: object = {}
    if attributes.get("eventType") == "OBJECT_FINALIZE" and attributes.get("payloadFormat") == "JSON_API_V1":
        payload = _json(_text(body))
    if not isinstance(payload, dict):
        raise MalformedNotification(f"the payload JSON_API_V1 is a JSON object, not {_kind(payload)}")
    generation = attributes.get("objectGeneration", payload.get("generation"))
    from_body = {"size": payload.get("size"), "etag": payload.get("etag"), "objectGeneration": generation}
    updated = payload.get("updated")  # the object's own time, which is close to the event's
    from_body["updated"] = attributes.get("eventTime") if updated is None else updated
    return _announced(GCS_ATTRIBUTES, {**attributes, **from_body})


# --- plain URIs ------------------------------------------------------------------------------------------------------


def _uri(text: str) -> Announcement:
    """Parse a URI, or the absolute path of a local file; text or a JSON string (a JSON list of several: `_uris`)."""
    if text.startswith('"'):
        value = _json(text)
        text = value if isinstance(value, str) else ""
    return Announcement((ObjectNotice(plain_uri(text)),))


def _uris(value: object) -> Announcement:
    """Parse several URIs in one message: a JSON list of them."""
    if not isinstance(value, list) or not value:
        raise MalformedNotification(f"a list of URIs holds at least one, not {_kind(value)}")
    notices: list[ObjectNotice] = []
    for number, item in enumerate(value):
        try:
            if not isinstance(item, str):
                raise MalformedNotification(f"a URI is text, not {_kind(item)}")
            notices.append(ObjectNotice(plain_uri(item)))
        except MalformedNotification as error:
            raise MalformedNotification(f"URI {number + 1} of {len(value)}: {error}") from None
    return Announcement(tuple(notices))


# --- the small parts -------------------------------------------------------------------------------------------------


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


def _object_at(parent: Json, path: str) -> Json:
    """Return the object to which names separated by dots lead; the parent itself for no name."""
    for name in path.split(".") if path else ():
        value = parent.get(name)
        if not isinstance(value, dict):
            raise MalformedNotification(f"{name!r} has to be an object, not {_kind(value, missing=name not in parent)}")
        parent = value
    return parent


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
        value: object = json.loads(text, parse_constant=refuse_constant)
    except ValueError:  # also numbers of too many digits
        raise MalformedNotification("the body is neither JSON nor a URI") from None
    return value


def _kind(value: object, missing: bool = False) -> str:
    if missing:
        return "missing"
    if isinstance(value, list | dict | str) and not value:
        return {"list": "an empty list", "dict": "an empty object"}.get(type(value).__name__, "empty text")
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


_HEXADECIMAL = re.compile("[0-9A-Fa-f]{1,60}")
_NUMBER = re.compile("[0-9]{1,20}")


def sequence_of(dialect: Dialect, record: Mapping[str, object], item: Mapping[str, object]) -> str | None:
    """Return text that is greater for the later notification; only texts with the same first letter can be compared."""
    if dialect.sequencer is not None and _HEXADECIMAL.fullmatch(text := _text_at(item, dialect.sequencer)):
        # AWS: pad the shorter one with zeros at its right end; the same as leaving them out
        return "s" + text.upper().rstrip("0")
    if dialect.generation is not None and _NUMBER.fullmatch(text := _text_at(item, dialect.generation)):
        return "g" + text.zfill(20)
    micros = None if dialect.time is None else _time_micros(_text_at(record, dialect.time))
    return None if micros is None else f"t{micros:020d}"


def time_of(record: Mapping[str, object], name: str | None) -> datetime | None:
    """Return the time (aware, UTC) that the record has under this name; None where it has none."""
    micros = None if name is None else _time_micros(_text_at(record, name))
    # senders without a time write 1970
    return model.time_of(micros) if micros else None


def _text_at(parent: Mapping[str, object], name: str) -> str:
    value = parent.get(name)
    return value if isinstance(value, str) else ""


def _time_micros(text: str) -> int | None:
    """Parse microseconds since 1970 UTC; digits beyond them are cut off."""
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if parts is None:
        return None
    try:
        time = datetime.fromisoformat(parts[1] + parts[3].replace("Z", "+00:00")).astimezone(timezone.utc)
    except (ValueError, OverflowError):  # its offset may lead out of the years that there are
        return None
    seconds = int((time - model.EPOCH).total_seconds())
    return max(seconds * 1_000_000 + int((parts[2] or "").ljust(6, "0")[:6]), 0)
