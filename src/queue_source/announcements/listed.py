"""Turns the objects of a listing into the contents that a notification of each would have announced. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from queue_source.announcements.contents import is_chosen, is_wanted
from queue_source.messages import ListedObject
from queue_source.options import NotificationOptions
from queue_source.uris import climbs
from shard_store.model import LISTING, Content, Reference, micros


def listed_contents(
    objects: Iterable[ListedObject],
    options: NotificationOptions,
    now: datetime | None = None,
    *,
    whatever_time: bool = False,
) -> list[Content | None]:
    """Return the content of each object; None for one that is left out, as it would be if it were announced.

    With `allowOverwrites` the identity is that of a notification: the object's version where its bucket keeps versions,
    else its ETag. The message's id identifies the listed version: so a listing opens a quarantined shard again once for
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
    version = listed.version or listed.etag
    identity = f"{uri}#{version}" if options.allow_overwrites and version is not None else uri
    seen = version or listed.modified.astimezone(timezone.utc).isoformat()
    reference = Reference(listed.version, micros(listed.modified)) if options.by_reference else None
    return Content(
        identity, uri, listed.size, listed.etag, LISTING, f"listed {seen}", receive_count=1, reference=reference
    )
