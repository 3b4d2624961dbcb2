"""From messages to the contents that they announce: parsing, prefixes, identities. Pure but for the sizes asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from queue_source.announcements.hidden_names import is_hidden
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
"""Sizes in bytes of many URIs at once; None where an object is missing (reading it reports that)."""

_NO_ID = (
    "the message has no id of its own, so a second delivery cannot be distinguished from a second message that is "
    "equal; let its sender set one (AMQP: the property message_id), or set option 'messageIdentity' to content to take "
    "equal ones for one"
)

OBJECT_VERSION = "Object-Version"
"""Header of a message that announces an object anew: the part of its identity that its URI has not."""


class Announced(NamedTuple):
    """What one message comes to: contents to open, or the `error` that it is, or neither (nothing to read).

    `ignored` counts those of its records that announce nothing to read.
    """

    message: Received
    contents: tuple[Content, ...] = ()
    error: ErrorRecord | None = None
    ignored: int = 0


def announced_objects(messages: Sequence[Received], options: NotificationOptions, stat: Stat) -> list[Announced]:
    """The objects of every message. One of which any part is not understood is an error as a whole (invariant 8)."""
    paths = None
    if options.notification_format == "json":
        paths = JsonPaths(options.bucket_path, options.key_path, options.uri_path)
    return _with_sizes([_objects_of(message, options, paths) for message in messages], stat)


def announced_messages(messages: Sequence[Received], options: NotificationOptions) -> list[Announced]:
    """The messages are the content (`content=message`): one shard each, whose id is its queue and its message key."""
    return [_message_of(message, options) for message in messages]


def apart(announced: Announced) -> Announced:
    """For at-least-once: what two messages announce are two shards, even if it is one object.

    Without rows in the store only chance would find them equal: while both are in flight, and not afterwards.
    """
    contents = (
        c if c.uri == MESSAGE_URI else c._replace(shard_id=f"{c.shard_id}#{c.queue}#{c.message_id}")
        for c in announced.contents
    )
    return announced._replace(contents=tuple(contents))


def _objects_of(message: Received, options: NotificationOptions, paths: JsonPaths | None) -> Announced:
    if not _tag_matches(message, options):
        return Announced(message, ignored=1)
    try:
        found = parse_notification(message.body, message.headers, options.notification_format, paths)
        _check_number(len(found.objects), options)
        wanted = [notice for notice in found.objects if is_wanted(notice.uri, options)]
        contents = tuple(_content(notice, message, options) for notice in wanted)
    except MalformedNotification as error:
        return Announced(message, error=_error(message, "malformed-message", str(error)))
    return Announced(message, contents, ignored=found.ignored + len(found.objects) - len(wanted))


def _message_of(message: Received, options: NotificationOptions) -> Announced:
    if not _tag_matches(message, options):
        return Announced(message, ignored=1)
    if not message.has_id and options.message_identity == "required":
        return Announced(message, error=_error(message, "no-message-id", _NO_ID))
    count = message.headers.get(REPUBLISH_COUNT)
    key = message.message_id if count is None else f"{message.message_id}#{count}"
    payload = Payload(message.body, key, message.tag, tuple(message.headers.items()), message.sent_at)
    content = _from(message, f"{message.queue}#{key}", MESSAGE_URI, len(message.body), payload=payload)
    return Announced(message, (content,))


def _tag_matches(message: Received, options: NotificationOptions) -> bool:
    return options.tag_filter is None or matches_any(options.tag_filter, message.tag)


def _check_number(objects: int, options: NotificationOptions) -> None:
    """A message takes room in the store and in memory for all that it announces at once, until the last is read."""
    if objects > options.max_objects_per_message:
        raise MalformedNotification(
            f"it announces {objects:,} objects, and option 'maxObjectsPerMessage' allows "
            f"{options.max_objects_per_message:,}; raise it, or announce fewer objects in each message"
        )


def is_wanted(uri: str, options: NotificationOptions) -> bool:
    """Whether the options choose the object by its name."""
    glob, path_glob = options.path_glob_filter, options.full_path_glob_filter
    if glob is not None and glob.fullmatch(uri.rpartition("/")[2]) is None:
        return False
    if path_glob is not None and not path_glob.matches(uri):
        return False
    allowed = () if options.read_hidden_files else [p for p in options.allowed_prefixes if uri.startswith(p)]
    return not allowed or not is_hidden(uri, allowed)


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
    return _from(message, identity, notice.uri, notice.size, notice.etag, sequence=notice.sequence)


def _from(
    message: Received,
    shard_id: str,
    uri: str,
    size: int | None,
    etag: str | None = None,
    payload: Payload | None = None,
    sequence: str | None = None,
) -> Content:
    origin = message.queue, message.message_id, message.receive_count, message.group
    return Content(shard_id, uri, size, etag, *origin, payload, sequence, message.has_id)


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


def _with_sizes(announced: list[Announced], stat: Stat) -> list[Announced]:
    """Ask once for the sizes that the notifications omit: tasks and `maxBytesPerTrigger` go by them."""
    unknown = list({c.uri: None for one in announced for c in one.contents if c.size is None})
    if not unknown:
        return announced
    sizes = dict(zip(unknown, stat(unknown), strict=True))
    return [
        one._replace(contents=tuple(c if c.size is not None else c._replace(size=sizes[c.uri]) for c in one.contents))
        for one in announced
    ]
