"""From messages to the contents that they announce: parsing, prefixes, identities. Pure but for the sizes asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

from queue_source.announcements.hidden_names import is_hidden
from queue_source.announcements.json_paths import JsonPaths
from queue_source.announcements.parser import parse_notification
from queue_source.errors import MalformedNotification
from queue_source.messages import MESSAGE_URI, ObjectNotice, Received, kept_message
from queue_source.options import NotificationOptions
from queue_source.queues.base import REPUBLISH_COUNT
from queue_source.tags import matches_any
from queue_source.uris import climbs
from shard_store.model import Content, ErrorRecord, Payload, Reference, micros

_PREFIXES = 3  # that an error shows


class Stated(Protocol):
    """What a store says of an object: its size in bytes; its time (aware) and its ETag, where it says them."""

    @property
    def size(self) -> int: ...

    @property
    def modified(self) -> datetime | None: ...

    @property
    def etag(self) -> str | None: ...


Stat = Callable[[Sequence[str]], Sequence[Stated | None]]
"""Asks for many URIs at once; None where an object is missing (reading it reports that)."""

InPieces = Callable[[str, int], bool]
"""Whether an object (URI, size in bytes) may be read in pieces, by several tasks or micro-batches."""

_NO_ID = (
    "the message has no id of its own, so a second delivery cannot be distinguished from a second message that is "
    "equal; let its sender set one (AMQP: the property message_id), or set option 'messageIdentity' to content to take "
    "equal ones for one"
)

OUTSIDE_PREFIXES = "outside-prefixes"
"""The cause of a message that announces an object outside of `allowedPrefixes`: it is well formed, and may be ours."""

_AS_CONFIGURED: Mapping[str, str] = {}

OBJECT_VERSION = "Object-Version"
"""Header of a message that announces an object anew: the part of its identity that its URI has not."""


class Announced(NamedTuple):
    """What one message comes to: contents to open, or the `error` that it is, or neither (nothing to read).

    `ignored` counts those of its records that announce nothing to read, `foreign` the objects of others. `left_out` is
    what the options do not choose by its time: read only if that has begun.
    """

    message: Received
    contents: tuple[Content, ...] = ()
    error: ErrorRecord | None = None
    ignored: int = 0
    foreign: int = 0
    left_out: tuple[Content, ...] = ()


class _Parsed(NamedTuple):
    """What a message says, before the store was asked: objects that the options choose by their names, or an error."""

    message: Received
    notices: tuple[ObjectNotice, ...] = ()
    error: ErrorRecord | None = None
    ignored: int = 0
    foreign: int = 0


def announced_objects(
    messages: Sequence[Received],
    options: NotificationOptions,
    stat: Stat,
    now: datetime | None = None,
    in_pieces: InPieces = lambda uri, size: False,
) -> list[Announced]:
    """The objects of every message. One of which any part is not understood is an error as a whole (invariant 8).

    `now` is the time from which ages are counted, that of this machine if None. What is read `in_pieces` gets an ETag
    where none is announced, so that all pieces are of one version.
    """
    paths = None
    if options.notification_format == "json":
        paths = JsonPaths(options.bucket_path, options.key_path, options.uri_path)
    parsed = [_parsed(message, options, paths) for message in messages]
    stated = _stated(parsed, options, stat, in_pieces)
    return [_announced(one, stated, options, now, in_pieces) for one in parsed]


def with_versions(contents: Sequence[Content], stat: Stat, in_pieces: InPieces) -> list[Content]:
    """The same; those that are read in pieces, and of which no ETag was announced, with what the store says now."""
    unknown = list({c.uri: None for c in contents if c.etag is None and c.size and in_pieces(c.uri, c.size)})
    if not unknown:
        return list(contents)
    stated = dict(zip(unknown, stat(unknown), strict=True))
    return [
        c._replace(etag=one.etag) if (one := stated.get(c.uri)) is not None and one.size == c.size else c
        for c in contents
    ]


def announced_messages(
    messages: Sequence[Received], options: NotificationOptions, queue_names: Mapping[str, str] = _AS_CONFIGURED
) -> list[Announced]:
    """The messages are the content (`content=message`): one shard each, whose id is its queue and its message key.

    `queue_names`: what a queue is called in ids, by its name: the source's own, however the queue is written.
    """
    return [_message_of(message, options, queue_names) for message in messages]


def apart(announced: Announced, queue_names: Mapping[str, str]) -> Announced:
    """For at-least-once: what two messages announce are two shards, even if it is one object.

    Without rows in the store only chance would find them equal: while both are in flight, and not afterwards.
    """

    def of_its_message(contents: Sequence[Content]) -> tuple[Content, ...]:
        return tuple(
            c
            if c.uri == MESSAGE_URI
            else c._replace(shard_id=f"{c.shard_id}#{queue_names.get(c.queue, c.queue)}#{c.message_id}")
            for c in contents
        )

    return announced._replace(contents=of_its_message(announced.contents), left_out=of_its_message(announced.left_out))


def _parsed(message: Received, options: NotificationOptions, paths: JsonPaths | None) -> _Parsed:
    if not _tag_matches(message, options):
        return _Parsed(message, ignored=1)
    try:
        found = parse_notification(message.body, message.headers, options.notification_format, paths)
        ours = [notice for notice in found.objects if not _is_left_to_others(notice.uri, options)]
        _check_number(len(ours), options)
        wanted = tuple(notice for notice in ours if is_wanted(notice.uri, options))
        for notice in wanted:
            _check_place(notice.uri, options)
    except MalformedNotification as error:
        cause = OUTSIDE_PREFIXES if isinstance(error, _OutsidePrefixes) else "malformed-message"
        return _Parsed(message, error=_error(message, cause, str(error)))
    ignored, foreign = found.ignored + len(ours) - len(wanted), len(found.objects) - len(ours)
    return _Parsed(message, wanted, ignored=ignored, foreign=foreign)


def _announced(
    parsed: _Parsed,
    found: Mapping[str, Stated],
    options: NotificationOptions,
    now: datetime | None,
    in_pieces: InPieces,
) -> Announced:
    """What the notification says itself counts, and not what was `found`: the object may be another one by now."""
    by_time = options.chooses_by_time
    contents: list[Content] = []
    left_out: list[Content] = []
    for notice in parsed.notices:
        size, modified = notice.size, notice.modified
        if (stated := found.get(notice.uri)) is not None:
            size = stated.size if size is None else size
            modified = modified or stated.modified
        content = _content(notice, size, modified, parsed.message, options)
        if stated is not None and content.etag is None and size == stated.size and in_pieces(notice.uri, stated.size):
            content = content._replace(etag=stated.etag)
        (contents if not by_time or is_chosen(modified, options, now) else left_out).append(content)
    kinds = tuple(contents), parsed.error, parsed.ignored, parsed.foreign, tuple(left_out)
    return Announced(parsed.message, *kinds)


def _message_of(message: Received, options: NotificationOptions, queue_names: Mapping[str, str]) -> Announced:
    if not _tag_matches(message, options):
        return Announced(message, ignored=1)
    if not message.has_id and options.message_identity == "required":
        return Announced(message, error=_error(message, "no-message-id", _NO_ID))
    count = message.headers.get(REPUBLISH_COUNT)
    key = message.message_id if count is None else f"{message.message_id}#{count}"
    payload = Payload(message.body, key, message.tag, tuple(message.headers.items()), message.sent_at)
    sent_at = None if message.sent_at is None else round(message.sent_at * 1_000_000)
    content = Content(
        f"{queue_names.get(message.queue, message.queue)}#{key}",
        MESSAGE_URI,
        len(message.body),
        None,
        message.queue,
        message.message_id,
        message.receive_count,
        message.group,
        payload,
        named=message.has_id,
        sent_at=sent_at,
    )
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


def _is_left_to_others(uri: str, options: NotificationOptions) -> bool:
    """What climbs might lead back to a prefix of ours: it is nobody's, and an error."""
    ignores = options.on_foreign_object == "ignore"
    return ignores and not uri.startswith(options.allowed_prefixes) and not climbs(uri)


