"""The facts about an object (size, version, time, order), whichever way it comes in: one constructor (invariant 14).

A message, a listing, a route and an operator's word each say a part of them; a look-up at the object's store says the
rest. What was announced takes precedence: the object may have been replaced since. Pure, except for look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from queue_source.announcements.dialects import Dialect
from queue_source.messages import ObjectNotice
from queue_source.options import NotificationOptions
from shard_store import model
from shard_store.model import Content, Reference, micros


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

    With `allowOverwrites` the identity has the object's version where its bucket keeps versions, else its ETag, else
    `version`.
    """
    version = notice.version or notice.etag or version
    identity = f"{notice.uri}#{version}" if options.allow_overwrites and version is not None else notice.uri
    reference = None
    if options.by_reference:
        modified, happened = (None if at is None else micros(at) for at in (notice.modified, notice.event_time))
        reference = Reference(notice.version, modified, happened, tag)
    facts: dict[str, Any] = {"size": notice.size, "etag": notice.etag, "sequence": notice.sequence}
    return Content(identity, notice.uri, **facts, reference=reference, **delivery)


def lacks_facts(uri: str, size: int | None, etag: str | None, in_pieces: InPieces) -> bool:
    """Tell whether the store is to be asked: plans need an object's size, and its pieces have to be of one version."""
    return size is None or (etag is None and in_pieces(uri, size))


def with_facts(content: Content, stated: Stated | None) -> Content:
    """Return the content with what a look-up has found: all attempts and pieces read the version that it met.

    A reference is not read: it keeps the ETag that was announced, or none.
    """
    if stated is None:
        return content
    size, etag = stated.size if content.size is None else content.size, content.etag
    if content.reference is None and size == stated.size:
        etag = etag or stated.etag
    return content._replace(size=size, etag=etag)


def looked_up(contents: Sequence[Content], stat: Stat, in_pieces: InPieces) -> Sequence[Content]:
    """Return the contents with the facts that they lack, for which the store is asked once."""
    unknown = list({c.uri: None for c in contents if lacks_facts(c.uri, c.size, c.etag, in_pieces)})
    if not unknown:
        return contents
    stated = dict(zip(unknown, stat(unknown), strict=True))
    return [with_facts(c, stated.get(c.uri)) for c in contents]


_HEXADECIMAL = re.compile("[0-9A-Fa-f]{1,60}")
_NUMBER = re.compile("[0-9]{1,20}")


def sequence_of(dialect: Dialect, record: Mapping[str, object], item: Mapping[str, object]) -> str | None:
    """Return text that is greater for the later notification; only texts with the same first letter can be compared."""
    if dialect.sequencer is not None and _HEXADECIMAL.fullmatch(text := _text(item, dialect.sequencer)):
        # AWS: pad the shorter one with zeros at its right end; the same as leaving them out
        return "s" + text.upper().rstrip("0")
    if dialect.generation is not None and _NUMBER.fullmatch(text := _text(item, dialect.generation)):
        return "g" + text.zfill(20)
    micros = None if dialect.time is None else _micros(_text(record, dialect.time))
    return None if micros is None else f"t{micros:020d}"


def time_of(record: Mapping[str, object], name: str | None) -> datetime | None:
    """Return the time (aware, UTC) that the record has under this name; None where it has none."""
    micros = None if name is None else _micros(_text(record, name))
    # senders without a time write 1970
    return model.time_of(micros) if micros else None


def _text(parent: Mapping[str, object], name: str) -> str:
    value = parent.get(name)
    return value if isinstance(value, str) else ""


def _micros(text: str) -> int | None:
    """Parse microseconds since 1970 UTC; digits beyond them are cut off."""
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if parts is None:
        return None
    try:
        time = datetime.fromisoformat(parts[1] + parts[3].replace("Z", "+00:00"))
    except ValueError:
        return None
    seconds = int((time - model.EPOCH).total_seconds())
    return max(seconds * 1_000_000 + int((parts[2] or "").ljust(6, "0")[:6]), 0)
