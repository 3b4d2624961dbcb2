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
        return Outgoing(json.dumps({"Records": [_s3_record(bucket, key, listed)]}).encode())
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


def _s3_record(bucket: str, key: str, listed: ListedObject) -> dict[str, object]:
    item: dict[str, object] = {"key": quote_plus(key, safe="/", errors="surrogatepass"), "size": listed.size}
    item |= {} if listed.etag is None else {"eTag": listed.etag}
    item |= {} if listed.version is None else {"versionId": listed.version}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": _iso(listed.modified),
        "eventName": "ObjectCreated:Put",
        "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"}, "object": item},
    }


def _gcs_object(bucket: str, key: str, listed: ListedObject) -> dict[str, object]:
    resource = {"kind": "storage#object", "bucket": bucket, "name": key, "size": str(listed.size)}
    resource |= {} if listed.etag is None else {"etag": listed.etag}
    resource |= {} if listed.version is None else {"generation": listed.version}
    return {**resource, "updated": _iso(listed.modified)}


def _iso(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
