"""Turns the objects of a listing into the contents that a notification of each would have announced. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from queue_source.announcements.contents import is_chosen, is_wanted
from queue_source.announcements.facts import content_of
from queue_source.messages import ListedObject, ObjectNotice
from queue_source.options import NotificationOptions
from queue_source.uris import climbs
from shard_store.model import LISTING, Content


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
