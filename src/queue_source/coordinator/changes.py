"""Refusing options that are others than those with which unfinished work was begun, before anything is done.

Which options these are is declared with each of them (`Option.on_change`); the store keeps those of the last start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from queue_source.errors import OptionError
from queue_source.messages import MESSAGE_URI
from queue_source.options import ReaderOptions
from queue_source.options.content import ContentKind
from queue_source.options.places import WHILE_PARTLY_READ, WHILE_UNFINISHED
from shard_store.batches.starting import Started
from shard_store.model import BEGINNING, Content, Position, is_end

_SHOWN = 300  # characters of an id: senders of messages choose them


class _Left(NamedTuple):
    """What a reader before left unfinished: `planned` is what a batch holds, `in_part` what is published in part."""

    content: Content
    planned: bool
    in_part: bool


def refuse_changes(options: ReaderOptions, started: Started) -> None:
    """Raise OptionError, with what to do, where what is left could not be finished as it was begun."""
    left = list(_left(options, started))
    if not left:
        return
    if started.settings is None:
        _compare_with_contents(options, left, had_versions=started.names.had_versions)
        return
    changed = {name: was for name, was in started.settings.items() if options.settings.get(name, was) != was}
    for name in WHILE_UNFINISHED:
        if name in changed:
            raise _refusal(name, changed[name], options.settings[name], left)
    in_part = [one for one in left if one.in_part]
    for name in WHILE_PARTLY_READ:
        if name in changed and in_part:
            raise _refusal(name, changed[name], options.settings[name], in_part, ", of which a part is published")
    if "allowedPrefixes" in changed and options.content.kind.is_announced:
        _check_prefixes(options, [one.content for one in left])


def _left(options: ReaderOptions, started: Started) -> Iterator[_Left]:
    """Ours, in a batch or not, unless an operator gave it up.

    What the store keeps no shards of, or calls done by now, is in batches alone.
    """
    ranges = [entry for snapshot in started.unconfirmed for entry in snapshot.ranges]
    planned = {entry.key for entry in ranges}
    cut = {entry.key for entry in ranges if _in_part(entry.start) or not is_end(entry.end)}
    ours = {shard.key for shard in started.unfinished}
    for shard in started.unfinished:
        if shard.key not in started.given_up:
            yield _Left(shard.content, shard.key in planned, _in_part(shard.position) or shard.key in cut)
    if options.delivery.delivery_semantics != "exactly-once":
        for entry in ranges:
            if entry.key not in ours:
                yield _Left(entry.content, True, entry.key in cut)


def _in_part(position: Position) -> bool:
    return position != BEGINNING


def _compare_with_contents(options: ReaderOptions, left: Iterable[_Left], *, had_versions: bool) -> None:
    """Where a version before 0.3 has left it, which recorded no options: what is left tells some of them.

    `had_versions`: a later version ran before that one, with `allowOverwrites`. Then an ETag that is not part of the id
    is one that the driver asked for, and not an announced one.
    """
    kind = options.content.kind
    versions = options.notifications.allow_overwrites
    for one in left:
        content = one.content
        if (content.uri == MESSAGE_URI) is kind.is_announced:
            was = ContentKind.MESSAGE if kind.is_announced else ContentKind.OBJECT
            raise _refusal("content", was.value, kind.value, [one])
        if not kind.is_announced:
            continue
        if (one.planned or one.in_part) and (content.reference is not None) is kind.is_read:
            was = ContentKind.REFERENCE if kind.is_read else ContentKind.OBJECT
            raise _refusal("content", was.value, kind.value, [one])
        named = content.shard_id != content.uri
        if options.delivery.delivery_semantics == "exactly-once" and (
            (named and not versions) or (versions and not named and content.etag is not None and not had_versions)
        ):
            raise _refusal("allowOverwrites", *(("true", "false") if named else ("false", "true")), [one])


def _check_prefixes(options: ReaderOptions, contents: Iterable[Content]) -> None:
    allowed = options.notifications.allowed_prefixes
    outside = [content.uri for content in contents if not content.uri.startswith(allowed)]
    if outside:
        raise OptionError(
            "allowedPrefixes",
            f"allows {len(outside):,} unfinished object(s) no longer, such as {outside[0][:_SHOWN]!r}; run the query "
            "with the prefixes that it had until nothing is left (trigger availableNow), or give these objects up with "
            "cuesqueue shards quarantine",
        )


def _refusal(name: str, was: str, now: str, left: list[_Left], why: str = "") -> OptionError:
    return OptionError(
        name,
        f"was {was or 'not given'!r} and is {now or 'not given'!r}, and {len(left):,} object(s) or message(s) are not "
        f"finished{why}, such as {left[0].content.shard_id[:_SHOWN]!r}; run the query with {was or 'none'!r} until "
        f"nothing is left (trigger availableNow), and then with {now or 'none'!r}; or give the new query another "
        "'pipeline'",
    )
