"""From received messages to what they announce: parsing, prefixes, identities. Pure but for the sizes it asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from queue_source.announcements.parser import parse_notification
from queue_source.errors import MalformedNotification
from queue_source.messages import MESSAGE_URI, ObjectNotice, Received, kept_message
from queue_source.options import NotificationOptions
from queue_source.options.json_paths import JsonPaths
from queue_source.queues.base import REPUBLISH_COUNT
from queue_source.tags import matches_any
from queue_source.uris import climbs
from shard_store.model import Content, ErrorRecord, Payload

Stat = Callable[[Sequence[str]], Sequence[int | None]]
"""Sizes in bytes of many URIs at once; None where an object is missing (the read will tell)."""

_NO_ID = (
    "the message has no id of its own, so a second delivery cannot be told from a second message that is equal; let "
    "its sender set one (AMQP: the property message_id), or set option 'messageIdentity' to content to take equal ones "
    "for one"
)

OBJECT_VERSION = "Object-Version"
"""Header of a message that announces an object anew: the part of its identity that its URI has not."""


@dataclass(slots=True)
class Intake:
    """What a set of messages comes to: contents to open, errors to record, messages that announce nothing."""

    contents: dict[int, list[Content]] = field(default_factory=dict)  # by the message's place in the set
    errors: dict[int, ErrorRecord] = field(default_factory=dict)
    ignored: list[int] = field(default_factory=list)
    ignored_records: int = 0

    def ignore(self, place: int) -> None:
        self.ignored.append(place)
        self.ignored_records += 1


def take_in(messages: Sequence[Received], options: NotificationOptions, stat: Stat) -> Intake:
    """Parse every message. A message of which any part is not understood is an error as a whole (invariant 8)."""
    intake = Intake()
    paths = None
    if options.notification_format == "json":
        paths = JsonPaths(options.bucket_path, options.key_path, options.uri_path)
    for place, message in enumerate(messages):
        if not _tag_matches(message, options):
            intake.ignore(place)
            continue
        try:
            announced = parse_notification(message.body, message.headers, options.notification_format, paths)
            wanted = [notice for notice in announced.objects if _wanted(notice, options)]
            contents = [_content(notice, message, options) for notice in wanted]
        except MalformedNotification as error:
            intake.errors[place] = _error(message, "malformed-message", str(error))
            continue
        intake.ignored_records += announced.ignored + len(announced.objects) - len(wanted)
        if contents:
            intake.contents[place] = contents
        else:
            intake.ignored.append(place)
    _fill_sizes(intake, stat)
    return intake


def take_messages(messages: Sequence[Received], options: NotificationOptions) -> Intake:
    """The messages are the content (`content=message`): one shard each, whose id is its queue and its message key."""
    intake = Intake()
    for place, message in enumerate(messages):
        if not _tag_matches(message, options):
            intake.ignore(place)
            continue
        if not message.has_id and options.message_identity == "required":
            intake.errors[place] = _error(message, "no-message-id", _NO_ID)
            continue
        count = message.headers.get(REPUBLISH_COUNT)
        key = message.message_id if count is None else f"{message.message_id}#{count}"
        payload = Payload(message.body, key, message.tag, tuple(message.headers.items()), message.sent_at)
        content = Content(
            shard_id=f"{message.queue}#{key}",
            uri=MESSAGE_URI,
            size=len(message.body),
            queue=message.queue,
            message_id=message.message_id,
            receive_count=message.receive_count,
            group=message.group,
            payload=payload,
        )
        intake.contents[place] = [content]
    return intake


def set_apart(intake: Intake) -> None:
    """For at-least-once: what two messages announce are two shards, even if it is one object.

    Without rows in the store only chance would find them equal: while both are in flight, and not afterwards.
    """
    for contents in intake.contents.values():
        contents[:] = [
            c if c.uri == MESSAGE_URI else c._replace(shard_id=f"{c.shard_id}#{c.queue}#{c.message_id}")
            for c in contents
        ]


def _tag_matches(message: Received, options: NotificationOptions) -> bool:
    return options.tag_filter is None or matches_any(options.tag_filter, message.tag)


def _wanted(notice: ObjectNotice, options: NotificationOptions) -> bool:
    glob = options.path_glob_filter
    return glob is None or glob.fullmatch(notice.uri.rpartition("/")[2]) is not None


def _content(notice: ObjectNotice, message: Received, options: NotificationOptions) -> Content:
    if not notice.uri.startswith(options.allowed_prefixes):
        raise MalformedNotification(
            f"{notice.uri[:300]!r} starts with none of the allowed prefixes; name its prefix in option "
            "'allowedPrefixes' and publish the message again"
        )
    if climbs(notice.uri):
        raise MalformedNotification(
            f"{notice.uri[:300]!r} has a segment '.' or '..', by which another object would be read; rename the object"
        )
    identity = notice.uri
    version = notice.version or notice.etag or message.headers.get(OBJECT_VERSION)
    if options.allow_overwrites and version is not None:
        identity = f"{notice.uri}#{version}"
    return Content(
        shard_id=identity,
        uri=notice.uri,
        size=notice.size,
        etag=notice.etag,
        queue=message.queue,
        message_id=message.message_id,
        receive_count=message.receive_count,
        group=message.group,
    )


def _error(message: Received, cause: str, detail: str) -> ErrorRecord:
    return ErrorRecord(
        scope="message",
        cause=cause,
        detail=detail,
        subject=message.message_id,
        queue=message.queue,
        message_id=message.message_id,
        **kept_message(message.body, message.tag, tuple(message.headers.items()), message.group),
    )


def _fill_sizes(intake: Intake, stat: Stat) -> None:
    """Ask once for the sizes that the notifications did not tell, for packing and `maxBytesPerTrigger`."""
    wanted = list({c.uri: None for contents in intake.contents.values() for c in contents if c.size is None})
    if not wanted:
        return
    known = dict(zip(wanted, stat(wanted), strict=True))
    for contents in intake.contents.values():
        for index, content in enumerate(contents):
            if content.size is None:
                contents[index] = content._replace(size=known[content.uri])