def is_wanted(uri: str, options: NotificationOptions) -> bool:
    """Whether the options choose the object by its name."""
    glob, path_glob = options.path_glob_filter, options.full_path_glob_filter
    if glob is not None and glob.fullmatch(uri.rpartition("/")[2]) is None:
        return False
    if path_glob is not None and not path_glob.matches(uri):
        return False
    allowed = () if options.read_hidden_files else [p for p in options.allowed_prefixes if uri.startswith(p)]
    return not allowed or not is_hidden(uri, allowed)


def is_chosen(modified: datetime | None, options: NotificationOptions, now: datetime | None = None) -> bool:
    """Whether the options choose the object by its time; one whose time nobody knows is read.

    `now` is by the clock that says when objects were modified; that of this machine if None.
    """
    if modified is None:
        return True
    if options.modified_after is not None and modified <= options.modified_after:
        return False
    if options.modified_before is not None and modified >= options.modified_before:
        return False
    age = options.max_file_age
    return age is None or (now or datetime.now(timezone.utc)) - modified <= age


class _OutsidePrefixes(MalformedNotification):
    """A notification that is understood, of an object outside of the allowed prefixes."""


def _check_place(uri: str, options: NotificationOptions) -> None:
    """Before anybody asks a store for it."""
    if climbs(uri):
        raise MalformedNotification(
            f"{uri[:300]!r} has a segment '.' or '..', by which another object would be read; rename the object"
        )
    if not uri.startswith(options.allowed_prefixes):
        raise _OutsidePrefixes(
            f"{uri[:300]!r} starts with none of the allowed prefixes, {_shown(options.allowed_prefixes)}; name its "
            "prefix in option 'allowedPrefixes', start the query again, and send the message once more with "
            f"`cuesqueue errors requeue --cause {OUTSIDE_PREFIXES}`"
        )


