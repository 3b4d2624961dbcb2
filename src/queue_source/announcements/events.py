"""Builds the message that announces an object of a listing, in the form of its own store. Pure.

The opposite of `parser.py`, which reads the object from such a message, with the identity of the listing.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from urllib.parse import quote_plus

from queue_source.announcements.contents import OBJECT_VERSION
from queue_source.messages import ListedObject, Outgoing


def announcement_of(listed: ListedObject, *, plain: bool = False) -> Outgoing | None:
    """Build the message; None for an object that no message can name.

    `plain`: the URI alone, whatever store it is in.
    """
    scheme, _, path = listed.uri.partition("://")
    bucket, _, key = path.partition("/")
    if scheme == "s3" and not plain:
        quoted = quote_plus(key, safe="/", errors="surrogatepass")
        facts = {"size": listed.size, "eTag": listed.etag, "versionId": listed.version}
        record = s3_record(bucket, quoted, iso_time(listed.modified), **facts)
        return Outgoing(json.dumps({"Records": [record]}).encode())
    if scheme == "gs" and not plain:
        return Outgoing(json.dumps(_gcs_object(bucket, key, listed)).encode())
    if any(ord(character) < 32 for character in listed.uri):
        return None
    text = listed.uri.removeprefix("file://")  # in the URI of a file percent-encoded characters would be decoded
    version = listed.version or listed.etag
    headers = {} if version is None else {OBJECT_VERSION: version}
    try:
        return Outgoing(text.encode(), headers=headers)
    except UnicodeEncodeError:
        return None


def s3_record(bucket: str, key: str, time: str, **facts: object) -> dict[str, object]:
    """Build the record by which Amazon announces an object. `key` is form-encoded; `facts`: its size, eTag ..."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": time,
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": key, **{name: fact for name, fact in facts.items() if fact is not None}},
        },
    }


def _gcs_object(bucket: str, key: str, listed: ListedObject) -> dict[str, object]:
    resource = {"kind": "storage#object", "bucket": bucket, "name": key, "size": str(listed.size)}
    resource |= {} if listed.etag is None else {"etag": listed.etag}
    resource |= {} if listed.version is None else {"generation": listed.version}
    return {**resource, "updated": iso_time(listed.modified)}


def iso_time(time: datetime) -> str:
    """Format a time as Amazon does."""
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
