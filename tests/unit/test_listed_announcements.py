"""What announces an object of a listing is read as that object, with the identity that the listing gives it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from queue_source.announcements.contents import announced_objects, announcement_of, listed_contents
from queue_source.announcements.parser import parse_notification
from queue_source.commands.errors import plain as requeued
from queue_source.messages import ListedObject, Receipt, Received
from queue_source.options import NotificationOptions

AT = datetime(2026, 11, 20, 8, 30, tzinfo=timezone.utc)
KEYS = ("in/a b+c", "in/ü%20/%C3", "in/a//b", 'in/"quoted"', "in/🎉", "in/#?&=", "in/50%", "in/end ", "in/end\u2028")
PREFIXES = ("s3://bucket/", "gs://bucket/", "abfss://c@account.dfs.core.windows.net/", "file:///data/")
ALL = [
    ListedObject(f"{prefix}{key}", 7, etag, AT, version)
    for prefix in PREFIXES
    for key in KEYS
    if not (prefix.startswith("file") and "//" in key)
    for etag, version in ((None, None), ("e1", None), ("e1", "v2"))
]


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_every_object_comes_back_with_its_identity(overwrites: bool, plain: bool) -> None:
    options = NotificationOptions(allowed_prefixes=PREFIXES, allow_overwrites=overwrites)
    for listed in ALL:
        message = announcement_of(listed, plain=plain)
        assert message is not None
        received = Received("q", "m", Receipt("r"), message.body, 1, 0.0, headers=message.headers)
        [announced] = announced_objects([received], options, lambda uris: [None for _ in uris])
        assert announced.error is None, (listed, announced.error)
        [expected], [content] = listed_contents([listed], options), announced.contents
        assert expected is not None
        assert (content.shard_id, content.uri) == (expected.shard_id, expected.uri)
        if listed.uri.startswith(("s3", "gs")) and not plain:
            assert (content.size, content.etag) == (7, listed.etag)
        assert parse_notification(requeued(listed.uri)).objects[0].uri == listed.uri


@pytest.mark.parametrize(
    "uri", ["file:///data/new\nline", "abfss://c@a.dfs.core.windows.net/tab\t", "file:///data/\udcff"]
)
def test_what_no_message_can_name_is_said(uri: str) -> None:
    assert announcement_of(ListedObject(uri, 1, None, AT)) is None


def test_an_event_of_s3_can_name_control_characters() -> None:
    listed = ListedObject("s3://bucket/new\nline", 1, "e", AT)
    message = announcement_of(listed)
    assert message is not None
    assert b"new%0Aline" in message.body
    assert announcement_of(listed, plain=True) is None
