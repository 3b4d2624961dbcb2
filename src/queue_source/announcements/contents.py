"""Turns messages, and listings, into the contents that they announce: parsing, prefixes, identities.

Pure, except for requested sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import quote_plus

from queue_source.announcements.facts import InPieces, Stat, Stated, content_of, lacks_facts, with_facts
from queue_source.announcements.parser import JsonPaths, parse_notification
from queue_source.common.globs import is_hidden
from queue_source.errors import MalformedNotification
from queue_source.messages import (
    MESSAGE_URI,
    REPUBLISH_COUNT,
    ListedObject,
    ObjectNotice,
    Outgoing,
    Received,
    kept_message,
)
from queue_source.options import NotificationOptions
from queue_source.tags import matches_any
from queue_source.uris import climbs
from shard_store.model import LISTING, Content, ErrorRecord, Payload, micros
from shard_store.redaction import redact_url

_PREFIXES = 3  # prefixes in an error


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
    """The result for one message: contents to open, or an `error`, or neither (nothing to read).

    `ignored` counts those of its records that announce nothing to read, `foreign` the objects of others. `left_out` are
    objects that the options do not choose by their time: read only if that has begun.
    """

    message: Received
    contents: tuple[Content, ...] = ()
    error: ErrorRecord | None = None
    ignored: int = 0
    foreign: int = 0
    left_out: tuple[Content, ...] = ()


class _Parsed(NamedTuple):
    """The content of a message before the store was asked: objects chosen by their names, or an error."""

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
    """Parse the objects of every message. A message with any invalid part is an error as a whole (invariant 8).

    `now` is the time from which ages are counted, that of this machine if None. The store is asked for what is read
    `in_pieces` without an announced ETag too, so that all pieces are of one version.
    """
    paths = None
    if options.notification_format == "json":
        paths = JsonPaths(options.bucket_path, options.key_path, options.uri_path)
    parsed = [_parsed(message, options, paths) for message in messages]
    stated = _stated(parsed, options, stat, in_pieces)
    return [_announced(parsed_message, stated, options, now) for parsed_message in parsed]


def announced_messages(
    messages: Sequence[Received], options: NotificationOptions, queue_names: Mapping[str, str] = _AS_CONFIGURED
) -> list[Announced]:
    """Build the contents of messages that are the content (`content=message`): one shard each.

    Its id is its queue and its message key. `queue_names`: what a queue is called in ids, by its name: the source's
    own, however the queue is written.
    """
    return [_message_of(message, options, queue_names) for message in messages]


def with_separate_shards(announced: Announced, queue_names: Mapping[str, str]) -> Announced:
    """Make the announcements of two messages two shards, even of one object, for at-least-once.

    Without rows in the store only chance would detect the repetition: while both are in flight, and not afterwards.
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
        announcement = parse_notification(message.body, message.headers, options.notification_format, paths)
        objects = [_rewritten(notice, options.path_rewrites) for notice in announcement.objects]
        ours = [notice for notice in objects if not _is_left_to_others(notice.uri, options)]
        _check_number(len(ours), options)
        chosen = tuple(notice for notice in ours if is_wanted(notice.uri, options))
        for notice in chosen:
            _check_place(notice.uri, options)
    except MalformedNotification as error:
        cause = OUTSIDE_PREFIXES if isinstance(error, _OutsidePrefixes) else "malformed-message"
        return _Parsed(message, error=message_error(message, cause, str(error)))
    ignored, foreign = announcement.ignored + len(ours) - len(chosen), len(objects) - len(ours)
    return _Parsed(message, chosen, ignored=ignored, foreign=foreign)


def _announced(
    parsed: _Parsed,
    stated_facts: Mapping[str, Stated],
    options: NotificationOptions,
    now: datetime | None,
) -> Announced:
    """Complete the parsed message."""
    by_time, message = options.chooses_by_time, parsed.message
    contents: list[Content] = []
    left_out: list[Content] = []
    for notice in parsed.notices:
        if (stated := stated_facts.get(notice.uri)) is not None and notice.modified is None:
            notice = replace(notice, modified=stated.modified)
        happened = None if notice.event_time is None else micros(notice.event_time)
        content = content_of(
            notice,
            options,
            version=message.headers.get(OBJECT_VERSION),
            tag=message.tag,
            queue=message.queue,
            message_id=message.message_id,
            receive_count=message.receive_count,
            group=message.group,
            named=message.has_id,
            sent_at=happened if message.sent_at is None else round(message.sent_at * 1_000_000),
        )
        content = with_facts(content, stated)
        (contents if not by_time or is_chosen(notice.modified, options, now) else left_out).append(content)
    kinds = tuple(contents), parsed.error, parsed.ignored, parsed.foreign, tuple(left_out)
    return Announced(parsed.message, *kinds)


def _message_of(message: Received, options: NotificationOptions, queue_names: Mapping[str, str]) -> Announced:
    if not _tag_matches(message, options):
        return Announced(message, ignored=1)
    if not message.has_id and options.message_identity == "required":
        return Announced(message, error=message_error(message, "no-message-id", _NO_ID))
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


