"""Turns messages, and listings, into the contents that they announce: parsing, prefixes, identities, facts.

The facts about an object (size, version, time, order) are the same whichever way it comes in: one constructor. A
message, a listing, a route and an operator's word each say a part of them; a look-up at the object's store says the
rest. What was announced takes precedence: the object may have been replaced since. Pure, except for look-ups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote_plus

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
from queue_source.uris import climbs, is_text, written_uri
from shard_store.model import LISTING, Content, ErrorRecord, Payload, Reference, micros
from shard_store.redaction import redact_url


class Stated(Protocol):
    """The facts that a store reports of an object.

    Its size in bytes; its time (aware) and its ETag, where the store has them.
    """

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


def content_of(
    notice: ObjectNotice,
    options: NotificationOptions,
    *,
    version: str | None = None,
    tag: str | None = None,
    **delivery: Any,
) -> Content:
    """Return the content that an object is read as. `delivery`: the fields of `Content` about what has announced it.

    With `allowOverwrites` the identity has `version`, else the object's version where its bucket keeps versions, else
    its ETag.
    """
    version = version or notice.version or notice.etag
    identity = f"{notice.uri}#{version}" if options.allow_overwrites and version is not None else notice.uri
    reference = None
    if options.by_reference:
        modified, happened = (None if at is None else micros(at) for at in (notice.modified, notice.event_time))
        reference = Reference(notice.version, modified, happened, tag)
    facts: dict[str, Any] = {"size": notice.size, "etag": notice.etag, "sequence": notice.sequence}
    return Content(identity, notice.uri, **facts, reference=reference, **delivery)


def lacks_facts(uri: str, size: int | None, etag: str | None, in_pieces: InPieces, *, sizes: bool) -> bool:
    """Tell whether the store is to be asked: plans need `sizes`, and the pieces of an object have to be of one version.

    Without `sizes` the caller decides which of the objects of unknown size are looked up.
    """
    return sizes if size is None else etag is None and in_pieces(uri, size)


def with_facts(content: Content, stated: Stated | None) -> Content:
    """Return the content with what a look-up has found: all attempts and pieces read the version that it met.

    A reference is not read: it keeps the ETag that was announced, or none.
    """
    if stated is None:
        return content
    size, etag = stated.size if content.size is None else content.size, content.etag
    if content.reference is None and size == stated.size:
        etag = etag or stated.etag
    if (size, etag) == content[2:4]:
        return content
    return content._replace(size=size, etag=etag, announced=content.announced or content[2:4])


def looked_up(contents: Sequence[Content], stat: Stat, in_pieces: InPieces, *, sizes: bool = True) -> Sequence[Content]:
    """Return the contents with the facts that they lack, for which the store is asked once."""
    unknown = list({c.uri: None for c in contents if lacks_facts(c.uri, c.size, c.etag, in_pieces, sizes=sizes)})
    if not unknown:
        return contents
    stated = dict(zip(unknown, stat(unknown), strict=True))
    return [with_facts(c, stated.get(c.uri)) for c in contents]


_PREFIXES = 3  # prefixes in an error


_NO_ID = (
    "the message has no id of its own, so a second delivery cannot be distinguished from a second message that is "
    "equal; let its sender set one (AMQP: the property message_id), or set option 'messageIdentity' to content to take "
    "equal ones for one"
)

_HALF = "its id, its tag or one of its headers holds half a character (a lone surrogate), which no row can"


OUTSIDE_PREFIXES = "outside-prefixes"
"""The cause of a message that announces an object outside of `allowedPrefixes`: it is well formed, and may be ours."""

_AS_CONFIGURED: Mapping[str, str] = {}

OBJECT_VERSION = "Object-Version"
"""Header of a message that announces an object anew: the part of its identity that its URI has not."""

_OBJECT_SIZE, _OBJECT_ETAG = "Object-Size", "Object-ETag"
"""Headers beside it: the facts of that version. The store may forget them while the message is on its way (`cuesqueue
reset`), and by then the object of that name may be a newer version, which has an announcement of its own.
"""


def version_headers(version: str, size: int | None = None, etag: str | None = None) -> dict[str, str]:
    """Build the headers of a message that announces this version of an object."""
    facts = {OBJECT_VERSION: version, _OBJECT_SIZE: size, _OBJECT_ETAG: etag}
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


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


def announced_objects(
    messages: Sequence[Received],
    options: NotificationOptions,
    stat: Stat,
    now: datetime | None = None,
    in_pieces: InPieces = lambda uri, size: False,
    *,
    sizes: bool = True,
) -> list[Announced]:
    """Parse the objects of every message. A message with any invalid part is an error as a whole (invariant 8).

    `now` is the time from which ages are counted, that of this machine if None. The store is asked for what is read
    `in_pieces` without an announced ETag too, so that all pieces are of one version. `sizes`: see `lacks_facts`.
    """
    paths = None
    if options.notification_format == "json":
        paths = JsonPaths(options.bucket_path, options.key_path, options.uri_path)
    parsed = [_parsed(message, options, paths) for message in messages]
    # the store is asked once for what notifications lack: sizes (`maxBytesPerTrigger` needs them), times, ETags
    by_time = options.chooses_by_time
    unknown = {
        notice.uri: None
        for _, notices in parsed
        for notice in notices
        if (by_time and notice.modified is None)
        or lacks_facts(notice.uri, notice.size, notice.etag, in_pieces, sizes=sizes)
    }
    stated = dict(zip(unknown, stat(list(unknown)) if unknown else (), strict=True))
    return [_with_contents(announced, notices, stated, options, now) for announced, notices in parsed]


def announced_messages(
    messages: Sequence[Received], options: NotificationOptions, queue_names: Mapping[str, str] = _AS_CONFIGURED
) -> list[Announced]:
    """Build the contents of messages that are the content (`content=message`): one shard each.

    Its id is its queue and its message key. `queue_names`: what a queue is called in ids, by its name: the source's
    own, however the queue is written.
    """

    def announced(message: Received) -> Announced:
        if not _tag_matches(message, options):
            return Announced(message, ignored=1)
        if not message.has_id and options.message_identity == "required":
            return Announced(message, error=message_error(message, "no-message-id", _NO_ID))
        if not is_text("".join([message.message_id, message.tag, *chain(*message.headers.items())])):
            return Announced(message, error=message_error(message, "malformed-message", _HALF))
        count = message.headers.get(REPUBLISH_COUNT)
        key = message.message_id if count is None else f"{message.message_id}#{count}"
        content = Content(
            f"{queue_names.get(message.queue, message.queue)}#{key}",
            MESSAGE_URI,
            len(message.body),
            None,
            message.queue,
            message.message_id,
            message.receive_count,
            message.group,
            Payload(message.body, key, message.tag, tuple(message.headers.items()), message.sent_at),
            named=message.has_id,
            sent_at=None if message.sent_at is None else round(message.sent_at * 1_000_000),
        )
        return Announced(message, (content,))

    return [announced(message) for message in messages]


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


def _parsed(
    message: Received, options: NotificationOptions, paths: JsonPaths | None
) -> tuple[Announced, Sequence[ObjectNotice]]:
    """Parse a message as far as the store need not be asked: objects chosen by their names are still to be added."""
    if not _tag_matches(message, options):
        return Announced(message, ignored=1), ()
    try:
        announcement = parse_notification(message.body, message.headers, options.notification_format, paths)
        trusted = (_trusted(notice, options.trust_notification) for notice in announcement.objects)
        objects = [_rewritten(notice, options.path_rewrites) for notice in trusted]
        if options.allow_overwrites and OBJECT_VERSION in message.headers:
            objects = [_of_version(notice, message.headers) for notice in objects]
        ours = objects
        if options.on_foreign_object == "ignore":  # a path that climbs might lead back to our prefixes: an error
            allowed = options.allowed_prefixes
            ours = [notice for notice in objects if notice.uri.startswith(allowed) or climbs(notice.uri)]
        if len(ours) > options.max_objects_per_message:  # the message takes room for all until the last is read
            raise MalformedNotification(
                f"it announces {len(ours):,} objects, and option 'maxObjectsPerMessage' allows "
                f"{options.max_objects_per_message:,}; raise it, or announce fewer objects in each message"
            )
        chosen = [notice for notice in ours if is_wanted(notice.uri, options)]
        for notice in chosen:
            _check_place(notice.uri, options)
    except MalformedNotification as error:
        cause = OUTSIDE_PREFIXES if isinstance(error, _OutsidePrefixes) else "malformed-message"
        return Announced(message, error=message_error(message, cause, str(error))), ()
    ignored, foreign = announcement.ignored + len(ours) - len(chosen), len(objects) - len(ours)
    return Announced(message, ignored=ignored, foreign=foreign), chosen


def _with_contents(
    announced: Announced,
    notices: Sequence[ObjectNotice],
    stated_facts: Mapping[str, Stated | None],
    options: NotificationOptions,
    now: datetime | None,
) -> Announced:
    by_time, message = options.chooses_by_time, announced.message
    contents: list[Content] = []
    left_out: list[Content] = []
    for notice in notices:
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
    return announced._replace(contents=tuple(contents), left_out=tuple(left_out))


def _tag_matches(message: Received, options: NotificationOptions) -> bool:
    return options.tag_filter is None or matches_any(options.tag_filter, message.tag)


def _of_version(notice: ObjectNotice, headers: Mapping[str, str]) -> ObjectNotice:
    """Return the notice with the facts that our own store had of its version, whatever the options say of a service."""
    size, etag = headers.get(_OBJECT_SIZE), headers.get(_OBJECT_ETAG)
    if size is not None and not (size.isascii() and size.isdigit() and len(size) < 19):
        raise MalformedNotification(f"its header {_OBJECT_SIZE} is {size[:100]!r}, and must be a number of bytes")
    if not is_text(headers[OBJECT_VERSION] + (etag or "")):
        raise MalformedNotification(_HALF)
    return replace(notice, size=notice.size if size is None else int(size), etag=notice.etag if etag is None else etag)


def _trusted(notice: ObjectNotice, trust: str) -> ObjectNotice:
    """Return the notice without what the options do not believe; an ETag is left to distinguish versions."""
    if trust == "all":
        return notice
    version = notice.version or notice.etag
    if trust == "none":
        return replace(notice, size=None, modified=None, etag=None, version=version)
    return replace(notice, etag=None, version=version)


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


def is_refused(listed: ListedObject, options: NotificationOptions) -> bool:
    """Tell whether the options choose an object that no reader may ask for: its announcement is an error."""
    uri = listed.uri
    if listed.size == 0 and uri.endswith("/"):  # it represents a folder
        return False
    return climbs(uri) and is_chosen(listed.modified, options) and is_wanted(uri, options)


class _OutsidePrefixes(MalformedNotification):
    """A valid notification of an object outside of the allowed prefixes."""


def _check_place(uri: str, options: NotificationOptions) -> None:
    """Check the place of the object, before any store is asked for it."""
    redacted = redact_url(uri)[:300]  # a signed URL holds its token
    if climbs(uri):
        raise MalformedNotification(
            f"{redacted!r} has a segment '.' or '..', by which another object would be read; rename the object"
        )
    prefixes = options.allowed_prefixes
    if not uri.startswith(prefixes):
        more = f" and {len(prefixes) - _PREFIXES} more" if len(prefixes) > _PREFIXES else ""
        first = " ".join(prefix[:100] for prefix in prefixes[:_PREFIXES]) + more
        raise _OutsidePrefixes(
            f"{redacted!r} starts with none of the allowed prefixes, {first}; name its prefix in option "
            "'allowedPrefixes', start the query again, and send the message once more with `cuesqueue errors requeue "
            f"--cause {OUTSIDE_PREFIXES}`"
        )


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

    def content(listed: ListedObject) -> Content | None:
        uri = listed.uri
        if not (whatever_time or is_chosen(listed.modified, options, now)):
            return None
        if listed.size == 0 and uri.endswith("/"):  # the empty objects that represent folders
            return None
        if not is_allowed(uri, options) or not is_wanted(uri, options):
            return None
        seen = listed.version or listed.etag or listed.modified.astimezone(timezone.utc).isoformat()
        notice = ObjectNotice(uri, listed.size, listed.etag, listed.version, modified=listed.modified)
        return content_of(notice, options, queue=LISTING, message_id=f"listed {seen}")

    return [content(listed) for listed in objects]


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
        resource = {"kind": "storage#object", "bucket": bucket, "name": key, "size": str(listed.size)}
        resource |= {} if listed.etag is None else {"etag": listed.etag}
        resource |= {} if listed.version is None else {"generation": listed.version}
        return Outgoing(json.dumps({**resource, "updated": iso_time(listed.modified)}).encode())
    if any(ord(character) < 32 for character in listed.uri):
        return None
    version = listed.version or listed.etag
    headers = {} if version is None else version_headers(version)
    try:
        return Outgoing(written_uri(listed.uri).encode(), headers=headers)
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


def iso_time(time: datetime) -> str:
    """Format a time as Amazon does."""
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