def _shown(prefixes: Sequence[str]) -> str:
    """The first ones, as long as a line may be."""
    more = f" and {len(prefixes) - _PREFIXES} more" if len(prefixes) > _PREFIXES else ""
    return " ".join(prefix[:100] for prefix in prefixes[:_PREFIXES]) + more


def _content(
    notice: ObjectNotice,
    size: int | None,
    modified: datetime | None,
    message: Received,
    options: NotificationOptions,
) -> Content:
    identity = notice.uri
    version = notice.version or notice.etag or message.headers.get(OBJECT_VERSION)
    if options.allow_overwrites and version is not None:
        identity = f"{notice.uri}#{version}"
    happened = None if notice.event_time is None else micros(notice.event_time)
    reference = None
    if options.by_reference:
        written = None if modified is None else micros(modified)
        reference = Reference(notice.version, written, happened, message.tag)
    sent_at = happened if message.sent_at is None else round(message.sent_at * 1_000_000)
    return Content(
        identity,
        notice.uri,
        size,
        notice.etag,
        queue=message.queue,
        message_id=message.message_id,
        receive_count=message.receive_count,
        group=message.group,
        sequence=notice.sequence,
        named=message.has_id,
        reference=reference,
        sent_at=sent_at,
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


def _stated(
    parsed: Sequence[_Parsed], options: NotificationOptions, stat: Stat, in_pieces: InPieces
) -> dict[str, Stated]:
    """Ask once for what the notifications omit: sizes, by which tasks and `maxBytesPerTrigger` go, times, versions."""
    times = options.chooses_by_time
    unknown = list(
        {
            notice.uri: None
            for one in parsed
            for notice in one.notices
            if notice.size is None
            or (times and notice.modified is None)
            or (notice.etag is None and in_pieces(notice.uri, notice.size))
        }
    )
    if not unknown:
        return {}
    return {uri: stated for uri, stated in zip(unknown, stat(unknown), strict=True) if stated is not None}