def _rewritten(notice: ObjectNotice, rewrites: Sequence[tuple[str, str]]) -> ObjectNotice:
    """Return the notice of the object where it is read.

    The store there has ETags of its own: the announced one is left to distinguish versions.
    """
    scheme = notice.uri.partition("://")[0]
    for prefix, target in rewrites:
        start = prefix if "://" in prefix else f"{scheme}://{prefix}"
        if notice.uri.startswith(start):
            uri = target + notice.uri.removeprefix(start)
            if uri.startswith(f"{scheme}://"):
                return replace(notice, uri=uri)
            return replace(notice, uri=uri, etag=None, version=notice.version or notice.etag)
    return notice


def _check_number(objects: int, options: NotificationOptions) -> None:
    """Refuse too many objects in one message.

    A message takes room in the store and in memory for all of them until the last is read.
    """
    if objects > options.max_objects_per_message:
        raise MalformedNotification(
            f"it announces {objects:,} objects, and option 'maxObjectsPerMessage' allows "
            f"{options.max_objects_per_message:,}; raise it, or announce fewer objects in each message"
        )


def _is_left_to_others(uri: str, options: NotificationOptions) -> bool:
    """Tell whether the object is another pipeline's. A path that climbs might lead back to our prefixes: an error."""
    ignores = options.on_foreign_object == "ignore"
    return ignores and not uri.startswith(options.allowed_prefixes) and not climbs(uri)


def is_allowed(uri: str, options: NotificationOptions) -> bool:
    """Tell whether the object may be read at all: within `allowedPrefixes`, by a path that leads nowhere else."""
    return uri.startswith(options.allowed_prefixes) and not climbs(uri)


def is_wanted(uri: str, options: NotificationOptions) -> bool:
    """Tell whether the options choose the object by its name."""
    glob, path_glob = options.path_glob_filter, options.full_path_glob_filter
    if glob is not None and glob.fullmatch(uri.rpartition("/")[2]) is None:
        return False
    if path_glob is not None and not path_glob.matches(uri):
        return False
    allowed = () if options.read_hidden_files else [p for p in options.allowed_prefixes if uri.startswith(p)]
    return not allowed or not is_hidden(uri, allowed)


def is_chosen(modified: datetime | None, options: NotificationOptions, now: datetime | None = None) -> bool:
    """Tell whether the options choose the object by its time; one of unknown time is read.

    `now` is by the clock of the modification times; that of this machine if None.
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
    """A valid notification of an object outside of the allowed prefixes."""


def _check_place(uri: str, options: NotificationOptions) -> None:
    """Check the place of the object, before any store is asked for it."""
    redacted = redact_url(uri)[:300]  # a signed URL holds its token
    if climbs(uri):
        raise MalformedNotification(
            f"{redacted!r} has a segment '.' or '..', by which another object would be read; rename the object"
        )
    if not uri.startswith(options.allowed_prefixes):
        raise _OutsidePrefixes(
            f"{redacted!r} starts with none of the allowed prefixes, {_first_of(options.allowed_prefixes)}; name its "
            "prefix in option 'allowedPrefixes', start the query again, and send the message once more with "
            f"`cuesqueue errors requeue --cause {OUTSIDE_PREFIXES}`"
        )


def _first_of(prefixes: Sequence[str]) -> str:
    """List the first prefixes, in one line of bounded length."""
    more = f" and {len(prefixes) - _PREFIXES} more" if len(prefixes) > _PREFIXES else ""
    return " ".join(prefix[:100] for prefix in prefixes[:_PREFIXES]) + more


def message_error(message: Received, cause: str, detail: str) -> ErrorRecord:
    """Return the error of a message as a whole, with what is needed to send it once more."""
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
    """Ask the store once for facts that notifications lack: sizes (`maxBytesPerTrigger` needs them), times, ETags."""
    times = options.chooses_by_time
    unknown = list(
        {
            notice.uri: None
            for parsed_message in parsed
            for notice in parsed_message.notices
            if (times and notice.modified is None) or lacks_facts(notice.uri, notice.size, notice.etag, in_pieces)
        }
    )
    if not unknown:
        return {}
    return {uri: stated for uri, stated in zip(unknown, stat(unknown), strict=True) if stated is not None}


def listed_contents(
    objects: Iterable[ListedObject],
    options: NotificationOptions,
    now: datetime | None = None,
    *,
    whatever_time: bool = False,
) -> list[Content | None]:
    """Return the content of each object; None for one that is left out, as it would be if it were announced.

    The message's id identifies the listed version: so a listing opens a quarantined shard again once for
    each version of its object. Ages are counted from `now`, by the clock of the listing; if None, from the time of this
    machine. `whatever_time`: also objects that only their time excludes.
    """
    return [
        _content(listed, options) if whatever_time or is_chosen(listed.modified, options, now) else None
        for listed in objects
    ]


def _content(listed: ListedObject, options: NotificationOptions) -> Content | None:
    uri = listed.uri
    if listed.size == 0 and uri.endswith("/"):  # the empty objects that represent folders
        return None
    if not uri.startswith(options.allowed_prefixes) or climbs(uri) or not is_wanted(uri, options):
        return None
    seen = listed.version or listed.etag or listed.modified.astimezone(timezone.utc).isoformat()
    notice = ObjectNotice(uri, listed.size, listed.etag, listed.version, modified=listed.modified)
    return content_of(notice, options, queue=LISTING, message_id=f"listed {seen}")


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
